// A table that is made by a command line, with the options of `hocket replay serve`.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../desk.h"
#include "flags.h"

namespace hocket {

// Reads `name:dtype:shape` for each column, as in hocket.replay.store.schema. Throws
// std::invalid_argument.
std::vector<Column> parse_schema(const std::string& schema);

struct TableFlags {
  std::string name = "replay", schema, sampler = "prioritized", remover = "oldest";
  uint64_t capacity = 1000000, max_times_sampled = 0, min_size = 1, num_frames = 0, seed = 0;
  double samples_per_insert = 0.0, tolerance = -1.0;

  void add_to(Flags& flags);
  Served open() const;
};

}  // namespace hocket
