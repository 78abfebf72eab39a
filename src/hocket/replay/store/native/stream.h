// A client that is connected by a stream of bytes: over TCP, or a Unix socket.

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

// What came with the bytes of a Unix socket, closed if nobody takes it.
class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files();
  void add(int file);
  size_t size() const { return files_.size(); }
  int take();  // the oldest

 private:
  std::deque<int> files_;
};

class Stream {
 public:
  // Takes memory that this client wants to share; what is wrong with it, or nothing.
  using Map = std::function<std::string(const Region&, int memory, int bell)>;

  // `map` only where files can be sent.
  Stream(Desk& desk, int file, Map map);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int file() const { return file_; }
  bool has_more_to_send() const { return out_.size() > 0; }
  bool is_full() const;  // takes no more requests until it could send
  size_t waiting() const { return parked_.size(); }
  uint64_t oldest() const { return parked_.front().pending.ticket; }  // of those that wait
  Clock::time_point ending_since() const { return ending_since_; }

  // These return whether the connection is to be kept.
  bool readable();
  bool writable();
  bool retry();  // what had to wait

  // Says why, and ends the connection once that was sent.
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
