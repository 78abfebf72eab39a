// One call of `averaged` over TCP (`reduce_tcp.cpp`): how its arrays are cut into chunks, and what
// is still to be sent and received.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "leaves.h"
#include "peer.h"

namespace hocket::tcp {

constexpr int64_t kUnit = 8;  // arrays begin, and are cut, at multiples of this
// A replica sends up to so many bytes more if that spares it the wait for a second message.
constexpr int64_t kMoreBytes = 64 << 10;

inline int64_t aligned(int64_t n) { return (n + kUnit - 1) / kUnit * kUnit; }

// A range of the bytes of a call's arrays, which follow each other at multiples of kUnit.
struct Range {
  int64_t begin, end;
};

// One call of a site. Whoever holds the lock of the group uses it.
struct Call {
  Call(uint32_t site, int64_t tag, std::vector<Leaf> arrays, int replicas, int index)
      : site(site), leaves(std::move(arrays)), digest(digest_of(tag, -1, leaves)),
        missing(replicas - 1), open(replicas), has_means(replicas) {
    for (const Leaf& leaf : leaves) total += aligned(leaf.nbytes());
    // Without owners a replica sends `total` to each other; with owners, two chunks to each.
    is_whole = total * (replicas - 1) * (replicas - 2) <= kMoreBytes * replicas;
    // To and from each other replica: arrays, and means if there are owners.
    std::fill(open.begin(), open.end(), is_whole ? 2 : 4);
    open[index] = 0;
  }

  const uint32_t site;
  const std::vector<Leaf> leaves;
  const uint64_t digest;
  uint64_t turn = 0;
  int64_t total = 0;             // bytes of all arrays
  bool is_whole;                 // every replica owns all of it
  int missing;                   // replicas whose arrays have not arrived
  std::vector<int> open;         // frames to and from each replica that are still on their way
  std::vector<bool> has_means;   // of each owner
  bool is_done = false;
  std::string error;
  int64_t began_ns = 0, due_ns = 0;     // due: an artificial delay is over, too
  std::optional<ffi::Promise> promise;  // of a call that was left to the pump

  Range chunk(int owner) const {
    const int64_t units = total / kUnit, replicas = static_cast<int64_t>(open.size());
    if (is_whole) return {0, total};
    return {units * owner / replicas * kUnit, units * (owner + 1) / replicas * kUnit};
  }

  // Call `each(leaf, from, nbytes, at)` for the part of each array in a range. The part begins
  // `from` bytes into its array, and `at` bytes into the range.
  template <class Each>
  void each_part(Range range, const Each& each) const {
    int64_t begin = 0;
    for (const Leaf& leaf : leaves) {
      const int64_t from = std::max(range.begin, begin);
      const int64_t end = std::min(range.end, begin + leaf.nbytes());
      if (from < end) each(leaf, from - begin, end - from, from - range.begin);
      begin += aligned(leaf.nbytes());
    }
  }

  // The arrays in a range, padded, so that they can be read where they arrive.
  Pieces arrays(Range range) const {
    static char zeros[kUnit];
    Pieces pieces;
    int64_t end = 0;
    const auto pad = [&](int64_t to) {
      if (to > end) pieces.push_back({zeros, static_cast<size_t>(to - end)});
    };
    each_part(range, [&](const Leaf& leaf, int64_t from, int64_t nbytes, int64_t at) {
      pad(at);
      char* const in = const_cast<char*>(static_cast<const char*>(leaf.in));
      pieces.push_back({in + from, static_cast<size_t>(nbytes)});
      end = at + nbytes;
    });
    pad(range.end - range.begin);
    return pieces;
  }

  // The places of the means in a range.
  Pieces means(Range range) const {
    Pieces pieces;
    each_part(range, [&](const Leaf& leaf, int64_t from, int64_t nbytes, int64_t) {
      pieces.push_back({static_cast<char*>(leaf.out) + from, static_cast<size_t>(nbytes)});
    });
    return pieces;
  }
};

inline int64_t bytes_of(const Pieces& pieces) {
  int64_t total = 0;
  for (const iovec& piece : pieces) total += static_cast<int64_t>(piece.iov_len);
  return total;
}

// The arrays of one replica for one turn of a site.
struct Slot {
  Frame frame{};
  std::vector<char> data;
  bool is_full = false;
};

struct Site {
  uint64_t turn = 0;  // of the last call
  std::shared_ptr<Call> call;
  std::vector<Slot> slots[2];
};

}  // namespace hocket::tcp
