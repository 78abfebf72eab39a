// Host functions, called by compiled programs on the CPU.
//
// A slot is one function with the arrays that it reads and writes. A call copies its operands into
// the slot, runs the function, and copies what the function has left there into its results.
// Programs name a slot by its number, so that their text is the same in every run, and a
// compilation cache finds them.
//
// A function in Python may name a function in C that makes its calls where it can
// (`native_call.h`). Then nothing is copied, and no thread waits for Python's lock.

#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <vector>

#include "native_call.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

constexpr int kSlots = 4096;

using Function = int (*)();

struct Array {
  void* data;
  int64_t nbytes;
};

struct Slot {
  std::mutex busy;
  Function function = nullptr;
  std::vector<Array> ins, outs;
  NativeCall native = nullptr;
  void* context = nullptr;
  bool noted = false;
  std::vector<double> times;  // when each noted call began and ended, by turns
};

// Notes when a call of a slot begins and ends, if its calls are noted.
class Noted {
 public:
  explicit Noted(Slot& slot) : slot_(slot) { add(); }
  ~Noted() { add(); }

 private:
  void add() {
    if (!slot_.noted) return;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    slot_.times.push_back(now.tv_sec + 1e-9 * now.tv_nsec);
  }
  Slot& slot_;
};

// The call frame that XLA has passed to this thread. A native call needs it to call, as XLA would,
// functions of other libraries.
thread_local const XLA_FFI_CallFrame* frame = nullptr;

// Return 1 if the native function made this call, 0 if Python has to make it, -1 if it failed. The
// arrays are XLA's own, and are valid until the call returns.
int call_native(Slot& slot, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const void* ins[kNativeArrays];
  void* outs[kNativeArrays];
  if (args.size() > kNativeArrays || rets.size() > kNativeArrays) return 0;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto arg = args.get<ffi::AnyBuffer>(i);
    if (!arg || static_cast<int64_t>(arg->size_bytes()) != slot.ins[i].nbytes) return 0;
    ins[i] = arg->untyped_data();
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto ret = rets.get<ffi::AnyBuffer>(i);
    if (!ret || static_cast<int64_t>((*ret)->size_bytes()) != slot.outs[i].nbytes) return 0;
    outs[i] = (*ret)->untyped_data();
  }
  return slot.native(slot.context, frame, ins, outs);
}

// Never destroyed: a program may still call while the process ends.
Slot* const slots = new Slot[kSlots];

std::vector<Array> arrays(int count, void* const* data, const int64_t* nbytes) {
  std::vector<Array> all;
  for (int i = 0; i < count; ++i) all.push_back({data[i], nbytes[i]});
  return all;
}

ffi::Error call(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t number) {
  if (number < 0 || number >= kSlots) return ffi::Error::InvalidArgument("no such host function");
  Slot& slot = slots[number];
  // Two programs may call one slot at once, but it has room for the arrays of one call.
  const std::lock_guard<std::mutex> lock(slot.busy);
  if (slot.function == nullptr) return ffi::Error::Internal("the host function is closed");
  if (args.size() != slot.ins.size() || rets.size() != slot.outs.size()) {
    return ffi::Error::InvalidArgument("a host function was called with other arrays");
  }
  const Noted noted(slot);
  if (slot.native != nullptr) {
    const int made = call_native(slot, args, rets);
    if (made < 0) return ffi::Error::Internal("the host function failed in native code");
    if (made > 0) return ffi::Error::Success();
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const auto arg = args.get<ffi::AnyBuffer>(i);
    if (!arg || static_cast<int64_t>(arg->size_bytes()) != slot.ins[i].nbytes) {
      return ffi::Error::InvalidArgument("a host function was called with arrays of other sizes");
    }
    std::memcpy(slot.ins[i].data, arg->untyped_data(), slot.ins[i].nbytes);
  }
  if (slot.function() != 0) return ffi::Error::Internal("the host function failed");
  for (size_t i = 0; i < rets.size(); ++i) {
    auto ret = rets.get<ffi::AnyBuffer>(i);
    if (!ret || static_cast<int64_t>((*ret)->size_bytes()) != slot.outs[i].nbytes) {
      return ffi::Error::InvalidArgument("a host function gave arrays of other sizes");
    }
    std::memcpy((*ret)->untyped_data(), slot.outs[i].data, slot.outs[i].nbytes);
  }
  return ffi::Error::Success();
}

}  // namespace

static XLA_FFI_Error* bound(XLA_FFI_CallFrame* given) {
  static auto* const handler =
      ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<int64_t>("slot").To(call).release();
  return handler->Call(given);
}

extern "C" {

XLA_FFI_Error* hocket_host(XLA_FFI_CallFrame* given) {
  frame = given;
  XLA_FFI_Error* const error = bound(given);
  frame = nullptr;
  return error;
}

// Give a function a free slot, and return its number, or -1 if there is none. One thread at a time.
// The slot keeps the addresses of the function and its arrays, so Python must keep all of them
// alive until `hocket_host_close` has returned 1.
int hocket_host_open(Function function, int num_ins, void* const* ins, const int64_t* in_bytes,
                     int num_outs, void* const* outs, const int64_t* out_bytes) {
  for (int number = 0; number < kSlots; ++number) {
    Slot& slot = slots[number];
    const std::unique_lock<std::mutex> lock(slot.busy, std::try_to_lock);
    if (!lock || slot.function != nullptr) continue;
    slot.function = function;
    slot.ins = arrays(num_ins, ins, in_bytes);
    slot.outs = arrays(num_outs, outs, out_bytes);
    return number;
  }
  return -1;
}

// Free a slot. Return 0, and leave it as it is, while a call is under way, which may never end.
int hocket_host_close(int number) {
  Slot& slot = slots[number];
  const std::unique_lock<std::mutex> lock(slot.busy, std::try_to_lock);
  if (!lock) return 0;
  slot.function = nullptr;
  slot.native = nullptr;
  slot.noted = false;
  return 1;
}

// Offer all further calls to the native function first. Only to be called from within a call of
// this slot, which holds its lock.
void hocket_host_hasten(int number, NativeCall native, void* context) {
  slots[number].native = native;
  slots[number].context = context;
}

// Take the native function away. Return 0, and leave it, while a call is under way.
int hocket_host_slow(int number) {
  Slot& slot = slots[number];
  const std::unique_lock<std::mutex> lock(slot.busy, std::try_to_lock);
  if (!lock) return 0;
  slot.native = nullptr;
  return 1;
}

// Begin or stop noting when calls begin and end. Only to be called while no program calls the slot.
void hocket_host_note(int number, int noted) {
  slots[number].noted = noted != 0;
  slots[number].times.clear();
}

// Write as many of the noted times as there is room for, and return how many there are.
int64_t hocket_host_noted(int number, double* times, int64_t room) {
  const std::vector<double>& noted = slots[number].times;
  for (size_t i = 0; i < noted.size() && static_cast<int64_t>(i) < room; ++i) times[i] = noted[i];
  return noted.size();
}
}
