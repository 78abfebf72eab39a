// How native code makes a call of a host function in Python's stead, see `host.cpp`.

#pragma once

#include "xla/ffi/api/c_api.h"

constexpr int kNativeArrays = 64;

// 1 where the call is made and `outs` are written; 0 where Python has to make it; -1 where it
// failed. `frame` is what XLA called with.
using NativeCall = int (*)(void* context, const XLA_FFI_CallFrame* frame, const void* const* ins,
                           void* const* outs);
