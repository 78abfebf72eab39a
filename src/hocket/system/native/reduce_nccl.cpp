// The mean over replicas on several GPUs, one process each, by NCCL, on XLA's stream.
//
// NCCL comes with `jax[cuda]`, and is loaded when it is first needed. If a replica ended, the
// others would wait for it on their GPUs for ever. So a thread of each process looks whether the
// group was closed, and then aborts its communicator.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "call_site.h"
#include "cuda.h"
#include "numbered.h"
#include "say.h"

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;

using hocket::say;
using Result = int;  // 0: success
using Comm = struct CommOf*;
struct UniqueId {
  char bytes[128];
};
constexpr int kF32 = 7, kF64 = 8;  // ncclDataType_t
constexpr int kAverage = 4;        // ncclRedOp_t

struct Nccl {
  Result (*unique_id)(UniqueId*);
  Result (*init_rank)(Comm*, int, UniqueId, int);
  Result (*all_reduce)(const void*, void*, size_t, int, int, Comm, cuda::Stream);
  Result (*broadcast)(const void*, void*, size_t, int, int, Comm, cuda::Stream);
  Result (*abort)(Comm);
  const char* (*error_string)(Result);
};

Nccl nccl = {};

struct Group {
  cuda::Context context = nullptr;
  Comm comm = nullptr;
  const void* header = nullptr;  // of the group in `average.cpp`, in shared memory
  int control = -1;              // the number of that group
  std::atomic<bool> aborted{false};
  std::atomic<int64_t> calls{0}, nbytes{0};
};

// Never destroyed: programs and the threads that look for the end use them until the process ends.
auto& groups = *new hocket::Numbered<Group>;

std::string words(const char* what, Result result) {
  return std::string(what) + " failed: " + nccl.error_string(result);
}

std::string load(const char* path) {
  if (nccl.abort != nullptr) return "";
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return dlerror();
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = std::string("it has no `") + name + "`";
  };
  find(nccl.unique_id, "ncclGetUniqueId");
  find(nccl.init_rank, "ncclCommInitRank");
  find(nccl.all_reduce, "ncclAllReduce");
  find(nccl.broadcast, "ncclBroadcast");
  find(nccl.error_string, "ncclGetErrorString");
  find(nccl.abort, "ncclCommAbort");
  if (!missing.empty()) nccl = {};
  return missing;
}

void abort_when_closed(Group* g) {
  while (!g->aborted) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (hocket_average_is_closed(g->header) && !g->aborted.exchange(true)) {
      const cuda::Current current(g->context);
      nccl.abort(g->comm);
    }
  }
}

struct Site {
  static inline ffi::TypeId id = {};
  int64_t lines;  // where its lines are in the memory of `control`
  bool compared = false;
};

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(int64_t group, int64_t, int64_t, int64_t) {
  const int64_t lines = hocket_average_take(groups[group].control, 0);
  if (lines < 0) {
    return ffi::Unexpected(
        ffi::Error(ffi::ErrorCode::kResourceExhausted,
                   "there are more call sites of `averaged` than there is memory for"));
  }
  return std::make_unique<Site>(Site{lines});
}

ffi::Error average(cuda::Stream stream, Site* site, ffi::AnyBuffer in,
                   ffi::Result<ffi::AnyBuffer> out, int64_t group, int64_t tag, int64_t nbytes,
                   int64_t root) {
  Group& g = groups[group];
  if (g.aborted) return ffi::Error(ffi::ErrorCode::kAborted, hocket::kReplicaEnded);
  const ffi::ErrorOr<bool> f64 = hocket::is_f64(in, "hocket_reduce_nccl");
  if (f64.has_error()) return f64.error();
  const int64_t size = static_cast<int64_t>(in.element_count());
  if (ffi::Error error = hocket::compare_once(*site, g.control, tag, size, *f64); error.failure()) {
    return error;
  }
  const cuda::Current current(g.context);
  const int dtype = *f64 ? kF64 : kF32;
  const Result result =
      root < 0 ? nccl.all_reduce(in.untyped_data(), out->untyped_data(), size, dtype, kAverage,
                                 g.comm, stream)
               : nccl.broadcast(in.untyped_data(), out->untyped_data(), size, dtype,
                                static_cast<int>(root), g.comm, stream);
  if (result != 0) return ffi::Error::Internal(words("an all-reduce of NCCL", result));
  g.calls += 1;
  g.nbytes += nbytes;
  return ffi::Error::Success();
}

}  // namespace

HOCKET_DEFINE_SITE(hocket_reduce_nccl, Site, instantiate)

// Not for command buffers: one could record two calls of a communicator side by side, and all
// replicas must make their calls in the same order.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_nccl, average, hocket::bind_vector<Site>());

extern "C" {

// Load NCCL from a file, and write an identity of 128 bytes for a new group to `id`.
void hocket_reduce_nccl_id(const char* path, void* id, char* message, int64_t room) {
  std::string error = load(path);
  if (error.empty()) {
    if (const Result result = nccl.unique_id(static_cast<UniqueId*>(id))) {
      error = words("ncclGetUniqueId", result);
    }
  }
  say(message, room, error);
}

// Join the group of this identity, waiting for all other replicas, and return its number.
int hocket_reduce_nccl_join(int ordinal, int replicas, int index, const void* id, int control,
                            const void* header, char* message, int64_t room) {
  const cuda::Driver& d = cuda::driver();
  if (!d.missing.empty()) return say(message, room, d.missing), -1;
  auto made = std::make_unique<Group>();
  made->header = header;
  made->control = control;
  cuda::Device device;
  cuda::Result retained = d.device_get(&device, ordinal);
  if (retained == 0) retained = d.retain(&made->context, device);
  if (retained != 0) return say(message, room, d.words("cuDevicePrimaryCtxRetain", retained)), -1;
  UniqueId identity;
  std::memcpy(&identity, id, sizeof(identity));
  const cuda::Current current(made->context);
  if (const Result result = nccl.init_rank(&made->comm, replicas, identity, index)) {
    return say(message, room, words("ncclCommInitRank", result)), -1;
  }
  // The thread keeps this address: `groups` never moves or frees what it is given.
  std::thread(abort_when_closed, made.get()).detach();
  say(message, room, "");
  return groups.add(std::move(made));
}

int hocket_reduce_nccl_aborted(int group) { return groups[group].aborted; }

// The calls and bytes launched so far. NCCL does not say how long the GPU waited for others.
void hocket_reduce_nccl_counts(int group, int64_t* calls, int64_t* nbytes) {
  *calls = groups[group].calls;
  *nbytes = groups[group].nbytes;
}

}  // extern "C"
