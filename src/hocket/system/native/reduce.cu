// The mean over replicas in several processes on one GPU: the kernel, and the protocol between
// them.
//
// NVRTC compiles it when it is first needed (`cluster/nvidia/nvrtc.py`), so building hocket needs
// no CUDA. Compiled as C++ it is the same protocol with threads instead of blocks, which a test
// runs without a GPU; `reduce_ipc.cpp` takes its types from here.
//
// Every rank has a slot, memory of the GPU that all ranks see. Each call site has a region at the
// same place in all slots: a flag for every block, then two buffers of data. Block b of a rank owns
// part b of the vector. It copies that part to its slot, raises its flag to the number of this call
// (the epoch), waits until block b of every rank has done so, and computes the mean in the order of
// ranks, so that all get the same bits. A block never waits for other parts, so the grid needs no
// barrier.
//
// Two buffers are enough. A rank that writes epoch e + 2 over epoch e has finished e + 1, so every
// rank had raised its flag to e + 1 there. A rank does that in a kernel that began after its kernel
// of epoch e had ended, so nobody reads epoch e any more. A flag is also the count of its own
// rank's calls, so a launch that is recorded once and played often needs no new arguments.
//
// Blocks that wait keep their place on the GPU. So the blocks of all ranks must fit at once, and
// the ranks must run at the same time: hence few blocks, and MPS. A wait ends after a time limit,
// or when the group is closed. The mean is then NaN, this rank is broken, and the host reads why.

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HOCKET_DEVICE __device__ __forceinline__
#define HOCKET_ON_GPU 1
#else
#define HOCKET_DEVICE inline
#include <time.h>
#endif

