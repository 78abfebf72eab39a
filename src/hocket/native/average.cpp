// The mean over replicas in several processes, called by their compiled programs.
//
// A group is the memory that the replicas share: a header, then one region for each call site. In
// a region every replica has a line of its own (what it averages here, and how often it has), and
// then come the data, [2][replicas][bytes]: while one replica still reads the means of one epoch,
// another may already write the next. Zero bytes are a valid group.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "event.h"
#include "xla/ffi/api/ffi.h"

namespace {

using hocket::Event;
using hocket::kLine;
namespace ffi = xla::ffi;

constexpr int kF32 = 0;
constexpr int kF64 = 1;

struct Leaf {
  const void* in;
  void* out;
  int64_t size;
  int32_t dtype;

  int64_t nbytes() const { return size * (dtype == kF32 ? 4 : 8); }
};

struct Header {
  alignas(kLine) std::atomic<uint32_t> closed;
  Event arrived;
};

struct alignas(kLine) Line {
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> digest;  // of the leaves' sizes and types; 0: not here yet
  std::atomic<uint64_t> nbytes;
  std::atomic<uint32_t> busy;
};

// This process's view of a group. Programs know it by its number, so that their text is the same
// in every process and every run, and a compilation cache finds it.
struct Group {
  char* base;
  int32_t replicas, index;
  int64_t spin_ns, delay_ns;
};

constexpr int kMaxGroups = 1024;
Group groups[kMaxGroups];
std::atomic<int> num_groups;

int64_t aligned(int64_t n) { return (n + kLine - 1) / kLine * kLine; }

int64_t data_bytes(const std::vector<Leaf>& leaves) {
  int64_t total = 0;
  for (const Leaf& leaf : leaves) total += aligned(leaf.nbytes());
  return total;
}

uint64_t digest_of(const std::vector<Leaf>& leaves) {
  uint64_t h = 1469598103934665603u;
  for (const Leaf& leaf : leaves) {
    for (uint64_t part : {uint64_t(leaf.size), uint64_t(leaf.dtype)}) h = (h ^ part) * 1099511628211u;
  }
  return h | 1;
}

void pass_time(int64_t ns) {
  const int64_t end = hocket::now_ns() + ns;
  const int64_t asleep = ns - 100000;  // a sleep ends late, so the rest is spun
  if (asleep > 0) {
    const timespec t{static_cast<time_t>(asleep / 1000000000), asleep % 1000000000};
    nanosleep(&t, nullptr);
  }
  while (hocket::now_ns() < end) hocket::pause_cpu();
}

// In the order of the replicas, so that each of them gets the same bits.
template <class T>
void mean(const char* first, int64_t stride, int replicas, T* out, int64_t size) {
  constexpr int64_t kBlock = 2048;  // stays in the nearest cache
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t n = std::min(kBlock, size - start);
    const auto row = [&](int r) { return reinterpret_cast<const T*>(first + r * stride) + start; };
    T* __restrict sum = out + start;
    std::memcpy(sum, row(0), n * sizeof(T));
    for (int r = 1; r < replicas; ++r) {
      const T* __restrict x = row(r);
      for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
    }
    for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<T>(replicas);
  }
}

struct Call {
  const Group& group;
  int64_t site;
  const std::vector<Leaf>& leaves;
  Header* header = reinterpret_cast<Header*>(group.base);
  Line* lines = reinterpret_cast<Line*>(group.base + site);

  // What went wrong, or nothing.
  std::string run() {
    Line& mine = lines[group.index];
    if (mine.busy.exchange(1, std::memory_order_acquire) != 0) {
      return "two calls of one `averaged` ran at the same time: it stands in a function that is "
             "called twice; let one call depend on the other";
    }
    std::string error = mine.epoch.load(std::memory_order_relaxed) == 0 ? compare() : "";
    if (error.empty()) error = exchange(mine);
    mine.busy.store(0, std::memory_order_release);
    return error;
  }

 private:
  // Once for every site, before anyone writes where a replica that differs might have its lines.
  std::string compare() {
    Line& mine = lines[group.index];
    mine.nbytes.store(data_bytes(leaves), std::memory_order_relaxed);
    mine.digest.store(digest_of(leaves), std::memory_order_release);
    header->arrived.signal();
    const auto here = [](const Line& line) { return line.digest.load() != 0; };
    if (!wait_for(here)) return closed();
    for (int r = 0; r < group.replicas; ++r) {
      if (lines[r].digest.load() == mine.digest.load()) continue;
      return "the replicas run different programs: at one `averaged`, replica " +
             std::to_string(group.index) + " has " + std::to_string(mine.nbytes.load()) +
             " bytes and replica " + std::to_string(r) + " has " +
             std::to_string(lines[r].nbytes.load()) + ", or arrays of other sizes";
    }
    return "";
  }

