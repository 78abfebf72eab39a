// A table for Python. Threads may share it.

#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "python.h"
#include "shared.h"

namespace hocket {

class PythonTable {
 public:
  PythonTable(uint64_t capacity, const std::vector<std::pair<uint64_t, uint32_t>>& columns,
              uint64_t num_frames, int sampler, int remover, uint32_t max_times_sampled,
              uint64_t min_size, double samples_per_insert, double least, double most,
              uint64_t seed)
      : PythonTable(std::make_unique<Table>(
            options(capacity, columns, num_frames, sampler, remover, max_times_sampled,
                    {min_size, samples_per_insert, least, most}, seed))) {}

  explicit PythonTable(std::unique_ptr<Table> table)
      : shared_(std::make_shared<Shared>(std::move(table))) {}

  const std::shared_ptr<Shared>& shared() const { return shared_; }

  nb::tuple insert(uint64_t rows, nb::tuple columns, nb::handle priorities, nb::handle keys,
                   double timeout) {
    const auto in = given(columns, table().options().columns, rows);
    const Buffer priority(priorities, rows * sizeof(float), false);
    const Buffer key(keys, rows * sizeof(Key), true);
    return told(when_allowed(timeout, [&] {
      const Answer answer = table().insert(rows, pointers<const void>(in).data(),
                                           priority.as<const float>(), key.as<Key>());
      if (answer.status == Status::kOk) shared_->count();
      return answer;
    }));
  }

  nb::tuple sample(uint64_t rows, nb::handle uniforms, nb::handle keys, nb::handle probability,
                   nb::tuple columns, double timeout) {
    const auto out = drawn_to(columns, table().options().columns, rows);
    const Buffer uniform(uniforms, rows * sizeof(float), false);
    const Buffer key(keys, rows * sizeof(Key), true);
    const Buffer chance(probability, rows * sizeof(float), true);
    const auto to = pointers<void>(out);
    Drawn drawn{key.as<Key>(), chance.as<float>(), to.data()};
    const Answer answer = when_allowed(
        timeout, [&] { return table().sample(rows, uniform.as<const float>(), drawn); });
    return told(answer, nb::bool_(drawn.evenly));
  }

  nb::tuple update(uint64_t rows, nb::handle keys, nb::handle priorities) {
    const Buffer key(keys, rows * sizeof(Key), false);
    const Buffer priority(priorities, rows * sizeof(float), false);
    uint64_t stale = 0;
    const Answer answer = when_allowed(0.0, [&] {
      return table().update(rows, key.as<const Key>(), priority.as<const float>(), stale);
    });
    return told(answer, nb::int_(stale));
  }

  nb::tuple add_frames(uint64_t frames, nb::handle data) {
    uint64_t first = 0;
    const Buffer buffer(data, frames * frame_bytes(table().options().columns), false);
    const Answer answer = when_allowed(
        0.0, [&] { return table().add_frames(frames, buffer.as<const void>(), first); });
    return told(answer, nb::int_(first));
  }

  // Writes all rows to the arrays. Returns false if there are not exactly `rows` of them.
  bool look(uint64_t rows, nb::handle keys, nb::handle priorities, nb::tuple columns) {
    const auto out = drawn_to(columns, table().options().columns, rows);
    const Buffer key(keys, rows * sizeof(Key), true);
    const Buffer priority(priorities, rows * sizeof(float), true);
    const auto to = pointers<void>(out);
    nb::gil_scoped_release others;
    std::lock_guard<std::mutex> alone(shared_->mutex);
    if (table().size() != rows) return false;
    table().look(key.as<Key>(), priority.as<float>(), to.data());
    return true;
  }

  void clear() {
    when_allowed(0.0, [&] {
      shared_->clear();
      return Answer{};
    });
  }

