#include "snapshot.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "checksum.h"

namespace hocket {
namespace {

constexpr char kMagic[8] = {'h', 'o', 'c', 'k', 'e', 't', 'R', '1'};
constexpr uint64_t kMostName = 16, kChunk = uint64_t{1} << 20;

struct Head {
  char name[kMostName];
  uint64_t bytes;
  uint32_t data_checksum;
  uint32_t head_checksum;  // of the fields before it
};
static_assert(sizeof(Head) == 32);

uint32_t checksum_of(const Head& head) { return checksum(&head, offsetof(Head, head_checksum)); }

std::runtime_error problem(const std::string& path, const std::string& what) {
  return std::runtime_error("the snapshot " + path + " " + what);
}

std::runtime_error failed(const std::string& path, const std::string& doing) {
  return problem(path, "could not be " + doing + ": " + std::strerror(errno));
}

// Numbers and lists of numbers, packed one after the other.
class Packed {
 public:
  Packed() = default;
  explicit Packed(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put<uint64_t>(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  template <typename T>
  void take_into(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&value, next(sizeof(T)), sizeof(T));
  }
  template <typename T>
  T take() {
    T value;
    take_into(value);
    return value;
  }
  template <typename T>
  std::vector<T> take_all() {
    const auto size = take<uint64_t>();
    if (size > bytes_.size() / sizeof(T)) throw std::out_of_range("a list beyond the end");
    std::vector<T> values(size);
    if (size) std::memcpy(values.data(), next(size * sizeof(T)), size * sizeof(T));
    return values;
  }
  const char* next(uint64_t bytes) {
    if (bytes > bytes_.size() - at_) throw std::out_of_range("a value beyond the end");
    at_ += bytes;
    return bytes_.data() + at_ - bytes;
  }
  bool at_end() const { return at_ == bytes_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  uint64_t at_ = 0;
};

std::string packed_options(const Options& o) {
  Packed to;
  to.put(o.capacity);
  to.put<uint64_t>(o.columns.size());
  for (const Column& column : o.columns) {
    to.put(column.bytes);
    to.put(column.frames);
  }
  to.put(o.num_frames);
  to.put(o.sampler);
  to.put(o.remover);
  to.put(o.max_times_sampled);
  to.put(o.limits);
  to.put(o.seed);
  return to.bytes();
}

Options unpacked_options(Packed from) {
  Options o;
  o.capacity = from.take<uint64_t>();
  const auto columns = from.take<uint64_t>();
  for (uint64_t i = 0; i < columns; ++i) {
    const auto bytes = from.take<uint64_t>();
    o.columns.push_back({bytes, from.take<uint32_t>()});
  }
  o.num_frames = from.take<uint64_t>();
  o.sampler = from.take<Select>();
  o.remover = from.take<Select>();
  o.max_times_sampled = from.take<uint32_t>();
  o.limits = from.take<Limits>();
  o.seed = from.take<uint64_t>();
  return o;
}

}  // namespace

// Everything about a table except its rows and frames.
std::string Table::index() const {
  Packed to;
  std::vector<uint32_t> ages;
  std::vector<float> priorities;
  ages.reserve(size_);
  priorities.reserve(size_);
  for (uint32_t slot = order_.oldest(); slot != kNone; slot = order_.after(slot)) {
    ages.push_back(slot);
    priorities.push_back(tree_.leaf(slot));
  }
  to.put_all(ages);
  to.put_all(priorities);
  to.put_all(generations_);
  to.put_all(times_sampled_);
  to.put_all(free_);
  to.put_all(present_ ? present_->slots() : std::vector<uint32_t>());
  for (const auto& heap : heaps_) to.put_all(heap ? heap->slots() : std::vector<uint32_t>());
  to.put(fresh_);
  to.put(highest_);
  to.put(updates_);
  to.put(stale_keys_);
  to.put(removals_);
  to.put(limiter_);
  to.put(random_);
  to.put(frames_added_);
  return to.bytes();
}

void Table::set_index(const std::string& bytes) {
  Packed from(bytes);
  const auto ages = from.take_all<uint32_t>();
  const auto priorities = from.take_all<float>();
  auto generations = from.take_all<uint32_t>();
  const auto times_sampled = from.take_all<uint32_t>();
  free_ = from.take_all<uint32_t>();
  const auto present = from.take_all<uint32_t>();
  const std::vector<uint32_t> heaps[2] = {from.take_all<uint32_t>(), from.take_all<uint32_t>()};
  fresh_ = from.take<uint32_t>();
  const bool is_known = generations.size() == options_.capacity && fresh_ <= options_.capacity &&
                        ages.size() == priorities.size() && ages.size() + free_.size() == fresh_ &&
                        times_sampled.size() == times_sampled_.size() &&
                        present.size() == (present_ ? ages.size() : 0) &&
                        heaps[0].size() == (heaps_[0] ? ages.size() : 0) &&
                        heaps[1].size() == (heaps_[1] ? ages.size() : 0);
  if (!is_known) throw std::out_of_range("lists of other lengths");
  std::vector<bool> seen(fresh_);
  const auto see = [&](uint64_t slot) {
    if (slot >= fresh_ || seen[slot]) throw std::out_of_range("a slot twice, or beyond the end");
    seen[slot] = true;
  };
  for (uint32_t slot : free_) see(slot);
  for (size_t i = 0; i < ages.size(); ++i) {
    see(ages[i]);
    order_.add(ages[i]);
    tree_.set(ages[i], priorities[i]);
    changed_.push_back(ages[i]);
  }
  size_ = ages.size();
  const auto checked = [&](uint32_t slot) {
    if (slot >= fresh_) throw std::out_of_range("a slot beyond the end");
    return slot;
  };
  for (uint32_t slot : present) present_->add(checked(slot));
  for (size_t i = 0; i < 2; ++i) {
    for (uint32_t slot : heaps[i]) heaps_[i]->add(checked(slot), tree_.leaf(slot));
  }
  generations_ = std::move(generations);
  free_.reserve(options_.capacity);
  times_sampled_ = times_sampled;
  for (uint32_t slot : ages) drawn_ += times_sampled_.empty() ? 0 : times_sampled_[slot];
  settle();
  highest_ = from.take<float>();
  updates_ = from.take<uint64_t>();
  stale_keys_ = from.take<uint64_t>();
  removals_ = from.take<uint64_t>();
  from.take_into(limiter_);
  from.take_into(random_);
  frames_added_ = from.take<uint64_t>();
}

uint64_t Table::set_rows(const std::string& bytes) {
  Packed from(bytes);
  const auto slots = from.take_all<uint64_t>();
  for (uint64_t slot : slots) {
    if (slot >= fresh_) throw std::out_of_range("a slot beyond the end");
    std::memcpy(row(static_cast<uint32_t>(slot)), from.next(stride_), stride_);
  }
  return slots.size();
}

uint64_t Table::set_frames(const std::string& bytes) {
  Packed from(bytes);
  const auto numbers = from.take_all<uint64_t>();
  if (!numbers.empty() && !options_.num_frames) throw std::out_of_range("frames of no column");
  for (uint64_t number : numbers) {
    const uint64_t at = number % options_.num_frames;
    std::memcpy(frames_.data() + at * frame_bytes_, from.next(frame_bytes_), frame_bytes_);
  }
  return numbers.size();
}

// Collects the oldest frame of each row. Refuses rows whose frames are missing.
void Table::note_all_oldest_frames() {
  if (!options_.num_frames) return;
  for (uint32_t slot = order_.oldest(); slot != kNone; slot = order_.after(slot)) {
    if (oldest_frame(slot) < frames_added_ - std::min(frames_added_, options_.num_frames)) {
      throw std::out_of_range("a row of a frame that is gone");
    }
    note_oldest_frame(slot);
  }
}

// Writing

Pieces::Pieces(
    uint64_t first, uint64_t count, uint64_t places, const uint8_t* data, uint64_t bytes)
    : first_(first), places_(places), data_(data), bytes_(bytes), pending_(count, true) {}

void Pieces::keep(uint64_t place) noexcept {
  const uint64_t at = (place + places_ - first_ % places_) % places_;
  if (at >= pending_.size() || !pending_[at]) return;
  try {
    take(first_ + at);
  } catch (const std::bad_alloc&) {
    failed_ = true;
  }
}

void Pieces::take(uint64_t number) {
  if (chunks_.empty() || chunks_.back().data.size() >= kChunk) chunks_.emplace_back();
  Chunk& chunk = chunks_.back();
  chunk.numbers.push_back(number);
  chunk.data.append(reinterpret_cast<const char*>(data_) + number % places_ * bytes_, bytes_);
  pending_[number - first_] = false;
}

Pieces::Chunk Pieces::next(uint64_t bytes) {
  const auto enough = [&] {
    return chunks_.size() > 1 || (!chunks_.empty() && chunks_.back().data.size() >= bytes);
  };
  for (; next_ < pending_.size() && !enough(); ++next_) {
    if (pending_[next_]) take(first_ + next_);
  }
  if (failed_) throw std::runtime_error("there is no memory for rows that are replaced meanwhile");
  if (chunks_.empty()) return {};
  Chunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
}

namespace {

Table& unclaimed(Table& table, const std::string& path, bool is_claimed) {
  if (is_claimed) throw problem(path, "must wait: another one of this table is under way");
  return table;
}

}  // namespace

Snapshot::Snapshot(Table& table, std::string path, const std::string& about)
    : table_(unclaimed(table, path, table.snapshot_)),
      path_(std::move(path)),
      beside_(path_ + ".XXXXXX"),
      rows_(0, table.fresh_, table.options().capacity, table.rows_.data(), table.stride_),
      frames_(table.frames_added_ - std::min(table.frames_added_, table.options().num_frames),
              std::min(table.frames_added_, table.options().num_frames),
              std::max<uint64_t>(table.options().num_frames, 1), table.frames_.data(),
              table.frame_bytes_) {
  first_.push_back({"index", "", table.index()});
  first_.push_back({"options", "", packed_options(table.options())});
  first_.push_back({"about", "", about});
  file_ = mkostemp(beside_.data(), O_CLOEXEC);
  if (file_ < 0) throw failed(path_, "opened");
  fchmod(file_, 0644);
  table.snapshot_ = this;
}

Snapshot::~Snapshot() {
  table_.snapshot_ = nullptr;
  if (file_ >= 0) close(file_);
  if (!is_complete_) unlink(beside_.c_str());
}

Snapshot::Segment Snapshot::next(uint64_t bytes) {
  if (!first_.empty()) {
    Segment segment = std::move(first_.back());
    first_.pop_back();
    return segment;
  }
  for (Pieces* pieces : {&rows_, &frames_}) {
    if (Pieces::Chunk chunk = pieces->next(bytes); !chunk.numbers.empty()) {
      Packed head;
      head.put_all(chunk.numbers);
      return {pieces == &rows_ ? "rows" : "frames", head.bytes(), std::move(chunk.data)};
    }
  }
  return {};
}

void Snapshot::write(const Segment& segment) {
  const bool is_last = segment.name.empty();
  const std::string& name = is_last ? "end" : segment.name;
  Head head{};
  std::copy(name.begin(), name.end(), head.name);
  head.bytes = segment.head.size() + segment.data.size();
  head.data_checksum = checksum(segment.data.data(), segment.data.size(),
                                checksum(segment.head.data(), segment.head.size()));
  head.head_checksum = checksum_of(head);
  if (name == "about") write_all(kMagic, sizeof(kMagic));
  write_all(&head, sizeof(head));
  write_all(segment.head.data(), segment.head.size());
  write_all(segment.data.data(), segment.data.size());
  if (!is_last) return;
  if (fsync(file_)) throw failed(beside_, "written");
  if (rename(beside_.c_str(), path_.c_str())) throw failed(path_, "renamed");
  is_complete_ = true;
  // The folder is synchronized, too, so that a crash of the machine leaves one of the two files.
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  if (const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); opened >= 0) {
    fsync(opened);
    close(opened);
  }
}

void Snapshot::write_all(const void* data, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t more = ::write(file_, static_cast<const char*>(data) + done, bytes - done);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) throw failed(path_, "written");
    done += static_cast<uint64_t>(more);
  }
}