namespace hocket_reduce {

typedef unsigned int Word;
typedef unsigned long long Long;
static_assert(sizeof(Word) == 4 && sizeof(Long) == 8, "sizes that both sides count on");

constexpr int kMaxRanks = 16;
constexpr int kMaxBlocks = 32;
constexpr int kThreads = 512;
constexpr Word kTimeout = 1, kClosed = 2;

struct alignas(64) Flag {
  Long epoch;
};

// The beginning of a slot, which only its own rank reads and writes.
struct alignas(256) Own {
  Word broken;
  Long calls, nbytes, waited_ns;
};

// Memory of the host, to which the GPU writes when a wait has ended without a mean.
struct Report {
  Word code;  // 0, kTimeout or kClosed
  Word rank;  // the rank that it waited for
};

struct Call {
  char* slots[kMaxRanks];  // as this process sees them
  int ranks, rank;
  int root;           // the rank whose vector all get; -1 for the mean
  Long offset;        // of the site's region, in every slot
  Long stride;        // bytes of one buffer of data
  Long size;          // elements
  const void* in;
  void* out;
  const Word* closed;  // of the host
  Report* report;      // of the host
  Long timeout_ns, delay_ns;
};

HOCKET_DEVICE Flag* flags_of(const Call& call, int rank) {
  return reinterpret_cast<Flag*>(call.slots[rank] + call.offset);
}

template <class T>
HOCKET_DEVICE T* data_of(const Call& call, int rank, Long epoch) {
  char* first = call.slots[rank] + call.offset + kMaxBlocks * sizeof(Flag);
  return reinterpret_cast<T*>(first + (epoch & 1) * call.stride);
}

#ifdef HOCKET_ON_GPU

HOCKET_DEVICE Long now_ns() {
  Long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// The scope is the whole system: CUDA does not promise that another process is within the scope of
// this GPU.
HOCKET_DEVICE void release(Long* at, Long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

HOCKET_DEVICE Long acquire(const Long* at) {
  Long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

HOCKET_DEVICE Word far_word(const Word* at) {
  Word value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

HOCKET_DEVICE void far_store(Word* at, Word value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

HOCKET_DEVICE void rest(Word looks) {
  if (looks > 4096) __nanosleep(200);
}

HOCKET_DEVICE void sync_block() { __syncthreads(); }

HOCKET_DEVICE bool any_of_block(bool mine) { return __syncthreads_or(mine) != 0; }

// Loads of another rank's memory go past the nearest cache, which does not see what others write.
HOCKET_DEVICE uint4 load_fresh(const uint4* at) { return __ldcg(at); }
HOCKET_DEVICE float load_fresh(const float* at) { return __ldcg(at); }
HOCKET_DEVICE double load_fresh(const double* at) { return __ldcg(at); }
typedef uint4 Quad;

#else

inline Long now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1000000000ull * static_cast<Long>(t.tv_sec) + static_cast<Long>(t.tv_nsec);
}

inline void release(Long* at, Long value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline Long acquire(const Long* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline Word far_word(const Word* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void far_store(Word* at, Word value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
inline void rest(Word looks) {
  if (looks % 64) return;
  const timespec t{0, 1000};
  nanosleep(&t, nullptr);
}
inline void sync_block() {}
inline bool any_of_block(bool mine) { return mine; }
struct alignas(16) Quad {
  Word words[4];
};
template <class T>
inline T load_fresh(const T* at) {
  return *at;
}

#endif

template <class T>
union Pack {  // what one thread moves at once
  static constexpr int kSize = 16 / sizeof(T);
  Quad quad;
  T x[kSize];
};

// The beginning of a block's part, a multiple of a pack. It ends where that of the next begins.
template <class T>
HOCKET_DEVICE Long part_begin(Long size, int block, int blocks) {
  const Long packs = (size + Pack<T>::kSize - 1) / Pack<T>::kSize;
  const Long each = (packs + blocks - 1) / blocks;
  const Long begin = each * block * Pack<T>::kSize;
  return begin < size ? begin : size;
}

// Calls `whole(i)` for every pack, beginning at element i, and `single(i)` for the elements left.
template <class T, class Whole, class Single>
HOCKET_DEVICE void each_of_part(Long begin, Long end, int thread, int threads, Whole whole,
                                Single single) {
  constexpr int kSize = Pack<T>::kSize;
  const Long packs = (end - begin) / kSize;
  for (Long p = thread; p < packs; p += threads) whole(begin + p * kSize);
  for (Long i = begin + packs * kSize + thread; i < end; i += threads) single(i);
}

// Wait until block `block` of rank `other` has reached `epoch`. If it does not, report why, and
// return false.
HOCKET_DEVICE bool comes(const Call& call, int other, int block, Long epoch) {
  const Long* flag = &flags_of(call, other)[block].epoch;
  Long since = 0;
  for (Word looks = 1; acquire(flag) < epoch; ++looks) {
    rest(looks);
    if (looks % 1024) continue;  // what follows reads memory of the host, which takes long
    if (since == 0) since = now_ns();
    const bool closed = far_word(call.closed) != 0;
    if (closed || now_ns() - since > call.timeout_ns) {
      far_store(&call.report->rank, static_cast<Word>(other));
      far_store(&call.report->code, closed ? kClosed : kTimeout);
      far_store(&reinterpret_cast<Own*>(call.slots[call.rank])->broken, 1);
      return false;
    }
  }
  return true;
}

template <class T>
HOCKET_DEVICE void copy_in(const Call& call, T* to, Long begin, Long end, int thread,
                           int threads) {
  const T* from = static_cast<const T*>(call.in);
  each_of_part<T>(
      begin, end, thread, threads,
      [=](Long i) { *reinterpret_cast<Quad*>(to + i) = *reinterpret_cast<const Quad*>(from + i); },
      [=](Long i) { to[i] = from[i]; });
}

// The mean over ranks, in their order, as the host takes it in `average.cpp`.
template <class T>
HOCKET_DEVICE void copy_mean(const Call& call, Long epoch, Long begin, Long end, int thread,
                             int threads) {
  T* to = static_cast<T*>(call.out);
  const int first = call.root < 0 ? 0 : call.root;
  const int ranks = call.root < 0 ? call.ranks : first + 1;
  const T count = static_cast<T>(ranks - first);
  each_of_part<T>(
      begin, end, thread, threads,
      [=, &call](Long i) {
        Pack<T> sum, next;
        sum.quad = load_fresh(reinterpret_cast<const Quad*>(data_of<T>(call, first, epoch) + i));
        for (int r = first + 1; r < ranks; ++r) {
          next.quad = load_fresh(reinterpret_cast<const Quad*>(data_of<T>(call, r, epoch) + i));
          for (int k = 0; k < Pack<T>::kSize; ++k) sum.x[k] += next.x[k];
        }
        for (int k = 0; k < Pack<T>::kSize; ++k) sum.x[k] /= count;
        *reinterpret_cast<Quad*>(to + i) = sum.quad;
      },
      [=, &call](Long i) {
        T sum = load_fresh(data_of<T>(call, first, epoch) + i);
        for (int r = first + 1; r < ranks; ++r) sum += load_fresh(data_of<T>(call, r, epoch) + i);
        to[i] = sum / count;
      });
}

template <class T>
HOCKET_DEVICE void run_block(const Call& call, int block, int blocks, int thread, int threads) {
  Own* own = reinterpret_cast<Own*>(call.slots[call.rank]);
  Flag* mine = flags_of(call, call.rank) + block;
  const Long epoch = mine->epoch + 1;  // only this block writes that flag, below
  const Long begin = part_begin<T>(call.size, block, blocks);
  const Long end = part_begin<T>(call.size, block + 1, blocks);
  // Another block may set `broken` at any moment, so one thread reads it for all threads: they must
  // take the same branch.
  bool lost = any_of_block(thread == 0 && far_word(&own->broken) != 0);
  if (!lost) {
    if (call.root < 0 || call.root == call.rank) {
      copy_in(call, data_of<T>(call, call.rank, epoch), begin, end, thread, threads);
    }
    sync_block();
    const Long since = now_ns();
    if (thread == 0) release(&mine->epoch, epoch);
    bool gone = false;
    for (int r = thread; r < call.ranks; r += threads) {
      if (r != call.rank) gone = !comes(call, r, block, epoch) || gone;
    }
    lost = any_of_block(gone);
    while (call.delay_ns != 0 && now_ns() - since < call.delay_ns) {
    }
    if (block == 0 && thread == 0) {
      own->calls += 1;
      own->nbytes += call.size * sizeof(T);
      own->waited_ns += now_ns() - since;
    }
  }
  if (!lost) {
    copy_mean<T>(call, epoch, begin, end, thread, threads);
  } else {
    T* to = static_cast<T*>(call.out);
    const T zero = 0, nan = zero / zero;
    for (Long i = begin + thread; i < end; i += threads) to[i] = nan;
  }
}

// As few blocks as keep up with the memory, because blocks keep their places while they wait.
HOCKET_DEVICE int blocks_for(Long nbytes) {
  const Long each = 16384;
  const Long wanted = (nbytes + each - 1) / each;
  return static_cast<int>(wanted < 1 ? 1 : wanted > kMaxBlocks ? kMaxBlocks : wanted);
}

}  // namespace hocket_reduce

#ifdef HOCKET_ON_GPU

extern "C" __global__ void __launch_bounds__(hocket_reduce::kThreads)
    hocket_reduce_f32(const __grid_constant__ hocket_reduce::Call call) {
  hocket_reduce::run_block<float>(call, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}

extern "C" __global__ void __launch_bounds__(hocket_reduce::kThreads)
    hocket_reduce_f64(const __grid_constant__ hocket_reduce::Call call) {
  hocket_reduce::run_block<double>(call, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}

#endif