  std::string exchange(Line& mine) {
    const int64_t stride = data_bytes(leaves);
    const uint64_t epoch = mine.epoch.load(std::memory_order_relaxed) + 1;
    char* data = reinterpret_cast<char*>(lines + group.replicas);
    data += (epoch & 1) * group.replicas * stride;
    char* at = data + group.index * stride;
    for (const Leaf& leaf : leaves) {
      if (leaf.size != 0) std::memcpy(at, leaf.in, leaf.nbytes());
      at += aligned(leaf.nbytes());
    }
    mine.epoch.store(epoch, std::memory_order_release);
    header->arrived.signal();
    const auto here = [epoch](const Line& line) {
      return line.epoch.load(std::memory_order_acquire) >= epoch;
    };
    if (!wait_for(here)) return closed();
    if (group.delay_ns > 0) pass_time(group.delay_ns);
    for (const Leaf& leaf : leaves) {
      if (leaf.dtype == kF32) {
        mean(data, stride, group.replicas, static_cast<float*>(leaf.out), leaf.size);
      } else {
        mean(data, stride, group.replicas, static_cast<double*>(leaf.out), leaf.size);
      }
      data += aligned(leaf.nbytes());
    }
    return "";
  }

  // False: the group was closed meanwhile.
  template <class Here>
  bool wait_for(Here here) {
    const auto all = [&] { return std::all_of(lines, lines + group.replicas, here); };
    const auto shut = [&] { return header->closed.load(std::memory_order_acquire) != 0; };
    header->arrived.wait([&] { return all() || shut(); }, group.spin_ns, -1);
    return all();
  }

  static std::string closed() { return "another replica has ended, so there is no mean"; }
};

ffi::Error average(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t group, int64_t site) {
  std::vector<Leaf> leaves(args.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto in = args.get<ffi::AnyBuffer>(i);
    auto out = rets.get<ffi::AnyBuffer>(i);
    if (in.has_error() || out.has_error()) return ffi::Error::InvalidArgument("not a buffer");
    const bool f32 = in->element_type() == ffi::F32;
    if (!f32 && in->element_type() != ffi::F64) {
      return ffi::Error::InvalidArgument("`hocket_average` takes float32 and float64");
    }
    void* target = (*out)->untyped_data();
    const int64_t size = static_cast<int64_t>(in->element_count());
    leaves[i] = {in->untyped_data(), target, size, f32 ? kF32 : kF64};
  }
  const std::string error = Call{groups[group], site, leaves}.run();
  return error.empty() ? ffi::Error::Success() : ffi::Error(ffi::ErrorCode::kAborted, error);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_average, average,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("site"));

extern "C" {

int64_t hocket_average_header_bytes() { return sizeof(Header); }

// What one call site takes beside its data.
int64_t hocket_average_line_bytes() { return sizeof(Line); }

// The number by which programs of this process know the group; -1: there are too many.
int hocket_average_join(void* base, int32_t replicas, int32_t index, int64_t spin_ns,
                        int64_t delay_ns) {
  const int number = num_groups.fetch_add(1);
  if (number >= kMaxGroups) return -1;
  groups[number] = {static_cast<char*>(base), replicas, index, spin_ns, delay_ns};
  return number;
}

// Ends every wait, now and later, in every replica.
void hocket_average_close(void* base) {
  Header* header = static_cast<Header*>(base);
  header->closed.store(1, std::memory_order_seq_cst);
  header->arrived.wake();
}

// The same for arrays on the host; the text of an error goes to `message`, which is "" without one.
void hocket_average_arrays(int group, int64_t site, int num, void** ins, void** outs,
                           const int64_t* sizes, const int32_t* dtypes, char* message,
                           int64_t room) {
  std::vector<Leaf> leaves(num);
  for (int i = 0; i < num; ++i) leaves[i] = {ins[i], outs[i], sizes[i], dtypes[i]};
  const std::string error = Call{groups[group], site, leaves}.run();
  std::strncpy(message, error.c_str(), room - 1);
  message[room - 1] = 0;
}

}  // extern "C"
