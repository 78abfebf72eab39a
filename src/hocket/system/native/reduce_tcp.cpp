// The mean over replicas that share no memory, called by their compiled programs on the CPU. Each
// pair of replicas has a TCP connection.
//
// The arrays of a call are cut into one chunk for each replica, its owner. A replica sends each
// owner its part of the arrays. The owner adds up what it gets in the order of the replicas, as
// `average.cpp` does, so the bits are the same, and sends the means back to all. Of small arrays,
// and between two replicas, each owns the whole: a second message takes longer than more bytes.
//
// A frame names its call by the number of the call site and of the turn there, because XLA may run
// two sites in either order. So arrays may arrive before this replica makes the call. It keeps
// them in slots, of which it has two for each site and sender: a replica sends the arrays of turn
// t + 1 once it has the means of turn t, for which every other replica had begun turn t, and so
// had taken those of turn t - 1 out of its slot. Means arrive only during the call that they
// belong to, since their owner has waited for its arrays. They go where XLA wants them.
//
// XLA has few threads, so none sleeps here. A thread of XLA that makes a call moves the bytes of
// all calls for a short while, and then leaves its call to the pump: one of our threads at a time,
// which moves bytes until a call that was left is done. It gives that role away before it
// completes the call, because XLA may go on with the program in the thread that does so. A call is
// done when all of its frames are sent as well, so a replica may leave once it has its last mean.
// Then it says farewell. If a connection ends without that, every call ends with an error.
// Nobody waits in `send` or `receive`, so replicas that send at the same time cannot deadlock.

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "event.h"
#include "leaves.h"
#include "numbered.h"
#include "peer.h"
#include "tcp_call.h"
#include "waiters.h"

namespace {

using hocket::Frame;
using hocket::Kind;
using hocket::Leaf;
using hocket::now_ns;
using hocket::Peer;
using hocket::Pieces;
using hocket::tcp::Call;
using hocket::tcp::Site;
using hocket::tcp::Slot;
namespace ffi = xla::ffi;

constexpr int64_t kTurnBytes = 1 << 20;    // to receive before it is the next peer's turn
constexpr int64_t kAloneNs = 5000;         // a yield that takes longer let another thread run
constexpr int64_t kSleepNs = 1000000000;   // the longest that the pump sleeps at once
constexpr int64_t kMostBytes = int64_t{1} << 40;
constexpr uint32_t kMostSites = 1 << 20;

// Let other threads run. True if one did, so this thread should not spin.
bool yields(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const int64_t start = now_ns();
  sched_yield();
  const bool was_long = now_ns() - start > kAloneNs;
  lock.lock();
  return was_long;
}

class Group {
 public:
  Group(int replicas, int index, const int* fds, int64_t spin_ns, int64_t delay_ns)
      : replicas(replicas), index(index), spin_ns_(spin_ns), delay_ns_(delay_ns) {
    for (int r = 0; r < replicas; ++r) {
      if (r != index) peers_.emplace_back(fds[r], r);
    }
  }

  const int replicas, index;
  std::atomic<uint32_t> num_sites{0};
  std::atomic<int64_t> calls{0}, nbytes{0}, waited_ns{0};

  // Send this replica's arrays. Return what went wrong, or "".
  std::string begin(const std::shared_ptr<Call>& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return hocket::kReplicaEnded;
    Site& site = site_of(call->site);
    if (site.call) return hocket::kTwoRuns;
    site.call = call;
    active_.push_back(call);
    call->turn = ++site.turn;
    calls += 1;
    for (const Leaf& leaf : call->leaves) nbytes += leaf.nbytes();
    for (Peer& peer : peers_) {
      put(peer, *call, Kind::kArrays, call->arrays(call->chunk(peer.replica)));
      if (slot_of(site, call->turn, peer).is_full) add_arrays(site, peer);
    }
    if (peers_.empty()) all_here(site);
    call->began_ns = now_ns();
    settle();
    return "";
  }