// Reading

namespace {

class File {
 public:
  explicit File(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) throw failed(path, "opened");
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return file_; }

 private:
  int file_;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {
    struct stat about{};
    fstat(file_.number(), &about);
    left_ = static_cast<uint64_t>(about.st_size);
    char magic[sizeof(kMagic)];
    if (left_ < sizeof(magic) || (read(magic, sizeof(magic)), std::memcmp(magic, kMagic, 8))) {
      throw problem(path_, "is none: it does not begin as one, or was written by another version");
    }
  }

  // Reads the next segment into `data`, and returns its name.
  std::string next(std::string& data) {
    const std::string where = "segment " + std::to_string(segments_++);
    Head head;
    if (left_ < sizeof(head)) throw problem(path_, "ends before " + where + ": it is not complete");
    read(&head, sizeof(head));
    if (head.head_checksum != checksum_of(head)) {
      throw problem(path_, "is corrupt: the head of " + where);
    }
    const std::string name(head.name, strnlen(head.name, kMostName));
    if (left_ < head.bytes) {
      throw problem(path_, "ends within " + where + " (" + name + "): it is not complete");
    }
    data.resize(head.bytes);
    read(data.data(), head.bytes);
    if (checksum(data.data(), data.size()) != head.data_checksum) {
      throw problem(path_, "is corrupt: " + where + " (" + name + ")");
    }
    return name;
  }

