// The mean over replicas in several processes on one GPU, without the host (see `reduce.cu`).
//
// Each rank allocates a slot of memory on the GPU, hands out a handle to it, and opens the slots of
// the others. The slot is memory of its own because CUDA gives no handle to what XLA allocates. A
// call site gets its region of the slot when its program is made, as in `average.cpp`. All ranks
// compare what they average at a site before its first kernel runs.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "call_site.h"
#include "cuda.h"
#include "numbered.h"
#include "reduce.cu"
#include "say.h"

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;
using cuda::Steps;
using hocket::say;
using hocket_reduce::Call;
using hocket_reduce::Own;
using hocket_reduce::Report;

constexpr size_t kPage = 4096;

// Memory of the host that the kernels of this process see.
struct Shared {
  Report report;
  uint32_t closed;  // a copy of the group's own word, for a GPU that cannot see that
};

struct Group {
  std::mutex mutex;  // guards `next`, since programs may be made by several threads
  cuda::Context context = nullptr;
  cuda::Stream aside = nullptr;  // for copies that must not wait behind the kernels
  cuda::Module module = nullptr;
  cuda::Function kernels[2] = {};  // float32, float64
  cuda::Address slot = 0;
  int64_t nbytes = 0, next = sizeof(Own);  // the size of the slot, and where its free part begins
  int32_t control = -1;                    // the number of this group in `average.cpp`
  Call call = {};                          // the fields that all calls have in common
  Shared* shared = nullptr;
  void* registered = nullptr;  // the header, if CUDA could map it
  bool is_open = false;
};

// Never destroyed: programs and threads may still use a group while the process ends.
auto& groups = *new hocket::Numbered<Group>;

int64_t aligned(int64_t n) { return (n + 255) / 256 * 256; }

int64_t site_bytes(int64_t nbytes) {
  return hocket_reduce::kMaxBlocks * static_cast<int64_t>(sizeof(hocket_reduce::Flag)) +
         2 * aligned(nbytes);
}

std::string make(Group& g, int ordinal, const void* image, cuda::IpcHandle* handle,
                 cuda::Uuid* uuid) {
  const cuda::Driver& d = cuda::driver();
  if (!d.missing.empty()) return d.missing;
  cuda::Device device;
  Steps steps;
  steps.then("cuDeviceGet", [&] { return d.device_get(&device, ordinal); })
      .then("cuDeviceGetUuid", [&] { return d.device_uuid(uuid, device); })
      .then("cuDevicePrimaryCtxRetain", [&] { return d.retain(&g.context, device); });
  if (!steps.error().empty()) return steps.error();
  const cuda::Current current(g.context);
  steps.then("cuCtxPushCurrent", [&] { return current.result(); })
      .then("cuModuleLoadData", [&] { return d.module_load(&g.module, image); })
      .then("cuModuleGetFunction",
            [&] { return d.module_function(&g.kernels[0], g.module, "hocket_reduce_f32"); })
      .then("cuModuleGetFunction",
            [&] { return d.module_function(&g.kernels[1], g.module, "hocket_reduce_f64"); })
      .then("cuStreamCreate", [&] { return d.stream_create(&g.aside, cuda::kNonBlocking); })
      .then("cuMemAlloc", [&] { return d.alloc(&g.slot, g.nbytes); })
      .then("cuMemsetD8", [&] { return d.memset(g.slot, 0, g.nbytes); })
      .then("cuCtxSynchronize", [&] { return d.context_sync(); })
      .then("cuIpcGetMemHandle", [&] { return d.ipc_get(handle, g.slot); })
      .then("cuMemHostAlloc", [&] {
        return d.host_alloc(reinterpret_cast<void**>(&g.shared), kPage,
                            cuda::kHostPortable | cuda::kHostMapped);
      });
  if (steps.error().empty()) std::memset(g.shared, 0, kPage);
  return steps.error();
}

// Launch each kernel once for this rank alone. CUDA may load a kernel only at its first launch,
// which must not happen while XLA records a command buffer.
std::string try_kernels(Group& g) {
  const cuda::Driver& d = cuda::driver();
  cuda::Address buffer = 0;
  Steps steps;
  steps.then("cuMemAlloc", [&] { return d.alloc(&buffer, 4096); });
  for (int k = 0; k < 2; ++k) {
    Call call = g.call;
    call.ranks = 1;
    call.slots[0] = call.slots[call.rank];
    call.rank = 0;
    // The region for 64 elements at the end of the slot, which is no site's. The whole slot is set
    // to zeros again below, because a trial counts as a call in `Own`.
    call.offset = g.nbytes - site_bytes(512);
    call.stride = 512;
    call.size = 61;
    call.in = call.out = reinterpret_cast<void*>(buffer);
    void* arguments[] = {&call};
    steps
        .then("cuLaunchKernel",
              [&] {
                return d.launch(g.kernels[k], 1, 1, 1, hocket_reduce::kThreads, 1, 1, 0, g.aside,
                                arguments, nullptr);
              })
        .then("the first kernel", [&] { return d.stream_sync(g.aside); });
  }
  steps.then("cuMemsetD8", [&] { return d.memset(g.slot, 0, g.nbytes); })
      .then("cuCtxSynchronize", [&] { return d.context_sync(); });
  if (buffer) d.free(buffer);
  return steps.error();
}

