// Tests of the replay store: of its tables as C++ classes, and of the C functions around them.
//
// A plain program: `test_table [part of a name]` runs the tests, and returns 1 if a check fails.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "snapshot.h"
#include "store.h"
#include "table.h"

using hocket::Answer;
using hocket::Counts;
using hocket::Drawn;
using hocket::Key;
using hocket::Options;
using hocket::Random;
using hocket::Select;
using hocket::Status;
using hocket::SumTree;
using hocket::Table;

namespace {

// The largest piece of memory that was asked for, to see that nothing grows for ever.
size_t largest_allocation = 0;

}  // namespace

// Not inlined: the compiler would see `free` without the `malloc`, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  largest_allocation = std::max(largest_allocation, bytes);
  if (void* found = std::malloc(bytes)) return found;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Select kAll[] = {Select::kPrioritized, Select::kUniform, Select::kOldest,
                           Select::kNewest,      Select::kHighest, Select::kLowest};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

bool operator==(Key a, Key b) { return a.slot == b.slot && a.generation == b.generation; }

// `n` numbers from `first` on.
std::vector<uint64_t> from(uint64_t first, uint64_t n) {
  std::vector<uint64_t> numbers(n);
  for (uint64_t i = 0; i < n; ++i) numbers[i] = first + i;
  return numbers;
}

Options table_of(uint64_t capacity, Select sampler = Select::kUniform,
                 Select remover = Select::kOldest) {
  Options options;
  options.capacity = capacity;
  options.columns = {{sizeof(uint64_t)}};
  options.sampler = sampler;
  options.remover = remover;
  return options;
}

Options limited(uint64_t capacity, double samples_per_insert, double least, double most,
                uint64_t min_size = 1) {
  Options options = table_of(capacity);
  options.limits = {min_size, samples_per_insert, least, most};
  return options;
}

// Rows of a number and a stack of frames, each of which is a number too.
Options with_frames(uint64_t capacity, uint64_t num_frames, uint32_t stack,
                    Select sampler = Select::kUniform) {
  Options options = table_of(capacity, sampler);
  options.columns.push_back({sizeof(uint32_t), stack});
  options.num_frames = num_frames;
  return options;
}

struct Sampled {
  Answer answer;
  std::vector<Key> keys;
  std::vector<float> probability;
  std::vector<uint64_t> values;
  std::vector<uint32_t> frames;
  bool evenly;
};

// A table whose rows are a number, and a stack of frames where the options have one.
class Numbers {
 public:
  explicit Numbers(const Options& options)
      : table(options), stack_(options.columns.size() > 1 ? options.columns[1].frames : 0) {
    CHECK(Table::problem(options) == "");
  }

  // Their keys, none if they were not inserted; `answer` says why.
  std::vector<Key> insert(const std::vector<uint64_t>& values,
                          const std::vector<float>& priorities = {},
                          const std::vector<uint64_t>& frames = {}) {
    std::vector<Key> keys(values.size());
    const void* columns[] = {values.data(), frames.data()};
    answer = table.insert(values.size(), columns, priorities.empty() ? nullptr : priorities.data(),
                          keys.data());
    if (answer.status != Status::kOk) keys.clear();
    return keys;
  }

  Sampled sample(uint64_t rows, const std::vector<float>& uniforms = {}) {
    Sampled found{{}, std::vector<Key>(rows), std::vector<float>(rows), std::vector<uint64_t>(rows),
                  std::vector<uint32_t>(rows * stack_), false};
    void* const columns[] = {found.values.data(), found.frames.data()};
    Drawn drawn{found.keys.data(), found.probability.data(), columns};
    found.answer = table.sample(rows, uniforms.empty() ? nullptr : uniforms.data(), drawn);
    found.evenly = drawn.evenly;
    return found;
  }

  // How many keys were stale.
  uint64_t update(const std::vector<Key>& keys, const std::vector<float>& priorities) {
    uint64_t stale = 0;
    answer = table.update(keys.size(), keys.data(), priorities.data(), stale);
    return stale;
  }

  bool there(Key key, float priority = 1.0f) { return update({key}, {priority}) == 0; }

  // The number of the first one.
  uint64_t add_frames(const std::vector<uint32_t>& frames) {
    uint64_t first = 0;
    answer = table.add_frames(frames.size(), frames.data(), first);
    return first;
  }

  // The middle of each of `size` equal parts: with a uniform sampler, each row once.
  std::vector<uint64_t> contents() {
    if (!table.size()) return {};
    std::vector<uint64_t> values =
        sample(table.size(), std::vector<float>(table.size(), 0.5f)).values;
    std::sort(values.begin(), values.end());
    return values;
  }

  bool ok() const { return answer.status == Status::kOk; }
  bool bad(const std::string& why) const {
    return answer.status == Status::kBad && has(answer.why, why);
  }
  bool waits() const { return answer.status == Status::kWait && !answer.why.empty(); }

  Table table;
  Answer answer;

 private:
  uint32_t stack_;
};

bool same(const Counts& a, const Counts& b) {
  return a.size == b.size && a.capacity == b.capacity && a.inserts == b.inserts &&
         a.samples == b.samples && a.updates == b.updates && a.stale_keys == b.stale_keys &&
         a.removals == b.removals && a.frames == b.frames && a.bytes == b.bytes &&
         same_bits(a.highest, b.highest) && same_bits(a.total, b.total);
}

// A binary tree of sums, as the device replay has it: node 1 is the root.
class Binary {
 public:
  explicit Binary(uint64_t least_leaves) {
    while (leaves_ < least_leaves) leaves_ *= 2;
    sums_.resize(2 * leaves_);
  }

  float total() const { return sums_[1]; }
  float leaf(uint64_t slot) const { return sums_[leaves_ + slot]; }

  void set(uint64_t slot, float priority) {
    uint64_t node = leaves_ + slot;
    sums_[node] = priority;
    while (node /= 2) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
  }

  template <typename Point>
  uint32_t find(Point point) const {
    uint64_t node = 1;
    while (node < leaves_) {
      const float left = sums_[2 * node];
      node *= 2;
      if (point >= left && sums_[node + 1] > 0.0f) {
        point -= left;
        ++node;
      }
    }
    return static_cast<uint32_t>(node - leaves_);
  }

 private:
  uint64_t leaves_ = 2;
  std::vector<float> sums_;
};

// Zero now and then, else over many powers of two, so that sums round.
float some_priority(Random& random) {
  if (random.next() % 4 == 0) return 0.0f;
  const int exponent = static_cast<int>(random.next() % 24) - 12;
  return static_cast<float>(std::ldexp(random.uniform() + 1e-9, exponent));
}

template <typename Point>
void find_alike(const SumTree& tree, const Binary& binary, std::vector<Point> points) {
  const std::vector<Point> given = points;
  std::vector<uint32_t> slots(points.size());
  std::vector<float> priorities(points.size());
  tree.find(points.data(), points.size(), slots.data(), priorities.data());
  for (size_t i = 0; i < slots.size(); ++i) {
    CHECK(slots[i] == binary.find(given[i]));
    CHECK(same_bits(priorities[i], binary.leaf(slots[i])));
    CHECK(priorities[i] > 0.0f || binary.total() == 0.0f);
  }
}

TEST(sum_tree_finds_what_a_binary_tree_finds) {
  Random random(1);
  std::vector<uint64_t> sizes = {3, 15, 17, 100, 255, 257, 1000, 4095};
  for (uint64_t size = 2; size <= 4096; size *= 2) sizes.push_back(size);
  for (uint64_t size : sizes) {
    SumTree tree(size);
    Binary binary(size);
    for (int round = 0; round < 20; ++round) {
      std::vector<uint32_t> slots;
      for (uint64_t i = 0; i < (round ? 1 + size / 4 : size); ++i) {
        const auto slot = static_cast<uint32_t>(round ? random.next() % size : i);
        const float priority = some_priority(random);
        slots.push_back(slot);
        tree.set(slot, priority);
        binary.set(slot, priority);
      }
      tree.settle(slots);
      const float total = tree.total();
      CHECK(same_bits(total, binary.total()));
      std::vector<float> points = {0.0f, std::nextafter(total, 0.0f), total, 2.0f * total};
      std::vector<double> fine = {0.0, std::nextafter(double{total}, 0.0), total, 2.0 * total};
      for (int i = 0; i < 60; ++i) {
        fine.push_back(random.uniform() * total);
        points.push_back(static_cast<float>(fine.back()));
      }
      find_alike(tree, binary, points);
      find_alike(tree, binary, fine);
    }
  }
}

