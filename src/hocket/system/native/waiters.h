// Threads of ours, because XLA's own are few, and none of them may sleep in a call.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace hocket {

// Threads in which calls wait for their replicas: as many as ever waited at once. They last as long
// as the process.
class Waiters {
 public:
  void run(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size()) {
      std::thread([this] { work(); }).detach();
      ++idle_;
    } else {
      changed_.notify_one();
    }
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      --idle_;
      lock.unlock();
      task();
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

inline Waiters& waiters() {
  static Waiters& all = *new Waiters;
  return all;
}

}  // namespace hocket
