// A client of the server that is connected by a stream of bytes, over TCP or a Unix socket.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "desk.h"
#include "queue.h"
#include "region.h"

namespace hocket {

// The files that came over a Unix socket. Those that nobody takes are closed.
class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files();
  void add(int file);
  size_t size() const { return files_.size(); }
  int take();  // takes the oldest

 private:
  std::deque<int> files_;
};

class Stream {
 public:
  // Maps memory that the client wants to share. Returns what is wrong with it, or "".
  using Map = std::function<std::string(const Region&, int memory, int bell)>;

  // `map` is empty unless the socket can carry files.
  Stream(Desk& desk, int file, Map map);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int file() const { return file_; }
  bool has_more_to_send() const { return out_.size() > 0; }
  bool is_full() const;  // true if it takes no requests before it has sent replies
  size_t waiting() const { return parked_.size(); }
  uint64_t oldest() const { return parked_.front().pending.ticket; }  // of the requests that wait
  Clock::time_point ending_since() const { return ending_since_; }

  // These return false if the connection has to end.
  bool readable();
  bool writable();
  bool retry();  // tries the requests that wait again

  // Tells the client why, and ends the connection when that is sent.
  void turn_away(const std::string& why);

 private:
  struct Parked {
    Header header;
    std::vector<uint8_t> body;
    Pending pending;
  };
  class Room;

  int64_t receive(uint8_t* to, uint64_t bytes);
  uint64_t missing();
  void answer_all();
  void answer(const Header& header, const uint8_t* body);
  void park(const Header& header, const uint8_t* body, Pending pending);
  void cancel(uint64_t request);
  bool flush();
  void end();

  Desk& desk_;
  int file_;
  Map map_;
  Files files_;
  Queue in_, out_;
  uint64_t discard_ = 0;
  std::deque<Parked> parked_;
  bool ending_ = false, is_shut_ = false;
  Clock::time_point ending_since_ = Clock::time_point::max();
};

}  // namespace hocket
