// A client of a server's TCP socket that blocks, perhaps after spinning. Only for comparison.

#pragma once

#include <cstdint>
#include <string>

#include "../datagram_client.h"
#include "../wire.h"

namespace hocket {

class StreamCaller {
 public:
  // `spin` is how long it polls for a reply before it sleeps. Throws std::runtime_error.
  StreamCaller(const std::string& host, uint16_t port, Clock::duration spin);
  ~StreamCaller();
  StreamCaller(const StreamCaller&) = delete;
  StreamCaller& operator=(const StreamCaller&) = delete;

  // Throws std::runtime_error if the server is gone.
  void call(const Header& header, const uint8_t* body, Reply& reply);

 private:
  void read(uint8_t* to, size_t bytes);

  int file_;
  Clock::duration spin_;
};

}  // namespace hocket
