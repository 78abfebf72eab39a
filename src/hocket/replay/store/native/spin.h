// How to look for something for a while before sleeping.

#pragma once

#include <sched.h>

#include <cstdint>

#include "../../../system/native/event.h"

namespace hocket {

constexpr int64_t kSpinNs = 50000;  // waking up takes about as long
constexpr int64_t kAloneNs = 4000;

// Whether `ready()` within so long. After a moment, whoever else wants this core has it first:
// perhaps it is the one that is waited for.
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
