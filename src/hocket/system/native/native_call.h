// The C function that may make the calls of a host function instead of Python (`host.cpp`).

#pragma once

#include "xla/ffi/api/c_api.h"

constexpr int kNativeArrays = 64;

// Returns 1 if it has made the call and written `outs`, 0 if Python has to make it, -1 if it
// failed. `frame` is the call frame that XLA passed.
using NativeCall = int (*)(void* context, const XLA_FFI_CallFrame* frame, const void* const* ins,
                           void* const* outs);