TEST(sum_tree_with_one_leaf_that_is_not_zero_finds_it) {
  for (uint32_t only : {0u, 1u, 15u, 16u, 255u, 256u, 299u}) {
    SumTree tree(300);
    std::vector<uint32_t> slots = {only};
    tree.set(only, 0.1f);
    tree.settle(slots);
    std::vector<float> points = {0.0f, 0.05f, std::nextafter(0.1f, 0.0f), 0.1f, 5.0f, kNaN};
    std::vector<uint32_t> found(points.size());
    std::vector<float> priorities(points.size());
    tree.find(points.data(), points.size(), found.data(), priorities.data());
    for (uint32_t slot : found) CHECK(slot == only);
  }
}

// Their sum would be infinite, and points of it not a number.
TEST(priorities_that_are_too_large_are_refused) {
  Numbers numbers(table_of(4, Select::kPrioritized));
  numbers.insert({1, 2}, {1.0f, 1e30f});
  CHECK(numbers.bad("found 1e+30 in row 1") && numbers.table.size() == 0);
  numbers.insert({1, 2, 3, 4}, {1e29f, 1e29f, 1e29f, 1e29f});
  CHECK(numbers.ok() && std::isfinite(numbers.table.counts().total));
}

// ---- Snapshots, of the moment in which they began, whatever is done between their pieces.

std::string snapshot_of(Numbers& numbers, const std::function<void()>& between) {
  const char* folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder ? folder : "/tmp") + "/test_table.snapshot";
  hocket::Snapshot snapshot(numbers.table, path, "about");
  for (;;) {
    const hocket::Snapshot::Segment segment = snapshot.next(64);
    snapshot.write(segment);
    if (segment.name.empty()) return path;
    between();
  }
}

void replace(Numbers& numbers, const std::string& path) {
  hocket::Restored restored = hocket::restore(path);
  CHECK(restored.about == "about");
  numbers.table = std::move(*restored.table);
  std::remove(path.c_str());
}

TEST(a_snapshot_is_of_the_moment_in_which_it_began) {
  for (Select sampler : {Select::kPrioritized, Select::kUniform, Select::kHighest}) {
    Numbers numbers(table_of(100, sampler)), again(table_of(100, sampler));
    numbers.insert(from(0, 90));
    numbers.insert(from(90, 60));
    const Counts before = numbers.table.counts();
    uint64_t next = 1000;
    replace(again, snapshot_of(numbers, [&] { numbers.insert(from(next += 7, 7)); }));
    CHECK(same(again.table.counts(), before));
    std::set<uint64_t> values;
    for (uint64_t value : again.sample(1000).values) values.insert(value);
    for (uint64_t value : values) CHECK(value >= 50 && value < 150);
    CHECK(sampler == Select::kHighest || values.size() == 100);
  }
}

TEST(a_snapshot_has_the_frames_of_its_rows) {
  Numbers numbers(with_frames(20, 30, 2)), again(with_frames(20, 30, 2));
  uint32_t next = 0;
  const auto play = [&] {
    const uint64_t first = numbers.add_frames({next, next + 1});
    numbers.insert({next}, {}, {first, first + 1});
    next += 2;
  };
  for (int i = 0; i < 40; ++i) play();
  const Counts before = numbers.table.counts();
  replace(again, snapshot_of(numbers, play));
  CHECK(same(again.table.counts(), before));
  const Sampled found = again.sample(200);
  for (size_t i = 0; i < found.values.size(); ++i) {
    CHECK(found.values[i] < 80);
    CHECK(found.frames[2 * i] == found.values[i] && found.frames[2 * i + 1] == found.values[i] + 1);
  }
}

TEST(a_second_snapshot_is_refused_while_one_is_under_way) {
  Numbers numbers(table_of(10));
  numbers.insert(from(0, 10));
  bool is_refused = false;
  const std::string path = snapshot_of(numbers, [&] {
    try {
      hocket::Snapshot(numbers.table, "second", "");
    } catch (const std::runtime_error&) {
      is_refused = true;
    }
  });
  CHECK(is_refused);
  std::remove(path.c_str());
}

// ---- Selectors. The oldest row is 10, the newest 14, the highest 11, the lowest 13.

const std::vector<float> kPriorities = {3, 5, 4, 1, 2};

uint64_t the_one(Select how) {
  switch (how) {
    case Select::kOldest: return 10;
    case Select::kNewest: return 14;
    case Select::kHighest: return 11;
    case Select::kLowest: return 13;
    default: return 0;
  }
}

TEST(samplers_draw_the_rows_they_are_named_for) {
  for (Select how : {Select::kOldest, Select::kNewest, Select::kHighest, Select::kLowest}) {
    Numbers numbers(table_of(5, how));
    numbers.insert(from(10, 5), kPriorities);
    const Sampled found = numbers.sample(3);
    CHECK(found.values == std::vector<uint64_t>(3, the_one(how)));
    CHECK(found.probability == std::vector<float>(3, 1.0f));
    CHECK(!found.evenly);
  }
}

TEST(prioritized_sampler_draws_in_proportion) {
  Numbers numbers(table_of(5, Select::kPrioritized));
  numbers.insert(from(10, 5), kPriorities);
  const Sampled found = numbers.sample(15, std::vector<float>(15, 0.5f));
  CHECK(found.values ==
        std::vector<uint64_t>{10, 10, 10, 11, 11, 11, 11, 11, 12, 12, 12, 12, 13, 14, 14});
  for (int i = 0; i < 15; ++i) {
    CHECK(found.probability[i] == kPriorities[found.values[i] - 10] / 15.0f);
  }
  int counts[5] = {};
  for (int i = 0; i < 1500; ++i) ++counts[numbers.sample(1).values[0] - 10];
  for (int i = 0; i < 5; ++i) CHECK(std::abs(counts[i] - 100 * kPriorities[i]) < 80.0f);
}

TEST(uniform_sampler_draws_evenly) {
  Numbers numbers(table_of(8, Select::kUniform));
  numbers.insert(from(10, 5), {0, 0, 7, 0, 1});
  CHECK(numbers.contents() == from(10, 5));
  const Sampled found = numbers.sample(5);
  CHECK(found.probability == std::vector<float>(5, 0.2f));
  CHECK(!found.evenly);
}

TEST(the_last_point_rounds_to_the_end_and_finds_the_last_row) {
  const float last = std::nextafter(1.0f, 0.0f);
  for (float priority : {0.0f, 0.1f}) {
    for (Select how : {Select::kUniform, Select::kPrioritized}) {
      Numbers numbers(table_of(8, how));
      numbers.insert(from(10, 5), std::vector<float>(5, priority));
      for (uint64_t rows : {1, 3, 7, 100}) {
        CHECK(numbers.sample(rows, std::vector<float>(rows, last)).values.back() == 14);
      }
    }
  }
}

TEST(highest_and_lowest_follow_updates) {
  for (Select how : {Select::kHighest, Select::kLowest}) {
    const float sign = how == Select::kHighest ? 1.0f : -1.0f;
    Numbers numbers(table_of(20, how));
    std::vector<float> priorities(20, 50.0f);
    const std::vector<Key> keys = numbers.insert(from(0, 20), priorities);
    Random random(2);
    for (int i = 0; i < 300; ++i) {
      const uint32_t row = random.next() % 20;
      priorities[row] = static_cast<float>(random.next() % 100);
      numbers.update({keys[row]}, {priorities[row]});
      const float found = priorities[numbers.sample(1).values[0]];
      for (float other : priorities) CHECK(sign * found >= sign * other);
    }
  }
}

