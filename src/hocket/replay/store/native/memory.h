// Memory that is zero at first, and takes up physical pages only where it is written.

#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace hocket {

class Memory {
 public:
  Memory() = default;
  explicit Memory(uint64_t bytes) : bytes_(bytes) {
    if (!bytes) return;
    void* found =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
             -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(found);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (data_) munmap(data_, bytes_);
  }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace hocket
