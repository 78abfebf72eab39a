// Sums of priorities, from which a row is found by a point of their total.
//
// Nodes have 16 children, a cache line of float32. Between a node and its children the sums are
// those of a binary tree, four levels of it, added up on the way and not kept. So the tree finds
// the rows that a binary one finds whose leaves are a power of two, bit for bit: that of the device
// replay. Sums are computed anew from below, never changed by a difference: they do not drift.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace hocket {

constexpr uint64_t kWide = 16;

// Floats on a cache line, all zero.
class Lines {
 public:
  explicit Lines(uint64_t size)
      : size_((size + kWide - 1) / kWide * kWide),
        data_(static_cast<float*>(std::aligned_alloc(64, size_ * sizeof(float))), &std::free) {
    if (!data_) throw std::bad_alloc();
    for (uint64_t i = 0; i < size_; ++i) data_.get()[i] = 0.0f;
  }
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  std::unique_ptr<float, decltype(&std::free)> data_;
};

class SumTree {
 public:
  explicit SumTree(uint64_t leaves) {
    levels_.emplace_back(leaves);
    while (levels_.back().size() > kWide) levels_.emplace_back(levels_.back().size() / kWide);
  }

  float total() const {
    float sums[2 * kWide];
    add_up(levels_.back().data(), sums);
    return sums[1];
  }

  float leaf(uint64_t slot) const { return levels_[0].data()[slot]; }

  // Sums are right again after `settle`.
  void set(uint64_t slot, float priority) { levels_[0].data()[slot] = priority; }

  // After leaves were set: their ancestors are added up. Changes `slots`.
  void settle(std::vector<uint32_t>& slots) {
    float sums[2 * kWide];
    for (size_t level = 0; level + 1 < levels_.size(); ++level) {
      const float* below = levels_[level].data();
      float* above = levels_[level + 1].data();
      size_t kept = 0;
      uint32_t last = UINT32_MAX;
      for (uint32_t node : slots) {
        node /= kWide;
        if (node == last) continue;  // neighbours have one parent
        last = slots[kept++] = node;
        add_up(below + node * kWide, sums);
        above[node] = sums[1];
      }
      slots.resize(kept);
    }
  }

  // The slot at each of `n` points of the total, and its priority. Never a slot of priority zero,
  // however sums round, unless all are. Points are used up. In float32 the rows are those that the
  // device replay finds, and of rows with a share below 2**-24 some never; double finds them all.
  template <typename Point>
  void find(Point* points, uint64_t n, uint32_t* slots, float* priorities) const {
    for (uint64_t i = 0; i < n; ++i) slots[i] = 0;
    // Level by level, so that the cache misses of different points overlap.
    for (size_t level = levels_.size(); level-- > 0;) {
      const float* nodes = levels_[level].data();
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t first = slots[i] * kWide;
        const uint32_t child = choose(nodes + first, points[i]);
        slots[i] = static_cast<uint32_t>(first + child);
        priorities[i] = nodes[slots[i]];
      }
    }
  }

 private:
  // `sums[1]` is the sum of 16, `sums[i]` that of `sums[2 i]` and `sums[2 i + 1]`.
  static void add_up(const float* children, float* sums) {
    for (uint64_t i = 0; i < kWide; ++i) sums[kWide + i] = children[i];
    for (uint64_t i = kWide - 1; i > 0; --i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }

  template <typename Point>
  static uint32_t choose(const float* children, Point& point) {
    float sums[2 * kWide];
    add_up(children, sums);
    uint32_t node = 1;
    while (node < kWide) {
      const float left = sums[2 * node], right = sums[2 * node + 1];
      // Not `point >= left`: where sums overflow, points are NaN, and must not end on a zero.
      const bool go_right = !(point < left) && right > 0.0f;
      point = go_right ? point - left : point;
      node = 2 * node + go_right;
    }
    return node - kWide;
  }

  std::vector<Lines> levels_;
};

}  // namespace hocket
