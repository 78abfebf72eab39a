// Limits on how far inserting and sampling may run apart.
//
// A limiter never waits. It says if a request may go on now, and its caller decides what to do.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace hocket {

inline std::string text(double number) {
  char found[32];
  std::snprintf(found, sizeof(found), "%g", number);
  return found;
}

struct Limits {
  uint64_t min_size = 1;
  // `inserts * samples_per_insert - samples` stays from `least` to `most`; 0 for no such limit.
  // Only while there are too few rows to sample from, inserts may go past `most`.
  double samples_per_insert = 0.0;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

// The number of rows in the largest requests so far.
struct Largest {
  uint64_t insert = 0, sample = 0;
};

class Limiter {
 public:
  explicit Limiter(const Limits& limits) : limits_(limits) {}

  // The reason why requests could not go on for ever with such limits; empty if they can.
  static std::string problem(const Limits& limits, uint64_t capacity, uint32_t max_times_sampled) {
    const double ratio = limits.samples_per_insert;
    if (limits.min_size > capacity) {
      return "a table of " + std::to_string(capacity) + " rows never holds the " +
             std::to_string(limits.min_size) + " that it should have before it is sampled from";
    }
    if (ratio == 0.0) return "";
    if (!(ratio > 0.0 && ratio <= std::numeric_limits<double>::max())) {
      return "samples per insert must be a positive number, found " + text(ratio);
    }
    if (!(limits.most - limits.least >= 2.0 * std::max(1.0, ratio))) {
      return "between " + text(limits.least) + " and " + text(limits.most) +
             " there is no room for " + text(ratio) +
             " samples per insert: they must be at least " + text(2.0 * std::max(1.0, ratio)) +
             " apart";
    }
    if (static_cast<double>(limits.min_size) * ratio > limits.most) {
      return "inserts stop before there are the " + std::to_string(limits.min_size) +
             " rows from which sampling begins: that many times " + text(ratio) +
             " is more than " + text(limits.most);
    }
    if (max_times_sampled && ratio > max_times_sampled) {
      return "rows are sampled at most " + std::to_string(max_times_sampled) +
             " times, so there never are " + text(ratio) + " samples per insert";
    }
    return "";
  }

  // The reason why requests of `rows` rows could wait for each other for ever; empty if they
  // cannot.
  std::string problem_with(uint64_t rows, bool insert) {
    const double ratio = limits_.samples_per_insert;
    if (ratio == 0.0) return "";
    const uint64_t inserted = insert ? std::max(rows, largest_.insert) : largest_.insert;
    const uint64_t sampled = insert ? largest_.sample : std::max(rows, largest_.sample);
    const double apart = static_cast<double>(inserted) * ratio + static_cast<double>(sampled);
    if (apart > limits_.most - limits_.least) {
      return "inserts of " + std::to_string(inserted) + " rows and samples of " +
             std::to_string(sampled) + " could wait for each other for ever: with " +
             text(ratio) + " samples per insert the limits must be " +
             text(apart) + " apart, and are " +
             text(limits_.most - limits_.least);
    }
    largest_.insert = inserted;
    largest_.sample = sampled;
    return "";
  }

  bool may_insert(uint64_t rows) const {
    return limits_.samples_per_insert == 0.0 || distance(rows, 0) <= limits_.most;
  }

  bool may_sample(uint64_t rows) const {
    return limits_.samples_per_insert == 0.0 || distance(0, rows) >= limits_.least;
  }

  Largest largest() const { return largest_; }
  void set_largest(Largest largest) { largest_ = largest; }
  void inserted(uint64_t rows) { inserts_ += rows; }
  void sampled(uint64_t rows) { samples_ += rows; }
  uint64_t inserts() const { return inserts_; }
  uint64_t samples() const { return samples_; }
  uint64_t min_size() const { return std::max<uint64_t>(limits_.min_size, 1); }

 private:
  double distance(uint64_t more_inserts, uint64_t more_samples) const {
    return static_cast<double>(inserts_ + more_inserts) * limits_.samples_per_insert -
           static_cast<double>(samples_ + more_samples);
  }

  Limits limits_;
  uint64_t inserts_ = 0, samples_ = 0;
  Largest largest_;
};

}  // namespace hocket
