// A table in a file: written piece by piece between requests, and verified when it is read.
//
// A snapshot is the table of the moment in which it began. What is small (keys, priorities, ages)
// is taken at once; rows follow, and one that is about to be written over is taken before that. The
// file is a sequence of segments with checksums, written beside its name and renamed when it is
// complete, so that there is always the last complete one.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "table.h"

namespace hocket {

// Things with a number and a fixed size, of which some are to be written: rows, or frames.
class Pieces {
 public:
  Pieces(std::vector<uint64_t> numbers, const uint8_t* data, uint64_t bytes, uint64_t places);

  // This place is about to be written over.
  void keep(uint64_t place);

  // Some more as a segment, empty when there are no more.
  std::string next(uint64_t bytes);

 private:
  void take(uint64_t place);

  std::vector<uint64_t> numbers_;
  const uint8_t* data_;
  uint64_t bytes_;
  std::vector<uint64_t> number_at_;  // by place; kTaken where there is nothing to write
  uint64_t next_ = 0;
  std::vector<uint64_t> taken_;
  std::string copies_;
};

class Snapshot {
 public:
  // `about` is the caller's, and comes back from `restore`: the schema, for example.
  Snapshot(Table& table, std::string path, const std::string& about);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  struct Segment {
    std::string name, data;
  };

  // Some more of the table, which nobody may change meanwhile. No name when that was all.
  Segment next(uint64_t bytes);

  // Writes what `next` gave; the last one completes the file. The table may change meanwhile.
  void write(const Segment& segment);

 private:
  friend class Table;

  Table& table_;
  std::string path_, beside_;
  int file_ = -1;
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
