// The replay store for Python: `hocket.replay._store`, a table that threads may share.
//
// Arrays arrive as buffers, which cost some 50 ns each; their dtypes and shapes were compared with
// the schema before. A request that must wait lets other threads go on meanwhile.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "snapshot.h"
#include "table.h"

namespace nb = nanobind;

namespace {

using hocket::Answer;
using hocket::Key;
using hocket::Options;
using hocket::Select;
using hocket::Status;
using hocket::Table;

constexpr uint64_t kSegment = uint64_t{1} << 20;
constexpr auto kLook = std::chrono::milliseconds(50);  // at signals, and whether Python ends

std::atomic<bool> exiting{false};
unsigned long main_thread = 0;

// The only one that handles signals.
bool in_main_thread() { return PyThread_get_thread_ident() == main_thread; }

// The memory of one array, while this lives. None has none.
class Buffer {
 public:
  Buffer(nb::handle array, uint64_t bytes, bool writable) {
    if (array.is_none()) return;
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &view_, flags)) throw nb::python_error();
    held_ = true;
    if (static_cast<uint64_t>(view_.len) != bytes) {
      const std::string found = std::to_string(view_.len);
      PyBuffer_Release(&view_);
      throw nb::value_error(
          ("an array has " + found + " bytes, not " + std::to_string(bytes)).c_str());
    }
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_), held_(other.held_) { other.held_ = false; }
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  template <typename T>
  T* as() const {
    return held_ ? static_cast<T*>(view_.buf) : nullptr;
  }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

class SharedTable {
 public:
  SharedTable(uint64_t capacity, const std::vector<std::pair<uint64_t, uint32_t>>& columns,
              uint64_t num_frames, int sampler, int remover, uint32_t max_times_sampled,
              uint64_t min_size, double samples_per_insert, double least, double most,
              uint64_t seed)
      : table_(std::make_unique<Table>(
            options(capacity, columns, num_frames, sampler, remover, max_times_sampled,
                    {min_size, samples_per_insert, least, most}, seed))) {}

  explicit SharedTable(std::unique_ptr<Table> table) : table_(std::move(table)) {}

  nb::tuple insert(uint64_t rows, nb::tuple columns, nb::handle priorities, nb::handle keys,
                   double timeout) {
    const auto& about = table_->options().columns;
    const auto in = buffers(columns, false, [&](size_t c) {
      return rows * (about[c].frames ? about[c].frames * sizeof(uint64_t) : about[c].bytes);
    });
    const Buffer priority(priorities, rows * sizeof(float), false);
    const Buffer key(keys, rows * sizeof(Key), true);
    return told(when_allowed(timeout, [&] {
      return table_->insert(rows, pointers<const void>(in).data(), priority.as<const float>(),
                           key.as<Key>());
    }));
  }

  nb::tuple sample(uint64_t rows, nb::handle uniforms, nb::handle keys, nb::handle probability,
                   nb::tuple columns, double timeout) {
    const auto& about = table_->options().columns;
    const auto out = buffers(columns, true, [&](size_t c) {
      return rows * about[c].bytes * (about[c].frames ? about[c].frames : 1);
    });
    const Buffer uniform(uniforms, rows * sizeof(float), false);
    const Buffer key(keys, rows * sizeof(Key), true);
    const Buffer chance(probability, rows * sizeof(float), true);
    const auto to = pointers<void>(out);
    hocket::Drawn drawn{key.as<Key>(), chance.as<float>(), to.data()};
    const Answer answer = when_allowed(
        timeout, [&] { return table_->sample(rows, uniform.as<const float>(), drawn); });
    return told(answer, nb::bool_(drawn.evenly));
  }

  nb::tuple update(uint64_t rows, nb::handle keys, nb::handle priorities) {
    const Buffer key(keys, rows * sizeof(Key), false);
    const Buffer priority(priorities, rows * sizeof(float), false);
    uint64_t stale = 0;
    const Answer answer = when_allowed(0.0, [&] {
      return table_->update(rows, key.as<const Key>(), priority.as<const float>(), stale);
    });
    return told(answer, nb::int_(stale));
  }

  nb::tuple add_frames(uint64_t frames, nb::handle data) {
    uint64_t bytes = 0, first = 0;
    for (const hocket::Column& column : table_->options().columns) {
      if (column.frames) bytes = column.bytes;
    }
    const Buffer buffer(data, frames * bytes, false);
    const Answer answer = when_allowed(
        0.0, [&] { return table_->add_frames(frames, buffer.as<const void>(), first); });
    return told(answer, nb::int_(first));
  }

  // Whether there were `rows` rows, which were written to the arrays.
  bool look(uint64_t rows, nb::handle keys, nb::handle priorities, nb::tuple columns) {
    const auto& about = table_->options().columns;
    const auto out = buffers(columns, true, [&](size_t c) {
      return rows * about[c].bytes * (about[c].frames ? about[c].frames : 1);
    });
    const Buffer key(keys, rows * sizeof(Key), true);
    const Buffer priority(priorities, rows * sizeof(float), true);
    const auto to = pointers<void>(out);
    nb::gil_scoped_release others;
    std::lock_guard<std::mutex> alone(mutex_);
    if (table_->size() != rows) return false;
    table_->look(key.as<Key>(), priority.as<float>(), to.data());
    return true;
  }

  void clear() {
    when_allowed(0.0, [&] {
      table_->clear();
      return Answer{};
    });
  }

