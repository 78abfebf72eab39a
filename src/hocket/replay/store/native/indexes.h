// Indexes over the rows of a table: by age, as a heap, and the set of rows that exist.

#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace hocket {

constexpr uint32_t kNone = UINT32_MAX;

// The slots of rows, from the oldest to the newest.
class Order {
 public:
  explicit Order(uint32_t capacity) : before_(capacity), after_(capacity) {}

  uint32_t oldest() const { return oldest_; }
  uint32_t newest() const { return newest_; }
  uint32_t after(uint32_t slot) const { return after_[slot]; }

  void add(uint32_t slot) {
    before_[slot] = newest_;
    after_[slot] = kNone;
    (newest_ == kNone ? oldest_ : after_[newest_]) = slot;
    newest_ = slot;
  }

  void remove(uint32_t slot) {
    const uint32_t before = before_[slot], after = after_[slot];
    (before == kNone ? oldest_ : after_[before]) = after;
    (after == kNone ? newest_ : before_[after]) = before;
  }

 private:
  uint32_t oldest_ = kNone, newest_ = kNone;
  std::vector<uint32_t> before_, after_;
};

// The slots of rows in a dense array, so that one can be picked evenly although rows leave holes.
class Present {
 public:
  explicit Present(uint32_t capacity) : where_(capacity) { slots_.reserve(capacity); }

  uint32_t at(uint64_t index) const { return slots_[index]; }
  const std::vector<uint32_t>& slots() const { return slots_; }

  void add(uint32_t slot) {
    where_[slot] = static_cast<uint32_t>(slots_.size());
    slots_.push_back(slot);
  }

  void remove(uint32_t slot) {
    const uint32_t hole = where_[slot], last = slots_.back();
    slots_[hole] = last;
    where_[last] = hole;
    slots_.pop_back();
  }

 private:
  std::vector<uint32_t> slots_, where_;
};

// A binary heap of slots with the highest priority, or the lowest, on top. Ties are broken anyhow.
class Heap {
 public:
  Heap(uint32_t capacity, bool highest) : sign_(highest ? 1.0f : -1.0f), where_(capacity) {
    heap_.reserve(capacity);
  }

  uint32_t top() const { return heap_[0].second; }

  // The slots in an order in which adding them makes the same heap again.
  std::vector<uint32_t> slots() const {
    std::vector<uint32_t> found;
    for (const Entry& entry : heap_) found.push_back(entry.second);
    return found;
  }

  void add(uint32_t slot, float priority) {
    where_[slot] = static_cast<uint32_t>(heap_.size());
    heap_.emplace_back(sign_ * priority, slot);
    rise(where_[slot]);
  }

  void remove(uint32_t slot) {
    const uint32_t hole = where_[slot];
    const Entry last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return;
    put(hole, last);
    sink(rise(hole));
  }

  void change(uint32_t slot, float priority) {
    heap_[where_[slot]].first = sign_ * priority;
    sink(rise(where_[slot]));
  }

 private:
  using Entry = std::pair<float, uint32_t>;

  void put(uint32_t at, Entry entry) {
    heap_[at] = entry;
    where_[entry.second] = at;
  }

  void swap(uint32_t a, uint32_t b) {
    const Entry entry = heap_[a];
    put(a, heap_[b]);
    put(b, entry);
  }

  uint32_t rise(uint32_t at) {
    while (at > 0 && heap_[(at - 1) / 2].first < heap_[at].first) {
      swap(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
    return at;
  }

  void sink(uint32_t at) {
    for (;;) {
      uint32_t best = at;
      for (uint32_t child : {2 * at + 1, 2 * at + 2}) {
        if (child < heap_.size() && heap_[child].first > heap_[best].first) best = child;
      }
      if (best == at) return;
      swap(at, best);
      at = best;
    }
  }

  float sign_;
  std::vector<Entry> heap_;
  std::vector<uint32_t> where_;
};

}  // namespace hocket
