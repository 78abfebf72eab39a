#include "shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace hocket {
namespace {

constexpr uint64_t kSegment = uint64_t{1} << 20;

// Ends a snapshot with the table's lock held, as it began.
struct Ending {
  std::mutex& mutex;
  std::optional<Snapshot>& snapshot;
  ~Ending() {
    std::lock_guard<std::mutex> alone(mutex);
    snapshot.reset();
  }
};

}  // namespace

Tally::Tally(const std::string& file, std::string snapshot) : snapshot_(std::move(snapshot)) {
  constexpr size_t kBytes = 2 * sizeof(uint64_t);
  const int opened = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (opened < 0) throw std::runtime_error(file + ": " + std::strerror(errno));
  void* found = MAP_FAILED;
  if (!ftruncate(opened, kBytes)) {
    found = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  }
  const int error = errno;
  close(opened);
  if (found == MAP_FAILED) throw std::runtime_error(file + ": " + std::strerror(error));
  numbers_ = static_cast<uint64_t*>(found);
}

Tally::~Tally() { munmap(numbers_, 2 * sizeof(uint64_t)); }

void Shared::save(const std::string& path, const std::string& about,
                  const std::function<void()>& between) {
  const std::lock_guard<std::mutex> one_at_a_time(saving);
  std::optional<Snapshot> snapshot;
  uint64_t seen = 0;
  {
    std::lock_guard<std::mutex> alone(mutex);
    snapshot.emplace(*table, path, about);
    seen = inserts();
  }
  const Ending end{mutex, snapshot};
  for (Snapshot::Segment segment;; snapshot->write(segment)) {
    {
      std::lock_guard<std::mutex> alone(mutex);
      segment = snapshot->next(kSegment);
    }
    if (segment.name.empty()) break;
    between();
  }
  snapshot->write({});
  {
    std::lock_guard<std::mutex> alone(mutex);
    if (tally && tally->snapshot() == path) tally->saved(seen);
  }
}

}  // namespace hocket
