#include "store.h"

#include <exception>
#include <string>

#include "table.h"

using hocket::Answer;
using hocket::Key;
using hocket::Table;

struct hocket_table {
  Table table;
};

namespace {

thread_local std::string why;

int told(const Answer& answer) {
  why = answer.why;
  return static_cast<int>(answer.status);
}

// Turns exceptions into a status, because C has none. They mean that there is no memory.
template <typename Work>
int guarded(Work work) {
  try {
    return told(work());
  } catch (const std::exception& error) {
    return told({hocket::Status::kBad, error.what()});
  }
}

static_assert(sizeof(Key) == 2 * sizeof(uint32_t));

hocket::Options read(const hocket_table_options& from) {
  hocket::Options options;
  options.capacity = from.capacity;
  for (uint64_t i = 0; i < from.num_columns; ++i) {
    options.columns.push_back({from.column_bytes[i], from.column_frames[i]});
  }
  options.num_frames = from.num_frames;
  options.sampler = static_cast<hocket::Select>(from.sampler);
  options.remover = static_cast<hocket::Select>(from.remover);
  options.max_times_sampled = from.max_times_sampled;
  options.limits = {from.min_size, from.samples_per_insert, from.least, from.most};
  options.seed = from.seed;
  return options;
}

}  // namespace

extern "C" {

const char* hocket_store_why(void) { return why.c_str(); }

hocket_table* hocket_table_open(const hocket_table_options* given) {
  hocket_table* made = nullptr;
  guarded([&]() -> Answer {
    const hocket::Options options = read(*given);
    if (std::string problem = Table::problem(options); !problem.empty()) {
      return {hocket::Status::kBad, problem};
    }
    made = new hocket_table{Table(options)};
    return {};
  });
  return made;
}

void hocket_table_close(hocket_table* table) { delete table; }

int hocket_table_insert(hocket_table* table, uint64_t rows, const void* const* columns,
                        const float* priorities, uint32_t* keys) {
  return guarded([&] {
    return table->table.insert(rows, columns, priorities, reinterpret_cast<Key*>(keys));
  });
}

int hocket_table_sample(hocket_table* table, uint64_t rows, const float* uniforms, uint32_t* keys,
                        float* probability, void* const* columns, int* evenly) {
  hocket::Drawn drawn{reinterpret_cast<Key*>(keys), probability, columns};
  const int status = guarded([&] { return table->table.sample(rows, uniforms, drawn); });
  *evenly = drawn.evenly;
  return status;
}

int hocket_table_update(hocket_table* table, uint64_t rows, const uint32_t* keys,
                        const float* priorities, uint64_t* stale) {
  return guarded([&] {
    return table->table.update(rows, reinterpret_cast<const Key*>(keys), priorities, *stale);
  });
}

int hocket_table_add_frames(hocket_table* table, uint64_t frames, const void* data,
                            uint64_t* first) {
  return guarded([&] { return table->table.add_frames(frames, data, *first); });
}

void hocket_table_clear(hocket_table* table) { table->table.clear(); }

void hocket_table_count(const hocket_table* table, hocket_table_counts* counts) {
  const hocket::Counts found = table->table.counts();
  *counts = {found.size,       found.capacity, found.inserts, found.samples, found.updates,
             found.stale_keys, found.removals, found.frames,  found.bytes,   found.highest,
             found.total};
}

}  // extern "C"