std::string open(Group& g, int replicas, int index, const cuda::IpcHandle* handles, void* header,
                 int64_t timeout_ns, int64_t delay_ns) {
  const cuda::Driver& d = cuda::driver();
  const cuda::Current current(g.context);
  Call& call = g.call;
  call.ranks = replicas;
  call.rank = index;
  call.root = -1;
  call.timeout_ns = timeout_ns;
  call.delay_ns = delay_ns;
  Steps steps;
  for (int r = 0; r < replicas; ++r) {
    cuda::Address there = g.slot;
    if (r != index) {
      steps.then("cuIpcOpenMemHandle",
                 [&] { return d.ipc_open(&there, handles[r], cuda::kPeerAccess); });
    }
    call.slots[r] = reinterpret_cast<char*>(there);
  }
  cuda::Address shared = 0, closed = 0;
  steps.then("cuMemHostGetDevicePointer",
             [&] { return d.host_address(&shared, g.shared, 0); });
  if (!steps.error().empty()) return steps.error();
  call.report = reinterpret_cast<Report*>(shared + offsetof(Shared, report));
  // The group's header is at the beginning of a page, and begins with the word `closed`.
  cuda::Result result =
      d.host_register(header, kPage, cuda::kHostPortable | cuda::kHostMapped);
  if (result == 0) {
    g.registered = header;
    result = d.host_address(&closed, header, 0);
  }
  if (result != 0) {
    // The kernels cannot see the header here, so a thread copies its word to where they can. It may
    // hold `g` and `header` for as long as it likes: neither is ever freed.
    closed = shared + offsetof(Shared, closed);
    std::thread([&g, header] {
      while (!hocket_average_is_closed(header)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      __atomic_store_n(&g.shared->closed, 1u, __ATOMIC_RELEASE);
    }).detach();
  }
  call.closed = reinterpret_cast<const hocket_reduce::Word*>(closed);
  g.is_open = true;
  return try_kernels(g);
}

struct Site {
  static inline ffi::TypeId id = {};
  int64_t lines;   // where its lines are in the memory of `control`
  int64_t offset;  // where its region is in every slot
  bool compared = false;
};

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(int64_t group, int64_t, int64_t nbytes, int64_t) {
  Group& g = groups[group];
  const int64_t lines = hocket_average_take(g.control, 0);
  const std::lock_guard<std::mutex> lock(g.mutex);
  const int64_t needed = site_bytes(nbytes);
  if (lines < 0 || g.next + needed > g.nbytes) {
    return ffi::Unexpected(hocket::memory_is_full(nbytes));
  }
  auto site = std::make_unique<Site>(Site{lines, g.next});
  g.next += needed;
  return site;
}

ffi::Error failure(const Group& g) {
  const Report report = g.shared->report;
  if (report.code == hocket_reduce::kClosed) {
    return ffi::Error(ffi::ErrorCode::kAborted, hocket::kReplicaEnded);
  }
  char text[100];
  std::snprintf(text, sizeof(text), "`averaged` waited %g s for replica %u",
                1e-9 * static_cast<double>(g.call.timeout_ns), report.rank);
  return ffi::Error(ffi::ErrorCode::kAborted, text);
}

ffi::Error reduce(cuda::Stream stream, Site* site, ffi::AnyBuffer in,
                  ffi::Result<ffi::AnyBuffer> out, int64_t group, int64_t tag, int64_t nbytes,
                  int64_t root) {
  Group& g = groups[group];
  if (__atomic_load_n(&g.shared->report.code, __ATOMIC_RELAXED) != 0) return failure(g);
  const ffi::ErrorOr<bool> f64 = hocket::is_f64(in, "hocket_reduce_ipc");
  if (f64.has_error()) return f64.error();
  const int64_t size = static_cast<int64_t>(in.element_count());
  if (ffi::Error error = hocket::compare_once(*site, g.control, tag, size, *f64); error.failure()) {
    return error;
  }
  Call call = g.call;
  call.root = static_cast<int>(root);
  call.offset = site->offset;
  call.stride = aligned(nbytes);
  call.size = size;
  call.in = in.untyped_data();
  call.out = out->untyped_data();
  void* arguments[] = {&call};
  const cuda::Current current(g.context);
  if (const cuda::Result result = cuda::driver().launch(
          g.kernels[*f64], hocket_reduce::blocks_for(nbytes), 1, 1, hocket_reduce::kThreads, 1, 1,
          0, stream, arguments, nullptr)) {
    return ffi::Error::Internal(cuda::driver().words("cuLaunchKernel", result));
  }
  return ffi::Error::Success();
}

}  // namespace

