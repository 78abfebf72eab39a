// The protocol of `reduce.cu` with threads: every rank runs its kernels one after another, and the
// blocks of one kernel at the same time.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "checks.h"
#include "reduce.cu"

namespace {

using namespace hocket_reduce;

constexpr Long kBytes = 1 << 16;

struct Slots {
  explicit Slots(int ranks) : memory(ranks) {
    for (char*& slot : memory) {
      slot = static_cast<char*>(std::aligned_alloc(256, kBytes));
      std::fill(slot, slot + kBytes, 0);
    }
  }
  ~Slots() {
    for (char* slot : memory) std::free(slot);
  }
  std::vector<char*> memory;
  Word closed = 0;
  std::vector<Report> reports = std::vector<Report>(kMaxRanks);
};

template <class T>
Call call_of(Slots& slots, int rank, Long size, const T* in, T* out) {
  Call call = {};
  call.ranks = static_cast<int>(slots.memory.size());
  for (int r = 0; r < call.ranks; ++r) call.slots[r] = slots.memory[r];
  call.rank = rank;
  call.root = -1;
  call.offset = sizeof(Own);
  call.stride = (size * sizeof(T) + 255) / 256 * 256;
  call.size = size;
  call.in = in;
  call.out = out;
  call.closed = &slots.closed;
  call.report = &slots.reports[rank];
  call.timeout_ns = 20000000000ull;
  return call;
}

// One kernel: its blocks at once, all of which end before the next kernel of the rank.
template <class T>
void launch(const Call& call, int blocks) {
  std::vector<std::thread> threads;
  for (int b = 0; b < blocks; ++b) {
    threads.emplace_back([&call, b, blocks] { run_block<T>(call, b, blocks, 0, 1); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Vectors, from XLA, begin at a multiple of what is moved at once.
template <class T>
struct Vector {
  explicit Vector(Long size) : quads((size * sizeof(T) + 15) / 16) {}
  T* data() { return reinterpret_cast<T*>(quads.data()); }
  T& operator[](Long i) { return data()[i]; }
  std::vector<Quad> quads;
};

template <class T>
T value(int rank, int epoch, Long i) {
  std::minstd_rand random(static_cast<unsigned>(1 + rank + 31 * epoch + 977 * i));
  random();
  return static_cast<T>(random()) / static_cast<T>(1 << 20) - 1;
}

template <class T>
void means(int ranks, Long size, int blocks, int epochs, int root) {
  Slots slots(ranks);
  const auto rank_runs = [&](int rank) {
    Vector<T> in(size), out(size);
    for (int e = 0; e < epochs; ++e) {
      for (Long i = 0; i < size; ++i) in[i] = value<T>(rank, e, i);
      Call call = call_of(slots, rank, size, in.data(), out.data());
      call.root = root;
      launch<T>(call, blocks);
      for (Long i = 0; i < size; ++i) {
        T sum = value<T>(0, e, i);
        for (int r = 1; r < ranks; ++r) sum += value<T>(r, e, i);
        CHECK(out[i] == (root < 0 ? sum / static_cast<T>(ranks) : value<T>(root, e, i)));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(rank_runs, r);
  for (std::thread& thread : threads) thread.join();
  for (char* slot : slots.memory) {
    const Own* own = reinterpret_cast<const Own*>(slot);
    CHECK(own->calls == static_cast<Long>(epochs) && own->broken == 0);
    CHECK(own->nbytes == epochs * size * sizeof(T));
  }
}

// A rank that never comes, or a group that is closed: NaN, a report, and no wait after the first.
void alone(bool close) {
  Slots slots(3);
  constexpr Long kSize = 100;
  Vector<float> in(kSize), out(kSize);
  Call call = call_of(slots, 1, kSize, in.data(), out.data());
  if (!close) call.timeout_ns = 50000000;
  std::thread closer([&] {
    const timespec t{0, 20000000};
    nanosleep(&t, nullptr);
    if (close) __atomic_store_n(&slots.closed, 1u, __ATOMIC_RELAXED);
  });
  launch<float>(call, 2);
  closer.join();
  for (Long i = 0; i < kSize; ++i) CHECK(std::isnan(out[i]));
  CHECK(slots.reports[1].code == (close ? kClosed : kTimeout));
  CHECK(slots.reports[1].rank == 0 || slots.reports[1].rank == 2);
  CHECK(reinterpret_cast<Own*>(slots.memory[1])->broken == 1);
  call.timeout_ns = 20000000000ull;
  slots.closed = 0;
  const Long before = now_ns();
  launch<float>(call, 2);
  CHECK(now_ns() - before < 10000000000ull);
  CHECK(std::isnan(out[0]) && std::isnan(out[kSize - 1]));
}

TEST(parts_make_up_the_vector) {
  for (Long size : {0ull, 1ull, 3ull, 4ull, 5ull, 61ull, 4096ull, 57288ull}) {
    for (int blocks : {1, 2, 7, 32}) {
      Long end = 0;
      for (int b = 0; b < blocks; ++b) {
        CHECK(part_begin<float>(size, b, blocks) == end);
        end = part_begin<float>(size, b + 1, blocks);
        CHECK(end == size || end % 4 == 0);
      }
      CHECK(end == size);
    }
  }
}

TEST(two_ranks_get_the_mean) { means<float>(2, 1003, 3, 200, -1); }
TEST(four_ranks_get_the_mean) { means<float>(4, 77, 2, 200, -1); }
TEST(three_ranks_get_the_mean_of_doubles) { means<double>(3, 65, 2, 50, -1); }
TEST(one_number_is_averaged) { means<float>(2, 1, 1, 50, -1); }
TEST(all_get_the_vector_of_one) { means<float>(3, 130, 2, 50, 1); }
TEST(a_closed_group_ends_a_wait) { alone(true); }
TEST(a_wait_ends_by_itself) { alone(false); }

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
