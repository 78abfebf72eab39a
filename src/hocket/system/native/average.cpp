// The mean over replicas in several processes, called by their compiled programs.
//
// A group is the memory that the replicas share: a header, then one region for each call site. In
// a region, each replica has a line that says what it averages there and how often it has. The data
// follow, [2][replicas][bytes]. Zero bytes are a valid group. With a `root`, all replicas get that
// replica's arrays instead of means.
//
// No lock is needed, because only its own replica writes a line or a part of the data. `epoch`
// counts the calls of a site. A replica writes its data and then its epoch, with release order; the
// others read the data after they have read that epoch, with acquire order. Two buffers are enough:
// a replica writes epoch e + 2 over epoch e once it has finished e + 1, for which every other
// replica had written e + 1, and so had finished reading e.
//
// A call site is an instruction of an executable, which exists from `instantiate` on. It cannot be
// a call in the program's text, because a function that is called twice is lowered once, and XLA
// may run the two calls in any order. XLA has few threads, and other calls may have to run before
// the replicas arrive, so none of its threads sleeps here: a thread of ours waits instead.

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call_site.h"
#include "event.h"
#include "leaves.h"
#include "say.h"
#include "waiters.h"

namespace {

using hocket::complete;
using hocket::Event;
using hocket::kLine;
using hocket::Leaf;
namespace ffi = xla::ffi;

struct Header {
  alignas(kLine) std::atomic<uint32_t> closed;
  Event arrived;
};

struct alignas(kLine) Line {
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> digest;  // of the leaves' sizes and types; 0 until the replica arrives
  std::atomic<uint64_t> nbytes;
  std::atomic<uint32_t> busy;
};

// This process's view of a group. Programs name it by a number rather than an address, so that
// their text is the same in every process and run, and a compilation cache finds them.
struct Group {
  char* base;
  int32_t replicas, index;
  int64_t spin_ns, delay_ns;
  int64_t next, end;  // the part of the memory that no call site has yet
};

// The calls of this process in a group so far.
struct Counts {
  std::atomic<int64_t> calls, nbytes, waited_ns;
};

constexpr int kMaxGroups = 1024;
Group groups[kMaxGroups];
Counts counts[kMaxGroups];
std::atomic<int> num_groups;
std::mutex allocating;

// Take a region for a new call site, and return where it begins in the group; -1 if there is no
// room.
int64_t take(Group& group, int64_t nbytes) {
  const std::lock_guard<std::mutex> lock(allocating);
  const int64_t needed = group.replicas * (static_cast<int64_t>(sizeof(Line)) + 2 * nbytes);
  if (group.next + needed > group.end) return -1;
  group.next += needed;
  return group.next - needed;
}

int64_t aligned(int64_t n) { return (n + kLine - 1) / kLine * kLine; }

int64_t data_bytes(const std::vector<Leaf>& leaves) {
  int64_t total = 0;
  for (const Leaf& leaf : leaves) total += aligned(leaf.nbytes());
  return total;
}

void pass_time(int64_t ns) {
  const int64_t end = hocket::now_ns() + ns;
  const int64_t asleep = ns - 100000;  // sleeps end late, so the last part is a spin
  if (asleep > 0) {
    const timespec t{static_cast<time_t>(asleep / 1000000000), asleep % 1000000000};
    nanosleep(&t, nullptr);
  }
  while (hocket::now_ns() < end) hocket::pause_cpu();
}

class Call {
 public:
  Call(const Group& group, int64_t offset, int64_t tag, int64_t root, std::vector<Leaf> leaves)
      : group_(group), counts_(counts[&group - groups]), tag_(tag), root_(root),
        leaves_(std::move(leaves)),
        stride_(data_bytes(leaves_)),
        header_(reinterpret_cast<Header*>(group.base)),
        lines_(reinterpret_cast<Line*>(group.base + offset)), mine_(lines_[group.index]) {}

  // Average, and return what went wrong, or "", as all of the following do.
  std::string run() {
    std::string error = begin();
    return error.empty() ? finish() : error;
  }