TEST(removers_remove_the_rows_they_are_named_for) {
  for (Select how : {Select::kOldest, Select::kNewest, Select::kHighest, Select::kLowest}) {
    Numbers numbers(table_of(5, Select::kUniform, how));
    const std::vector<Key> keys = numbers.insert(from(10, 5), kPriorities);
    numbers.insert({20}, {2.5f});
    std::vector<uint64_t> left = from(10, 5);
    left.erase(std::find(left.begin(), left.end(), the_one(how)));
    left.push_back(20);
    CHECK(numbers.contents() == left);
    CHECK(numbers.table.counts().removals == 1);
    for (uint64_t i = 0; i < 5; ++i) CHECK(numbers.there(keys[i]) == (10 + i != the_one(how)));
  }
}

TEST(uniform_and_prioritized_removers_remove_by_chance) {
  for (Select how : {Select::kUniform, Select::kPrioritized}) {
    int removed[5] = {};
    for (uint64_t seed = 0; seed < 400; ++seed) {
      Options options = table_of(5, Select::kUniform, how);
      options.seed = seed * 7919;
      Numbers numbers(options);
      numbers.insert(from(0, 5), {1, 0, 2, 0, 5});
      numbers.insert({9});
      const std::vector<uint64_t> left = numbers.contents();
      for (uint64_t i = 0; i < 5; ++i) removed[i] += !std::count(left.begin(), left.end(), i);
    }
    const bool even = how == Select::kUniform;
    const int expected[] = {even ? 80 : 50, even ? 80 : 0, even ? 80 : 100, even ? 80 : 0,
                            even ? 80 : 250};
    for (int i = 0; i < 5; ++i) {
      CHECK(expected[i] ? std::abs(removed[i] - expected[i]) < 40 : removed[i] == 0);
    }
  }
}

TEST(oldest_rows_are_removed_first) {
  Numbers numbers(table_of(7));
  for (uint64_t i = 0; i < 50; i += 3) {
    numbers.insert(from(i, 3));
    const uint64_t size = std::min<uint64_t>(i + 3, 7);
    CHECK(numbers.contents() == from(i + 3 - size, size));
  }
  numbers.insert(from(100, 7));  // a whole table at once
  CHECK(numbers.contents() == from(100, 7));
}

TEST(a_batch_may_remove_its_own_rows) {
  Numbers numbers(table_of(3, Select::kUniform, Select::kNewest));
  const std::vector<Key> first = numbers.insert(from(0, 2));
  const std::vector<Key> keys = numbers.insert(from(2, 3));
  CHECK(numbers.contents() == std::vector<uint64_t>{0, 1, 4});
  CHECK(numbers.update(keys, {1, 1, 1}) == 2);
  CHECK(numbers.there(first[0]) && numbers.there(first[1]) && numbers.there(keys[2]));
}

TEST(columns_of_any_size_come_back) {
  Options options = table_of(4);
  options.columns = {{1}, {4}, {8}, {16}, {3}, {28}, {300}, {7}};
  Table table(options);
  std::vector<std::vector<uint8_t>> given, found;
  std::vector<const void*> columns;
  std::vector<void*> to;
  Random random(3);
  for (const hocket::Column& column : options.columns) {
    given.emplace_back(4 * column.bytes);
    for (uint8_t& byte : given.back()) byte = static_cast<uint8_t>(random.next());
    found.emplace_back(4 * column.bytes);
  }
  for (auto& bytes : given) columns.push_back(bytes.data());
  for (auto& bytes : found) to.push_back(bytes.data());
  CHECK(table.insert(4, columns.data(), nullptr, nullptr).status == Status::kOk);
  Key keys[4];
  float probability[4];
  const float middles[] = {0.5f, 0.5f, 0.5f, 0.5f};
  Drawn drawn{keys, probability, to.data()};
  CHECK(table.sample(4, middles, drawn).status == Status::kOk);
  CHECK(given == found);
}

// ---- Keys.

TEST(keys_are_slot_and_generation) {
  Numbers numbers(table_of(3));
  const std::vector<Key> first = numbers.insert(from(0, 3));
  for (uint32_t i = 0; i < 3; ++i) CHECK(first[i] == Key{i, 1});
  const std::vector<Key> second = numbers.insert(from(3, 2));
  CHECK(second[0] == Key{0, 2} && second[1] == Key{1, 2});
  const Sampled found = numbers.sample(3, {0.5f, 0.5f, 0.5f});
  CHECK(found.keys[0] == second[0] && found.keys[1] == second[1] && found.keys[2] == first[2]);
  CHECK(numbers.update(first, {1, 1, 1}) == 2);
  CHECK(numbers.table.counts().stale_keys == 2 && numbers.table.counts().updates == 1);
}

TEST(a_stale_key_changes_nothing) {
  Numbers numbers(table_of(2));
  const std::vector<Key> old = numbers.insert(from(0, 2), {1, 1});
  numbers.insert(from(2, 2), {1, 1});
  CHECK(numbers.update(old, {100, 100}) == 2);
  CHECK(numbers.table.counts().total == 2.0f && numbers.table.counts().highest == 1.0f);
}

TEST(keys_are_stale_after_the_last_draw) {
  Options options = table_of(4, Select::kOldest);
  options.max_times_sampled = 2;
  Numbers numbers(options);
  const std::vector<Key> keys = numbers.insert(from(0, 2));
  numbers.sample(1);
  CHECK(numbers.there(keys[0]));
  CHECK(numbers.sample(1).keys[0] == keys[0]);
  CHECK(!numbers.there(keys[0]) && numbers.there(keys[1]));
  const std::vector<Key> next = numbers.insert({5});  // into the same slot
  CHECK(next[0].slot == keys[0].slot && !numbers.there(keys[0]) && numbers.there(next[0]));
}

TEST(keys_are_stale_after_clear) {
  for (uint32_t times : {0u, 9u}) {
    Options options = table_of(4);
    options.max_times_sampled = times;
    Numbers numbers(options);
    std::vector<Key> old = numbers.insert(from(0, 4));
    for (int i = 0; i < 3; ++i) {
      numbers.table.clear();
      CHECK(numbers.table.size() == 0 && numbers.table.counts().total == 0.0f);
      CHECK(numbers.sample(1).answer.status == Status::kWait);
      CHECK(numbers.update(old, {1, 1, 1, 1}) == 4);
      const std::vector<Key> fresh = numbers.insert(from(10, 2));
      CHECK(numbers.update(old, {1, 1, 1, 1}) == 4);
      CHECK(numbers.update(fresh, {1, 1}) == 0);
      CHECK(numbers.contents() == from(10, 2));
      old = {fresh[0], fresh[1], fresh[0], fresh[1]};
    }
  }
}

TEST(keys_that_were_never_given_are_stale) {
  Options options = table_of(4, Select::kHighest);
  options.max_times_sampled = 1;
  Numbers numbers(options);
  numbers.insert(from(0, 3));
  const Key gone = numbers.sample(1).keys[0];
  const Counts before = numbers.table.counts();
  // A removed row's slot has a generation as well, and nobody may write to it.
  for (uint32_t more : {1u, 2u, 3u}) CHECK(!numbers.there({gone.slot, gone.generation + more}, 9));
  CHECK(!numbers.there({3, 1}) && !numbers.there({4, 1}) && !numbers.there({UINT32_MAX, 1}));
  CHECK(numbers.table.counts().total == before.total);
  CHECK(numbers.table.counts().highest == before.highest);
}

TEST(null_keys_are_nothing) {
  Numbers numbers(table_of(2));
  numbers.insert(from(0, 2), {1, 1});
  CHECK(numbers.update({{0, 0}, {1, 0}, {UINT32_MAX, 0}}, {5, 5, 5}) == 0);
  const Counts counts = numbers.table.counts();
  CHECK(counts.total == 2.0f && counts.highest == 1.0f);
  CHECK(counts.updates == 0 && counts.stale_keys == 0);
}