HOCKET_DEFINE_SITE(hocket_reduce_ipc, Site, instantiate)

// A call is one launch on XLA's stream and nothing else, so a command buffer can record it.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_ipc, reduce, hocket::bind_vector<Site>(),
                              {ffi::Traits::kCmdBufferCompatible});

extern "C" {

int hocket_reduce_ipc_max_ranks() { return hocket_reduce::kMaxRanks; }

// The bytes of a slot that one call site of `nbytes` bytes takes.
int64_t hocket_reduce_ipc_site_bytes(int64_t nbytes) { return site_bytes(nbytes); }

// The bytes of a slot that are no call site's: `Own`, and the region where kernels are tried.
int64_t hocket_reduce_ipc_header_bytes() {
  return static_cast<int64_t>(sizeof(Own)) + site_bytes(512);
}

// Write the compute capability of a device to `major` and `minor`. Like all functions here that
// take a `message`, it writes what went wrong there, or "".
void hocket_cuda_capability(int ordinal, int* major, int* minor, char* message, int64_t room) {
  const cuda::Driver& d = cuda::driver();
  cuda::Device device;
  Steps steps;
  if (!d.missing.empty()) return say(message, room, d.missing);
  steps.then("cuDeviceGet", [&] { return d.device_get(&device, ordinal); })
      .then("cuDeviceGetAttribute", [&] { return d.device_attribute(major, cuda::kMajor, device); })
      .then("cuDeviceGetAttribute",
            [&] { return d.device_attribute(minor, cuda::kMinor, device); });
  say(message, room, steps.error());
}

// Make a group with a slot of at least `nbytes`, and return its number. The other replicas open the
// slot by the `handle` that this writes; `uuid` says on which GPU it is.
int hocket_reduce_ipc_make(int ordinal, int64_t nbytes, const void* image, void* handle, void* uuid,
                           char* message, int64_t room) {
  auto made = std::make_unique<Group>();
  // A handle shares the whole block of 2 MiB that an allocation lies in, so the slot fills blocks.
  constexpr int64_t kBlock = 2 << 20;
  made->nbytes = (nbytes + kBlock - 1) / kBlock * kBlock;
  say(message, room,
      make(*made, ordinal, image, static_cast<cuda::IpcHandle*>(handle),
           static_cast<cuda::Uuid*>(uuid)));
  return groups.add(std::move(made));
}

// Open the slots of the other replicas by their handles. `header` is the group's in shared memory.
void hocket_reduce_ipc_open(int group, int replicas, int index, const void* handles, int control,
                            void* header, int64_t timeout_ns, int64_t delay_ns, char* message,
                            int64_t room) {
  Group& g = groups[group];
  g.control = control;
  say(message, room,
      open(g, replicas, index, static_cast<const cuda::IpcHandle*>(handles), header, timeout_ns,
           delay_ns));
}

// Return 0 if all is well, 1 if a wait for `rank` took too long, 2 if the group was closed.
int hocket_reduce_ipc_failure(int group, int* rank) {
  const Group& g = groups[group];
  *rank = static_cast<int>(g.shared->report.rank);
  return static_cast<int>(__atomic_load_n(&g.shared->report.code, __ATOMIC_RELAXED));
}

// The counts of `hocket_average_counts`, for the kernels that have ended.
void hocket_reduce_ipc_counts(int group, int64_t* calls, int64_t* nbytes, int64_t* waited_ns) {
  const Group& g = groups[group];
  Own own = {};
  const cuda::Current current(g.context);
  const cuda::Driver& d = cuda::driver();
  if (d.to_host(&own, g.slot, sizeof(own), g.aside) == 0) d.stream_sync(g.aside);
  *calls = static_cast<int64_t>(own.calls);
  *nbytes = static_cast<int64_t>(own.nbytes);
  *waited_ns = static_cast<int64_t>(own.waited_ns);
}

// Close the slots of the others (`own` == 0), or free that of this process. All replicas close
// before any of them frees, since a slot must not go while another process has it open.
void hocket_reduce_ipc_free(int group, int own) {
  Group& g = groups[group];
  const cuda::Driver& d = cuda::driver();
  if (g.context == nullptr) return;
  const cuda::Current current(g.context);
  d.context_sync();
  if (own == 0) {
    for (int r = 0; g.is_open && r < g.call.ranks; ++r) {
      const auto there = reinterpret_cast<cuda::Address>(g.call.slots[r]);
      if (r != g.call.rank && there) d.ipc_close(there);
    }
    if (g.registered) d.host_unregister(g.registered);
    g.is_open = false;
    g.registered = nullptr;
  } else if (g.slot) {
    d.free(g.slot);
    g.slot = 0;
  }
}

}  // extern "C"
