// An event in shared memory, by which one process waits for another: it spins for a while, then
// sleeps on a futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <unistd.h>
#endif

namespace hocket {

constexpr int kLine = 64;  // a cache line; values that two sides write lie on different ones

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{1000000000} * t.tv_sec + t.tv_nsec;
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class Wait { kReady, kTimeout };

// Zero bytes are a valid event. Call `signal` after changing something that others may wait for.
struct alignas(kLine) Event {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> waiting;

  void signal() {
    // Pairs with the fence in `wait`: either we see that somebody waits, or they see our change.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiting.load(std::memory_order_relaxed) != 0) wake();
  }

  void wake() {
    count.fetch_add(1, std::memory_order_seq_cst);
#ifdef __linux__
    syscall(SYS_futex, &count, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
  }

  // Waits until `ready()`. A negative `timeout_ns` means for ever.
  template <class Ready>
  Wait wait(Ready ready, int64_t spin_ns, int64_t timeout_ns) {
    if (ready()) return Wait::kReady;
    const int64_t start = now_ns();
    const int64_t spin_until = start + spin_ns;
    while (spin_ns > 0 && now_ns() < spin_until) {
      for (int i = 0; i < 16; ++i) {
        if (ready()) return Wait::kReady;
        pause_cpu();
      }
    }
    waiting.fetch_add(1, std::memory_order_seq_cst);
    Wait result = Wait::kReady;
    while (true) {
      const uint32_t seen = count.load(std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (ready()) break;
      const int64_t left = timeout_ns < 0 ? 1000000000 : start + timeout_ns - now_ns();
      if (left <= 0) {
        result = Wait::kTimeout;
        break;
      }
      sleep(seen, left);
    }
    waiting.fetch_sub(1, std::memory_order_seq_cst);
    return result;
  }

 private:
  void sleep(uint32_t seen, int64_t left_ns) {
#ifdef __linux__
    const timespec t{static_cast<time_t>(left_ns / 1000000000), left_ns % 1000000000};
    // Without FUTEX_PRIVATE_FLAG the kernel knows the word by its page, so it is the same word in
    // every process.
    syscall(SYS_futex, &count, FUTEX_WAIT, seen, &t, nullptr, 0);
#else
    (void)seen, (void)left_ns;
    usleep(50);
#endif
  }
};

static_assert(sizeof(Event) == kLine);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace hocket