TEST(of_duplicates_the_higher_counts) {
  for (Select how : {Select::kPrioritized, Select::kHighest, Select::kLowest}) {
    Numbers numbers(table_of(3, how));
    const std::vector<Key> keys = numbers.insert(from(0, 3), {8, 8, 8});
    numbers.update({keys[1], keys[0], keys[1], keys[1]}, {2, 4, 3, 1});
    CHECK(numbers.table.counts().total == 4.0f + 3.0f + 8.0f);
    if (how == Select::kHighest) CHECK(numbers.sample(1).values[0] == 2);
    if (how == Select::kLowest) CHECK(numbers.sample(1).values[0] == 1);
  }
}

// ---- Priorities.

TEST(bad_priorities_change_nothing_and_are_named) {
  for (float priority : {kNaN, kInfinity, -kInfinity, -1.0f, -1e-30f}) {
    Numbers numbers(table_of(4, Select::kPrioritized));
    const std::vector<Key> keys = numbers.insert(from(0, 3), {1, 2, 3});
    const Counts before = numbers.table.counts();
    CHECK(numbers.insert(from(5, 4), {7, 7, priority, priority}).empty());
    CHECK(numbers.bad("in row 2"));
    CHECK(same(numbers.table.counts(), before));
    numbers.update(keys, {9, priority, priority});
    CHECK(numbers.bad("in row 1"));
    CHECK(same(numbers.table.counts(), before));
    const Sampled found = numbers.sample(6, std::vector<float>(6, 0.5f));
    CHECK(found.values == std::vector<uint64_t>{0, 1, 1, 2, 2, 2});
    CHECK(numbers.there(keys[0]));  // and the table goes on
  }
}

TEST(without_priorities_rows_have_the_highest_so_far) {
  Numbers numbers(table_of(4, Select::kPrioritized));
  const std::vector<Key> keys = numbers.insert({0});
  CHECK(numbers.table.counts().total == 1.0f);
  numbers.insert({1}, {3});
  numbers.insert({2});
  CHECK(numbers.table.counts().total == 7.0f);
  numbers.update(keys, {5});
  numbers.insert({3});
  CHECK(numbers.table.counts().total == 5.0f + 3.0f + 3.0f + 5.0f);
  CHECK(numbers.table.counts().highest == 5.0f);
}

TEST(where_all_priorities_are_zero_rows_are_drawn_evenly) {
  for (uint32_t times : {0u, 9u}) {
    Options options = table_of(8, Select::kPrioritized);
    options.max_times_sampled = times;
    Numbers numbers(options);
    const std::vector<Key> keys = numbers.insert(from(0, 4), {0, 0, 0, 0});
    const Sampled found = numbers.sample(4, std::vector<float>(4, 0.5f));
    CHECK(found.evenly && found.values == from(0, 4));
    CHECK(found.probability == std::vector<float>(4, 0.25f));
    numbers.update({keys[2]}, {1});
    const Sampled other = numbers.sample(2);
    CHECK(!other.evenly && other.values == std::vector<uint64_t>(2, 2));
  }
}

// ---- Requests that are wrong.

TEST(empty_and_oversized_requests_are_refused) {
  Numbers numbers(table_of(4));
  numbers.insert(from(0, 4));
  const Counts before = numbers.table.counts();
  uint64_t stale = 7, first = 0;
  Drawn nowhere{nullptr, nullptr, nullptr};
  // Nothing is read or written: there is nothing to read from.
  CHECK(numbers.table.insert(0, nullptr, nullptr, nullptr).status == Status::kBad);
  CHECK(has(numbers.table.insert(5, nullptr, nullptr, nullptr).why, "capacity of 4"));
  CHECK(numbers.table.insert(UINT64_MAX, nullptr, nullptr, nullptr).status == Status::kBad);
  CHECK(numbers.table.sample(0, nullptr, nowhere).status == Status::kBad);
  CHECK(numbers.table.sample((uint64_t{1} << 31) + 1, nullptr, nowhere).status == Status::kBad);
  CHECK(numbers.table.sample(UINT64_MAX, nullptr, nowhere).status == Status::kBad);
  CHECK(numbers.table.update(0, nullptr, nullptr, stale).status == Status::kBad);
  CHECK(stale == 0);
  CHECK(has(numbers.table.add_frames(1, nullptr, first).why, "no columns of frames"));
  for (float uniform : {1.0f, -0.1f, kNaN, kInfinity}) {
    CHECK(has(numbers.sample(2, {0.5f, uniform}).answer.why, "in row 1"));
  }
  CHECK(same(numbers.table.counts(), before));
  CHECK(numbers.contents() == from(0, 4));
}

TEST(more_rows_may_be_sampled_than_there_are) {
  Numbers numbers(table_of(4, Select::kPrioritized));
  numbers.insert(from(0, 3));
  const Sampled found = numbers.sample(1000);
  CHECK(found.answer.status == Status::kOk);
  for (uint64_t value : found.values) CHECK(value < 3);
}

TEST(tables_that_cannot_be_are_refused) {
  const auto refused = [](Options options, const std::string& why) {
    return has(Table::problem(options), why);
  };
  Options options = table_of(4);
  CHECK(Table::problem(options) == "");
  CHECK(refused(table_of(0), "found 0"));
  CHECK(refused(table_of((uint64_t{1} << 30) + 1), "2**30"));
  options.columns.clear();
  CHECK(refused(options, "at least one column"));
  options.columns = {{0}};
  CHECK(refused(options, "found 0"));
  options.columns = {{UINT64_MAX}};
  CHECK(refused(options, "2**46"));
  options.columns = {{uint64_t{1} << 44}, {uint64_t{1} << 44}, {uint64_t{1} << 44}};
  CHECK(refused(options, "2**46"));
  options = with_frames(4, 8, 2);
  CHECK(Table::problem(options) == "");
  options.remover = Select::kNewest;
  CHECK(refused(options, "removes the oldest rows"));
  options = with_frames(4, 0, 2);
  CHECK(refused(options, "come together"));
  options = table_of(4);
  options.num_frames = 3;
  CHECK(refused(options, "come together"));
  options = with_frames(4, 8, 2);
  options.columns.push_back({5, 1});
  CHECK(refused(options, "one size"));
  CHECK(refused(with_frames(4, uint64_t{1} << 60, 2), "2**46"));
  for (int32_t none : {-1, 6}) {
    CHECK(refused(table_of(4, static_cast<Select>(none)), "no such selector"));
    CHECK(refused(table_of(4, Select::kUniform, static_cast<Select>(none)), "no such selector"));
  }
}

// ---- Limits.

TEST(sampling_waits_for_min_size) {
  Numbers numbers(limited(8, 0, 0, 0, 3));
  CHECK(numbers.sample(1).answer.status == Status::kWait);
  numbers.insert(from(0, 2));
  const Counts before = numbers.table.counts();
  CHECK(numbers.sample(1).answer.status == Status::kWait);
  CHECK(has(numbers.sample(1).answer.why, "begins with 3"));
  CHECK(same(numbers.table.counts(), before));
  numbers.insert({2});
  CHECK(numbers.sample(1).answer.status == Status::kOk);
  Numbers none(limited(8, 0, 0, 0, 0));  // there is nothing to sample from
  CHECK(none.sample(1).answer.status == Status::kWait);
}

TEST(samples_per_insert_hold_both_sides) {
  Numbers numbers(limited(100, 2.0, -4.0, 10.0));
  numbers.insert(from(0, 5));
  CHECK(numbers.ok());
  const Counts before = numbers.table.counts();
  numbers.insert({5});
  CHECK(numbers.waits());
  CHECK(same(numbers.table.counts(), before));
  CHECK(numbers.sample(4).answer.status == Status::kOk);  // 6
  numbers.insert(from(5, 3));
  CHECK(numbers.waits());
  numbers.insert(from(5, 2));  // 10
  CHECK(numbers.ok());
  for (int i = 0; i < 3; ++i) CHECK(numbers.sample(4).answer.status == Status::kOk);  // -2
  CHECK(numbers.sample(4).answer.status == Status::kWait);
  CHECK(numbers.sample(2).answer.status == Status::kOk);  // -4
  CHECK(numbers.sample(1).answer.status == Status::kWait);
  CHECK(numbers.table.counts().samples == 18 && numbers.table.counts().inserts == 7);
  numbers.table.clear();
  numbers.insert(from(0, 5));
  CHECK(numbers.ok());
}

