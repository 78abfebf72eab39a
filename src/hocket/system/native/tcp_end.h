// One end of a stream over TCP: its slots, its counters, and the bytes that it moves (`tcp.cpp`).
//
// A slot of the writer belongs to its thread until `publish`, then to whoever holds `io` until the
// message is moved, and to nobody until the credit arrives. A slot of the reader belongs to whoever
// holds `io` until the message has arrived, then to the thread that leases it until `release`. The counters are changed with release order and looked at with acquire order, so
// whoever gets a slot sees all that was done to it before.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "event.h"

namespace hocket::tcp {

// Sockets of any system hold a message of this size, so it arrives without the pump.
constexpr int64_t kHeldByKernel = 64 << 10;

struct End {
  End(bool sends, uint32_t slots, int64_t nbytes, bool pumped)
      : sends(sends), slots(slots), nbytes(nbytes), memory(slots), arrived_ns(slots),
        pumped(pumped || nbytes > kHeldByKernel) {}
  ~End() {
    if (fd >= 0) ::close(fd);
  }

  const bool sends;
  const uint32_t slots;
  const int64_t nbytes;  // of one message
  // Of each slot. The caller keeps it until `hocket_tcp_free` returns, and whoever has a slot may
  // give it other memory.
  std::vector<char*> memory;

  // Set once, when the connection is there. The file stays open as long as this object exists, so
  // any thread may shut it down.
  std::atomic<int> fd{-1};
  std::atomic<bool> closed{false};  // by this side
  std::atomic<bool> over{false};    // the other side has closed the connection, or died
  std::atomic<uint64_t> head{0};
  std::atomic<uint64_t> tail{0};
  std::atomic<uint64_t> waited_ns{0};
  std::atomic<uint64_t> owed{0};  // credits that are still to be sent
  uint64_t turn = 0;              // used only by the thread that sends or receives
  Event changed{};                // connected, closed, or a message has arrived

  std::mutex io;  // for what follows, and for the bytes of messages on the socket
  uint64_t moved = 0;              // whole messages
  int64_t done = 0;                // bytes of the next one
  std::vector<int64_t> arrived_ns;  // when the message in each slot was whole
  bool pumped;                     // the pump reads what arrives
  bool inside = false;             // the reader is at the socket, so the pump keeps away
  bool registered = false;         // with the pump
  uint32_t events = 0;             // for which the pump waits

  bool ended() const { return closed || over; }
  bool connected() const { return fd.load(std::memory_order_acquire) >= 0; }
  void end() {
    over = true;
    changed.wake();
  }
};

using Handle = std::shared_ptr<End>;

// True if a call on a socket has failed only because it would have had to wait.
inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Move bytes between slots and the socket, until that would block or at least `most` bytes have
// been moved. Return their number. The caller holds `io`.
inline int64_t move(End& end, int64_t most) {
  int64_t total = 0;
  while (total < most && !end.ended()) {
    const uint64_t bound = end.sends ? end.head.load(std::memory_order_acquire)
                                     : end.tail.load(std::memory_order_acquire) + end.slots;
    const bool can = end.moved < bound;
    if (!can && end.sends) break;
    char beyond;  // a byte without a credit: only the end of the connection may come now
    char* const at = can ? end.memory[end.moved % end.slots] + end.done : &beyond;
    const size_t left = can ? end.nbytes - end.done : 1;
    const ssize_t n = end.sends ? send(end.fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : recv(end.fd, at, left, MSG_DONTWAIT);
    if (n < 0 && would_block()) break;
    if (n <= 0 || !can) {
      end.end();
      break;
    }
    total += n;
    end.done += n;
    if (end.done < end.nbytes) continue;
    end.done = 0;
    end.arrived_ns[end.moved++ % end.slots] = now_ns();
    if (end.sends) continue;
    end.head.store(end.moved, std::memory_order_release);
    end.changed.signal();
  }
  return total;
}

// Send the credits that are owed. Those that the socket does not take stay owed. An error means
// that the writer is gone, which the reader learns when it has read what came before that.
inline void give_credits(End& end) {
  static const char zeros[256] = {};
  // Each credit is taken out of `owed` by one thread, so none is sent twice.
  const uint64_t count = end.owed.exchange(0);
  for (uint64_t sent = 0; sent < count;) {
    const size_t most = std::min<uint64_t>(count - sent, sizeof(zeros));
    const ssize_t n = send(end.fd, zeros, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && !would_block()) return;
    if (n < 0) return static_cast<void>(end.owed.fetch_add(count - sent));
    sent += n;
  }
}

// Take the credits that have arrived. Only the thread that sends calls this.
inline void take_credits(End& end) {
  char credits[256];
  const ssize_t n = recv(end.fd, credits, sizeof(credits), MSG_DONTWAIT);
  if (n < 0 && would_block()) return;
  if (n > 0) end.tail.fetch_add(n, std::memory_order_acq_rel);
  if (n <= 0 || end.tail.load() > end.turn) end.end();  // more credits than messages
}

}  // namespace hocket::tcp
