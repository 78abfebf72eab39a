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
// Ownership: a slot of the writer belongs to its thread until `publish`, then to whoever holds `io`
// until the message is moved, and to nobody until the credit arrives. A slot of the reader belongs
// to whoever holds `io` until the message has arrived, then to the thread that leases it until
// `release`. The counters are changed with release order and looked at with acquire order, so
// whoever gets a slot sees all that was done to it before.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "event.h"

namespace {

using hocket::Event;
using hocket::now_ns;
using hocket::Wait;

constexpr int kTimeout = -1;
constexpr int kClosed = -2;
// Sockets of any system hold a message of this size, so it arrives without the pump.
constexpr int64_t kHeldByKernel = 64 << 10;
constexpr int64_t kTurnBytes = 1 << 20;  // what the pump moves before it is the next link's turn
constexpr int64_t kAloneNs = 5000;       // a yield that takes longer let another thread run
// A credit for a small message costs as much as the message. So it is sent when the thread has
// nothing more urgent to do, which is before it waits and after it has sent; at the latest, the
// pump sends it after this time.
constexpr int64_t kCreditNs = 300'000;

struct End {
  End(bool sends, uint32_t slots, int64_t nbytes, char* memory, int64_t stride, bool pumped)
      : sends(sends), slots(slots), nbytes(nbytes), memory(memory), stride(stride),
        arrived_ns(slots), pumped(pumped || nbytes > kHeldByKernel) {}
  ~End() {
    if (fd >= 0) ::close(fd);
  }

