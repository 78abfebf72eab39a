// Clients on this machine, whose requests a relay passes on.
//
// `Local` is what a relay knows of one; here it is a stream over a Unix socket, the same as that of
// a server (wire.h). Another carrier, such as shared memory, is another `Local`.

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
  // The next whole request, which stays where it is until this is called again. False if there is
  // none now.
  virtual bool next(Header& header, const uint8_t*& body) = 0;
  virtual void reply(const Reply& reply) = 0;
  // Whether it can take replies. If not, it is asked for no more requests.
  virtual bool has_room() const = 0;
  // Whether it is gone.
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
  // What is left of replies.
  void write();
  void hang_up() { over_ = true; }

 private:
  bool read(size_t bytes);
  void end(const std::string& why);

  int file_;
  uint64_t most_bytes_;
  bool over_ = false, ending_ = false;
  Bytes in_;
  size_t got_ = 0;       // bytes of the request that comes in
  bool given_ = false;  // that request was given to the relay
  std::vector<uint8_t> out_;
  size_t sent_ = 0;
};

// Where they connect.
class LocalListener {
 public:
  // A socket that nobody listens to any more is replaced. Throws std::runtime_error.
  explicit LocalListener(const std::string& path);
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  int file() const { return file_; }
  // The next one's file; -1 if there is none.
  int accept();

 private:
  std::string path_;
  int file_;
};

}  // namespace hocket
