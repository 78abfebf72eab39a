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

// Two numbers in a file, which outlive the process however that ends: rows that were ever inserted,
// and how many of them a snapshot has seen.
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
  std::condition_variable changed;  // those who wait in this process, without a server
  std::unique_ptr<Table> table;
  std::shared_ptr<Tally> tally;  // none where nobody counts
  uint64_t cleared = 0;          // inserts that the table itself counts no more
  bool closed = false;

  explicit Shared(std::unique_ptr<Table> made) : table(std::move(made)) {}

  // With the lock held.
  uint64_t inserts() const { return cleared + table->counts().inserts; }
  void count() {
    if (tally) tally->inserted(inserts());
  }
  void clear() {
    cleared = inserts();
    table->clear();
  }

  // To a file, while others go on, but for the moments in which some rows are copied. `between` is
  // called now and then without the lock, and may throw. One at a time: others wait.
  void save(const std::string& path, const std::string& about,
            const std::function<void()>& between = [] {});
};

}  // namespace hocket
