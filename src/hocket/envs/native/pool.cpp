// One step of an environment pool whose `send` and `recv` are XLA handlers, such as EnvPool's.
//
// A step in which an episode ends is left to Python after it is received, because the handler for
// `send` always sends to all environments, and only those whose episode ended have to begin anew.

#include <cstdint>
#include <cstring>
#include <vector>

#include "native_call.h"

namespace {

// The arrays of a step, in the order of `host_steps.py`.
enum In { kSeed, kSteps, kReturn, kLength, kEndedReturn, kEndedLength, kEnded, kObs, kAction };
enum Out {
  kOutSteps, kOutReturn, kOutLength, kOutEndedReturn, kOutEndedLength, kOutEnded,
  kOutReward, kOutTerminated, kOutTruncated, kOutObs, kOutFinal
};
enum Found { kFoundObs, kFoundReward, kFoundDone, kFoundTruncated };

// An XLA handler with its arguments and results, which can be called again and again.
class Handler {
 public:
  Handler(XLA_FFI_Handler* handler, int64_t handle, int num_ins, void* const* ins,
          const int64_t* in_bytes, int num_outs, void* const* outs, const int64_t* out_bytes)
      : handler_(handler), handle_(handle) {
    room_.resize(1 + num_ins + 1 + num_outs);
    dims_.resize(room_.size());
    add(0, &handle_, sizeof handle_);
    for (int i = 0; i < num_ins; ++i) add(1 + i, ins[i], in_bytes[i]);
    add(1 + num_ins, &handle_back_, sizeof handle_back_);
    for (int i = 0; i < num_outs; ++i) add(2 + num_ins + i, outs[i], out_bytes[i]);
    for (auto& buffer : room_) pointers_.push_back(&buffer);
    arg_types_.assign(1 + num_ins, XLA_FFI_ArgType_BUFFER);
    ret_types_.assign(1 + num_outs, XLA_FFI_RetType_BUFFER);
    scalar_ = {XLA_FFI_DataType_S64, &handle_};
    attr_ = &scalar_;
    frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame_.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, 1 + num_ins, arg_types_.data(),
                   pointers_.data()};
    frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, 1 + num_outs, ret_types_.data(),
                   pointers_.data() + 1 + num_ins};
    frame_.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 1, &attr_type_, &attr_name_, &attr_};
  }
  Handler(const Handler&) = delete;

  bool call(const XLA_FFI_CallFrame* from) {
    frame_.api = from->api;
    frame_.ctx = from->ctx;
    XLA_FFI_Error* const error = handler_(&frame_);
    if (error == nullptr) return true;
    XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    from->api->XLA_FFI_Error_Destroy(&args);
    return false;
  }

 private:
  void add(size_t i, void* data, int64_t nbytes) {
    dims_[i] = nbytes;
    room_[i] = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, XLA_FFI_DataType_U8, data, 1, &dims_[i]};
  }

  XLA_FFI_Handler* handler_;
  int64_t handle_, handle_back_ = 0;
  std::vector<XLA_FFI_Buffer> room_;
  std::vector<int64_t> dims_;
  std::vector<void*> pointers_;
  std::vector<XLA_FFI_ArgType> arg_types_;
  std::vector<XLA_FFI_RetType> ret_types_;
  XLA_FFI_Scalar scalar_{};
  void* attr_ = nullptr;
  XLA_FFI_AttrType attr_type_ = XLA_FFI_AttrType_SCALAR;
  XLA_FFI_ByteSpan name_ = {"handle", 6};
  XLA_FFI_ByteSpan* attr_name_ = &name_;
  XLA_FFI_CallFrame frame_{};
};

struct Pool {
  Handler send, recv;
  int64_t num_envs;
  const uint32_t* seed;
  int32_t* steps;  // steps that each environment has taken
  void* action;    // where `send` reads it
  int64_t action_bytes;
  const void* found[4];
  int64_t obs_bytes;
  int32_t* received;  // 1 while a received step waits for Python
};

}  // namespace

extern "C" {

// The function of a `NativeCall`: 1 for done, 0 for "call Python instead", -1 for an error.
int hocket_pool_step(void* context, const XLA_FFI_CallFrame* frame, const void* const* ins,
                     void* const* outs) {
  Pool& pool = *static_cast<Pool*>(context);
  const size_t n = pool.num_envs;
  if (*pool.received || std::memcmp(ins[kSeed], pool.seed, 4 * n) != 0 ||
      std::memcmp(ins[kSteps], pool.steps, 4 * n) != 0) {
    return 0;
  }
  std::memcpy(pool.action, ins[kAction], pool.action_bytes);
  if (!pool.send.call(frame) || !pool.recv.call(frame)) return -1;
  const auto* done = static_cast<const uint8_t*>(pool.found[kFoundDone]);
  const auto* truncated = static_cast<const uint8_t*>(pool.found[kFoundTruncated]);
  for (size_t i = 0; i < n; ++i) {
    if (done[i] | truncated[i]) {
      *pool.received = 1;
      return 0;
    }
  }
  const auto* reward = static_cast<const float*>(pool.found[kFoundReward]);
  for (size_t i = 0; i < n; ++i) {
    static_cast<float*>(outs[kOutReturn])[i] =
        static_cast<const float*>(ins[kReturn])[i] + reward[i];
    static_cast<int32_t*>(outs[kOutLength])[i] = static_cast<const int32_t*>(ins[kLength])[i] + 1;
    static_cast<int32_t*>(outs[kOutSteps])[i] = ++pool.steps[i];
  }
  std::memcpy(outs[kOutEndedReturn], ins[kEndedReturn], 4 * n);
  std::memcpy(outs[kOutEndedLength], ins[kEndedLength], 4 * n);
  std::memcpy(outs[kOutEnded], ins[kEnded], 4 * n);
  std::memcpy(outs[kOutReward], reward, 4 * n);
  std::memset(outs[kOutTerminated], 0, n);
  std::memset(outs[kOutTruncated], 0, n);
  std::memcpy(outs[kOutObs], pool.found[kFoundObs], pool.obs_bytes);
  std::memcpy(outs[kOutFinal], pool.found[kFoundObs], pool.obs_bytes);
  return 1;
}

// The action is the last of `given`. `where[k]` is the index in `found` of the array `k` of `Found`.
void* hocket_pool_open(XLA_FFI_Handler* send, XLA_FFI_Handler* recv, int64_t handle,
                       int64_t num_envs, const uint32_t* seed, int32_t* steps, int num_given,
                       void* const* given, const int64_t* given_bytes, int num_found,
                       void* const* found, const int64_t* found_bytes, const int64_t* where,
                       int32_t* received) {
  return new Pool{
      {send, handle, num_given, given, given_bytes, 0, nullptr, nullptr},
      {recv, handle, 0, nullptr, nullptr, num_found, found, found_bytes},
      num_envs,
      seed,
      steps,
      given[num_given - 1],
      given_bytes[num_given - 1],
      {found[where[0]], found[where[1]], found[where[2]], found[where[3]]},
      found_bytes[where[kFoundObs]],
      received,
  };
}

void hocket_pool_close(void* pool) { delete static_cast<Pool*>(pool); }
}