  // Move bytes for a short while. True if the call is done by then, so nobody has to wait.
  bool is_done_soon(const Call& call) {
    std::unique_lock<std::mutex> lock(mutex_);
    int64_t until = now_ns() + spin_ns_;
    while (!call.is_done) {
      if (move() > 0) until = now_ns() + spin_ns_;  // more is probably coming
      if (call.is_done || now_ns() >= until || yields(lock)) break;
    }
    ring();  // this thread may have moved bytes that the pump waits for
    return call.is_done && call.due_ns <= now_ns();
  }

  // Have the pump complete the call.
  void leave(const std::shared_ptr<Call>& call, const ffi::Promise& promise) {
    const std::lock_guard<std::mutex> lock(mutex_);
    call->promise = promise;
    if (closed_) call->due_ns = 0;
    left_.push_back(call);
    if (!is_pumping_) hocket::waiters().run([this] { pump(); });
    is_pumping_ = true;
    ring();
  }

  // End every wait, now and later, here and in the other replicas; there only waits for this one,
  // if it leaves.
  void close(bool leaves) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    int open = 0;
    for (Peer& peer : peers_) {
      if (leaves) peer.put({0, Kind::kFarewell, 0, 0, 0, 0}, {}, &open);
      if (leaves) peer.send();
    }
    end();
  }

 private:
  // The rest is called with the lock, but for `pump`, which takes it.

  Site& site_of(uint32_t number) {
    Site& site = sites_[number];
    for (std::vector<Slot>& slots : site.slots) slots.resize(replicas);
    return site;
  }

  Slot& slot_of(Site& site, uint64_t turn, const Peer& peer) {
    return site.slots[turn & 1][peer.replica];
  }

  void put(Peer& peer, Call& call, Kind kind, Pieces pieces) {
    const Frame frame{call.site, kind, call.turn, call.digest, call.total, hocket::tcp::bytes_of(pieces)};
    peer.put(frame, std::move(pieces), &call.open[peer.replica]);
    peer.send();
  }

  // Send and receive what can be, and return the number of bytes.
  int64_t move() {
    int64_t total = 0;
    if (closed_) return total;
    for (Peer& peer : peers_) {
      const auto place = [&](const Frame& frame, Pieces& into) { return due(peer, frame, into); };
      const auto arrived = [&](const Frame& frame) { take(peer, frame); };
      total += peer.send() + peer.receive(place, arrived, kTurnBytes);
    }
    settle();
    return total;
  }

  // Say where the bytes of a frame belong. False if the frame is not due.
  bool due(Peer& peer, const Frame& frame, Pieces& into) {
    if (frame.kind == Kind::kFarewell) return peer.has_left = frame.nbytes == 0;
    if (frame.site >= kMostSites || frame.nbytes < 0 || frame.nbytes > kMostBytes) return false;
    Site& site = site_of(frame.site);
    if (frame.kind == Kind::kMeans) {
      const Call* call = site.call.get();
      if (!call || call->is_whole || call->has_means[peer.replica]) return false;
      into = call->means(call->chunk(peer.replica));
      return frame.turn == call->turn && frame.digest == call->digest &&
             frame.nbytes == hocket::tcp::bytes_of(into);
    }
    Slot& slot = slot_of(site, frame.turn, peer);
    const bool is_now = frame.turn == site.turn && site.call && site.call->missing > 0;
    if (slot.is_full || !(is_now || frame.turn == site.turn + 1)) return false;
    slot.frame = frame;
    slot.data.resize(frame.nbytes);
    into = {{slot.data.data(), slot.data.size()}};
    return frame.kind == Kind::kArrays;
  }

  void take(Peer& peer, const Frame& frame) {
    if (frame.kind == Kind::kFarewell) return;
    Site& site = sites_[frame.site];
    if (frame.kind == Kind::kMeans) {
      site.call->has_means[peer.replica] = true;
      --site.call->open[peer.replica];
    } else {
      slot_of(site, frame.turn, peer).is_full = true;
      if (site.call && site.call->turn == frame.turn) add_arrays(site, peer);
    }
  }

  void add_arrays(Site& site, const Peer& peer) {
    --site.call->open[peer.replica];
    if (--site.call->missing == 0) all_here(site);
  }

