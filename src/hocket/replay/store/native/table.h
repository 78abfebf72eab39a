// A table of a replay store: rows of fixed size, drawn and removed by priority or by age.
//
// Only one thread at a time may use a table: its owner, or the holder of its lock. Requests are for
// batches. They are checked before anything changes, and never wait.

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
  uint64_t bytes;       // per row, or per frame if rows refer to frames
  uint32_t frames = 0;  // the number of frames that a row refers to; 0 if it has bytes of its own
};

struct Options {
  uint64_t capacity = 0;
  std::vector<Column> columns;
  uint64_t num_frames = 0;  // how many frames are kept, the newest ones
  Select sampler = Select::kPrioritized;
  Select remover = Select::kOldest;
  uint32_t max_times_sampled = 0;  // draws after which a row is removed; 0 for never
  Limits limits;
  uint64_t seed = 0;
};

// Names a row as long as it exists. A slot never has the same generation again.
struct Key {
  uint32_t slot;
  uint32_t generation;
};

struct Drawn {
  Key* keys;
  float* probability;
  void* const* columns;
  bool evenly = false;  // true if all priorities are zero
};

struct Counts {
  uint64_t size, capacity, inserts, samples, updates, stale_keys, removals, frames, bytes;
  float highest, total;
};

class Snapshot;
struct Restored;

class Table {
 public:
  // The reason why there cannot be such a table; empty if there can.
  static std::string problem(const Options& options);

  explicit Table(const Options& options);

  // Adds rows, oldest first. Without priorities, they get the highest so far.
  Answer insert(uint64_t rows, const void* const* columns, const float* priorities, Key* keys);

  // Draws one row from each of `rows` equal parts of the total, as the device replay does.
  // `uniforms` in [0, 1) say where in its part; if null, they are drawn here.
  Answer sample(uint64_t rows, const float* uniforms, Drawn& drawn);

  // Sets priorities. A row that is named twice gets the higher one. Keys of rows that are gone are
  // counted as stale, and keys of generation 0 are ignored.
  Answer update(uint64_t rows, const Key* keys, const float* priorities, uint64_t& stale);

  // Adds frames, one after the other. Rows refer to them by the numbers `first`, `first + 1`...
  Answer add_frames(uint64_t frames, const void* data, uint64_t& first);

  // Writes the key, priority and columns of every row, oldest first, into room for `size()` rows.
  void look(Key* keys, float* priorities, void* const* columns) const;

  void clear();

  // The largest requests so far, which might wait for each other. A caller that gives up waiting
  // sets them back.
  Largest largest() const { return limiter_.largest(); }
  void set_largest(Largest largest) { limiter_.set_largest(largest); }

  Counts counts() const;
  uint64_t size() const { return size_; }
  float total() const { return tree_.total(); }
  const Options& options() const { return options_; }

 private:
  // The following are in snapshot.cpp.
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
  // A heap of the oldest frame, slot and generation of each row. It may have rows that are gone.
  std::vector<std::tuple<uint64_t, uint32_t, uint32_t>> oldest_frames_;

  std::vector<uint32_t> generations_;
  std::vector<uint32_t> times_sampled_;  // only if that is limited
  SumTree tree_;
  Order order_;
  std::optional<Present> present_;  // only if rows leave holes
  std::optional<Heap> heaps_[2];    // of the highest and the lowest, if a selector needs them

  uint64_t size_ = 0;
  uint32_t fresh_ = 0;  // slots from this one on have never been written
  std::vector<uint32_t> free_, changed_, slots_;
  std::vector<float> points_, priorities_;  // points in float32, as in the device replay
  std::vector<double> fine_points_;         // points of draws with the table's own seed
  float highest_ = 1.0f;
  uint64_t updates_ = 0, stale_keys_ = 0, removals_ = 0, drawn_ = 0;
  Limiter limiter_;
  Random random_;
  Snapshot* snapshot_ = nullptr;  // the one under way, or null
};

}  // namespace hocket
