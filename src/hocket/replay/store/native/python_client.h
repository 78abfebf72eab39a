// A table of a replay server for Python, with the same methods as a table in this process.

#pragma once

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client.h"
#include "python.h"

namespace hocket {

// A request under way, with the arrays for its answer.
class Asked {
 public:
  // The server may let the request wait for `timeout` seconds, and be silent for `grace` more.
  Asked(std::shared_ptr<Client> client, double timeout, double grace = 30.0)
      : client_(std::move(client)), timeout_(timeout), grace_(grace) {
    call_.header.timeout_ms =
        timeout >= kForever / 1e3 ? kForever : static_cast<uint32_t>(std::ceil(timeout * 1e3));
  }
  ~Asked() {
    if (is_under_way_) {
      nb::gil_scoped_release others;
      client_->abandon(call_);
    }
    if (call_.body) client_->release(call_);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Call& call() { return call_; }
  void keep(Buffer buffer) { kept_.push_back(std::move(buffer)); }

  void ask(const std::vector<In>& parts) {
    nb::gil_scoped_release others;
    client_->ask(call_, parts);
    is_under_way_ = true;
    if (exiting && !in_main_thread()) stay();
  }

  Answer take() {
    const auto end = after(timeout_ + grace_);
    const bool is_main = in_main_thread();
    while (is_under_way_) {
      {
        nb::gil_scoped_release others;
        do {
          wait(std::min(end, Clock::now() + kLook));
          if (exiting && !is_main) stay();
        } while (is_under_way_ && !is_main && Clock::now() < end);
      }
      if (failure_) std::rethrow_exception(failure_);
      if (is_under_way_ && is_main && PyErr_CheckSignals()) throw nb::python_error();
      if (is_under_way_ && Clock::now() >= end) {
        throw Gone("the replay server at " + client_->server() + " gave no answer for " +
                   text(timeout_ + grace_) + " s");
      }
    }
    switch (call_.header.code) {
      case Code::kOk: return {};
      case Code::kTimeout: return {Status::kWait, call_.text};
      default: return {Status::kBad, call_.text};
    }
  }

 private:
  void wait(Clock::time_point until) {
    try {
      is_under_way_ = !client_->wait(call_, until);
    } catch (const Gone&) {
      is_under_way_ = false;
      failure_ = std::current_exception();
    }
  }

  std::shared_ptr<Client> client_;
  double timeout_, grace_;
  std::exception_ptr failure_;
  Call call_;
  bool is_under_way_ = false;
  std::vector<Buffer> kept_;
};

// A sample under way. Its rows may stay where the server wrote them, as long as this object lives.
class Sample {
 public:
  explicit Sample(std::unique_ptr<Asked> asked) : asked_(std::move(asked)) {}

  // Returns `(status, why, (evenly, rows in the table, total of their priorities))`.
  nb::tuple take() {
    const Answer answer = asked_->take();
    const Header& header = asked_->call().header;
    return told(answer, nb::make_tuple(bool(header.flags & kEvenly), header.size, header.total));
  }

  static int buffer(PyObject* self, Py_buffer* view, int flags) {
    Sample* const sample = nb::inst_ptr<Sample>(nb::handle(self));
    const Call& call = sample->asked_->call();
    if (!call.body) {
      PyErr_SetString(PyExc_BufferError, "the rows of this sample were copied");
      return -1;
    }
    return PyBuffer_FillInfo(view, self, call.body, static_cast<Py_ssize_t>(call.header.length), 0,
                             flags);
  }

 private:
  std::unique_ptr<Asked> asked_;
};

class PythonRemote {
 public:
  PythonRemote(std::shared_ptr<Client> client, uint16_t table, const std::string& schema,
               const std::vector<std::pair<uint64_t, uint32_t>>& columns)
      : client_(std::move(client)), table_(table), hash_(schema_hash(schema)) {
    for (const auto& [bytes, frames] : columns) columns_.push_back({bytes, frames});
  }