  std::string expect(const std::string& name) {
    std::string data;
    if (const std::string found = next(data); found != name) {
      throw problem(path_, "is corrupt: `" + found + "` where `" + name + "` should be");
    }
    return data;
  }

 private:
  void read(void* data, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t more = ::read(file_.number(), static_cast<char*>(data) + done, bytes - done);
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) throw failed(path_, "read");
      if (more == 0) throw problem(path_, "became shorter while it was read");
      done += static_cast<uint64_t>(more);
    }
    left_ -= bytes;
  }

  std::string path_;
  File file_;
  uint64_t left_ = 0, segments_ = 0;
};

}  // namespace

Restored restore(const std::string& path) {
  Reader reader(path);
  Restored restored;
  restored.about = reader.expect("about");
  try {
    const Options options = unpacked_options(Packed(reader.expect("options")));
    if (std::string wrong = Table::problem(options); !wrong.empty()) {
      throw std::out_of_range(wrong);
    }
    restored.table = std::make_unique<Table>(options);
    Table& table = *restored.table;
    table.set_index(reader.expect("index"));
    uint64_t rows = 0, frames = 0;
    for (std::string data;;) {
      const std::string name = reader.next(data);
      if (name == "end") break;
      if (name == "rows") {
        rows += table.set_rows(data);
      } else if (name == "frames") {
        frames += table.set_frames(data);
      } else {
        throw std::out_of_range("there is no segment `" + name + "`");
      }
    }
    if (rows != table.fresh_ || frames != table.counts().frames) {
      throw std::out_of_range("some of its rows are missing");
    }
    table.note_all_oldest_frames();
  } catch (const std::out_of_range& error) {
    throw problem(path, std::string("is corrupt: ") + error.what());
  }
  return restored;
}

}  // namespace hocket
