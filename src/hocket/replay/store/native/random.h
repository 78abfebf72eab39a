// A random number generator with a seed: PCG32.
//
// O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for
// Random Number Generation": https://www.pcg-random.org

#pragma once

#include <cstdint>

namespace hocket {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed + kIncrement) { next(); }

  uint32_t next() {
    const uint64_t old = state_;
    state_ = old * 6364136223846793005ULL + kIncrement;
    const uint32_t mixed = static_cast<uint32_t>(((old >> 18u) ^ old) >> 27u);
    const uint32_t turn = static_cast<uint32_t>(old >> 59u);
    return (mixed >> turn) | (mixed << ((32u - turn) & 31u));
  }

  // The next number in [0, 1).
  double uniform() { return next() * 0x1.0p-32; }

 private:
  static constexpr uint64_t kIncrement = 1442695040888963407ULL;
  uint64_t state_;
};

}  // namespace hocket