  const bool sends;
  const uint32_t slots;
  const int64_t nbytes;  // of one message
  char* const memory;    // the slots; the caller keeps them until `hocket_tcp_free` returns
  const int64_t stride;  // from one slot to the next

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
bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Move bytes between slots and the socket, until that would block or at least `most` bytes have
// been moved. Return their number. The caller holds `io`.
int64_t move(End& end, int64_t most) {
  int64_t total = 0;
  while (total < most && !end.ended()) {
    const uint64_t bound = end.sends ? end.head.load(std::memory_order_acquire)
                                     : end.tail.load(std::memory_order_acquire) + end.slots;
    const bool can = end.moved < bound;
    if (!can && end.sends) break;
    char beyond;  // a byte without a credit: only the end of the connection may come now
    char* const at = can ? end.memory + end.moved % end.slots * end.stride + end.done : &beyond;
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
void give_credits(End& end) {
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
void take_credits(End& end) {
  char credits[256];
  const ssize_t n = recv(end.fd, credits, sizeof(credits), MSG_DONTWAIT);
  if (n < 0 && would_block()) return;
  if (n > 0) end.tail.fetch_add(n, std::memory_order_acq_rel);
  if (n <= 0 || end.tail.load() > end.turn) end.end();  // more credits than messages
}

class Pump {
 public:
  // Have the pump wait for what it is to do for this end. The caller holds `io`.
  void update(const Handle& handle) {
    End& end = *handle;
    const uint32_t wanted = wants(end);
    if (wanted == end.events || !end.connected()) return;
    epoll_event event{};
    // One event a call: the pump asks again when it is done, or leaves it to the reader.
    event.events = wanted | EPOLLONESHOT;
    event.data.ptr = &end;
    if (!end.registered) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (poll_ < 0) start();
      ends_[&end] = handle;
    }
    epoll_ctl(poll_, end.registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, end.fd, &event);
    end.registered = true;
    end.events = wanted;
  }

  // Send the credits of a reader soon. No lock is held.
  void owe(const Handle& handle) {
    const std::lock_guard<std::mutex> lock(owing_mutex_);
    if (timer_ < 0) {
      timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
      const std::lock_guard<std::mutex> ends(mutex_);
      if (poll_ < 0) start();
      epoll_event event{};
      event.events = EPOLLIN;
      epoll_ctl(poll_, EPOLL_CTL_ADD, timer_, &event);
    }
    owing_.push_back(handle);
    is_owing_ = true;
    if (is_timed_) return;
    const itimerspec once{{0, 0}, {0, kCreditNs}};
    timerfd_settime(timer_, 0, &once, nullptr);
    is_timed_ = true;
  }

  // Send all credits that are owed. Called before every wait, so no thread waits while it owes one.
  void settle() {
    if (!is_owing_) return;
    std::vector<Handle> owing;
    {
      const std::lock_guard<std::mutex> lock(owing_mutex_);
      owing.swap(owing_);
      is_owing_ = false;
    }
    for (const Handle& handle : owing) pay(handle);
  }

  // Send the credits of one reader, and leave to the pump what the socket does not take.
  void pay(const Handle& handle) {
    give_credits(*handle);
    if (!handle->owed) return;
    const std::lock_guard<std::mutex> lock(handle->io);
    update(handle);
  }

  // Have the pump forget an end, for good. The caller holds `io`.
  void forget(End& end) {
    if (!end.registered) return;
    epoll_ctl(poll_, EPOLL_CTL_DEL, end.fd, nullptr);
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_.erase(&end);
  }

 private:
  static uint32_t wants(const End& end) {
    if (end.ended()) return 0;
    const bool more = end.sends && end.moved < end.head.load(std::memory_order_acquire);
    if (end.sends) return more ? EPOLLOUT : 0u;
    return (end.pumped && !end.inside ? EPOLLIN : 0u) | (end.owed ? EPOLLOUT : 0u);
  }

  void start() {
    poll_ = epoll_create1(EPOLL_CLOEXEC);
    // Signals are for the thread that runs Python.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void run() {
    epoll_event events[64];
    while (true) {
      const int count = epoll_wait(poll_, events, 64, -1);
      for (int i = 0; i < count; ++i) {
        if (!events[i].data.ptr) {
          time_is_up();
        } else if (const Handle end = find(static_cast<End*>(events[i].data.ptr))) serve(end);
      }
    }
  }

  void time_is_up() {
    {
      const std::lock_guard<std::mutex> lock(owing_mutex_);
      uint64_t times;
      is_timed_ = read(timer_, &times, sizeof(times)) < 0;
    }
    settle();
  }

  Handle find(End* end) {  // an end may have been forgotten since its event
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ends_.find(end);
    return found == ends_.end() ? nullptr : found->second;
  }

  void serve(const Handle& handle) {
    End& end = *handle;
    const std::lock_guard<std::mutex> lock(end.io);
    end.events = 0;
    if (end.ended()) return;  // the slots may be gone
    if (end.owed) give_credits(end);
    if (!end.inside) move(end, kTurnBytes);
    update(handle);
  }

  std::mutex mutex_;  // taken after the `io` of an end, if both are
  std::unordered_map<End*, Handle> ends_;
  int poll_ = -1;

  std::mutex owing_mutex_;  // taken before `mutex_`, if both are
  std::vector<Handle> owing_;
  std::atomic<bool> is_owing_{false};
  bool is_timed_ = false;
  int timer_ = -1;
};

// Never destroyed: its thread may be at work while the process ends.
Pump& pump = *new Pump;

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

// Close and forget an end that no other call uses. The caller may free the slots after this.
void hocket_tcp_free(Handle* handle) {
  End& end = **handle;
  end.closed = true;
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

// End every wait at both ends, now and later. Any thread may call this.
void hocket_tcp_close(Handle* handle) {
  End& end = **handle;
  end.closed = true;
  if (const int fd = end.fd.load(); fd >= 0) shutdown(fd, SHUT_RDWR);
  end.changed.wake();
}

// Wait for the writer's next slot to be free, and return it.
int hocket_tcp_acquire(Handle* handle, int64_t spin_ns, int64_t timeout_ns) {
  End& end = **handle;
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
  End& end = **handle;
  const auto ready = [&end] { return end.head.load(std::memory_order_acquire) > end.turn; };
  const auto at_socket = [&] {
    const std::lock_guard<std::mutex> lock(end.io);
    end.inside = true;
    pump.update(*handle);
    const auto step = [&] { return ready() || (move(end, end.nbytes - end.done), ready()); };
    wait_at_socket(end, step, spin_ns, timeout_ns);
    end.inside = false;
    pump.update(*handle);
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
  End& end = **handle;
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