  nb::tuple insert(uint64_t rows, nb::tuple columns, nb::handle priorities, nb::handle keys,
                   double timeout) {
    const auto in = given(columns, columns_, rows);
    const Buffer priority(priorities, rows * sizeof(float), false);
    const Buffer key(keys, rows * sizeof(Key), true);
    Asked asked(client_, timeout);
    Call& call = request(asked, Op::kInsert, rows);
    std::vector<In> parts;
    if (priority.as<const void>()) {
      call.header.flags = kHasNumbers;
      parts.push_back({priority.as<const void>(), rows * sizeof(float)});
    }
    for (size_t c = 0; c < in.size(); ++c) {
      const Column& column = columns_[c];
      const uint64_t bytes = column.frames ? column.frames * sizeof(uint64_t) : column.bytes;
      parts.push_back({in[c].as<const void>(), rows * bytes});
    }
    call.outs = {{key.as<void>(), rows * sizeof(Key)}};
    asked.ask(parts);
    return told(asked.take());
  }

  // If no arrays are given, the rows stay where the server writes them. Requires `may_stay`.
  std::unique_ptr<Sample> ask_sample(uint64_t rows, nb::handle uniforms, nb::handle keys,
                                     nb::handle probability, nb::object columns, double timeout) {
    auto asked = std::make_unique<Asked>(client_, timeout);
    Call& call = request(*asked, Op::kSample, rows);
    Buffer uniform(uniforms, rows * sizeof(float), false);
    std::vector<In> parts;
    if (uniform.as<const void>()) {
      call.header.flags = kHasNumbers;
      parts.push_back({uniform.as<const void>(), rows * sizeof(float)});
    }
    asked->keep(std::move(uniform));
    if (columns.is_none()) {
      call.reply_bytes = aligned(rows * sizeof(Key)) + aligned(rows * sizeof(float));
      for (const Column& column : columns_) call.reply_bytes += aligned(rows * drawn_bytes(column));
    } else {
      Buffer key(keys, rows * sizeof(Key), true), chance(probability, rows * sizeof(float), true);
      call.outs = {{key.as<void>(), rows * sizeof(Key)}, {chance.as<void>(), rows * sizeof(float)}};
      asked->keep(std::move(key));
      asked->keep(std::move(chance));
      auto out = drawn_to(nb::cast<nb::tuple>(columns), columns_, rows);
      for (size_t c = 0; c < out.size(); ++c) {
        call.outs.push_back({out[c].as<void>(), rows * drawn_bytes(columns_[c])});
        asked->keep(std::move(out[c]));
      }
    }
    asked->ask(parts);
    return std::make_unique<Sample>(std::move(asked));
  }

  nb::tuple update(uint64_t rows, nb::handle keys, nb::handle priorities) {
    const Buffer key(keys, rows * sizeof(Key), false);
    const Buffer priority(priorities, rows * sizeof(float), false);
    uint64_t stale = 0;
    Asked asked(client_, 0.0);
    request(asked, Op::kUpdate, rows).outs = {{&stale, sizeof(stale)}};
    asked.ask({{key.as<const void>(), rows * sizeof(Key)},
               {priority.as<const void>(), rows * sizeof(float)}});
    const Answer answer = asked.take();
    return told(answer, nb::int_(stale));
  }

  nb::tuple add_frames(uint64_t frames, nb::handle data) {
    const uint64_t bytes = frames * frame_bytes(columns_);
    const Buffer buffer(data, bytes, false);
    uint64_t first = 0;
    Asked asked(client_, 0.0);
    request(asked, Op::kFrames, frames).outs = {{&first, sizeof(first)}};
    asked.ask({{buffer.as<const void>(), bytes}});
    const Answer answer = asked.take();
    return told(answer, nb::int_(first));
  }

  // Makes a request without arrays, waits up to `seconds`, and returns `(status, why, text)`.
  nb::tuple say(int op, double seconds) {
    Asked asked(client_, 0.0, seconds);
    request(asked, static_cast<Op>(op), 0);
    asked.ask({});
    const Answer answer = asked.take();
    return told(answer, nb::str(asked.call().text.c_str()));
  }

  bool may_stay() { return client_->may_stay(); }

 private:
  Call& request(Asked& asked, Op op, uint64_t rows) {
    if (rows > UINT32_MAX) throw nb::value_error("a request has fewer than 2**32 rows");
    Header& header = asked.call().header;
    header.op = op;
    header.table = table_;
    header.rows = static_cast<uint32_t>(rows);
    header.schema = hash_;
    return asked.call();
  }

  static uint64_t drawn_bytes(const Column& column) {
    return column.bytes * std::max(column.frames, uint32_t{1});
  }

  std::shared_ptr<Client> client_;
  uint16_t table_;
  uint64_t hash_;
  std::vector<Column> columns_;
};

}  // namespace hocket
