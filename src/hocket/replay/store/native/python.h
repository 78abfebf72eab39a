// Common parts of the Python classes: arrays as memory, and waiting without Python's lock.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "table.h"

namespace hocket {

namespace nb = nanobind;

constexpr auto kLook = std::chrono::milliseconds(50);  // to check for signals, and Python's end

inline std::atomic<bool> exiting{false};
inline unsigned long main_thread = 0;

// Only the main thread handles signals.
inline bool in_main_thread() { return PyThread_get_thread_ident() == main_thread; }

// The memory of one array, as long as this object lives. For None it is null.
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

template <typename Bytes>
std::vector<Buffer> buffers(nb::tuple arrays, const std::vector<Column>& columns, bool writable,
                            Bytes bytes) {
  if (arrays.size() != columns.size()) throw nb::value_error("an array for each column is needed");
  std::vector<Buffer> found;
  found.reserve(arrays.size());
  for (size_t c = 0; c < arrays.size(); ++c) {
    found.emplace_back(arrays[c], bytes(columns[c]), writable);
  }
  return found;
}

// The buffers for the arrays of an insert or a sample.
inline std::vector<Buffer> given(nb::tuple arrays, const std::vector<Column>& columns,
                                 uint64_t rows) {
  return buffers(arrays, columns, false, [rows](const Column& column) {
    return rows * (column.frames ? column.frames * sizeof(uint64_t) : column.bytes);
  });
}

inline std::vector<Buffer> drawn_to(nb::tuple arrays, const std::vector<Column>& columns,
                                    uint64_t rows) {
  return buffers(arrays, columns, true, [rows](const Column& column) {
    return rows * column.bytes * (column.frames ? column.frames : 1);
  });
}

inline uint64_t frame_bytes(const std::vector<Column>& columns) {
  for (const Column& column : columns) {
    if (column.frames) return column.bytes;
  }
  return 0;
}

inline nb::tuple told(const Answer& answer, nb::object found = nb::none()) {
  return nb::make_tuple(static_cast<int>(answer.status), answer.why, found);
}

// Stops this thread for ever. When Python ends, a thread must not ask for its lock again: Python
// would end the thread in the middle of C++ code, which ends the process.
[[noreturn]] inline void stay() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace hocket