TEST(limits_that_stop_everything_are_refused) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto refused = [](const Options& options) { return Table::problem(options) != ""; };
  CHECK(refused(limited(4, 0, 0, 0, 5)));
  CHECK(!refused(limited(4, 0, 0, 0, 4)));
  for (double ratio : {-1.0, nan, inf}) CHECK(refused(limited(4, ratio, -10, 10)));
  CHECK(!refused(limited(4, 1, -10, 10)));
  CHECK(!refused(limited(4, 1, -inf, inf)));
  CHECK(refused(limited(4, 1, 10, -10)));
  CHECK(refused(limited(4, 1, nan, 10)));
  CHECK(refused(limited(4, 1, -10, nan)));
  CHECK(refused(limited(4, 1, inf, inf)));
  CHECK(refused(limited(4, 1, 0, 1.5)) && !refused(limited(4, 1, 0, 2)));
  CHECK(refused(limited(4, 8, 0, 15)) && !refused(limited(4, 8, 0, 16)));
  CHECK(refused(limited(4, 4, -10, 15, 4)) && !refused(limited(4, 4, -10, 16, 4)));
  Options options = limited(4, 3, -10, 10);
  options.max_times_sampled = 2;
  CHECK(refused(options));
  options.max_times_sampled = 3;
  CHECK(!refused(options));
}

TEST(requests_that_could_wait_for_each_other_are_refused) {
  Numbers numbers(limited(100, 2.0, 0.0, 20.0));
  numbers.insert(from(0, 11));
  CHECK(numbers.bad("for ever"));
  CHECK(numbers.sample(21).answer.status == Status::kBad);
  numbers.insert(from(0, 6));
  CHECK(numbers.ok());
  CHECK(numbers.sample(9).answer.status == Status::kBad);  // 6 * 2 + 9 is more than 20
  CHECK(numbers.sample(8).answer.status == Status::kOk);
  CHECK(numbers.sample(1).answer.status == Status::kOk);  // the largest ones count
  numbers.insert({0});
  CHECK(numbers.sample(9).answer.status == Status::kBad);
  numbers.insert(from(0, 7));
  CHECK(numbers.bad("for ever"));
  // A refused request leaves no trace: the others go on.
  numbers.insert(from(0, 6));
  CHECK(numbers.ok());
}

TEST(a_sample_that_can_never_be_is_refused) {
  Options options = table_of(4);
  options.max_times_sampled = 2;
  Numbers numbers(options);
  numbers.insert(from(0, 4));
  CHECK(numbers.sample(9).answer.status == Status::kBad);
  CHECK(numbers.sample(8).answer.status == Status::kOk);
  CHECK(numbers.sample(8).answer.status == Status::kWait);
}

TEST(inserts_go_on_while_sampling_waits_for_rows) {
  Numbers batches(limited(100, 1.0, -100.0, 5.0, 5));
  batches.insert(from(0, 4));
  CHECK(batches.sample(1).answer.status == Status::kWait);
  batches.insert(from(4, 4));  // past the limit, but else there never were 5 rows
  CHECK(batches.ok());
  batches.insert({8});
  CHECK(batches.waits());

  Options options = limited(100, 1.0, -10.0, 2.0);
  options.max_times_sampled = 1;
  Numbers queue(options);
  queue.insert(from(0, 2));
  CHECK(queue.sample(4).answer.status == Status::kWait);
  queue.insert(from(2, 2));
  CHECK(queue.ok());
  CHECK(queue.sample(4).answer.status == Status::kOk);

  options = with_frames(10, 4, 1);
  options.limits = {1, 1.0, -10.0, 3.0};
  Numbers frames(options);
  frames.add_frames({1});
  frames.insert(from(0, 3), {}, {0, 0, 0});
  frames.add_frames({2, 3, 4, 5});
  CHECK(frames.table.size() == 0);
  frames.insert({3}, {}, {4});
  CHECK(frames.ok());
}

// Whatever the options, an insert or a sample may always go on.
TEST(nobody_waits_for_ever) {
  Random random(4);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const uint32_t stack = random.next() % 3 ? 0 : 1;
    const uint64_t capacity = 1 + random.next() % 12;
    Options options = stack ? with_frames(capacity, 6, stack) : table_of(capacity);
    options.max_times_sampled = random.next() % 3;
    options.limits = {random.next() % 6, 0.25 * (random.next() % 12),
                      static_cast<double>(random.next() % 10) - 10.0,
                      static_cast<double>(random.next() % 20)};
    if (Table::problem(options) != "") continue;
    ++accepted;
    Numbers numbers(options);
    const uint64_t inserts = 1 + random.next() % 4, samples = 1 + random.next() % 4;
    for (int i = 0; i < 60; ++i) {
      const bool insert_first = random.next() % 2;
      bool went_on = false;
      // Both ask, and the first once more: it now counts how much the other asked for.
      for (bool insert : {insert_first, !insert_first, insert_first}) {
        Answer answer;
        if (insert) {
          uint64_t frame = 0;
          if (stack) frame = numbers.add_frames({random.next()});
          numbers.insert(from(0, inserts), {}, std::vector<uint64_t>(inserts, frame));
          answer = numbers.answer;
        } else {
          answer = numbers.sample(samples).answer;
        }
        if (answer.status != Status::kWait) went_on = true;
        if (went_on) break;
      }
      CHECK(went_on);
    }
  }
  CHECK(accepted > 500);
}

TEST(max_times_sampled_makes_a_queue) {
  Options options = limited(4, 1.0, 0.0, 4.0);
  options.sampler = Select::kOldest;
  options.max_times_sampled = 1;
  Numbers queue(options);
  uint64_t put = 0, got = 0;
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t rows = 1 + random.next() % 2;
    if (random.next() % 2) {
      queue.insert(from(put, rows));
      CHECK(queue.ok() == (put - got + rows <= 4));
      put += queue.ok() ? rows : 0;
    } else {
      const Sampled found = queue.sample(rows);
      CHECK((found.answer.status == Status::kOk) == (rows <= put - got));
      if (found.answer.status != Status::kOk) continue;
      CHECK(found.values == from(got, rows));
      got += rows;
    }
    CHECK(queue.table.size() == put - got);
  }
  CHECK(got > 500);
}

TEST(rows_are_sampled_as_often_as_they_may) {
  for (Select how : kAll) {
    Options options = table_of(10, how);
    options.max_times_sampled = 3;
    Numbers numbers(options);
    numbers.insert(from(0, 10), {1, 0, 2, 0, 3, 0, 4, 0, 5, 0});
    const Sampled found = numbers.sample(30);
    for (uint64_t i = 0; i < 10; ++i) {
      CHECK(std::count(found.values.begin(), found.values.end(), i) == 3);
    }
    CHECK(found.evenly == (how == Select::kPrioritized));  // at last only zeros are left
    CHECK(numbers.table.size() == 0 && numbers.table.counts().removals == 10);
    CHECK(numbers.sample(1).answer.status == Status::kWait);
  }
}

// ---- Frames.

TEST(rows_have_the_frames_they_refer_to) {
  Numbers numbers(with_frames(8, 6, 3));
  CHECK(numbers.add_frames({100, 101, 102, 103}) == 0);
  CHECK(numbers.add_frames({104, 105}) == 4);
  numbers.insert(from(0, 2), {}, {0, 1, 2, 5, 5, 3});
  const Sampled found = numbers.sample(2, {0.5f, 0.5f});
  CHECK(found.frames == std::vector<uint32_t>{100, 101, 102, 105, 105, 103});
  CHECK(numbers.table.counts().frames == 6);
}

