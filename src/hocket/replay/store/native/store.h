/* The replay store as plain C functions: tables of rows, with no Python and no framework.
 *
 * Functions that return an int return HOCKET_OK, HOCKET_WAIT (the table's limits do not allow it
 * now: nothing changed, ask again) or HOCKET_BAD (it is wrong: nothing changed). What is the matter
 * says `hocket_store_why`, in the same thread. One thread at a time may use a table.
 */
#ifndef HOCKET_STORE_H
#define HOCKET_STORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HOCKET_OK = 0, HOCKET_WAIT = 1, HOCKET_BAD = -1 };

enum {
  HOCKET_PRIORITIZED,
  HOCKET_UNIFORM,
  HOCKET_OLDEST,
  HOCKET_NEWEST,
  HOCKET_HIGHEST,
  HOCKET_LOWEST,
};

typedef struct hocket_table hocket_table;

typedef struct {
  uint64_t capacity;
  uint64_t num_columns;
  const uint64_t* column_bytes;  /* of a row, or of a frame */
  const uint32_t* column_frames; /* frames that a row refers to, 0 for bytes of its own */
  uint64_t num_frames;           /* that are kept: the newest */
  uint64_t min_size;             /* rows before the first sample */
  uint64_t seed;
  double samples_per_insert; /* inserts times this minus samples is from `least` to `most`; 0: any */
  double least;
  double most;
  int32_t sampler;
  int32_t remover;
  uint32_t max_times_sampled; /* after which a row is removed; 0: never */
} hocket_table_options;

typedef struct {
  uint64_t size, capacity, inserts, samples, updates, stale_keys, removals, frames, bytes;
  float highest, total;
} hocket_table_counts;

const char* hocket_store_why(void);

/* NULL if there cannot be such a table. */
hocket_table* hocket_table_open(const hocket_table_options* options);
void hocket_table_close(hocket_table* table);

/* Columns have one row after the other. `priorities` may be NULL: the highest so far. `keys`, pairs
 * of slot and generation, may be NULL. */
int hocket_table_insert(hocket_table* table, uint64_t rows, const void* const* columns,
                        const float* priorities, uint32_t* keys);

/* `uniforms` in [0, 1) may be NULL: the table's own. `evenly` is 1 if all priorities are zero. */
int hocket_table_sample(hocket_table* table, uint64_t rows, const float* uniforms, uint32_t* keys,
                        float* probability, void* const* columns, int* evenly);

/* `stale` are the keys whose rows are gone: they are left out. */
int hocket_table_update(hocket_table* table, uint64_t rows, const uint32_t* keys,
                        const float* priorities, uint64_t* stale);

/* Rows refer to these frames by the numbers `first`, `first` + 1 and so on, as uint64. */
int hocket_table_add_frames(hocket_table* table, uint64_t frames, const void* data,
                            uint64_t* first);

void hocket_table_clear(hocket_table* table);
void hocket_table_count(const hocket_table* table, hocket_table_counts* counts);

#ifdef __cplusplus
}
#endif
#endif