  // Write this replica's arrays for the others, or at the first call of a site only what they are.
  std::string begin() {
    // Two calls of one site at once would both write this replica's buffer of one epoch.
    if (mine_.busy.exchange(1, std::memory_order_acquire) != 0) {
      return hocket::kTwoRuns;
    }
    epoch_ = mine_.epoch.load(std::memory_order_relaxed) + 1;
    counts_.calls += 1;
    for (const Leaf& leaf : leaves_) counts_.nbytes += leaf.nbytes();
    if (epoch_ == 1) {
      introduce();
    } else {
      publish();
    }
    return "";
  }

  // Check that all replicas average the same here, for a mean that is computed elsewhere.
  std::string agree() {
    introduce();
    return compare();
  }

  // True if all replicas arrive while this thread spins, so that no other thread has to wait.
  bool arrives_soon() {
    if (epoch_ == 1) return false;
    return header_->arrived.wait([this] { return all_here() || closed(); }, group_.spin_ns, 0) ==
           hocket::Wait::kReady;
  }

  // Wait for the others, and compute the means.
  std::string finish() {
    std::string error = epoch_ == 1 ? compare() : "";
    if (error.empty()) {
      if (epoch_ == 1) publish();
      error = collect();
    }
    mine_.busy.store(0, std::memory_order_release);
    return error;
  }

 private:
  void introduce() {
    mine_.nbytes.store(stride_, std::memory_order_relaxed);
    mine_.digest.store(hocket::digest_of(tag_, root_, leaves_), std::memory_order_release);
    header_->arrived.signal();
  }

  // Compare what all replicas average, once for each site. It comes before any data is written,
  // because in a replica that differs the lines of another site may lie there.
  std::string compare() {
    const auto known = [](const Line& line) { return line.digest.load() != 0; };
    const auto all = [&] { return std::all_of(lines_, lines_ + group_.replicas, known); };
    wait_for([&] { return all() || closed(); });
    if (!all()) return ended();
    for (int r = 0; r < group_.replicas; ++r) {
      if (lines_[r].digest.load() == mine_.digest.load()) continue;
      return hocket::different_programs(group_.index, mine_.nbytes.load(), r,
                                        lines_[r].nbytes.load());
    }
    return "";
  }

  void publish() {
    char* at = data() + group_.index * stride_;
    for (const Leaf& leaf : leaves_) {
      if (root_ >= 0 && root_ != group_.index) break;  // nobody reads this replica's
      if (leaf.size != 0) std::memcpy(at, leaf.in, leaf.nbytes());
      at += aligned(leaf.nbytes());
    }
    mine_.epoch.store(epoch_, std::memory_order_release);
    header_->arrived.signal();
  }

  template <class Ready>
  void wait_for(const Ready& ready) {
    const int64_t start = hocket::now_ns();
    header_->arrived.wait(ready, group_.spin_ns, -1);
    counts_.waited_ns += hocket::now_ns() - start;
  }

  std::string collect() {
    wait_for([this] { return all_here() || closed(); });
    if (!all_here()) return ended();
    if (group_.delay_ns > 0) {
      pass_time(group_.delay_ns);
      counts_.waited_ns += group_.delay_ns;
    }
    const char* at = data() + std::max(root_, int64_t{0}) * stride_;
    const int replicas = root_ < 0 ? group_.replicas : 1;
    for (const Leaf& leaf : leaves_) {
      const auto row = [&](int r) { return at + r * stride_; };
      hocket::mean(row, replicas, leaf.dtype, leaf.out, leaf.size);
      at += aligned(leaf.nbytes());
    }
    return "";
  }

  char* data() const {
    return reinterpret_cast<char*>(lines_ + group_.replicas) +
           (epoch_ & 1) * group_.replicas * stride_;
  }

  bool all_here() const {
    return std::all_of(lines_, lines_ + group_.replicas, [this](const Line& line) {
      return line.epoch.load(std::memory_order_acquire) >= epoch_;
    });
  }

  bool closed() const { return header_->closed.load(std::memory_order_acquire) != 0; }

  static std::string ended() { return hocket::kReplicaEnded; }

