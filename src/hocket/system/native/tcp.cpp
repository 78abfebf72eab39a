// One end of a TCP connection that carries messages of one size, from a writer to a reader.
//
// The wire carries the bytes of one slot after another, without headers. For each message that the
// reader has released, it sends one byte back, a *credit*. The writer fills the slot of message k
// again only when it has the credit for message k. So the reader always has a free slot for the
// bytes that arrive, and
//
//     writer:  credits (tail) <= moved <= published (head) <= acquired (turn) <= tail + slots
//     reader:  released (tail) <= leased (turn) <= arrived (head) = moved <= tail + slots.
//
// The thread that sends or receives moves the bytes itself while it is at it, without ever blocking
// in `send` or `recv`. The rest is moved by the pump, one thread of the process, which sleeps as
// long as there is nothing to move: what the kernel did not take at once, and what arrives while
// the reader computes. So two processes that both send more than the kernel holds cannot deadlock,
// and a large message crosses while its reader is busy.
//
// `tcp_end.h` says who owns a slot when.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>

#include <utility>

#include "tcp_pump.h"

namespace {

using hocket::now_ns;
using hocket::Wait;
using hocket::tcp::End;
using hocket::tcp::give_credits;
using hocket::tcp::Handle;
using hocket::tcp::move;
using hocket::tcp::take_credits;

constexpr int kTimeout = -1;
constexpr int kClosed = -2;
constexpr int64_t kAloneNs = 5000;  // a yield that takes longer let another thread run

// Never destroyed: its thread may be at work while the process ends.
auto& pump = *new hocket::tcp::Pump;

// Wait at the socket until `step()` returns true or the connection has ended: first spinning, as
// long as no other thread needs this core, then asleep.
template <class Step>
void wait_at_socket(End& end, Step step, int64_t spin_ns, int64_t timeout_ns) {
  const int64_t start = now_ns();
  int64_t spin_until = start + spin_ns;
  const auto bytes = [&end] {  // of a reader, which holds `io`
    return end.sends ? std::make_pair(uint64_t{0}, int64_t{0}) : std::make_pair(end.moved, end.done);
  };
  auto before = bytes();
  while (!step() && !end.ended()) {
    const int64_t now = now_ns();
    if (bytes() != before) {  // more of this message is probably on its way
      before = bytes();
      spin_until = now + spin_ns;
    }
    if (now < spin_until) {
      sched_yield();
      if (now_ns() - now > kAloneNs) spin_until = 0;
      continue;
    }
    const int64_t left = start + timeout_ns - now;
    if (left <= 0) return;
    pollfd file{end.fd, static_cast<short>(POLLIN | (end.owed ? POLLOUT : 0)), 0};
    const timespec most{static_cast<time_t>(left / 1000000000), left % 1000000000};
    if (ppoll(&file, 1, &most, nullptr) < 0) return;  // a signal, which Python is to handle
    if (file.revents & POLLOUT) give_credits(end);
  }
}

// Write what has been published, as long as the socket takes more within `spin_ns`: its reader is
// then at work on another core, and waking the pump would cost more than the rest.
void push(End& end, int64_t spin_ns) {
  int64_t since = now_ns();
  while (end.moved < end.head.load(std::memory_order_relaxed) && !end.ended()) {
    if (move(end, INT64_MAX) > 0) {
      since = now_ns();
      continue;
    }
    const int64_t now = now_ns();
    if (now - since > spin_ns) return;
    sched_yield();
    if (now_ns() - now > kAloneNs) return;
  }
}

// Wait until `ready()`. Return the slot whose turn it is, or kTimeout or kClosed.
template <class Ready, class At>
int wait(End& end, Ready ready, At at_socket, int64_t timeout_ns) {
  if (end.closed) return kClosed;
  if (!ready()) {
    const int64_t start = now_ns();
    pump.settle();
    const auto begun = [&end] { return end.connected() || end.ended(); };
    if (begun() || end.changed.wait(begun, 0, timeout_ns) == Wait::kReady) {
      if (!end.ended()) at_socket();
    }
    end.waited_ns.fetch_add(now_ns() - start, std::memory_order_relaxed);
  }
  // What has arrived before the other side ended is still there to be read.
  if (end.closed || (end.over && (end.sends || !ready()))) return kClosed;
  if (!ready()) return kTimeout;
  return static_cast<int>(end.turn++ % end.slots);
}

}  // namespace

