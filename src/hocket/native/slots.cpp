// Messages between processes on one GPU: slots of its memory that both of them see.
//
// A program of the sender copies a message into a slot, and one of the receiver copies it out, each
// on XLA's stream. Whose turn which slot is, the host knows (`ring.cpp`): it says so before such a
// program, and waits for its end. XLA's own memory has no handles, so a copy each way it is.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda.h"
#include "say.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace cuda = hocket::cuda;
namespace ffi = xla::ffi;
using hocket::say;

constexpr int64_t kLine = 64;  // where the arrays of a slot begin

struct Slots {
  cuda::Context context = nullptr;
  cuda::Address base = 0;
  std::atomic<int64_t> turn{0};  // where in them the next program copies
};

std::mutex mutex;
std::vector<std::unique_ptr<Slots>>& all() {
  static auto* const made = new std::vector<std::unique_ptr<Slots>>;
  return *made;
}

Slots& slots_of(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex);
  return *all()[number];
}

int add(std::unique_ptr<Slots> made) {
  const std::lock_guard<std::mutex> lock(mutex);
  all().push_back(std::move(made));
  return static_cast<int>(all().size()) - 1;
}

// The context of XLA's, in which the memory is made or opened by `fn`.
template <class Fn>
int with_context(int ordinal, char* message, int64_t room, Fn fn) {
  const cuda::Driver& d = cuda::driver();
  if (!d.missing.empty()) return say(message, room, d.missing), -1;
  auto made = std::make_unique<Slots>();
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
  return add(std::move(made));
}

// Copies arrays one after another from the slot whose turn it is, or to it.
class Copies {
 public:
  Copies(int64_t number, cuda::Stream stream)
      : slots_(slots_of(number)), stream_(stream), current_(slots_.context),
        at_(slots_.base + slots_.turn.load(std::memory_order_acquire)) {}

  ffi::Error copy(void* array, int64_t nbytes, bool into) {
    const auto there = reinterpret_cast<cuda::Address>(array);
    const cuda::Driver& d = cuda::driver();
    const cuda::Result result =
        nbytes ? d.copy(into ? at_ : there, into ? there : at_, nbytes, stream_) : 0;
    at_ += (nbytes + kLine - 1) / kLine * kLine;
    return result ? ffi::Error::Internal(d.words("cuMemcpyDtoDAsync", result))
                  : ffi::Error::Success();
  }

 private:
  Slots& slots_;
  cuda::Stream stream_;
  cuda::Current current_;
  cuda::Address at_;
};

ffi::Error fill(cuda::Stream stream, ffi::RemainingArgs arrays, ffi::Result<ffi::AnyBuffer>,
                int64_t slots) {
  Copies copies(slots, stream);
  for (size_t k = 0; k < arrays.size(); ++k) {
    const auto x = arrays.get<ffi::AnyBuffer>(k);
    if (x.has_error()) return x.error();
    const int64_t nbytes = static_cast<int64_t>(x->size_bytes());
    if (ffi::Error error = copies.copy(x->untyped_data(), nbytes, true); error.failure()) {
      return error;
    }
  }
  return ffi::Error::Success();
}

ffi::Error empty(cuda::Stream stream, ffi::RemainingRets arrays, int64_t slots) {
  Copies copies(slots, stream);
  for (size_t k = 0; k < arrays.size(); ++k) {
    auto x = arrays.get<ffi::AnyBuffer>(k);
    if (x.has_error()) return x.error();
    const int64_t nbytes = static_cast<int64_t>((*x)->size_bytes());
    if (ffi::Error error = copies.copy((*x)->untyped_data(), nbytes, false); error.failure()) {
      return error;
    }
  }
  return ffi::Error::Success();
}

}  // namespace

// Its result is nothing but something to wait for.
XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_slots_fill, fill,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cuda::Stream>>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("slots"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(hocket_slots_empty, empty,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cuda::Stream>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("slots"));

extern "C" {

// Their number in this process. New ones, of `nbytes`, have the handle that others open; on failure
// the text goes to `message`, which is "" without one.
int hocket_slots_make(int ordinal, int64_t nbytes, void* handle, char* message, int64_t room) {
  constexpr int64_t kBlock = 2 << 20;  // a handle shares all that lies in one block
  const int64_t whole = (nbytes + kBlock - 1) / kBlock * kBlock;
  return with_context(ordinal, message, room, [=](auto& d, auto& steps, Slots& made) {
    steps.then("cuMemAlloc", [&] { return d.alloc(&made.base, whole); })
        .then("cuIpcGetMemHandle",
              [&] { return d.ipc_get(static_cast<cuda::IpcHandle*>(handle), made.base); });
  });
}

int hocket_slots_open(int ordinal, const void* handle, char* message, int64_t room) {
  return with_context(ordinal, message, room, [=](auto& d, auto& steps, Slots& made) {
    steps.then("cuIpcOpenMemHandle", [&] {
      return d.ipc_open(&made.base, *static_cast<const cuda::IpcHandle*>(handle),
                        cuda::kPeerAccess);
    });
  });
}

// Where the next program copies to, or from: bytes from the beginning.
void hocket_slots_turn(int number, int64_t at) {
  slots_of(number).turn.store(at, std::memory_order_release);
}

}  // extern "C"
