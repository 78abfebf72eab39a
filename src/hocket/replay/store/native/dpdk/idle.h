// Sleeping in programs that poll, and the signals that stop them.

#pragma once

#include <sched.h>
#include <time.h>

#include <chrono>
#include <csignal>

#include "../desk.h"
#include "flags.h"
#include "turns.h"

namespace hocket {

// After polling in vain for a while, yields the core and sleeps now and then. With fewer cores than
// programs that poll, a program that never sleeps would keep the others from answering.
class Idle {
 public:
  void add_to(Flags& flags) {
    flags.add("poll-us", "microseconds to poll with nothing to do before sleeping (200)", poll_us_);
    flags.add("sleep-us", "microseconds to sleep at a time then; 0 to poll for ever (50)", sleep_us_);
  }

  // To be called once in each round; `busy` says if there was work. Gives DPDK's drivers their
  // turn, and returns true if it is time to sleep.
  bool after(bool busy, Clock::time_point now) {
    if (busy) since_ = now;
    const auto idle = now - since_;
    give_turn(idle < std::chrono::milliseconds(1), now);
    if (!sleep_us_ || busy) return false;
    if (idle > std::chrono::microseconds(kAloneUs)) sched_yield();
    return idle > std::chrono::microseconds(poll_us_);
  }

  void sleep() const {
    const timespec time = {0, static_cast<long>(sleep_us_) * 1000};
    nanosleep(&time, nullptr);
  }

  uint64_t sleep_us() const { return sleep_us_; }

 private:
  static constexpr int kAloneUs = 4;

  uint64_t poll_us_ = 200, sleep_us_ = 50;
  Clock::time_point since_{};
};

// Set by SIGINT and SIGTERM, so that ports are closed and XDP programs are removed.
inline volatile std::sig_atomic_t stopping = 0;

inline void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stopping = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace hocket