  // Compute this replica's chunk of the means, and send it. If programs differ, no replica does,
  // since each has the digests of all.
  void all_here(Site& site) {
    Call& call = *site.call;
    for (Peer& peer : peers_) {
      Slot& slot = slot_of(site, call.turn, peer);
      slot.is_full = false;
      if (slot.frame.digest == call.digest || !call.error.empty()) continue;
      call.error = hocket::different_programs(index, call.total, peer.replica, slot.frame.total);
    }
    if (call.error.empty()) add_up(call, site.slots[call.turn & 1]);
    for (Peer& peer : peers_) {
      if (call.is_whole) continue;
      if (call.error.empty()) put(peer, call, Kind::kMeans, call.means(call.chunk(index)));
      else call.open[peer.replica] -= 2;
    }
  }

  void add_up(const Call& call, const std::vector<Slot>& slots) const {
    const auto add = [&](const Leaf& leaf, int64_t from, int64_t nbytes, int64_t at) {
      const auto row = [&](int r) {
        return r == index ? static_cast<const char*>(leaf.in) + from : slots[r].data.data() + at;
      };
      const int64_t size = nbytes / leaf.width();
      hocket::mean(row, replicas, leaf.dtype, static_cast<char*>(leaf.out) + from, size);
    };
    call.each_part(call.chunk(index), add);
  }

  // End the calls that are done. If one needs a replica that is gone, end them all.
  void settle() {
    const auto is_zero = [](int n) { return n == 0; };
    for (size_t i = 0; i < active_.size();) {
      Call& call = *active_[i];
      if (std::all_of(call.open.begin(), call.open.end(), is_zero)) {
        finish(call, delay_ns_);
        active_.erase(active_.begin() + i);
        continue;
      }
      for (const Peer& peer : peers_) {
        if (peer.over && (!peer.has_left || call.open[peer.replica] > 0)) return end();
      }
      ++i;
    }
  }

  void finish(Call& call, int64_t delay_ns) {
    call.due_ns = now_ns() + delay_ns;
    call.is_done = true;
    waited_ns += call.due_ns - call.began_ns;
    sites_[call.site].call.reset();
  }

  void end() {
    closed_ = true;
    for (const Peer& peer : peers_) shutdown(peer.fd, SHUT_RDWR);
    for (const std::shared_ptr<Call>& call : active_) {
      call->error = hocket::kReplicaEnded;
      finish(*call, 0);
    }
    active_.clear();
    for (const std::shared_ptr<Call>& call : left_) call->due_ns = 0;
    ring();
    close_files();
  }

  // Close the files, unless the pump may be waiting at them. It never does once the group is
  // closed, because all calls are done then.
  void close_files() {
    if (!closed_ || is_pumping_ || bell_ < 0) return;
    for (const Peer& peer : peers_) ::close(peer.fd);
    peers_.clear();
    ::close(std::exchange(bell_, -1));
  }

  // Wake the pump, so that it looks again what there is to do.
  void ring() {
    const uint64_t one = 1;
    if (is_pumping_ && write(bell_, &one, sizeof(one)) < 0) return;  // it is awake already
  }

