// A client of the server that asks through shared memory.

#pragma once

#include <deque>
#include <memory>
#include <string>

#include "desk.h"
#include "region.h"

namespace hocket {

class Mapped {
 public:
  // Takes ownership of both files. Throws std::runtime_error if something is wrong with them.
  Mapped(Desk& desk, const Region& region, int memory, int bell);
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  int bell() const { return bell_; }
  size_t waiting() const { return parked_.size(); }
  uint64_t oldest() const { return parked_.front().pending.ticket; }  // of the requests that wait

  // Answers the next request. Returns false if there is none.
  bool poll();
  bool has_request() const;
  void retry();  // tries the requests that wait again

  // Tells the client if it has to ring the bell from now on.
  void sleep(bool asleep) { head()->asleep.store(asleep, std::memory_order_seq_cst); }

 private:
  struct Parked {
    uint32_t slot;
    Header header;
    Pending pending;
  };
  class Room;

  RegionHead* head() const { return static_cast<RegionHead*>(base_); }
  bool answer(Parked& parked);
  void finish(uint32_t slot);

  Desk& desk_;
  Region region_;
  int bell_;
  void* base_ = nullptr;
  uint64_t tail_ = 0;
  uint64_t taken_ = 0;  // a bit for each slot with a request that is not answered yet
  std::deque<Parked> parked_;
};

}  // namespace hocket
