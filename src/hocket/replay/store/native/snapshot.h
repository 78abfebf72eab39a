// A table in a file, which is written piece by piece between requests, and verified when it is
// read.
//
// A snapshot shows the table at the moment when it began. The small parts (keys, priorities, ages)
// are copied at once. Rows follow piece by piece, and a row that is about to be overwritten is
// copied first. The file is a sequence of segments with checksums. It is written under another name
// and renamed when it is complete, so that there is always a complete file.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "table.h"

namespace hocket {

// The rows or frames that are still to be written: `count` of them from number `first` on, each at
// the place `number % places`.
class Pieces {
 public:
  Pieces(uint64_t first, uint64_t count, uint64_t places, const uint8_t* data, uint64_t bytes);

  struct Chunk {
    std::vector<uint64_t> numbers;
    std::string data;
  };

  // Copies a place that is about to be overwritten. Without memory for that, the snapshot fails.
  void keep(uint64_t place) noexcept;

  // The next piece, of about `bytes`; empty at the end.
  Chunk next(uint64_t bytes);

 private:
  void take(uint64_t number);

  uint64_t first_, places_;
  const uint8_t* data_;
  uint64_t bytes_;
  std::vector<bool> pending_;  // by number, from `first_` on
  uint64_t next_ = 0;
  std::deque<Chunk> chunks_;
  bool failed_ = false;
};

class Snapshot {
 public:
  // `restore` returns `about`, which belongs to the caller, for example the schema.
  Snapshot(Table& table, std::string path, const std::string& about);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  struct Segment {
    std::string name, head, data;
  };

  // The next piece of the table, which nobody may change meanwhile. Without a name at the end.
  Segment next(uint64_t bytes);

  // Writes a piece from `next`; the last one completes the file. The table may change meanwhile.
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

// Throws std::runtime_error with the name of the file and what is wrong with it.
Restored restore(const std::string& path);

}  // namespace hocket