  // Move bytes until a call that was left is done, and complete that call.
  void pump() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::shared_ptr<Call> call;
    for (int64_t until = 0; !(call = take_due());) {
      if (move() > 0) {
        until = now_ns() + spin_ns_;
      } else if (now_ns() >= until || yields(lock)) {
        sleep(lock);
      }
    }
    is_pumping_ = !left_.empty();
    if (is_pumping_) hocket::waiters().run([this] { pump(); });
    close_files();
    lock.unlock();
    hocket::complete(*call->promise, call->error);
  }

  // Return a call that the pump is to complete now, or nullptr.
  std::shared_ptr<Call> take_due() {
    const int64_t now = now_ns();
    const auto is_due = [&](const auto& call) { return call->is_done && call->due_ns <= now; };
    const auto at = std::find_if(left_.begin(), left_.end(), is_due);
    if (at == left_.end()) return nullptr;
    const std::shared_ptr<Call> call = *at;
    left_.erase(at);
    return call;
  }

  // Wait until there may be something to move or to complete.
  void sleep(std::unique_lock<std::mutex>& lock) {
    int64_t until = now_ns() + kSleepNs;
    std::vector<pollfd> files{{bell_, POLLIN, 0}};
    for (const std::shared_ptr<Call>& call : left_) {
      if (call->is_done) until = std::min(until, call->due_ns);
    }
    for (const Peer& peer : peers_) {
      const short events = static_cast<short>(POLLIN | (peer.has_more() ? POLLOUT : 0));
      if (!peer.over) files.push_back({peer.fd, events, 0});
    }
    const int64_t left = std::max(until - now_ns(), int64_t{0});
    const timespec most{static_cast<time_t>(left / 1000000000), left % 1000000000};
    lock.unlock();
    uint64_t rings;
    if (ppoll(files.data(), files.size(), &most, nullptr) > 0 && files[0].revents != 0) {
      if (read(bell_, &rings, sizeof(rings)) < 0) rings = 0;
    }
    lock.lock();
  }

  const int64_t spin_ns_, delay_ns_;
  std::mutex mutex_;  // for what follows
  std::deque<Peer> peers_;
  std::map<uint32_t, Site> sites_;
  std::vector<std::shared_ptr<Call>> active_;  // begun, and not done
  std::vector<std::shared_ptr<Call>> left_;    // to the pump, and not completed
  bool is_pumping_ = false;
  bool closed_ = false;
  int bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

// Never freed: nothing says when the last program has ended.
auto& groups = *new hocket::Numbered<Group>;

struct CallSite {
  static inline ffi::TypeId id = {};
  uint32_t number;
};

ffi::ErrorOr<std::unique_ptr<CallSite>> instantiate(int64_t group, int64_t, int64_t, int64_t) {
  return std::make_unique<CallSite>(CallSite{groups[group].num_sites++});
}

// XLA keeps the arrays of a call until the future is complete.
ffi::Future average(CallSite* site, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t number,
                    int64_t tag, int64_t, int64_t) {
  ffi::Promise promise;
  ffi::Future future(promise);
  std::vector<Leaf> leaves;
  if (ffi::Error error = hocket::read_leaves(args, rets, leaves, "hocket_reduce_tcp");
      error.failure()) {
    promise.SetError(error);
    return future;
  }
  Group& group = groups[number];
  const auto call = std::make_shared<Call>(site->number, tag, std::move(leaves), group.replicas,
                                           group.index);
  const std::string error = group.begin(call);
  if (!error.empty()) {
    hocket::complete(promise, error);
  } else if (group.is_done_soon(*call)) {
    hocket::complete(promise, call->error);
  } else {
    group.leave(call, promise);
  }
  return future;
}

}  // namespace

HOCKET_DEFINE_SITE(hocket_reduce_tcp, CallSite, instantiate)

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_tcp, average,
                              hocket::with_attributes(ffi::Ffi::Bind()
                                                          .Ctx<ffi::State<CallSite>>()
                                                          .RemainingArgs()
                                                          .RemainingRets()));

extern "C" {

// Make a replica of a group out of its connections, `fds[r]` to replica r, which the group closes.
// Return the number by which programs of this process know it.
int hocket_reduce_tcp_join(int replicas, int index, const int* fds, int64_t spin_ns,
                           int64_t delay_ns) {
  return groups.add(std::make_unique<Group>(replicas, index, fds, spin_ns, delay_ns));
}

// As `hocket_average_counts`.
void hocket_reduce_tcp_counts(int group, int64_t* calls, int64_t* nbytes, int64_t* waited_ns) {
  *calls = groups[group].calls;
  *nbytes = groups[group].nbytes;
  *waited_ns = groups[group].waited_ns;
}

// End every wait, now and later, and free the connections. The other replicas' waits end, too, but
// for those that do not need this one, if it only leaves.
void hocket_reduce_tcp_close(int group, int leaves) { groups[group].close(leaves != 0); }

}  // extern "C"
