// The pump: one thread of a process, which moves the bytes of streams over TCP that no other thread
// is moving, and sends credits that are due (`tcp.cpp`). It sleeps as long as there is nothing to do.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <csignal>
#include <thread>
#include <unordered_map>

#include "tcp_end.h"

namespace hocket::tcp {

constexpr int64_t kTurnBytes = 1 << 20;  // what the pump moves before it is the next link's turn
// A credit for a small message costs as much as the message. So it is sent when the thread has
// nothing more urgent to do, which is before it waits and after it has sent; at the latest, the
// pump sends it after this time.
constexpr int64_t kCreditNs = 300'000;

class Pump {
 public:
  // Have the pump wait for what it is to do for this end. The caller holds `io`.
  void update(const Handle& handle) {
    End& end = *handle;
    const uint32_t wanted = wants(end);
    if (wanted == end.events || !end.connected()) return;
    epoll_event event{};
    // One event a call: the pump asks again when it is done, or leaves it to the reader.
    event.events = wanted | EPOLLONESHOT;
    event.data.ptr = &end;
    if (!end.registered) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (poll_ < 0) start();
      ends_[&end] = handle;
    }
    epoll_ctl(poll_, end.registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, end.fd, &event);
    end.registered = true;
    end.events = wanted;
  }

  // Send the credits of a reader soon. No lock is held.
  void owe(const Handle& handle) {
    const std::lock_guard<std::mutex> lock(owing_mutex_);
    if (timer_ < 0) {
      timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
      const std::lock_guard<std::mutex> ends(mutex_);
      if (poll_ < 0) start();
      epoll_event event{};
      event.events = EPOLLIN;
      epoll_ctl(poll_, EPOLL_CTL_ADD, timer_, &event);
    }
    owing_.push_back(handle);
    is_owing_ = true;
    if (is_timed_) return;
    const itimerspec once{{0, 0}, {0, kCreditNs}};
    timerfd_settime(timer_, 0, &once, nullptr);
    is_timed_ = true;
  }

  // Send all credits that are owed. Called before every wait, so no thread waits while it owes one.
  void settle() {
    if (!is_owing_) return;
    std::vector<Handle> owing;
    {
      const std::lock_guard<std::mutex> lock(owing_mutex_);
      owing.swap(owing_);
      is_owing_ = false;
    }
    for (const Handle& handle : owing) pay(handle);
  }

  // Send the credits of one reader, and leave to the pump what the socket does not take.
  void pay(const Handle& handle) {
    give_credits(*handle);
    if (!handle->owed) return;
    // Not waiting for `io`, which a reader keeps while it sleeps.
    const std::unique_lock<std::mutex> lock(handle->io, std::try_to_lock);
    lock ? update(handle) : owe(handle);
  }

  // Have the pump forget an end, for good. The caller holds `io`.
  void forget(End& end) {
    if (!end.registered) return;
    epoll_ctl(poll_, EPOLL_CTL_DEL, end.fd, nullptr);
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_.erase(&end);
  }

 private:
  static uint32_t wants(const End& end) {
    if (end.ended()) return 0;
    const bool more = end.sends && end.moved < end.head.load(std::memory_order_acquire);
    if (end.sends) return more ? EPOLLOUT : 0u;
    return (end.pumped && !end.inside ? EPOLLIN : 0u) | (end.owed ? EPOLLOUT : 0u);
  }

  void start() {
    poll_ = epoll_create1(EPOLL_CLOEXEC);
    // Signals are for the thread that runs Python.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void run() {
    epoll_event events[64];
    while (true) {
      const int count = epoll_wait(poll_, events, 64, -1);
      for (int i = 0; i < count; ++i) {
        if (!events[i].data.ptr) {
          time_is_up();
        } else if (const Handle end = find(static_cast<End*>(events[i].data.ptr))) {
          serve(end);
        }
      }
    }
  }

  void time_is_up() {
    {
      const std::lock_guard<std::mutex> lock(owing_mutex_);
      uint64_t times;
      is_timed_ = read(timer_, &times, sizeof(times)) < 0;
    }
    settle();
  }

  Handle find(End* end) {  // an end may have been forgotten since its event
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ends_.find(end);
    return found == ends_.end() ? nullptr : found->second;
  }

  void serve(const Handle& handle) {
    End& end = *handle;
    const std::lock_guard<std::mutex> lock(end.io);
    end.events = 0;
    if (end.ended()) return;  // the slots may be gone
    if (end.owed) give_credits(end);
    if (!end.inside) move(end, kTurnBytes);
    update(handle);
  }

  std::mutex mutex_;  // taken after the `io` of an end, if both are
  std::unordered_map<End*, Handle> ends_;
  int poll_ = -1;

  std::mutex owing_mutex_;  // taken before `mutex_`, if both are
  std::vector<Handle> owing_;
  std::atomic<bool> is_owing_{false};
  bool is_timed_ = false;
  int timer_ = -1;
};

}  // namespace hocket::tcp
