// What many processes read and one writes, in shared memory: the newest version of a message, and
// an event that they wait for. Zero bytes are valid of both.

#include <cstdint>

#include "event.h"

namespace {

using hocket::Event;
using hocket::kLine;

// A writer fills the slot after the newest one, so a reader has the time of a whole version to copy
// the newest; whoever takes longer sees that and copies again.
struct Latest {
  alignas(kLine) std::atomic<uint64_t> published;
  std::atomic<uint64_t> begun;
};

}  // namespace

extern "C" {

int64_t hocket_latest_header_bytes() { return sizeof(Latest); }

// The number of the message to write, from 1; its slot is that modulo the number of slots.
uint64_t hocket_latest_begin(Latest* latest) {
  const uint64_t number = latest->published.load(std::memory_order_relaxed) + 1;
  latest->begun.store(number, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return number;
}

void hocket_latest_publish(Latest* latest) {
  latest->published.fetch_add(1, std::memory_order_release);
}

// The number of the newest message; 0 where there is none.
uint64_t hocket_latest_newest(const Latest* latest) {
  return latest->published.load(std::memory_order_acquire);
}

// Whether a message that was copied since is whole: nobody has begun to write into its slot.
int hocket_latest_is_whole(const Latest* latest, uint64_t number, uint64_t slots) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return latest->begun.load(std::memory_order_relaxed) < number + slots;
}

int64_t hocket_event_bytes() { return sizeof(Event); }

uint32_t hocket_event_count(const Event* event) {
  return event->count.load(std::memory_order_seq_cst);
}

// After a change, and before whoever waits looks again.
void hocket_event_signal(Event* event) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  event->wake();
}

// Until somebody has signalled since `count`, at most for so long.
void hocket_event_wait(Event* event, uint32_t count, int64_t timeout_ns) {
  event->wait([=] { return event->count.load(std::memory_order_seq_cst) != count; }, 0, timeout_ns);
}

}  // extern "C"
