// A queue of bytes, which come in at the end and go out at the front.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

namespace hocket {

class Queue {
 public:
  uint8_t* front() { return bytes_.get() + begin_; }
  uint64_t size() const { return end_ - begin_; }

  // Room for `more` bytes at the end. `add` says afterwards how many were written.
  uint8_t* room(uint64_t more) {
    if (begin_ == end_) begin_ = end_ = 0;
    if (end_ + more > capacity_) make_room(more);
    return bytes_.get() + end_;
  }
  void add(uint64_t bytes) { end_ += bytes; }
  void drop(uint64_t bytes) { begin_ += bytes; }

  // Frees the memory that a burst has taken.
  void shrink() {
    if (begin_ != end_ || capacity_ <= kKept) return;
    bytes_.reset();
    begin_ = end_ = capacity_ = 0;
  }

 private:
  static constexpr uint64_t kKept = uint64_t{64} << 20;

  void make_room(uint64_t more) {
    if (size() + more <= capacity_ && begin_ >= size()) {  // there is enough room at the front
      std::memcpy(bytes_.get(), front(), size());
    } else {
      const uint64_t capacity = std::max(size() + more, 2 * capacity_);
      std::unique_ptr<uint8_t[]> larger(new uint8_t[capacity]);  // not set to zero
      if (size()) std::memcpy(larger.get(), front(), size());
      bytes_ = std::move(larger);
      capacity_ = capacity;
    }
    end_ = size();
    begin_ = 0;
  }

  std::unique_ptr<uint8_t[]> bytes_;
  uint64_t begin_ = 0, end_ = 0, capacity_ = 0;
};

}  // namespace hocket
