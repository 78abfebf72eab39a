// The mean over replicas in several processes through the host, for arrays of a GPU: copied to
// pinned memory, averaged there (`average.cpp`), and copied back. The thread that runs the program
// waits meanwhile.

#include <memory>

#include "cuda.h"
#include "xla/ffi/api/ffi.h"

extern "C" {
int64_t hocket_average_take(int group, int64_t nbytes);
void hocket_average_arrays(int group, int64_t offset, int64_t tag, int64_t root, int num,
                           void** ins, void** outs, const int64_t* sizes, const int32_t* dtypes,
                           char* message, int64_t room);
}

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;

struct Site {
  static ffi::TypeId id;
  int64_t offset;
  // Pinned, of the first call on. The mean has one of its own: it may still be on its way to the
  // GPU when the next call begins, until that has waited for the stream.
  char* in = nullptr;
  char* out = nullptr;
};
ffi::TypeId Site::id = {};
constexpr ffi::TypeInfo kSiteInfo = ffi::MakeTypeInfo<Site>();

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(int64_t group, int64_t, int64_t nbytes, int64_t) {
  const int64_t offset = hocket_average_take(static_cast<int>(group), nbytes);
  if (offset < 0) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kResourceExhausted,
        "the memory for `averaged` between processes is full: one more call site averages " +
            std::to_string(nbytes) + " bytes"));
  }
  return std::make_unique<Site>(Site{offset});
}

ffi::Error failed(const char* what, cuda::Result result) {
  return ffi::Error::Internal(cuda::driver().words(what, result));
}

// Never given back: programs last as long as their process, and there are few sites.
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
  const int32_t f64 = in.element_type() == ffi::F64;
  if (!f64 && in.element_type() != ffi::F32) {
    return ffi::Error::InvalidArgument("`hocket_reduce_shm` takes float32 and float64");
  }
  if (site->in == nullptr) {
    if (ffi::Error error = pin(*site, in.size_bytes()); error.failure()) return error;
  }
  const auto from = reinterpret_cast<cuda::Address>(in.untyped_data());
  if (const auto result = d.to_host(site->in, from, in.size_bytes(), stream)) {
    return failed("cuMemcpyDtoHAsync", result);
  }
  if (const auto result = d.stream_sync(stream)) return failed("cuStreamSynchronize", result);
  void* ins[] = {site->in};
  void* outs[] = {site->out};
  const int64_t size = static_cast<int64_t>(in.element_count());
  char message[400] = "";
  hocket_average_arrays(static_cast<int>(group), site->offset, tag, root, 1, ins, outs, &size, &f64,
                        message, sizeof(message));
  if (message[0] != 0) return ffi::Error(ffi::ErrorCode::kAborted, message);
  const auto to = reinterpret_cast<cuda::Address>(out->untyped_data());
  if (const auto result = d.to_device(to, site->out, in.size_bytes(), stream)) {
    return failed("cuMemcpyHtoDAsync", result);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_shm_instantiate, instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("tag")
                                  .Attr<int64_t>("nbytes")
                                  .Attr<int64_t>("root"));

// Not for command buffers: it waits for the stream.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_reduce_shm, average,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cuda::Stream>>()
                                  .Ctx<ffi::State<Site>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("tag")
                                  .Attr<int64_t>("nbytes")
                                  .Attr<int64_t>("root"));

extern "C" {

void* hocket_reduce_shm_type_id() { return &Site::id; }

const void* hocket_reduce_shm_type_info() { return &kSiteInfo; }

}  // extern "C"
