// A table for several threads, of which one at a time may use it.

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "snapshot.h"
#include "table.h"

namespace hocket {

// Two numbers in a file, which survive a crash of the process: the rows that were ever inserted,
// and how many of them were inserted before the last snapshot.
class Tally {
 public:
  Tally(const std::string& file, std::string snapshot);
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  void inserted(uint64_t rows) { numbers_[0] = rows; }
  void saved(uint64_t rows) { numbers_[1] = rows; }
  const std::string& snapshot() const { return snapshot_; }

 private:
  uint64_t* numbers_;
  std::string snapshot_;
};

struct Shared {
  std::mutex mutex, saving;
  std::condition_variable changed;  // for threads of this process that wait without a server
  std::unique_ptr<Table> table;
  std::shared_ptr<Tally> tally;  // null if nobody counts
  uint64_t cleared = 0;          // the inserts before the last `clear`, which the table forgot
  bool closed = false;

  explicit Shared(std::unique_ptr<Table> made) : table(std::move(made)) {}

  // To be called with the lock held, as `count` and `clear`.
  uint64_t inserts() const { return cleared + table->counts().inserts; }
  void count() {
    if (tally) tally->inserted(inserts());
  }
  void clear() {
    cleared = inserts();
    table->clear();
  }

  // Saves the table to a file. Other threads may use it meanwhile, except while some rows are
  // copied. `between` is called now and then without the lock, and may throw. A second save waits.
  void save(const std::string& path, const std::string& about,
            const std::function<void()>& between = [] {});
};

}  // namespace hocket
