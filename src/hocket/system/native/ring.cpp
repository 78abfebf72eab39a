// A ring of slots in shared memory, from one writer to one reader.
//
// `head` slots have been published and `tail` released since the beginning: the ring is empty where
// they are equal and full where they differ by the number of slots. Each side may be ahead of that:
// it has acquired slots that are published later, or leased some that are released later, in their
// order. Zero bytes are a valid ring.

#include <cstdint>

#include "event.h"

namespace {

using hocket::Event;
using hocket::kLine;
using hocket::Wait;

constexpr int kTimeout = -1;
constexpr int kClosed = -2;

struct Ring {
  alignas(kLine) std::atomic<uint32_t> closed;
  alignas(kLine) std::atomic<uint64_t> head;
  std::atomic<uint64_t> acquired;
  std::atomic<uint64_t> writer_waited_ns;
  alignas(kLine) std::atomic<uint64_t> tail;
  std::atomic<uint64_t> leased;
  std::atomic<uint64_t> reader_waited_ns;
  Event published;
  Event released;
};

// The number of the slot whose turn it is, once `ready`; or what came instead.
template <class Ready>
int wait(Ring* ring, Event& event, Ready ready, std::atomic<uint64_t>& waited,
         std::atomic<uint64_t>& turn, uint32_t slots, int64_t spin_ns, int64_t timeout_ns) {
  const auto closed = [ring] { return ring->closed.load(std::memory_order_acquire) != 0; };
  if (!ready() && !closed()) {
    const int64_t start = hocket::now_ns();
    const Wait result = event.wait([&] { return ready() || closed(); }, spin_ns, timeout_ns);
    waited.fetch_add(hocket::now_ns() - start, std::memory_order_relaxed);
    if (result == Wait::kTimeout) return kTimeout;
  }
  if (closed()) return kClosed;
  return static_cast<int>(turn.fetch_add(1, std::memory_order_relaxed) % slots);
}

}  // namespace

extern "C" {

int64_t hocket_ring_header_bytes() { return sizeof(Ring); }

// The writer's next slot, once it is free.
int hocket_ring_acquire(Ring* ring, uint32_t slots, int64_t spin_ns, int64_t timeout_ns) {
  const uint64_t mine = ring->acquired.load(std::memory_order_relaxed);
  const auto free = [=] { return mine - ring->tail.load(std::memory_order_acquire) < slots; };
  return wait(ring, ring->released, free, ring->writer_waited_ns, ring->acquired, slots, spin_ns,
              timeout_ns);
}

// The oldest of the slots that were acquired is full.
void hocket_ring_publish(Ring* ring) {
  ring->head.fetch_add(1, std::memory_order_release);
  ring->published.signal();
}

// The reader's next slot, once it is full.
int hocket_ring_lease(Ring* ring, uint32_t slots, int64_t spin_ns, int64_t timeout_ns) {
  const uint64_t mine = ring->leased.load(std::memory_order_relaxed);
  const auto full = [=] { return ring->head.load(std::memory_order_acquire) != mine; };
  return wait(ring, ring->published, full, ring->reader_waited_ns, ring->leased, slots, spin_ns,
              timeout_ns);
}

// The oldest of the slots that were leased is free.
void hocket_ring_release(Ring* ring) {
  ring->tail.fetch_add(1, std::memory_order_release);
  ring->released.signal();
}

// Ends every wait, now and later, on both sides; any process that maps the memory may call it.
void hocket_ring_close(Ring* ring) {
  ring->closed.store(1, std::memory_order_seq_cst);
  ring->published.wake();
  ring->released.wake();
}

void hocket_ring_counts(const Ring* ring, uint64_t* messages, uint64_t* writer_waited_ns,
                        uint64_t* reader_waited_ns) {
  *messages = ring->head.load(std::memory_order_acquire);
  *writer_waited_ns = ring->writer_waited_ns.load(std::memory_order_relaxed);
  *reader_waited_ns = ring->reader_waited_ns.load(std::memory_order_relaxed);
}

}  // extern "C"