TEST(frames_that_are_not_there_are_refused) {
  Numbers numbers(with_frames(8, 4, 2));
  numbers.insert({0}, {}, {0, 0});
  CHECK(numbers.bad("no frame 0"));
  numbers.add_frames({0, 1, 2, 3});
  numbers.add_frames({4, 5});
  const Counts before = numbers.table.counts();
  for (uint64_t frame : {uint64_t{1}, uint64_t{6}, UINT64_MAX}) {
    numbers.insert(from(0, 2), {}, {2, 5, 3, frame});
    CHECK(numbers.bad("in row 1"));
  }
  numbers.add_frames({});
  CHECK(numbers.bad("found 0"));
  numbers.add_frames({1, 2, 3, 4, 5});
  CHECK(numbers.bad("found 5"));
  CHECK(same(numbers.table.counts(), before));
  numbers.insert({0}, {}, {2, 5});
  CHECK(numbers.ok());
}

TEST(rows_go_with_the_first_of_their_frames) {
  Numbers numbers(with_frames(8, 4, 2));
  numbers.add_frames({0, 1, 2, 3});
  const std::vector<Key> keys = numbers.insert(from(0, 4), {1, 2, 4, 8}, {3, 2, 1, 3, 0, 2, 3, 3});
  numbers.add_frames({4});  // frame 0 is lost
  CHECK(numbers.contents() == std::vector<uint64_t>{0, 1, 3});
  CHECK(numbers.table.counts().total == 11.0f);
  CHECK(!numbers.there(keys[2]) && numbers.there(keys[3], 8));
  const std::vector<Key> next = numbers.insert({9}, {3}, {4, 4});  // into the slot that is free
  CHECK(next[0].slot == keys[2].slot && !numbers.there(keys[2]));
  numbers.add_frames({5, 6});
  CHECK(numbers.contents() == std::vector<uint64_t>{3, 9});
  numbers.add_frames({7, 8, 9, 10});
  CHECK(numbers.table.size() == 0 && numbers.table.counts().total == 0.0f);
  CHECK(numbers.table.counts().removals == 5);
}

TEST(actors_add_frames_and_rows_in_turns) {
  constexpr uint64_t kFrames = 32, kRows = 24;
  Numbers numbers(with_frames(kRows, kFrames, 4));
  std::vector<uint64_t> stacks[3];               // the numbers of an actor's last frames
  std::map<uint64_t, std::vector<uint64_t>> rows;  // by value, which is the age
  std::vector<uint32_t> shown;                   // what each frame shows
  Random random(6);
  for (uint64_t step = 0; step < 3000; ++step) {
    const uint32_t actor = random.next() % 3;
    std::vector<uint64_t>& stack = stacks[actor];
    std::vector<uint32_t> frames(1 + random.next() % 3);
    for (uint32_t& frame : frames) frame = actor << 24 | random.next() >> 8;
    const uint64_t first = numbers.add_frames(frames);
    CHECK(first == shown.size());
    for (uint64_t number : from(first, frames.size())) stack.push_back(number);
    stack.erase(stack.begin(), stack.size() > 4 ? stack.end() - 4 : stack.begin());
    shown.insert(shown.end(), frames.begin(), frames.end());
    const uint64_t kept = shown.size() - std::min<uint64_t>(shown.size(), kFrames);
    for (auto row = rows.begin(); row != rows.end();) {
      row = row->second.front() < kept ? rows.erase(row) : std::next(row);
    }
    if (stack.size() == 4) {
      numbers.insert({step}, {}, stack);
      CHECK(numbers.ok() == (stack.front() >= kept));
      if (numbers.ok() && rows.size() == kRows) rows.erase(rows.begin());
      if (numbers.ok()) rows[step] = stack;
    }
    CHECK(numbers.table.size() == rows.size());
    if (rows.empty()) continue;
    const Sampled found = numbers.sample(rows.size(), std::vector<float>(rows.size(), 0.5f));
    CHECK(std::set<uint64_t>(found.values.begin(), found.values.end()).size() == rows.size());
    for (size_t i = 0; i < found.values.size(); ++i) {
      const auto row = rows.find(found.values[i]);
      CHECK(row != rows.end());
      for (size_t f = 0; row != rows.end() && f < 4; ++f) {
        CHECK(found.frames[4 * i + f] == shown[row->second[f]]);
      }
    }
  }
}

TEST(what_is_known_of_frames_does_not_grow) {
  Numbers numbers(with_frames(16, 4, 1));
  numbers.add_frames({7});
  largest_allocation = 0;
  for (uint64_t i = 0; i < 20000; ++i) numbers.insert({i}, {}, {0});
  CHECK(largest_allocation < 4096);  // 20,000 entries would be 320 KB
  CHECK(numbers.contents() == from(20000 - 16, 16));
  numbers.add_frames({8, 9, 10});
  CHECK(numbers.table.size() == 16);
  numbers.add_frames({11});
  CHECK(numbers.table.size() == 0);
}

// ---- Seeds.

TEST(equal_seeds_give_equal_draws) {
  for (Select remover : kAll) {
    std::vector<uint64_t> drawn[3];
    for (int i = 0; i < 3; ++i) {
      Options options = table_of(50, Select::kPrioritized, remover);
      options.seed = i < 2 ? 11 : 12;
      Numbers numbers(options);
      Random random(7);
      for (uint64_t step = 0; step < 40; ++step) {
        std::vector<float> priorities(5);
        for (float& priority : priorities) priority = some_priority(random);
        numbers.insert(from(5 * step, 5), priorities);
        for (uint64_t value : numbers.sample(3).values) drawn[i].push_back(value);
      }
    }
    CHECK(drawn[0] == drawn[1] && drawn[0] != drawn[2]);
  }
}

// ---- A long random test against a model.

struct Row {
  uint32_t generation;
  uint64_t value, age;
  float priority;
  uint32_t times;
  std::vector<uint64_t> frames;
};

// A table and what should be in it, by slot; every request is made to both.
class Model {
 public:
  Model(const Options& options, uint64_t seed)
      : options_(options), numbers_(options), tree_(options.capacity), random_(seed),
        stack_(options.columns.size() > 1 ? options.columns[1].frames : 0) {}

  void step() {
    const uint32_t what = random_.next() % 100;
    if (what < 15 && stack_) {
      add_frames();
    } else if (what < 45) {
      insert();
    } else if (what < 72) {
      sample();
    } else if (what < 99) {
      update();
    } else if (random_.next() % 8 == 0) {
      clear();
    } else {
      look_at_all();
    }
    const Counts counts = numbers_.table.counts();
    CHECK(counts.size == rows_.size());
    CHECK(counts.inserts == inserts_ && counts.samples == samples_);
    CHECK(counts.updates == updates_ && counts.stale_keys == stale_);
    CHECK(counts.removals == removals_);
    CHECK(same_bits(counts.highest, highest_));
    CHECK(same_bits(counts.total, tree_.total()));
  }

  uint64_t drawn() const { return all_drawn_; }

 private:
  void insert() {
    const uint64_t rows = 1 + random_.next() % 4;
    std::vector<uint64_t> frames;
    if (stack_ && shown_.empty()) return;
    for (uint64_t i = 0; i < rows * stack_; ++i) {
      frames.push_back(kept() + random_.next() % (shown_.size() - kept()));
    }
    bool wrong = false;
    if (stack_ && random_.next() % 32 == 0) {
      const bool future = kept() == 0 || random_.next() % 2;
      frames[random_.next() % frames.size()] = future ? shown_.size() : kept() - 1;
      wrong = true;
    }
    std::vector<float> priorities;
    if (random_.next() % 4) {
      for (uint64_t i = 0; i < rows; ++i) priorities.push_back(some_priority(random_));
      wrong |= spoil(priorities);
    }
    const double after = ratio() * static_cast<double>(inserts_ + rows) - double(samples_);
    const bool starved = rows_.size() < min_size() || draws_left() < largest_sample_;
    const bool waits = ratio() > 0 && !starved && after > options_.limits.most;
    const std::vector<Key> keys = numbers_.insert(from(next_value_, rows), priorities, frames);
    CHECK(numbers_.answer.status == (wrong   ? Status::kBad
                                     : waits ? Status::kWait
                                             : Status::kOk));
    if (!numbers_.ok()) return;
    for (uint64_t i = 0; i < rows; ++i) {
      add(keys[i], priorities.empty() ? highest_ : priorities[i],
          {frames.begin() + i * stack_, frames.begin() + (i + 1) * stack_});
    }
    for (float priority : priorities) highest_ = std::max(highest_, priority);
    inserts_ += rows;
  }