  // Other threads go on meanwhile, but for the moments in which some rows are copied.
  void save(const std::string& path, const std::string& about) {
    nb::gil_scoped_release others;
    std::optional<hocket::Snapshot> snapshot;
    {
      std::lock_guard<std::mutex> alone(mutex_);
      snapshot.emplace(*table_, path, about);
    }
    const Ending end{mutex_, snapshot};
    for (hocket::Snapshot::Segment segment;; snapshot->write(segment)) {
      {
        std::lock_guard<std::mutex> alone(mutex_);
        segment = snapshot->next(kSegment);
      }
      if (segment.name.empty()) break;
      if (in_main_thread()) {
        nb::gil_scoped_acquire python;
        if (PyErr_CheckSignals()) throw nb::python_error();
      }
    }
    snapshot->write({});
  }

  // Whoever waits gets an error now, and whoever asks for something later.
  void close() {
    nb::gil_scoped_release others;
    std::lock_guard<std::mutex> alone(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  nb::dict counts() {
    const hocket::Counts found = [&] {
      nb::gil_scoped_release others;
      std::lock_guard<std::mutex> alone(mutex_);
      return table_->counts();
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
  static Options options(uint64_t capacity,
                         const std::vector<std::pair<uint64_t, uint32_t>>& columns,
                         uint64_t num_frames, int sampler, int remover, uint32_t max_times_sampled,
                         hocket::Limits limits, uint64_t seed) {
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

  template <typename Bytes>
  std::vector<Buffer> buffers(nb::tuple arrays, bool writable, Bytes bytes) const {
    if (arrays.size() != table_->options().columns.size()) {
      throw nb::value_error("an array for each column is needed");
    }
    std::vector<Buffer> found;
    found.reserve(arrays.size());
    for (size_t c = 0; c < arrays.size(); ++c) found.emplace_back(arrays[c], bytes(c), writable);
    return found;
  }

  template <typename T>
  static std::vector<T*> pointers(const std::vector<Buffer>& buffers) {
    std::vector<T*> found;
    found.reserve(buffers.size());
    for (const Buffer& buffer : buffers) found.push_back(buffer.as<T>());
    return found;
  }

  // What `work` answers, once it does not say that it must wait, or after so many seconds.
  template <typename Work>
  Answer when_allowed(double timeout, Work work) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = std::chrono::duration<double>(std::min(timeout, 1e9));
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    const bool is_main = in_main_thread();
    hocket::Largest before;
    for (bool is_first = true;; is_first = false) {
      {
        nb::gil_scoped_release others;
        std::unique_lock<std::mutex> alone(mutex_);
        if (is_first) before = table_->largest();
        do {
          if (closed_) return {Status::kBad, "the table was closed"};
          const Answer answer = work();
          if (answer.status == Status::kOk) changed_.notify_all();
          if (answer.status != Status::kWait) return answer;
          if (Clock::now() >= end) {
            table_->set_largest(before);
            return answer;
          }
          changed_.wait_until(alone, std::min(end, Clock::now() + kLook));
          if (exiting && !is_main) stay(alone);
        } while (!is_main);
      }
      if (PyErr_CheckSignals()) throw nb::python_error();
    }
  }

  // When Python ends, a thread that waits here must not ask for its lock again: it would be ended
  // in the middle of C++, and the process with it.
  [[noreturn]] static void stay(std::unique_lock<std::mutex>& alone) {
    alone.unlock();
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }

  static nb::tuple told(const Answer& answer, nb::object found = nb::none()) {
    return nb::make_tuple(static_cast<int>(answer.status), answer.why, found);
  }

  // A snapshot ends as it began, with nobody else at the table.
  struct Ending {
    std::mutex& mutex;
    std::optional<hocket::Snapshot>& snapshot;
    ~Ending() {
      std::lock_guard<std::mutex> alone(mutex);
      snapshot.reset();
    }
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Table> table_;
  bool closed_ = false;
};

}  // namespace

NB_MODULE(_store, module) {
  nb::set_leak_warnings(false);  // of threads that stay when Python ends
  main_thread = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { exiting = true; }));
  nb::class_<SharedTable>(module, "Table")
      .def(nb::init<uint64_t, const std::vector<std::pair<uint64_t, uint32_t>>&, uint64_t, int, int,
                    uint32_t, uint64_t, double, double, double, uint64_t>(),
           nb::arg("capacity"), nb::arg("columns"), nb::arg("num_frames"), nb::arg("sampler"),
           nb::arg("remover"), nb::arg("max_times_sampled"), nb::arg("min_size"),
           nb::arg("samples_per_insert"), nb::arg("least"), nb::arg("most"), nb::arg("seed"))
      .def("insert", &SharedTable::insert, nb::arg("rows"), nb::arg("columns"),
           nb::arg("priorities").none(), nb::arg("keys").none(), nb::arg("timeout"))
      .def("sample", &SharedTable::sample, nb::arg("rows"), nb::arg("uniforms").none(),
           nb::arg("keys"), nb::arg("probability"), nb::arg("columns"), nb::arg("timeout"))
      .def("update", &SharedTable::update)
      .def("add_frames", &SharedTable::add_frames)
      .def("look", &SharedTable::look)
      .def("clear", &SharedTable::clear)
      .def("close", &SharedTable::close)
      .def("save", &SharedTable::save)
      .def("counts", &SharedTable::counts);
  module.def("restore", [](const std::string& path) {
    hocket::Restored restored = [&] {
      nb::gil_scoped_release others;
      return hocket::restore(path);
    }();
    auto table = std::make_unique<SharedTable>(std::move(restored.table));
    return nb::make_tuple(nb::cast(table.release(), nb::rv_policy::take_ownership), restored.about);
  });
}
