// A table that several threads use, one at a time.

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "snapshot.h"
#include "table.h"

namespace hocket {

struct Shared {
  std::mutex mutex, saving;
  std::condition_variable changed;  // those who wait in this process, without a server
  std::unique_ptr<Table> table;
  bool closed = false;

  explicit Shared(std::unique_ptr<Table> made) : table(std::move(made)) {}

  // To a file, while others go on, but for the moments in which some rows are copied. `between` is
  // called now and then without the lock, and may throw. One at a time: others wait.
  void save(const std::string& path, const std::string& about,
            const std::function<void()>& between = [] {});
};

}  // namespace hocket
