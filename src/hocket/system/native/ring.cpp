// A ring of slots in shared memory, from one writer to one reader.
//
// Message k lies in slot k % slots. `head` messages have been published and `tail` released since
// the beginning, so the ring is empty if they are equal, and full if they differ by the number of
// slots. A side may be further ahead than its counter here shows: the writer has acquired slots that it publishes later, and
// the reader has leased slots that it releases later, in their order. So
//
//     tail <= leased <= head <= acquired <= tail + slots.
//
// It needs no lock, because only one side changes each counter: the writer `head` and `acquired`,
// the reader `tail` and `leased`. The data need none because a slot belongs to one side at a time.
// The writer fills slot k % slots before it adds to `head` with release order, and the reader reads
// the slot after it has loaded the new `head` with acquire order, so it sees the whole message.
// The slot may be written again for message k + slots, once `tail` > k: the reader adds to `tail`
// with release order when it has read the slot, and the writer looks at `tail` with acquire order,
// so no read can come after the new write. The counters have 64 bits and never wrap.
//
// Memory filled with zeros is a valid ring: empty and open.

#include <cstdint>

#include "event.h"

namespace {

using hocket::Event;
using hocket::kLine;
using hocket::Wait;

constexpr int kTimeout = -1;
constexpr int kClosed = -2;

struct Ring {
  alignas(kLine) std::atomic<uint32_t> closed;  // anyone may write it
  // Written by the writer alone, on a cache line that the reader only reads.
  alignas(kLine) std::atomic<uint64_t> head;
  std::atomic<uint64_t> acquired;
  std::atomic<uint64_t> writer_waited_ns;
  // Written by the reader alone.
  alignas(kLine) std::atomic<uint64_t> tail;
  std::atomic<uint64_t> leased;
  std::atomic<uint64_t> reader_waited_ns;

  Event published;
  Event released;
};

// Wait until `ready`, and return the slot whose turn it is; kTimeout or kClosed if that came first.
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
  if (closed()) return kClosed;  // even if a slot is ready
  // Relaxed order is enough: only the side that waits here ever reads its `turn`.
  return static_cast<int>(turn.fetch_add(1, std::memory_order_relaxed) % slots);
}

}  // namespace

extern "C" {

int64_t hocket_ring_header_bytes() { return sizeof(Ring); }

// Wait for the writer's next slot to be free, and return it.
int hocket_ring_acquire(Ring* ring, uint32_t slots, int64_t spin_ns, int64_t timeout_ns) {
  const uint64_t mine = ring->acquired.load(std::memory_order_relaxed);
  const auto free = [=] { return mine - ring->tail.load(std::memory_order_acquire) < slots; };
  return wait(ring, ring->released, free, ring->writer_waited_ns, ring->acquired, slots, spin_ns,
              timeout_ns);
}

// Pass the oldest acquired slot to the reader: it is full. On a GPU this is called by the stream
// that has copied the message, in the order of the messages (`slots.cpp`).
void hocket_ring_publish(Ring* ring) {
  ring->head.fetch_add(1, std::memory_order_release);
  ring->published.signal();
}

// Wait for the reader's next slot to be full, and return it.
int hocket_ring_lease(Ring* ring, uint32_t slots, int64_t spin_ns, int64_t timeout_ns) {
  const uint64_t mine = ring->leased.load(std::memory_order_relaxed);
  const auto full = [=] { return ring->head.load(std::memory_order_acquire) != mine; };
  return wait(ring, ring->published, full, ring->reader_waited_ns, ring->leased, slots, spin_ns,
              timeout_ns);
}

// Pass the oldest leased slot back to the writer: nobody reads it any more.
void hocket_ring_release(Ring* ring) {
  ring->tail.fetch_add(1, std::memory_order_release);
  ring->released.signal();
}

// End every wait, now and later, on both sides. Any process that maps the memory may call this.
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
