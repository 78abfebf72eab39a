// Messages between processes on one GPU: slots of its memory that both processes see.
//
// A program of the sender copies a message into a slot, and a program of the receiver copies it
// out. Each runs on XLA's stream, and the stream itself then tells the other side through a ring
// (`ring.cpp`), so the host may be ahead of the GPU by as many messages as there are slots. The
// receiver cannot read the sender's arrays directly, because CUDA gives no handle to what XLA
// allocates: hence one copy on each side.

#include <memory>

#include "cuda.h"
#include "numbered.h"
#include "say.h"
#include "xla/ffi/api/ffi.h"

extern "C" {
void hocket_ring_publish(void* ring);
void hocket_ring_release(void* ring);
}

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;
using hocket::say;

constexpr int64_t kLine = 64;  // where the arrays of a slot begin

struct Slots {
  cuda::Context context = nullptr;
  cuda::Address base = 0;
  void* ring = nullptr;
};

// Never destroyed: programs that copy through the slots may still run while the process ends.
auto& all_slots = *new hocket::Numbered<Slots>;

// Have `fn` make or open the memory in the context that XLA uses, and return its number.
template <class Fn>
int with_context(int ordinal, void* ring, char* message, int64_t room, Fn fn) {
  const cuda::Driver& d = cuda::driver();
  if (!d.missing.empty()) return say(message, room, d.missing), -1;
  auto made = std::make_unique<Slots>();
  made->ring = ring;
  cuda::Device device;
  cuda::Steps steps;
  steps.then("cuDeviceGet", [&] { return d.device_get(&device, ordinal); })
      .then("cuDevicePrimaryCtxRetain", [&] { return d.retain(&made->context, device); });
  if (steps.error().empty()) {
    const cuda::Current current(made->context);
    steps.then("cuCtxPushCurrent", [&] { return current.result(); });
    fn(d, steps, *made);
  }
  say(message, room, steps.error());
  return all_slots.add(std::move(made));
}

// Copies arrays one after another into a slot or out of it, and then tells the ring. A slot is thus
// published when its data have arrived, and released when they have been copied out, although the
// host has long gone on.
class Copies {
 public:
  Copies(int64_t number, int64_t at, cuda::Stream stream)
      : slots_(all_slots[number]), current_(slots_.context), at_(slots_.base + at), stream_(stream) {}

  void into(const void* array, int64_t nbytes) {
    copy(at_, reinterpret_cast<cuda::Address>(array), nbytes);
  }
  void out_of(void* array, int64_t nbytes) {
    copy(reinterpret_cast<cuda::Address>(array), at_, nbytes);
  }
  ffi::Error end(void (*tell)(void*)) {
    const cuda::Driver& d = cuda::driver();
    steps_.then("cuLaunchHostFunc", [&] { return d.then_on_host(stream_, tell, slots_.ring); });
    return steps_.error().empty() ? ffi::Error::Success() : ffi::Error::Internal(steps_.error());
  }

 private:
  void copy(cuda::Address to, cuda::Address from, int64_t nbytes) {
    if (nbytes == 0) return;
    const cuda::Driver& d = cuda::driver();
    steps_.then("cuMemcpyDtoDAsync", [&] { return d.copy(to, from, nbytes, stream_); });
    at_ += (nbytes + kLine - 1) / kLine * kLine;
  }

  const Slots& slots_;
  const cuda::Current current_;
  cuda::Address at_;
  cuda::Stream stream_;
  cuda::Steps steps_;
};

ffi::Error fill(cuda::Stream stream, ffi::RemainingArgs arrays, ffi::Result<ffi::AnyBuffer>,
                int64_t slots, int64_t at) {
  Copies copies(slots, at, stream);
  for (size_t k = 0; k < arrays.size(); ++k) {
    const auto x = arrays.get<ffi::AnyBuffer>(k);
    if (x.has_error()) return x.error();
    copies.into(x->untyped_data(), static_cast<int64_t>(x->size_bytes()));
  }
  return copies.end(hocket_ring_publish);
}

ffi::Error empty(cuda::Stream stream, ffi::RemainingRets arrays, int64_t slots, int64_t at) {
  Copies copies(slots, at, stream);
  for (size_t k = 0; k < arrays.size(); ++k) {
    auto x = arrays.get<ffi::AnyBuffer>(k);
    if (x.has_error()) return x.error();
    copies.out_of((*x)->untyped_data(), static_cast<int64_t>((*x)->size_bytes()));
  }
  return copies.end(hocket_ring_release);
}

}  // namespace

// The only result is a dummy array, which is ready when the message has been copied.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_slots_fill, fill,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cuda::Stream>>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("slots")
                                  .Attr<int64_t>("at"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_slots_empty, empty,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cuda::Stream>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("slots")
                                  .Attr<int64_t>("at"));

extern "C" {

// Make slots of `nbytes` in all for a ring, and return their number in this process. The other side
// opens them by the `handle` that this writes. What went wrong, or "", goes to `message`. Neither
// side ever frees its slots: the memory of a link serves all epochs of a run.
int hocket_slots_make(int ordinal, void* ring, int64_t nbytes, void* handle, char* message,
                      int64_t room) {
  // A handle shares the whole block of 2 MiB that an allocation lies in, so the slots fill blocks.
  constexpr int64_t kBlock = 2 << 20;
  const int64_t whole = (nbytes + kBlock - 1) / kBlock * kBlock;
  return with_context(ordinal, ring, message, room, [=](auto& d, auto& steps, Slots& made) {
    steps.then("cuMemAlloc", [&] { return d.alloc(&made.base, whole); })
        .then("cuIpcGetMemHandle",
              [&] { return d.ipc_get(static_cast<cuda::IpcHandle*>(handle), made.base); });
  });
}

int hocket_slots_open(int ordinal, void* ring, const void* handle, char* message, int64_t room) {
  return with_context(ordinal, ring, message, room, [=](auto& d, auto& steps, Slots& made) {
    steps.then("cuIpcOpenMemHandle", [&] {
      return d.ipc_open(&made.base, *static_cast<const cuda::IpcHandle*>(handle),
                        cuda::kPeerAccess);
    });
  });
}

}  // extern "C"