  // The slot of a new row tells which row was removed for it.
  void add(Key key, float priority, std::vector<uint64_t> frames) {
    CHECK(key.slot < options_.capacity && key.generation > 0);
    CHECK(given_.insert({key.slot, key.generation}).second);
    CHECK((rows_.count(key.slot) > 0) == (rows_.size() == options_.capacity));
    if (rows_.count(key.slot)) {
      CHECK(fits(options_.remover, rows_[key.slot]));
      remove(key.slot);
    }
    rows_[key.slot] = {key.generation, next_value_, next_value_, priority, 0, std::move(frames)};
    tree_.set(key.slot, priority);
    ++next_value_;
  }

  void remove(uint32_t slot) {
    dead_.push_back({slot, rows_[slot].generation});
    rows_.erase(slot);
    tree_.set(slot, 0.0f);
    ++removals_;
  }

  // Whether a selector may have chosen this row.
  bool fits(Select how, const Row& row) const {
    for (const auto& [slot, other] : rows_) {
      if (how == Select::kOldest && other.age < row.age) return false;
      if (how == Select::kNewest && other.age > row.age) return false;
      if (how == Select::kHighest && other.priority > row.priority) return false;
      if (how == Select::kLowest && other.priority < row.priority) return false;
      if (how == Select::kPrioritized && other.priority > 0 && row.priority == 0) return false;
    }
    return true;
  }

  void sample() {
    const uint64_t rows = 1 + random_.next() % 6;
    std::vector<float> uniforms;
    if (random_.next() % 2) {
      for (uint64_t i = 0; i < rows; ++i) {
        uniforms.push_back(static_cast<float>(random_.next() >> 8) * 0x1.0p-24f);
      }
    }
    largest_sample_ = std::max(largest_sample_, ratio() > 0 ? rows : 0);
    const double after = ratio() * double(inserts_) - static_cast<double>(samples_ + rows);
    const bool waits = rows_.size() < min_size() || rows > draws_left() ||
                       (ratio() > 0 && after < options_.limits.least);
    const Sampled found = numbers_.sample(rows, uniforms);
    CHECK(found.answer.status == (waits ? Status::kWait : Status::kOk));
    if (found.answer.status != Status::kOk) return;
    bool evenly = false;
    for (uint64_t i = 0; i < rows; ++i) {
      evenly |= options_.sampler == Select::kPrioritized && tree_.total() == 0.0f;
      check_drawn(found, i);
      if (!uniforms.empty()) {
        const float at = (static_cast<float>(i) + uniforms[i]) / static_cast<float>(rows);
        check_point(at, found.keys[i].slot);
      }
      Row& row = rows_[found.keys[i].slot];
      if (++row.times == options_.max_times_sampled) remove(found.keys[i].slot);
    }
    CHECK(found.evenly == evenly);
    samples_ += rows;
    all_drawn_ += rows;
  }

  void check_drawn(const Sampled& found, uint64_t i) {
    CHECK(is_there(found.keys[i]));
    const Row& row = rows_[found.keys[i].slot];
    CHECK(found.values[i] == row.value);
    CHECK(fits(options_.sampler, row));
    for (uint32_t f = 0; f < stack_; ++f) {
      CHECK(found.frames[i * stack_ + f] == shown_[row.frames[f]]);
    }
    float probability = 1.0f;
    if (options_.sampler == Select::kPrioritized && tree_.total() > 0.0f) {
      probability = row.priority / tree_.total();
    } else if (options_.sampler <= Select::kUniform) {
      probability = 1.0f / static_cast<float>(rows_.size());
    }
    CHECK(same_bits(found.probability[i], probability));
  }

  // The rows that the device replay draws.
  void check_point(float at, uint32_t slot) const {
    const bool by_priority = options_.sampler == Select::kPrioritized && tree_.total() > 0.0f;
    if (by_priority) CHECK(slot == tree_.find(at * tree_.total()));
    if (by_priority || options_.sampler > Select::kUniform) return;
    const bool holes = stack_ || options_.max_times_sampled;
    const auto row = static_cast<uint64_t>(at * static_cast<float>(rows_.size()));
    if (!holes) CHECK(slot == std::min<uint64_t>(row, rows_.size() - 1));
  }

  void update() {
    std::vector<Key> keys(1 + random_.next() % 8);
    std::vector<float> priorities;
    for (Key& key : keys) {
      key = some_key();
      priorities.push_back(some_priority(random_));
    }
    const bool wrong = spoil(priorities);
    const uint64_t stale = numbers_.update(keys, priorities);
    CHECK(numbers_.answer.status == (wrong ? Status::kBad : Status::kOk));
    if (wrong) return;
    std::map<uint32_t, float> changes;
    uint64_t stale_here = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!keys[i].generation) continue;
      if (!is_there(keys[i])) {
        ++stale_here;
        continue;
      }
      ++updates_;
      float& highest = changes[keys[i].slot];
      highest = std::max(highest, priorities[i]);
      highest_ = std::max(highest_, priorities[i]);
    }
    CHECK(stale == stale_here);
    stale_ += stale_here;
    for (const auto& [slot, priority] : changes) {
      rows_[slot].priority = priority;
      tree_.set(slot, priority);
    }
  }

  Key some_key() {
    const uint32_t what = random_.next() % 16;
    if (what == 0) return {random_.next() % 100, 0};
    if (what == 1) return {random_.next(), random_.next()};
    if (what < 6 && !dead_.empty()) {
      const size_t newest = std::min<size_t>(dead_.size(), 20);
      const Key key = dead_[dead_.size() - 1 - random_.next() % newest];
      return {key.slot, key.generation + (what == 2)};
    }
    if (rows_.empty()) return {0, 1};
    const auto row = std::next(rows_.begin(), random_.next() % rows_.size());
    return {row->first, row->second.generation};
  }

  void add_frames() {
    std::vector<uint32_t> frames(1 + random_.next() % 3);
    for (uint32_t& frame : frames) frame = random_.next();
    CHECK(numbers_.add_frames(frames) == shown_.size());
    CHECK(numbers_.ok());
    shown_.insert(shown_.end(), frames.begin(), frames.end());
    std::vector<uint32_t> lost;
    for (const auto& [slot, row] : rows_) {
      if (*std::min_element(row.frames.begin(), row.frames.end()) < kept()) lost.push_back(slot);
    }
    for (uint32_t slot : lost) remove(slot);
  }

  void clear() {
    numbers_.table.clear();
    while (!rows_.empty()) remove(rows_.begin()->first);
    inserts_ = samples_ = largest_sample_ = 0;
    highest_ = 1.0f;
  }

  // Priorities are set to what they are: only the count of updates changes.
  void look_at_all() {
    for (const auto& [slot, row] : rows_) {
      CHECK(numbers_.there({slot, row.generation}, row.priority));
      ++updates_;
    }
    for (size_t i = 0; i < std::min<size_t>(dead_.size(), 20); ++i) {
      CHECK(is_there(dead_[dead_.size() - 1 - i]) || !numbers_.there(dead_[dead_.size() - 1 - i]));
      ++stale_;
    }
  }

  // Now and then one of them is bad.
  bool spoil(std::vector<float>& priorities) {
    if (random_.next() % 32) return false;
    const float bad[] = {kNaN, kInfinity, -1.0f};
    priorities[random_.next() % priorities.size()] = bad[random_.next() % 3];
    return true;
  }

  bool is_there(Key key) const {
    const auto row = rows_.find(key.slot);
    return row != rows_.end() && row->second.generation == key.generation;
  }

  uint64_t kept() const {
    return shown_.size() - std::min<uint64_t>(shown_.size(), options_.num_frames);
  }
  double ratio() const { return options_.limits.samples_per_insert; }
  uint64_t min_size() const { return std::max<uint64_t>(options_.limits.min_size, 1); }

  uint64_t draws_left() const {
    if (!options_.max_times_sampled) return UINT64_MAX;
    uint64_t left = 0;
    for (const auto& [slot, row] : rows_) left += options_.max_times_sampled - row.times;
    return left;
  }

  Options options_;
  Numbers numbers_;
  Binary tree_;
  Random random_;
  uint32_t stack_;
  std::map<uint32_t, Row> rows_;
  std::set<std::pair<uint32_t, uint32_t>> given_;  // no key is given twice
  std::vector<Key> dead_;
  std::vector<uint32_t> shown_;
  uint64_t next_value_ = 0, inserts_ = 0, samples_ = 0, updates_ = 0, stale_ = 0, removals_ = 0;
  uint64_t largest_sample_ = 0, all_drawn_ = 0;
  float highest_ = 1.0f;
};

