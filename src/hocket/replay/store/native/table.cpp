#include "table.h"

#include <algorithm>
#include <cstring>

#include "snapshot.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hocket {
namespace {

constexpr uint64_t kMostRows = uint64_t{1} << 30;
constexpr uint64_t kLarge = 2048;
constexpr float kMostPriority = 1e29f;  // so that the sum over all rows is finite
constexpr uint64_t kMostBytes = uint64_t{1} << 46;

Answer bad(std::string why) { return {Status::kBad, std::move(why)}; }
Answer wait(std::string why) { return {Status::kWait, std::move(why)}; }

bool has_frames(const Options& options) { return options.num_frames > 0; }

bool uses(const Options& options, Select how) {
  return options.sampler == how || options.remover == how;
}

bool leaves_holes(const Options& options) {
  return options.max_times_sampled > 0 || has_frames(options);
}

uint64_t stored_bytes(const Column& column) {
  return column.frames ? column.frames * sizeof(uint64_t) : column.bytes;
}

uint64_t row_bytes(const Options& options) {
  uint64_t bytes = 0;
  for (const Column& column : options.columns) bytes += stored_bytes(column);
  return bytes < 256 ? bytes : (bytes + 63) / 64 * 64;
}

// Copies small columns with a few instructions instead of a call.
inline void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  switch (bytes) {
    case 1: std::memcpy(to, from, 1); break;
    case 4: std::memcpy(to, from, 4); break;
    case 8: std::memcpy(to, from, 8); break;
    case 16: std::memcpy(to, from, 16); break;
    default: std::memcpy(to, from, bytes);
  }
}

