// A table of a replay store: rows of fixed size, drawn and removed by their priority or their age.
//
// One thread at a time: the owner of a table, or whoever holds its lock. Requests are for batches,
// are checked before anything changes, and never wait.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "indexes.h"
#include "limiter.h"
#include "memory.h"
#include "random.h"
#include "sum_tree.h"

namespace hocket {

enum class Select : int32_t { kPrioritized, kUniform, kOldest, kNewest, kHighest, kLowest };

enum class Status : int32_t { kOk = 0, kWait = 1, kBad = -1 };

struct Answer {
  Status status = Status::kOk;
  std::string why;
};

struct Column {
  uint64_t bytes;       // of a row; of a frame where there are frames
  uint32_t frames = 0;  // frames that a row refers to; 0 for bytes of its own
};

struct Options {
  uint64_t capacity = 0;
  std::vector<Column> columns;
  uint64_t num_frames = 0;  // that are kept, the newest ones
  Select sampler = Select::kPrioritized;
  Select remover = Select::kOldest;
  uint32_t max_times_sampled = 0;  // after which a row is removed; 0 for never
  Limits limits;
  uint64_t seed = 0;
};

// Names a row for as long as it is there. A generation is never used again in its slot.
struct Key {
  uint32_t slot;
  uint32_t generation;
};

struct Drawn {
  Key* keys;
  float* probability;
  void* const* columns;
  bool evenly = false;  // all priorities are zero
};

struct Counts {
  uint64_t size, capacity, inserts, samples, updates, stale_keys, removals, frames, bytes;
  float highest, total;
};

class Snapshot;
struct Restored;

class Table {
 public:
  // Why there cannot be such a table; empty if there can.
  static std::string problem(const Options& options);

  explicit Table(const Options& options);

  // Rows in the order of their age; without priorities, with the highest so far.
  Answer insert(uint64_t rows, const void* const* columns, const float* priorities, Key* keys);

  // As many rows as `uniforms` in [0, 1), which are drawn here where there are none: one from each
  // of `rows` equal parts of the total, as in the device replay.
  Answer sample(uint64_t rows, const float* uniforms, Drawn& drawn);

  // Of a row that is there twice the higher priority counts. Keys of rows that are gone are
  // counted, and those of generation 0 are nothing.
  Answer update(uint64_t rows, const Key* keys, const float* priorities, uint64_t& stale);

  // Frames, one after the other; rows refer to them by their number, the first of these plus 0, 1...
  Answer add_frames(uint64_t frames, const void* data, uint64_t& first);

  // Every row, the oldest first: its key, its priority and its columns. There is room for `size()`.
  void look(Key* keys, float* priorities, void* const* columns) const;

  void clear();

  // The largest requests so far, which could wait for each other. One that waited in vain is to be
  // forgotten again.
  Largest largest() const { return limiter_.largest(); }
  void set_largest(Largest largest) { limiter_.set_largest(largest); }

  Counts counts() const;
  uint64_t size() const { return size_; }
  float total() const { return tree_.total(); }
  const Options& options() const { return options_; }

 private:
  // In snapshot.cpp.
  friend class Snapshot;
  friend Restored restore(const std::string& path);
  std::string index() const;
  void set_index(const std::string& bytes);
  uint64_t set_rows(const std::string& bytes);
  uint64_t set_frames(const std::string& bytes);
  void note_all_oldest_frames();

  std::string problem_with(uint64_t rows, const float* priorities) const;
  std::string problem_with_frames(uint64_t rows, const void* const* columns) const;
  uint64_t oldest_frame(uint32_t slot) const;
  void note_oldest_frame(uint32_t slot);
  void write(uint32_t slot, uint64_t row, const void* const* columns);
  void read(const std::vector<uint32_t>& slots, void* const* columns) const;
  void add(uint32_t slot, float priority);
  void remove(uint32_t slot);
  uint32_t room();
  void change(uint32_t slot, float priority);
  void settle();
  template <typename Point>
  void draw(std::vector<Point>& points, Drawn& drawn);
  template <typename Point>
  void draw_one_by_one(const std::vector<Point>& points, Drawn& drawn);
  template <typename Point>
  uint32_t pick(Select how, Point at, float& probability, bool& evenly) const;
  template <typename Point>
  uint32_t evenly(Point at) const;
  void forget_rows_of_lost_frames();
  uint64_t draws_left() const;
  uint8_t* row(uint32_t slot) { return rows_.data() + slot * stride_; }
  const uint8_t* row(uint32_t slot) const { return rows_.data() + slot * stride_; }

  Options options_;
  uint64_t stride_ = 0, frame_bytes_ = 0;
  std::vector<uint64_t> offsets_;
  Memory rows_, frames_;
  uint64_t frames_added_ = 0;
  // A heap of each row's oldest frame, slot and generation, with some of rows that are gone.
  std::vector<std::tuple<uint64_t, uint32_t, uint32_t>> oldest_frames_;

  std::vector<uint32_t> generations_;
  std::vector<uint32_t> times_sampled_;  // only where that is limited
  SumTree tree_;
  Order order_;
  std::optional<Present> present_;  // only where rows leave holes
  std::optional<Heap> heaps_[2];    // of the highest, of the lowest; where they are asked for

  uint64_t size_ = 0;
  uint32_t fresh_ = 0;  // slots from this one on were never written
  std::vector<uint32_t> free_, changed_, slots_;
  std::vector<float> points_, priorities_;  // points as the device replay has them
  std::vector<double> fine_points_;         // and of its own draws
  float highest_ = 1.0f;
  uint64_t updates_ = 0, stale_keys_ = 0, removals_ = 0, drawn_ = 0;
  Limiter limiter_;
  Random random_;
  Snapshot* snapshot_ = nullptr;  // that is under way
};

}  // namespace hocket
