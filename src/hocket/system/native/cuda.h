// The few functions of the CUDA driver that we need. They are looked up at the first use, so that
// the library can be built, and loaded, without CUDA.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace hocket::cuda {

using Result = int;  // 0: success
using Device = int;
using Address = unsigned long long;  // of the device
using Context = struct ContextOf*;
using Stream = struct StreamOf*;
using Module = struct ModuleOf*;
using Function = struct FunctionOf*;

struct IpcHandle {
  char bytes[64];
};
struct Uuid {
  char bytes[16];
};

constexpr unsigned kHostPortable = 1, kHostMapped = 2;  // the same flags for registered memory
constexpr unsigned kPeerAccess = 1;
constexpr unsigned kNonBlocking = 1;
constexpr int kMajor = 75, kMinor = 76;  // attributes of a device: its compute capability

struct Driver {
  Result (*init)(unsigned);
  Result (*error_string)(Result, const char**);
  Result (*device_get)(Device*, int);
  Result (*device_attribute)(int*, int, Device);
  Result (*device_uuid)(Uuid*, Device);
  Result (*retain)(Context*, Device);
  Result (*push)(Context);
  Result (*pop)(Context*);
  Result (*alloc)(Address*, size_t);
  Result (*free)(Address);
  Result (*memset)(Address, unsigned char, size_t);
  Result (*to_host)(void*, Address, size_t, Stream);
  Result (*to_device)(Address, const void*, size_t, Stream);
  Result (*copy)(Address, Address, size_t, Stream);
  Result (*host_alloc)(void**, size_t, unsigned);
  Result (*host_free)(void*);
  Result (*host_register)(void*, size_t, unsigned);
  Result (*host_unregister)(void*);
  Result (*host_address)(Address*, void*, unsigned);
  Result (*ipc_get)(IpcHandle*, Address);
  Result (*ipc_open)(Address*, IpcHandle, unsigned);
  Result (*ipc_close)(Address);
  Result (*module_load)(Module*, const void*);
  Result (*module_unload)(Module);
  Result (*module_function)(Function*, Module, const char*);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream, void**, void**);
  Result (*context_sync)();
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_sync)(Stream);
  Result (*then_on_host)(Stream, void (*)(void*), void*);

  std::string missing;  // the reason why there is no driver, or ""

  // The result of a call as a message.
  std::string words(const char* what, Result result) const {
    const char* text = nullptr;
    error_string(result, &text);
    return std::string(what) + " failed: " + (text ? text : "error") + " (" +
           std::to_string(result) + ")";
  }
};

inline const Driver& driver() {
  static const Driver* const found = [] {
    Driver* d = new Driver{};
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      const char* why = dlerror();
      d->missing = std::string("there is no CUDA driver here (") + (why ? why : "") + ")";
      return d;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && d->missing.empty()) {
        d->missing = std::string("the CUDA driver has no `") + name + "`";
      }
    };
    find(d->init, "cuInit");
    find(d->error_string, "cuGetErrorString");
    find(d->device_get, "cuDeviceGet");
    find(d->device_attribute, "cuDeviceGetAttribute");
    // Newer drivers have it under another name.
    const bool has_v2 = dlsym(library, "cuDeviceGetUuid_v2") != nullptr;
    find(d->device_uuid, has_v2 ? "cuDeviceGetUuid_v2" : "cuDeviceGetUuid");
    find(d->retain, "cuDevicePrimaryCtxRetain");
    find(d->push, "cuCtxPushCurrent_v2");
    find(d->pop, "cuCtxPopCurrent_v2");
    find(d->alloc, "cuMemAlloc_v2");
    find(d->free, "cuMemFree_v2");
    find(d->memset, "cuMemsetD8_v2");
    find(d->to_host, "cuMemcpyDtoHAsync_v2");
    find(d->to_device, "cuMemcpyHtoDAsync_v2");
    find(d->copy, "cuMemcpyDtoDAsync_v2");
    find(d->host_alloc, "cuMemHostAlloc");
    find(d->host_free, "cuMemFreeHost");
    find(d->host_register, "cuMemHostRegister_v2");
    find(d->host_unregister, "cuMemHostUnregister");
    find(d->host_address, "cuMemHostGetDevicePointer_v2");
    find(d->ipc_get, "cuIpcGetMemHandle");
    find(d->ipc_open, "cuIpcOpenMemHandle_v2");
    find(d->ipc_close, "cuIpcCloseMemHandle");
    find(d->module_load, "cuModuleLoadData");
    find(d->module_unload, "cuModuleUnload");
    find(d->module_function, "cuModuleGetFunction");
    find(d->launch, "cuLaunchKernel");
    find(d->context_sync, "cuCtxSynchronize");
    find(d->stream_create, "cuStreamCreate");
    find(d->stream_sync, "cuStreamSynchronize");
    find(d->then_on_host, "cuLaunchHostFunc");
    if (d->missing.empty()) {
      if (const Result result = d->init(0)) d->missing = d->words("cuInit", result);
    }
    return d;
  }();
  return *found;
}

// While this object lives, calls of this thread use a device's primary context, as XLA does.
class Current {
 public:
  explicit Current(Context context) : result_(driver().push(context)) {}
  ~Current() {
    Context before;
    if (result_ == 0) driver().pop(&before);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Result result() const { return result_; }

 private:
  Result result_;
};

// Runs steps one after another until one fails, and keeps its error.
class Steps {
 public:
  template <class Fn>
  Steps& then(const char* what, Fn fn) {
    if (error_.empty()) {
      if (const Result result = fn()) error_ = driver().words(what, result);
    }
    return *this;
  }
  const std::string& error() const { return error_; }

 private:
  std::string error_;
};

}  // namespace hocket::cuda
