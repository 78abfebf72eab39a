// The newest version of a message in shared memory, which one process writes and many read; and C
// functions for events. Both begin as memory filled with zeros.

#include <cstdint>

#include "event.h"

namespace {

using hocket::Event;
using hocket::kLine;

// The writer fills the slot after the newest message. So a reader can copy the newest at least
// until the next is complete. A slower reader notices (`is_whole`), and copies again.
struct Latest {
  alignas(kLine) std::atomic<uint64_t> published;
  std::atomic<uint64_t> begun;
};

}  // namespace

extern "C" {

int64_t hocket_latest_header_bytes() { return sizeof(Latest); }

// Returns the number of the message to write, from 1. Its slot is that modulo the number of slots.
uint64_t hocket_latest_begin(Latest* latest) {
  const uint64_t number = latest->published.load(std::memory_order_relaxed) + 1;
  latest->begun.store(number, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return number;
}

void hocket_latest_publish(Latest* latest) {
  latest->published.fetch_add(1, std::memory_order_release);
}

// The number of the newest message, or 0 if there is none.
uint64_t hocket_latest_newest(const Latest* latest) {
  return latest->published.load(std::memory_order_acquire);
}

// True if a copied message is intact, because the writer has not begun to reuse its slot.
int hocket_latest_is_whole(const Latest* latest, uint64_t number, uint64_t slots) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return latest->begun.load(std::memory_order_relaxed) < number + slots;
}

int64_t hocket_event_bytes() { return sizeof(Event); }

uint32_t hocket_event_count(const Event* event) {
  return event->count.load(std::memory_order_seq_cst);
}

// To be called after a change. Wakes everybody who waits.
void hocket_event_signal(Event* event) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  event->wake();
}

// Waits until there was a signal after `count` was read, or for `timeout_ns` at most.
void hocket_event_wait(Event* event, uint32_t count, int64_t timeout_ns) {
  event->wait([=] { return event->count.load(std::memory_order_seq_cst) != count; }, 0, timeout_ns);
}

}  // extern "C"
