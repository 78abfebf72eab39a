// Clients on this machine, whose requests a relay passes on.
//
// `Local` is the interface of such a client. Here it is a stream over a Unix socket, with the same
// messages as at a server (wire.h). Another carrier, such as shared memory, would be another
// `Local`.

#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../datagram_client.h"
#include "../wire.h"

namespace hocket {

class Local {
 public:
  virtual ~Local() = default;
  // Reads the next whole request. It stays where it is until the next call. Returns false if there
  // is none now.
  virtual bool next(Header& header, const uint8_t*& body) = 0;
  virtual void reply(const Reply& reply) = 0;
  // True if it can take replies. If not, no more requests are read from it.
  virtual bool has_room() const = 0;
  // True if the client is gone.
  virtual bool is_over() const = 0;
};

class LocalStream final : public Local {
 public:
  LocalStream(int file, uint64_t most_bytes) : file_(file), most_bytes_(most_bytes) {}
  ~LocalStream() override;
  LocalStream(const LocalStream&) = delete;
  LocalStream& operator=(const LocalStream&) = delete;

  bool next(Header& header, const uint8_t*& body) override;
  void reply(const Reply& reply) override;
  bool has_room() const override { return out_.size() == sent_; }
  bool is_over() const override { return over_ || (ending_ && has_room()); }

  int file() const { return file_; }
  // Writes the rest of the replies.
  void write();
  void hang_up() { over_ = true; }

 private:
  bool read(size_t bytes);
  void end(const std::string& why);

  int file_;
  uint64_t most_bytes_;
  bool over_ = false, ending_ = false;
  Bytes in_;
  size_t got_ = 0;       // the bytes of the current request that have come
  bool given_ = false;  // true if the relay has that request
  std::vector<uint8_t> out_;
  size_t sent_ = 0;
};

// The socket where local clients connect.
class LocalListener {
 public:
  // Replaces a socket whose listener is gone. Throws std::runtime_error.
  explicit LocalListener(const std::string& path);
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  int file() const { return file_; }
  // Returns the file of the next connection, or -1 if there is none.
  int accept();

 private:
  std::string path_;
  int file_;
};

}  // namespace hocket