  const Group& group_;
  Counts& counts_;
  int64_t tag_, root_;
  std::vector<Leaf> leaves_;
  int64_t stride_;
  Header* header_;
  Line* lines_;
  Line& mine_;
  uint64_t epoch_ = 0;
};

struct Site {
  static inline ffi::TypeId id = {};
  int64_t offset;  // of its region in the group's memory
};

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(int64_t group, int64_t, int64_t nbytes, int64_t) {
  const int64_t offset = take(groups[group], nbytes);
  if (offset < 0) return ffi::Unexpected(hocket::memory_is_full(nbytes));
  return std::make_unique<Site>(Site{offset});
}

// XLA keeps the arrays of a call until the future is complete, so a thread of ours may still read
// and write them after this has returned. The `Call` belongs to that thread then.
ffi::Future average(Site* site, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t group,
                    int64_t tag, int64_t, int64_t root) {
  ffi::Promise promise;
  ffi::Future future(promise);
  std::vector<Leaf> leaves;
  const char* target = "hocket_average";
  if (ffi::Error error = hocket::read_leaves(args, rets, leaves, target); error.failure()) {
    promise.SetError(error);
    return future;
  }
  const auto call =
      std::make_shared<Call>(groups[group], site->offset, tag, root, std::move(leaves));
  const std::string error = call->begin();
  if (!error.empty()) {
    complete(promise, error);
  } else if (call->arrives_soon()) {
    complete(promise, call->finish());
  } else {
    hocket::waiters().run([call, promise] { complete(promise, call->finish()); });
  }
  return future;
}

}  // namespace

HOCKET_DEFINE_SITE(hocket_average, Site, instantiate)

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_average, average,
                              hocket::with_attributes(ffi::Ffi::Bind()
                                                          .Ctx<ffi::State<Site>>()
                                                          .RemainingArgs()
                                                          .RemainingRets()));

extern "C" {

int64_t hocket_average_header_bytes() { return sizeof(Header); }

// The bytes that one replica needs for a call site besides its data.
int64_t hocket_average_line_bytes() { return sizeof(Line); }

// Return the number by which programs of this process know the group; -1 if there are too many.
int hocket_average_join(void* base, int64_t nbytes, int32_t replicas, int32_t index,
                        int64_t spin_ns, int64_t delay_ns) {
  const int number = num_groups.fetch_add(1);
  if (number >= kMaxGroups) return -1;
  groups[number] = {static_cast<char*>(base), replicas, index, spin_ns, delay_ns,
                    sizeof(Header), nbytes};
  return number;
}

// Write how often this process has averaged in a group, how many bytes of its own, and how long it
// waited for the others, the artificial delay included.
void hocket_average_counts(int group, int64_t* calls, int64_t* nbytes, int64_t* waited_ns) {
  *calls = counts[group].calls;
  *nbytes = counts[group].nbytes;
  *waited_ns = counts[group].waited_ns;
}

int64_t hocket_average_take(int group, int64_t nbytes) { return take(groups[group], nbytes); }

// End every wait, now and later, in every replica.
void hocket_average_close(void* base) {
  Header* header = static_cast<Header*>(base);
  header->closed.store(1, std::memory_order_seq_cst);
  header->arrived.wake();
}

int hocket_average_is_closed(const void* base) {
  return static_cast<const Header*>(base)->closed.load(std::memory_order_acquire) != 0;
}

// Average arrays on the host, outside of a compiled program, in a region that `take` gave. What
// went wrong, or "", goes to `message`.
void hocket_average_arrays(int group, int64_t offset, int64_t tag, int64_t root, int num,
                           void** ins, void** outs, const int64_t* sizes, const int32_t* dtypes,
                           char* message, int64_t room) {
  std::vector<Leaf> leaves(num);
  for (int i = 0; i < num; ++i) leaves[i] = {ins[i], outs[i], sizes[i], dtypes[i]};
  hocket::say(message, room, Call(groups[group], offset, tag, root, std::move(leaves)).run());
}

// Check that all replicas average the same at a site whose means are computed elsewhere. Called
// once for each site, this waits for all replicas.
void hocket_average_compare(int group, int64_t offset, int64_t tag, int64_t size, int32_t dtype,
                            char* message, int64_t room) {
  std::vector<Leaf> leaves(1, Leaf{nullptr, nullptr, size, dtype});
  hocket::say(message, room, Call(groups[group], offset, tag, -1, std::move(leaves)).agree());
}

}  // extern "C"
