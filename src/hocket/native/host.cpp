// Host functions, called by compiled programs on the CPU.
//
// A slot is one function with the arrays that it reads and writes: a call copies its operands
// there, has the function run, and copies what that left there into its results. Programs know a
// slot by its number, so that their text is the same in every run, and a compilation cache finds
// it.

#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

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
};

// Never destroyed: a program may still call while the process ends.
Slot* const slots = new Slot[kSlots];

std::vector<Array> arrays(int count, void* const* data, const int64_t* nbytes) {
  std::vector<Array> found;
  for (int i = 0; i < count; ++i) found.push_back({data[i], nbytes[i]});
  return found;
}

ffi::Error call(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t number) {
  if (number < 0 || number >= kSlots) return ffi::Error::InvalidArgument("no such host function");
  Slot& slot = slots[number];
  const std::lock_guard<std::mutex> lock(slot.busy);
  if (slot.function == nullptr) return ffi::Error::Internal("the host function is closed");
  if (args.size() != slot.ins.size() || rets.size() != slot.outs.size()) {
    return ffi::Error::InvalidArgument("a host function was called with other arrays");
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    hocket_host, call, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<int64_t>("slot"));

extern "C" {

// The number of a free slot that is now this function's, or -1. One thread at a time.
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

// Whether the slot is free again: not while a call is under way, which may never end.
int hocket_host_close(int number) {
  Slot& slot = slots[number];
  const std::unique_lock<std::mutex> lock(slot.busy, std::try_to_lock);
  if (!lock) return 0;
  slot.function = nullptr;
  return 1;
}
}
