// A call site of `averaged`: what every way to average shares of XLA's foreign function interface.
//
// XLA calls `instantiate` once for each call site when it makes an executable. It keeps the `Site`
// that this returns for as long as the executable lives, and passes it to every call, together with
// the attributes that Python gave (`runtime/averaging/groups.py`): the number of the group, the
// number of the call site (`tag`), the bytes of its arrays, and the replica whose arrays all
// replicas get (`root`; -1 for the mean).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cuda.h"
#include "xla/ffi/api/ffi.h"

extern "C" {  // of `average.cpp`
int64_t hocket_average_take(int group, int64_t nbytes);
void hocket_average_arrays(int group, int64_t offset, int64_t tag, int64_t root, int num,
                           void** ins, void** outs, const int64_t* sizes, const int32_t* dtypes,
                           char* message, int64_t room);
void hocket_average_compare(int group, int64_t offset, int64_t tag, int64_t size, int32_t dtype,
                            char* message, int64_t room);
int hocket_average_is_closed(const void* base);
}

namespace hocket {

namespace ffi = xla::ffi;

constexpr char kReplicaEnded[] = "another replica has ended, so there is no mean";

inline ffi::Error memory_is_full(int64_t nbytes) {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                    "the memory for `averaged` between processes is full: one more call site "
                    "averages " + std::to_string(nbytes) + " bytes");
}

// True for float64 and false for float32; `target` takes nothing else.
inline ffi::ErrorOr<bool> is_f64(const ffi::AnyBuffer& x, const char* target) {
  const bool f64 = x.element_type() == ffi::F64;
  if (f64 || x.element_type() == ffi::F32) return f64;
  return ffi::Unexpected(ffi::Error::InvalidArgument(std::string("`") + target +
                                                     "` takes float32 and float64"));
}

// Compare with the other replicas what they average at this site, at the first call of it. Without
// this, replicas that run different programs would read past the end of each other's memory.
template <class Site>
ffi::Error compare_once(Site& site, int group, int64_t tag, int64_t size, bool f64) {
  if (site.compared) return ffi::Error::Success();
  char message[400] = "";
  hocket_average_compare(group, site.lines, tag, size, f64, message, sizeof(message));
  if (message[0] != 0) return ffi::Error(ffi::ErrorCode::kAborted, message);
  site.compared = true;
  return ffi::Error::Success();
}

// The attributes come last in the arguments of both stages, in this order.
template <class Binding>
auto with_attributes(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<int64_t>("group")
      .template Attr<int64_t>("tag")
      .template Attr<int64_t>("nbytes")
      .template Attr<int64_t>("root");
}

// The arguments of a call on a GPU: one vector in and one out, on the stream of the program.
template <class Site>
auto bind_vector() {
  return with_attributes(ffi::Ffi::Bind()
                             .template Ctx<ffi::PlatformStream<cuda::Stream>>()
                             .template Ctx<ffi::State<Site>>()
                             .template Arg<ffi::AnyBuffer>()
                             .template Ret<ffi::AnyBuffer>());
}

}  // namespace hocket

// What Python registers of a target beside its call, under names that begin as the target's: the
// stage that makes sites, and their type. XLA writes a number into `Site::id` when the type is
// registered, and frees a site by its `TypeInfo`, so both are static.
#define HOCKET_DEFINE_SITE(target, Site, instantiate)                              \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                   \
      target##_instantiate, instantiate,                                           \
      hocket::with_attributes(xla::ffi::Ffi::BindInstantiate()));                  \
  extern "C" void* target##_type_id() { return &Site::id; }                        \
  extern "C" const void* target##_type_info() {                                    \
    static constexpr xla::ffi::TypeInfo info = xla::ffi::MakeTypeInfo<Site>();     \
    return &info;                                                                  \
  }