// Copies large columns past the caches, since nobody reads them soon. One `memcpy` for each row is
// half as fast on some machines, depending on the alignment of source and destination.
inline void copy_large(uint8_t* to, const uint8_t* from, uint64_t bytes) {
#ifdef __SSE2__
  const uint64_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  std::memcpy(to, from, head);
  uint64_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    for (uint64_t i = at; i < at + 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

std::string Table::problem(const Options& o) {
  if (o.capacity < 1 || o.capacity > kMostRows) {
    return "a table has from 1 to 2**30 rows, found " + std::to_string(o.capacity);
  }
  if (o.columns.empty()) return "a table has at least one column";
  uint64_t frame_bytes = 0, bytes = 0;
  for (const Column& column : o.columns) {
    if (column.bytes < 1 || column.bytes > kMostBytes || column.frames > kMostRows) {
      return "a column has from 1 to 2**46 bytes, found " + std::to_string(column.bytes);
    }
    bytes += stored_bytes(column);
    if (bytes > kMostBytes / o.capacity) return "the rows of a table take at most 2**46 bytes";
    if (!column.frames) continue;
    if (frame_bytes && frame_bytes != column.bytes) {
      return "all frames of a table have one size, found " + std::to_string(frame_bytes) + " and " +
             std::to_string(column.bytes) + " bytes";
    }
    frame_bytes = column.bytes;
  }
  if ((frame_bytes > 0) != has_frames(o)) {
    return "columns of frames and a number of frames that are kept come together";
  }
  if (frame_bytes && o.num_frames > kMostBytes / frame_bytes) {
    return "the frames of a table take at most 2**46 bytes";
  }
  if (has_frames(o) && o.remover != Select::kOldest) {
    return "a table with frames removes the oldest rows, whose frames go first";
  }
  for (Select how : {o.sampler, o.remover}) {
    if (how < Select::kPrioritized || how > Select::kLowest) return "there is no such selector";
  }
  return Limiter::problem(o.limits, o.capacity, o.max_times_sampled);
}

Table::Table(const Options& options)
    : options_(options),
      stride_(row_bytes(options)),
      rows_(options.capacity * stride_),
      generations_(options.capacity),
      times_sampled_(options.max_times_sampled ? options.capacity : 0),
      tree_(options.capacity),
      order_(static_cast<uint32_t>(options.capacity)),
      limiter_(options.limits),
      random_(options.seed) {
  uint64_t offset = 0;
  for (const Column& column : options.columns) {
    offsets_.push_back(offset);
    offset += stored_bytes(column);
    if (column.frames) frame_bytes_ = column.bytes;
  }
  frames_ = Memory(frame_bytes_ * options.num_frames);
  // Reserved now, so that no request can run out of memory halfway.
  const auto capacity = static_cast<uint32_t>(options.capacity);
  free_.reserve(capacity);
  if (has_frames(options)) oldest_frames_.reserve(2 * options.capacity + 1);
  if (leaves_holes(options)) present_.emplace(capacity);
  if (uses(options, Select::kHighest)) heaps_[0].emplace(capacity, true);
  if (uses(options, Select::kLowest)) heaps_[1].emplace(capacity, false);
}

Answer Table::insert(
    uint64_t rows, const void* const* columns, const float* priorities, Key* keys) {
  if (!rows) return bad("there are no rows to insert");
  if (rows > options_.capacity) {
    return bad("cannot insert " + std::to_string(rows) + " rows at once into a table with a " +
               "capacity of " + std::to_string(options_.capacity));
  }
  std::string problem = problem_with(rows, priorities);
  if (problem.empty()) problem = problem_with_frames(rows, columns);
  if (problem.empty()) problem = limiter_.problem_with(rows, true);
  if (!problem.empty()) return bad(problem);
  // While sampling waits for rows, inserts must not wait for samples, or neither would ever go on.
  const bool too_few = size_ < limiter_.min_size() || draws_left() < limiter_.largest().sample;
  if (!too_few && !limiter_.may_insert(rows)) {
    return wait("rows were sampled too seldom for more inserts");
  }
  changed_.reserve(2 * rows);
  for (uint64_t i = 0; i < rows; ++i) {
    const uint32_t slot = room();
    write(slot, i, columns);
    add(slot, priorities ? priorities[i] : highest_);
    if (keys) keys[i] = {slot, generations_[slot]};
    if (has_frames(options_)) note_oldest_frame(slot);
    if (options_.remover == Select::kPrioritized) settle();
  }
  if (priorities) highest_ = std::max(highest_, *std::max_element(priorities, priorities + rows));
  settle();
  limiter_.inserted(rows);
  return {};
}

std::string Table::problem_with(uint64_t rows, const float* priorities) const {
  for (uint64_t i = 0; priorities && i < rows; ++i) {
    if (!(priorities[i] >= 0.0f && priorities[i] <= kMostPriority)) {
      return "priorities are from 0 to " + text(kMostPriority) + ", found " + text(priorities[i]) +
             " in row " + std::to_string(i);
    }
  }
  return "";
}

// The slot to write to. If none is free, a row is removed for it.
uint32_t Table::room() {
  if (free_.empty() && fresh_ < options_.capacity) return fresh_++;
  if (free_.empty()) {
    float probability;
    bool even = false;
    remove(pick(options_.remover, random_.uniform(), probability, even));
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Table::write(uint32_t slot, uint64_t row_number, const void* const* columns) {
  if (snapshot_) snapshot_->rows_.keep(slot);
  uint8_t* to = row(slot);
  for (size_t c = 0; c < offsets_.size(); ++c) {
    const uint64_t bytes = stored_bytes(options_.columns[c]);
    const uint8_t* from = static_cast<const uint8_t*>(columns[c]) + row_number * bytes;
    (bytes < kLarge ? copy : copy_large)(to + offsets_[c], from, bytes);
  }
}

void Table::read(const std::vector<uint32_t>& slots, void* const* columns) const {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) __builtin_prefetch(row(slots[i + kAhead]));
    const uint8_t* from = row(slots[i]);
    for (size_t c = 0; c < offsets_.size(); ++c) {
      const Column& column = options_.columns[c];
      auto* to = static_cast<uint8_t*>(columns[c]);
      if (!column.frames) {
        copy(to + i * column.bytes, from + offsets_[c], column.bytes);
        continue;
      }
      for (uint32_t f = 0; f < column.frames; ++f) {
        uint64_t number;
        std::memcpy(&number, from + offsets_[c] + f * sizeof(number), sizeof(number));
        std::memcpy(to + (i * column.frames + f) * frame_bytes_,
                    frames_.data() + number % options_.num_frames * frame_bytes_, frame_bytes_);
      }
    }
  }
}

void Table::look(Key* keys, float* priorities, void* const* columns) const {
  std::vector<uint32_t> slots;
  slots.reserve(size_);
  for (uint32_t slot = order_.oldest(); slots.size() < size_; slot = order_.after(slot)) {
    keys[slots.size()] = {slot, generations_[slot]};
    priorities[slots.size()] = tree_.leaf(slot);
    slots.push_back(slot);
  }
  read(slots, columns);
}

void Table::add(uint32_t slot, float priority) {
  if (++generations_[slot] == 0) generations_[slot] = 1;
  order_.add(slot);
  if (present_) present_->add(slot);
  if (!times_sampled_.empty()) times_sampled_[slot] = 0;
  for (auto& heap : heaps_) {
    if (heap) heap->add(slot, priority);
  }
  tree_.set(slot, priority);
  changed_.push_back(slot);
  ++size_;
}

void Table::remove(uint32_t slot) {
  order_.remove(slot);
  if (present_) {  // the key must change now, since the slot may stay empty for long
    present_->remove(slot);
    ++generations_[slot];
  }
  if (!times_sampled_.empty()) drawn_ -= times_sampled_[slot];
  for (auto& heap : heaps_) {
    if (heap) heap->remove(slot);
  }
  tree_.set(slot, 0.0f);
  changed_.push_back(slot);
  free_.push_back(slot);
  --size_;
  ++removals_;
}

void Table::change(uint32_t slot, float priority) {
  for (auto& heap : heaps_) {
    if (heap) heap->change(slot, priority);
  }
  tree_.set(slot, priority);
  changed_.push_back(slot);
}

void Table::settle() {
  tree_.settle(changed_);
  changed_.clear();
}

Answer Table::sample(uint64_t rows, const float* uniforms, Drawn& drawn) {
  if (!rows) return bad("there are no rows to sample");
  if (rows > kMostRows) return bad("at most 2**30 rows are sampled at once");
  const uint64_t times = options_.max_times_sampled;
  if (times && rows > options_.capacity * times) {
    return bad("cannot sample " + std::to_string(rows) + " rows at once from a table of " +
               std::to_string(options_.capacity) + ", each at most " + std::to_string(times) +
               " times");
  }
  for (uint64_t i = 0; uniforms && i < rows; ++i) {
    if (!(uniforms[i] >= 0.0f && uniforms[i] < 1.0f)) {
      return bad("uniforms are in [0, 1), found " + text(uniforms[i]) + " in row " +
                 std::to_string(i));
    }
  }
  if (std::string problem = limiter_.problem_with(rows, false); !problem.empty()) {
    return bad(problem);
  }
  if (size_ < limiter_.min_size()) {
    return wait("there are " + std::to_string(size_) + " rows, and sampling begins with " +
                std::to_string(limiter_.min_size()));
  }
  if (rows > draws_left()) {
    return wait("rows are sampled at most " + std::to_string(options_.max_times_sampled) +
                " times, and " + std::to_string(draws_left()) + " draws are left");
  }
  if (!limiter_.may_sample(rows)) return wait("too few rows were inserted for more samples");
  slots_.resize(rows);
  priorities_.resize(rows);
  drawn.evenly = false;
  if (uniforms) {
    points_.assign(uniforms, uniforms + rows);
    draw(points_, drawn);
  } else {
    fine_points_.resize(rows);
    for (double& point : fine_points_) point = random_.uniform();
    draw(fine_points_, drawn);
  }
  limiter_.sampled(rows);
  return {};
}

uint64_t Table::draws_left() const {
  return options_.max_times_sampled ? size_ * options_.max_times_sampled - drawn_ : UINT64_MAX;
}

template <typename Point>
void Table::draw(std::vector<Point>& points, Drawn& drawn) {
  const uint64_t rows = points.size();
  for (uint64_t i = 0; i < rows; ++i) {
    points[i] = (static_cast<Point>(i) + points[i]) / static_cast<Point>(rows);
  }
  if (options_.max_times_sampled) {
    draw_one_by_one(points, drawn);
  } else if (const float total = tree_.total();
             options_.sampler == Select::kPrioritized && total > 0.0f) {
    for (Point& point : points) point *= total;
    tree_.find(points.data(), rows, slots_.data(), priorities_.data());
    for (uint64_t i = 0; i < rows; ++i) {
      drawn.keys[i] = {slots_[i], generations_[slots_[i]]};
      drawn.probability[i] = priorities_[i] / total;
    }
  } else {
    for (uint64_t i = 0; i < rows; ++i) {
      slots_[i] = pick(options_.sampler, points[i], drawn.probability[i], drawn.evenly);
      drawn.keys[i] = {slots_[i], generations_[slots_[i]]};
    }
  }
  read(slots_, drawn.columns);  // also of rows removed just now, which nobody has overwritten yet
}

// Draws one by one, for tables where a row is removed after its last draw, before the next draw.
template <typename Point>
void Table::draw_one_by_one(const std::vector<Point>& points, Drawn& drawn) {
  for (uint64_t i = 0; i < points.size(); ++i) {
    const uint32_t slot = pick(options_.sampler, points[i], drawn.probability[i], drawn.evenly);
    slots_[i] = slot;
    drawn.keys[i] = {slot, generations_[slot]};
    ++drawn_;
    if (++times_sampled_[slot] == options_.max_times_sampled) {
      remove(slot);
      settle();
    }
  }
}

template <typename Point>
uint32_t Table::pick(Select how, Point at, float& probability, bool& even) const {
  probability = 1.0f;
  switch (how) {
    case Select::kOldest: return order_.oldest();
    case Select::kNewest: return order_.newest();
    case Select::kHighest: return heaps_[0]->top();
    case Select::kLowest: return heaps_[1]->top();
    case Select::kPrioritized:
      if (const float total = tree_.total(); total > 0.0f) {
        uint32_t slot = 0;
        float priority = 0.0f;
        Point point = at * total;
        tree_.find(&point, 1, &slot, &priority);
        probability = priority / total;
        return slot;
      }
      even = true;
      break;
    case Select::kUniform: break;
  }
  probability = 1.0f / static_cast<float>(size_);
  return evenly(at);
}

template <typename Point>
uint32_t Table::evenly(Point at) const {
  const auto index = static_cast<uint64_t>(at * static_cast<Point>(size_));
  const uint64_t row = std::min(index, size_ - 1);
  return present_ ? present_->at(row) : static_cast<uint32_t>(row);
}

Answer Table::update(uint64_t rows, const Key* keys, const float* priorities, uint64_t& stale) {
  stale = 0;
  if (!rows) return bad("there are no priorities to update");
  if (std::string problem = problem_with(rows, priorities); !problem.empty()) return bad(problem);
  slots_.clear();
  points_.clear();
  slots_.reserve(rows);
  points_.reserve(rows);
  changed_.reserve(rows);
  for (uint64_t i = 0; i < rows; ++i) {
    const auto [slot, generation] = keys[i];
    if (!generation) continue;
    // If rows leave holes, the generation of an empty slot is even.
    if (slot >= fresh_ || generations_[slot] != generation || (present_ && generation % 2 == 0)) {
      ++stale;
      continue;
    }
    slots_.push_back(slot);
    points_.push_back(priorities[i]);
    tree_.set(slot, 0.0f);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    change(slots_[i], std::max(points_[i], tree_.leaf(slots_[i])));
    highest_ = std::max(highest_, points_[i]);
  }
  settle();
  updates_ += slots_.size();
  stale_keys_ += stale;
  return {};
}

void Table::clear() {
  while (size_) remove(order_.oldest());
  settle();
  oldest_frames_.clear();
  free_.clear();
  highest_ = 1.0f;
  fresh_ = 0;  // all slots count as never written, so earlier keys are stale
  limiter_ = Limiter(options_.limits);
}

Counts Table::counts() const {
  uint64_t bytes = rows_.size() + frames_.size();
  bytes += options_.capacity * (sizeof(uint32_t) * 3 + sizeof(float) * kWide / (kWide - 1));
  bytes += sizeof(uint32_t) * (times_sampled_.size() + (present_ ? 2 * options_.capacity : 0));
  for (const auto& heap : heaps_) bytes += heap ? options_.capacity * 12 : 0;
  return {size_, options_.capacity, limiter_.inserts(), limiter_.samples(), updates_, stale_keys_,
          removals_, std::min(frames_added_, options_.num_frames), bytes, highest_, tree_.total()};
}

}  // namespace hocket
