#include "shared.h"

#include <optional>

namespace hocket {
namespace {

constexpr uint64_t kSegment = uint64_t{1} << 20;

// A snapshot ends as it began, with nobody else at the table.
struct Ending {
  std::mutex& mutex;
  std::optional<Snapshot>& snapshot;
  ~Ending() {
    std::lock_guard<std::mutex> alone(mutex);
    snapshot.reset();
  }
};

}  // namespace

void Shared::save(const std::string& path, const std::string& about,
                  const std::function<void()>& between) {
  const std::lock_guard<std::mutex> one_at_a_time(saving);
  std::optional<Snapshot> snapshot;
  {
    std::lock_guard<std::mutex> alone(mutex);
    snapshot.emplace(*table, path, about);
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
}

}  // namespace hocket
