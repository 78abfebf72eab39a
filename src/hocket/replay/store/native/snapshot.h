// A table in a file: written piece by piece between requests, and verified when it is read.
//
// A snapshot is the table of the moment in which it began. What is small (keys, priorities, ages)
// is taken at once; rows follow, and one that is about to be written over is taken before that. The
// file is a sequence of segments with checksums, written beside its name and renamed when it is
// complete, so that there is always the last complete one.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "table.h"

namespace hocket {

// Rows or frames that are to be written: `count` of them from the number `first` on, each at the
// place of its number modulo `places`.
class Pieces {
 public:
  Pieces(uint64_t first, uint64_t count, uint64_t places, const uint8_t* data, uint64_t bytes);

  struct Chunk {
    std::vector<uint64_t> numbers;
    std::string data;
  };

  // This place is about to be written over. Never throws: without memory the snapshot fails.
  void keep(uint64_t place) noexcept;

  // Some more, of about `bytes`; nothing when there is no more.
  Chunk next(uint64_t bytes);

 private:
  void take(uint64_t number);

  uint64_t first_, places_;
  const uint8_t* data_;
  uint64_t bytes_;
  std::vector<bool> pending_;  // by number, from `first_`
  uint64_t next_ = 0;
  std::deque<Chunk> chunks_;
  bool failed_ = false;
};

class Snapshot {
 public:
  // `about` is the caller's, and comes back from `restore`: the schema, for example.
  Snapshot(Table& table, std::string path, const std::string& about);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  struct Segment {
    std::string name, head, data;
  };

  // Some more of the table, which nobody may change meanwhile. No name when that was all.
  Segment next(uint64_t bytes);

  // Writes what `next` gave; the last one completes the file. The table may change meanwhile.
  void write(const Segment& segment);

 private:
  friend class Table;
  void write_all(const void* data, uint64_t bytes);

  Table& table_;
  std::string path_, beside_;
  int file_ = -1;
  bool is_complete_ = false;
  std::vector<Segment> first_;
  Pieces rows_, frames_;
};

struct Restored {
  std::unique_ptr<Table> table;
  std::string about;
};

// Throws std::runtime_error that names the file and what is wrong with it.
Restored restore(const std::string& path);

}  // namespace hocket