  // Other threads may use the table meanwhile, except while some rows are copied.
  void save(const std::string& path, const std::string& about) {
    nb::gil_scoped_release others;
    shared_->save(path, about, [] {
      if (!in_main_thread()) return;
      nb::gil_scoped_acquire python;
      if (PyErr_CheckSignals()) throw nb::python_error();
    });
  }

  // Ends all calls that wait, and all later ones, with an error.
  void close() {
    nb::gil_scoped_release others;
    std::lock_guard<std::mutex> alone(shared_->mutex);
    shared_->closed = true;
    shared_->changed.notify_all();
  }

  // The options that the table was made with, or that it had when it was saved.
  nb::dict made() {
    const Options& found = table().options();
    nb::dict told;
    told["capacity"] = found.capacity;
    told["num_frames"] = found.num_frames;
    told["sampler"] = static_cast<int>(found.sampler);
    told["remover"] = static_cast<int>(found.remover);
    told["max_times_sampled"] = found.max_times_sampled;
    told["min_size"] = found.limits.min_size;
    told["samples_per_insert"] = found.limits.samples_per_insert;
    told["least"] = found.limits.least;
    told["most"] = found.limits.most;
    return told;
  }

  nb::dict counts() {
    const Counts found = [&] {
      nb::gil_scoped_release others;
      std::lock_guard<std::mutex> alone(shared_->mutex);
      return table().counts();
    }();
    nb::dict told;
    told["size"] = found.size;
    told["capacity"] = found.capacity;
    told["inserts"] = found.inserts;
    told["samples"] = found.samples;
    told["updates"] = found.updates;
    told["stale_keys"] = found.stale_keys;
    told["removals"] = found.removals;
    told["frames"] = found.frames;
    told["bytes"] = found.bytes;
    told["highest"] = found.highest;
    told["total"] = found.total;
    return told;
  }

 private:
  Table& table() { return *shared_->table; }

  static Options options(uint64_t capacity,
                         const std::vector<std::pair<uint64_t, uint32_t>>& columns,
                         uint64_t num_frames, int sampler, int remover, uint32_t max_times_sampled,
                         Limits limits, uint64_t seed) {
    Options made;
    made.capacity = capacity;
    for (const auto& [bytes, frames] : columns) made.columns.push_back({bytes, frames});
    made.num_frames = num_frames;
    made.sampler = static_cast<Select>(sampler);
    made.remover = static_cast<Select>(remover);
    made.max_times_sampled = max_times_sampled;
    made.limits = limits;
    made.seed = seed;
    if (std::string problem = Table::problem(made); !problem.empty()) {
      throw nb::value_error((problem + ".").c_str());
    }
    return made;
  }

  template <typename T>
  static std::vector<T*> pointers(const std::vector<Buffer>& buffers) {
    std::vector<T*> found;
    found.reserve(buffers.size());
    for (const Buffer& buffer : buffers) found.push_back(buffer.as<T>());
    return found;
  }

  // Repeats `work` until it does not have to wait, or for `timeout` seconds. Returns its last
  // answer.
  template <typename Work>
  Answer when_allowed(double timeout, Work work) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = std::chrono::duration<double>(std::min(timeout, 1e9));
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    const bool is_main = in_main_thread();
    Largest before;
    for (bool is_first = true;; is_first = false) {
      {
        nb::gil_scoped_release others;
        std::unique_lock<std::mutex> alone(shared_->mutex);
        if (is_first) before = table().largest();
        do {
          if (shared_->closed) return {Status::kBad, "the table was closed"};
          const Answer answer = work();
          if (answer.status == Status::kOk) shared_->changed.notify_all();
          if (answer.status != Status::kWait) return answer;
          if (Clock::now() >= end) {
            table().set_largest(before);
            return answer;
          }
          shared_->changed.wait_until(alone, std::min(end, Clock::now() + kLook));
          if (exiting && !is_main) {
            alone.unlock();
            stay();
          }
        } while (!is_main);
      }
      if (PyErr_CheckSignals()) throw nb::python_error();
    }
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace hocket
