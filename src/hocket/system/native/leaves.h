// The arrays of one call of `averaged` in a program on the CPU, and their mean: what the ways to
// average there (`average.cpp`, `reduce_tcp.cpp`) have in common.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "call_site.h"

namespace hocket {

constexpr char kTwoRuns[] =
    "two runs of one program met in one `averaged`: wait for one before the next";

constexpr int kF32 = 0;
constexpr int kF64 = 1;

struct Leaf {
  const void* in;
  void* out;
  int64_t size;
  int32_t dtype;

  int64_t width() const { return dtype == kF32 ? 4 : 8; }
  int64_t nbytes() const { return size * width(); }
};

// Equal in all replicas that average the same arrays at the same place of the same program.
inline uint64_t digest_of(int64_t tag, int64_t root, const std::vector<Leaf>& leaves) {
  uint64_t h = 1469598103934665603u ^ static_cast<uint64_t>(tag);
  h = (h ^ static_cast<uint64_t>(root)) * 1099511628211u;
  for (const Leaf& leaf : leaves) {
    for (uint64_t part : {uint64_t(leaf.size), uint64_t(leaf.dtype)}) h = (h ^ part) * 1099511628211u;
  }
  return h | 1;
}

inline std::string different_programs(int index, int64_t nbytes, int other, int64_t theirs) {
  return "the replicas run different programs: at one `averaged`, replica " +
         std::to_string(index) + " has " + std::to_string(nbytes) + " bytes and replica " +
         std::to_string(other) + " has " + std::to_string(theirs) +
         ", or arrays of other sizes, or compiles its programs in another order";
}

// The mean in the order of the replicas, so that each of them gets the same bits, however the
// arrays are cut. `row(r)` is where the elements of replica r begin.
template <class T, class Row>
void mean_of(const Row& row, int replicas, T* out, int64_t size) {
  constexpr int64_t kBlock = 2048;  // elements whose sums stay in the nearest cache
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t n = std::min(kBlock, size - start);
    const auto block = [&](int r) { return reinterpret_cast<const T*>(row(r)) + start; };
    T* __restrict sum = out + start;
    std::memcpy(sum, block(0), n * sizeof(T));
    for (int r = 1; r < replicas; ++r) {
      const T* __restrict x = block(r);
      for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
    }
    for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<T>(replicas);
  }
}

template <class Row>
void mean(const Row& row, int replicas, int32_t dtype, void* out, int64_t size) {
  if (dtype == kF32) {
    mean_of(row, replicas, static_cast<float*>(out), size);
  } else {
    mean_of(row, replicas, static_cast<double*>(out), size);
  }
}

inline ffi::Error read_leaves(ffi::RemainingArgs args, ffi::RemainingRets rets,
                              std::vector<Leaf>& leaves, const char* target) {
  for (size_t i = 0; i < args.size(); ++i) {
    const auto in = args.get<ffi::AnyBuffer>(i);
    auto out = rets.get<ffi::AnyBuffer>(i);
    if (in.has_error() || out.has_error()) return ffi::Error::InvalidArgument("not a buffer");
    const ffi::ErrorOr<bool> f64 = is_f64(*in, target);
    if (f64.has_error()) return f64.error();
    const int64_t size = static_cast<int64_t>(in->element_count());
    leaves.push_back({in->untyped_data(), (*out)->untyped_data(), size, *f64 ? kF64 : kF32});
  }
  return ffi::Error::Success();
}

inline void complete(ffi::Promise promise, const std::string& error) {
  if (error.empty()) {
    promise.SetAvailable();
  } else {
    promise.SetError(ffi::Error(ffi::ErrorCode::kAborted, error));
  }
}

}  // namespace hocket
