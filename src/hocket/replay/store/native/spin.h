// Polling for a while before sleeping.

#pragma once

#include <sched.h>

#include <cstdint>

#include "../../../system/native/event.h"

namespace hocket {

constexpr int64_t kSpinNs = 50000;  // waking up takes about as long
constexpr int64_t kAloneNs = 4000;

// Polls `ready()` for a while, and returns false if it was never true. After a moment it yields the
// core to other threads between polls, since one of them may be what it waits for.
template <typename Ready>
bool spin(Ready ready, int64_t ns = kSpinNs) {
  const int64_t start = now_ns();
  while (true) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    const int64_t spent = now_ns() - start;
    if (spent > ns) return false;
    if (spent > kAloneNs) sched_yield();
  }
}

}  // namespace hocket