extern "C" {

// Make one end of a connection that is still to come. Each slot needs memory (`hocket_tcp_place`).
void* hocket_tcp_make(int sends, uint32_t slots, int64_t nbytes, int pumped) {
  return new Handle(std::make_shared<End>(sends != 0, slots, nbytes, pumped != 0));
}

// Set the memory of a slot. The caller has just made the end, or has leased the slot: then the
// memory that it had before is the caller's, with the message.
void hocket_tcp_place(Handle* handle, int slot, void* memory) {
  (*handle)->memory[slot] = static_cast<char*>(memory);
}

// End every wait at both ends, now and later. Any thread may call this.
void hocket_tcp_close(Handle* handle) {
  End& end = **handle;
  end.closed = true;
  if (const int fd = end.fd.load(); fd >= 0) shutdown(fd, SHUT_RDWR);
  end.changed.wake();
}

// Close and forget an end. The caller may free the slots after this. Another thread may still be in
// a wait, as when the process ends: it has a reference of its own to the end.
void hocket_tcp_free(Handle* handle) {
  End& end = **handle;
  hocket_tcp_close(handle);
  {
    const std::lock_guard<std::mutex> lock(end.io);
    pump.forget(end);
  }
  delete handle;
}

// Give an end its connection, and with it the file.
void hocket_tcp_attach(Handle* handle, int fd) {
  End& end = **handle;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  {
    const std::lock_guard<std::mutex> lock(end.io);
    end.fd.store(fd);
    // Pairs with `hocket_tcp_close`: either it sees the file, or this sees that it was called.
    if (end.closed) shutdown(fd, SHUT_RDWR);
    if (end.sends) move(end, INT64_MAX);  // what was sent before there was a connection
    pump.update(*handle);
  }
  end.changed.wake();
}

// Wait for the writer's next slot to be free, and return it.
int hocket_tcp_acquire(Handle* handle, int64_t spin_ns, int64_t timeout_ns) {
  const Handle kept = *handle;
  End& end = *kept;
  // Also if a slot is free: this is how a writer that never waits learns that its reader is gone.
  if (end.connected() && !end.ended()) take_credits(end);
  const auto free = [&end] { return end.turn - end.tail.load() < end.slots; };
  const auto at_socket = [&] {
    const auto step = [&] { return take_credits(end), free(); };
    wait_at_socket(end, step, spin_ns, timeout_ns);
  };
  return wait(end, free, at_socket, timeout_ns);
}

// Send the oldest acquired slot. What the socket does not take now is left to the pump.
void hocket_tcp_publish(Handle* handle, int64_t spin_ns) {
  End& end = **handle;
  end.head.fetch_add(1, std::memory_order_release);
  {
    // Without the lock, `attach` might look for messages before this one is published, and this
    // for a connection before it is there.
    const std::lock_guard<std::mutex> lock(end.io);
    if (end.connected() && !end.events) push(end, spin_ns);
    pump.update(*handle);
  }
  pump.settle();
}

// Wait for the reader's next message, and return its slot.
int hocket_tcp_lease(Handle* handle, int64_t spin_ns, int64_t timeout_ns) {
  const Handle kept = *handle;
  End& end = *kept;
  const auto ready = [&end] { return end.head.load(std::memory_order_acquire) > end.turn; };
  const auto at_socket = [&] {
    const std::lock_guard<std::mutex> lock(end.io);
    end.inside = true;
    pump.update(kept);
    const auto step = [&] { return ready() || (move(end, end.nbytes - end.done), ready()); };
    wait_at_socket(end, step, spin_ns, timeout_ns);
    end.inside = false;
    pump.update(kept);
  };
  return wait(end, ready, at_socket, timeout_ns);
}

// Give the oldest leased slot back, and tell the writer.
void hocket_tcp_release(Handle* handle) {
  End& end = **handle;
  end.tail.fetch_add(1, std::memory_order_release);
  end.owed.fetch_add(1);
  end.pumped ? pump.pay(*handle) : pump.owe(*handle);
}

// True if `lease` would return a slot without waiting. Only the reader's thread calls this.
int hocket_tcp_ready(Handle* handle) {
  End& end = **handle;
  const auto ready = [&end] { return end.head.load(std::memory_order_acquire) > end.turn; };
  if (ready() || end.closed || !end.connected()) return !end.closed && ready();
  const std::unique_lock<std::mutex> lock(end.io, std::try_to_lock);
  if (lock) move(end, end.nbytes - end.done);
  return ready();
}

// When the message in a leased slot, or in the next one to lease, had arrived, in nanoseconds.
int64_t hocket_tcp_arrived_ns(Handle* handle) {
  End& end = **handle;
  const std::lock_guard<std::mutex> lock(end.io);
  return end.arrived_ns[end.tail.load() % end.slots];
}

// From now on, have the pump read what arrives, though no thread waits for it.
void hocket_tcp_watch(Handle* handle) {
  const std::lock_guard<std::mutex> lock((*handle)->io);
  (*handle)->pumped = true;
  pump.update(*handle);
}

// Wait until more than `seen` messages have arrived. Return their number, or kClosed.
int64_t hocket_tcp_await(Handle* handle, uint64_t seen, int64_t timeout_ns) {
  const Handle kept = *handle;
  End& end = *kept;
  const auto changed = [&] { return end.head.load(std::memory_order_acquire) > seen || end.ended(); };
  end.changed.wait(changed, 0, timeout_ns);
  const uint64_t arrived = end.head.load(std::memory_order_acquire);
  return end.ended() && arrived <= seen ? kClosed : static_cast<int64_t>(arrived);
}

uint64_t hocket_tcp_waited_ns(Handle* handle) { return (*handle)->waited_ns; }

// 0 before the connection is there, 1 while it is, 2 when either side has ended it.
int hocket_tcp_state(Handle* handle) {
  return (*handle)->ended() ? 2 : (*handle)->connected();
}

}  // extern "C"
