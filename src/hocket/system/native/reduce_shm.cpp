// The mean over replicas in several processes, for arrays of a GPU that go through the host: they
// are copied to pinned memory, averaged there (`average.cpp`), and copied back. The thread that
// runs the program waits meanwhile.

#include <memory>

#include "call_site.h"
#include "cuda.h"

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;

struct Site {
  static inline ffi::TypeId id = {};
  int64_t offset;  // of its region in the group's memory
  // Pinned memory, from the first call on. The mean has a buffer of its own: when a call returns,
  // the copy of the mean to the GPU has only begun, and the next call already writes to `in`.
  char* in = nullptr;
  char* out = nullptr;
};

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(int64_t group, int64_t, int64_t nbytes, int64_t) {
  const int64_t offset = hocket_average_take(static_cast<int>(group), nbytes);
  if (offset < 0) return ffi::Unexpected(hocket::memory_is_full(nbytes));
  return std::make_unique<Site>(Site{offset});
}

ffi::Error failed(const char* what, cuda::Result result) {
  return ffi::Error::Internal(cuda::driver().words(what, result));
}

// Allocate the pinned buffers. They are never freed, because programs last as long as their process
// and have few sites.
ffi::Error pin(Site& site, size_t nbytes) {
  const cuda::Driver& d = cuda::driver();
  for (char** at : {&site.in, &site.out}) {
    void* memory = nullptr;
    if (const auto result = d.host_alloc(&memory, nbytes, cuda::kHostPortable)) {
      return failed("cuMemHostAlloc", result);
    }
    *at = static_cast<char*>(memory);
  }
  return ffi::Error::Success();
}

ffi::Error average(cuda::Stream stream, Site* site, ffi::AnyBuffer in,
                   ffi::Result<ffi::AnyBuffer> out, int64_t group, int64_t tag, int64_t,
                   int64_t root) {
  const cuda::Driver& d = cuda::driver();
  if (!d.missing.empty()) return ffi::Error::Internal(d.missing);
  const ffi::ErrorOr<bool> f64 = hocket::is_f64(in, "hocket_reduce_shm");
  if (f64.has_error()) return f64.error();
  if (site->in == nullptr) {
    if (ffi::Error error = pin(*site, in.size_bytes()); error.failure()) return error;
  }
  const auto from = reinterpret_cast<cuda::Address>(in.untyped_data());
  if (const auto result = d.to_host(site->in, from, in.size_bytes(), stream)) {
    return failed("cuMemcpyDtoHAsync", result);
  }
  // After this, `in` is here, and the previous call's copy out of `out` has ended as well.
  if (const auto result = d.stream_sync(stream)) return failed("cuStreamSynchronize", result);
  void* ins[] = {site->in};
  void* outs[] = {site->out};
  const int64_t size = static_cast<int64_t>(in.element_count());
  const int32_t dtype = *f64;
  char message[400] = "";
  hocket_average_arrays(static_cast<int>(group), site->offset, tag, root, 1, ins, outs, &size,
                        &dtype, message, sizeof(message));
  if (message[0] != 0) return ffi::Error(ffi::ErrorCode::kAborted, message);
  const auto to = reinterpret_cast<cuda::Address>(out->untyped_data());
  if (const auto result = d.to_device(to, site->out, in.size_bytes(), stream)) {
    return failed("cuMemcpyHtoDAsync", result);
  }
  return ffi::Error::Success();
}

}  // namespace

HOCKET_DEFINE_SITE(hocket_reduce_shm, Site, instantiate)

// Not for command buffers, which record only what is launched: this waits on the host.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_shm, average, hocket::bind_vector<Site>());
