// A tree of sums of priorities, which finds the row at a point of their total.
//
// A node has 16 children, a cache line of float32. The sums between a node and its children are
// four levels of a binary tree, which are added up when needed and not kept. So it finds, bit for
// bit, the same rows as a binary tree whose number of leaves is a power of two, like that of the
// device replay. Sums are recomputed from below, and never changed by a difference, so they do not
// drift.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace hocket {

constexpr uint64_t kWide = 16;

// Floats that begin on a cache line and are zero at first.
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

  // Sets a leaf. The sums are right again after `settle`.
  void set(uint64_t slot, float priority) { levels_[0].data()[slot] = priority; }

  // Recomputes the ancestors of the leaves `slots`, which were set. Changes `slots`.
  void settle(std::vector<uint32_t>& slots) {
    float sums[2 * kWide];
    for (size_t level = 0; level + 1 < levels_.size(); ++level) {
      const float* below = levels_[level].data();
      float* above = levels_[level + 1].data();
      size_t kept = 0;
      uint32_t last = UINT32_MAX;
      for (uint32_t node : slots) {
        node /= kWide;
        if (node == last) continue;  // siblings have the same parent
        last = slots[kept++] = node;
        add_up(below + node * kWide, sums);
        above[node] = sums[1];
      }
      slots.resize(kept);
    }
  }

  // Finds the slot at each of `n` points of the total, and its priority. However sums round, that
  // is never a slot of priority zero, unless all are. Overwrites the points. With float32 points it
  // finds the rows of the device replay, but some with a share below 2**-24 never; with double it
  // finds all.
  template <typename Point>
  void find(Point* points, uint64_t n, uint32_t* slots, float* priorities) const {
    for (uint64_t i = 0; i < n; ++i) slots[i] = 0;
    // All points go down level by level, so that their cache misses overlap.
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
  // Sums 16 children as a binary tree: `sums[i] = sums[2 i] + sums[2 i + 1]`, and `sums[1]` is the
  // root.
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
      // Not `point >= left`, because points are NaN if sums overflow, and must not end on a zero.
      const bool go_right = !(point < left) && right > 0.0f;
      point = go_right ? point - left : point;
      node = 2 * node + go_right;
    }
    return node - kWide;
  }

  std::vector<Lines> levels_;
};

}  // namespace hocket