void run_model(const Options& options, uint64_t seed, int steps) {
  Model model(options, seed);
  for (int i = 0; i < steps && checks::failures <= 20; ++i) model.step();
  CHECK(model.drawn() > static_cast<uint64_t>(steps) / 4);
}

TEST(model_of_all_samplers_and_removers) {
  for (Select sampler : kAll) {
    for (Select remover : kAll) run_model(table_of(23, sampler, remover), 100, 1000);
  }
}

TEST(model_of_rows_that_are_sampled_some_times) {
  for (Select sampler : kAll) {
    for (uint32_t times : {1u, 3u}) {
      Options options = table_of(19, sampler, kAll[(times + 2) % 6]);
      options.max_times_sampled = times;
      run_model(options, 200, 2000);
    }
  }
}

TEST(model_of_limits) {
  for (uint32_t times : {0u, 2u}) {
    for (double least : {-10.0, 4.0}) {
      Options options = limited(31, 1.5, least, least + 26.0, 10);
      options.sampler = Select::kPrioritized;
      options.max_times_sampled = times;
      run_model(options, 300, 5000);
    }
  }
}

TEST(model_of_frames) {
  for (Select sampler : kAll) {
    for (uint32_t times : {0u, 2u}) {
      Options options = with_frames(29, 40, 3, sampler);
      options.max_times_sampled = times;
      run_model(options, 400, 2000);
    }
  }
}

TEST(model_of_a_larger_table) {
  run_model(table_of(600, Select::kPrioritized, Select::kPrioritized), 500, 10000);
  run_model(table_of(256, Select::kPrioritized), 501, 10000);
}

// ---- The C functions.

hocket_table_options c_options(uint64_t capacity, const uint64_t* bytes, const uint32_t* frames) {
  hocket_table_options options{};
  options.capacity = capacity;
  options.num_columns = 1;
  options.column_bytes = bytes;
  options.column_frames = frames;
  options.min_size = 1;
  options.sampler = HOCKET_PRIORITIZED;
  options.remover = HOCKET_OLDEST;
  return options;
}

TEST(c_functions_say_what_is_the_matter) {
  const uint64_t bytes = 4;
  const uint32_t no_frames = 0;
  hocket_table_options options = c_options(3, &bytes, &no_frames);
  options.sampler = 6;
  CHECK(!hocket_table_open(&options) && has(hocket_store_why(), "no such selector"));
  options.sampler = HOCKET_PRIORITIZED;
  options.min_size = 2;
  hocket_table* table = hocket_table_open(&options);
  CHECK(table && has("", hocket_store_why()));

  const int32_t values[] = {-1, -2, -3};
  const void* const columns[] = {values};
  uint32_t keys[8];
  CHECK(hocket_table_insert(table, 1, columns, nullptr, nullptr) == HOCKET_OK);
  float probability[4];
  int32_t found[4];
  void* const to[] = {found};
  int evenly = 7;
  CHECK(hocket_table_sample(table, 4, nullptr, keys, probability, to, &evenly) == HOCKET_WAIT);
  CHECK(has(hocket_store_why(), "begins with 2") && evenly == 0);
  const float zeros[] = {0, 0, 0};
  CHECK(hocket_table_insert(table, 3, columns, zeros, keys) == HOCKET_OK);
  CHECK(has("", hocket_store_why()));
  CHECK(keys[0] == 1 && keys[1] == 1 && keys[2] == 2 && keys[4] == 0 && keys[5] == 2);

  const float middles[] = {0.5f, 0.5f, 0.5f};
  CHECK(hocket_table_sample(table, 3, middles, keys, probability, to, &evenly) == HOCKET_OK);
  CHECK(evenly == 1 && found[0] == -3 && found[1] == -1 && found[2] == -2);
  const float priorities[] = {2, 1, 0};
  uint32_t given[] = {1, 1, 0, 1, 2, 0};  // there, stale, null
  uint64_t stale = 7;
  CHECK(hocket_table_update(table, 3, given, priorities, &stale) == HOCKET_OK && stale == 1);
  CHECK(hocket_table_sample(table, 3, nullptr, keys, probability, to, &evenly) == HOCKET_OK);
  CHECK(evenly == 0 && found[0] == -1 && found[2] == -1 && probability[0] == 1.0f);

  CHECK(hocket_table_insert(table, 4, columns, nullptr, nullptr) == HOCKET_BAD);
  CHECK(hocket_table_update(table, 0, given, priorities, &stale) == HOCKET_BAD);
  const float bad[] = {1, kNaN, 0};
  CHECK(hocket_table_update(table, 3, given, bad, &stale) == HOCKET_BAD);
  CHECK(has(hocket_store_why(), "in row 1"));
  uint64_t first;
  CHECK(hocket_table_add_frames(table, 1, values, &first) == HOCKET_BAD);

  hocket_table_counts counts;
  hocket_table_count(table, &counts);
  CHECK(counts.size == 3 && counts.capacity == 3 && counts.inserts == 4 && counts.samples == 6);
  CHECK(counts.updates == 1 && counts.stale_keys == 1 && counts.removals == 1);
  CHECK(counts.frames == 0 && counts.bytes >= 12 && counts.highest == 2 && counts.total == 2);
  hocket_table_clear(table);
  hocket_table_count(table, &counts);
  CHECK(counts.size == 0 && counts.inserts == 0 && counts.total == 0.0f);
  hocket_table_close(table);
  hocket_table_close(nullptr);
}

TEST(c_functions_have_frames) {
  const uint64_t bytes = 2;
  const uint32_t stack = 2;
  hocket_table_options options = c_options(3, &bytes, &stack);
  options.num_frames = 3;
  hocket_table* table = hocket_table_open(&options);
  const uint16_t frames[] = {10, 11, 12};
  uint64_t first = 7;
  CHECK(hocket_table_add_frames(table, 3, frames, &first) == HOCKET_OK && first == 0);
  const uint64_t numbers[] = {0, 1, 1, 2};
  const void* const columns[] = {numbers};
  CHECK(hocket_table_insert(table, 2, columns, nullptr, nullptr) == HOCKET_OK);
  CHECK(hocket_table_add_frames(table, 1, frames, &first) == HOCKET_OK && first == 3);
  uint32_t keys[2];
  uint16_t found[2];
  float probability;
  void* const to[] = {found};
  int evenly;
  CHECK(hocket_table_sample(table, 1, nullptr, keys, &probability, to, &evenly) == HOCKET_OK);
  CHECK(keys[0] == 1 && found[0] == 11 && found[1] == 12);
  hocket_table_counts counts;
  hocket_table_count(table, &counts);
  CHECK(counts.size == 1 && counts.frames == 3 && counts.removals == 1);
  hocket_table_close(table);
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
