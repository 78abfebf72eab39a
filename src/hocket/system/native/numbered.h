// Objects that compiled programs know by their number in this process. None is ever moved or freed,
// because nothing says when the last program or thread has used it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hocket {

template <class T>
class Numbered {
 public:
  int add(std::unique_ptr<T> made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(std::move(made));
    return static_cast<int>(all_.size()) - 1;
  }

  T& operator[](int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return *all_[number];
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> all_;
};

}  // namespace hocket
