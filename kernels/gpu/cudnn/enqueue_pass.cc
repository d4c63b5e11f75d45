#include "kernels/gpu/cudnn/enqueue_pass.h"

#include <mutex>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/cudnn/transpose.h"
#include "kernels/gpu/enqueue_lock.h"

namespace cudnn_rnn_tf {
namespace {

// A sequence or state is [rows, B, size] time-major, [B, rows, size]
// batch-major.
struct Shape {
  int64_t rows, size;
};

Shape ShapeOf(const RnnProblem& problem, CallBuffer buffer) {
  const RnnSpec& spec = problem.spec;
  switch (buffer) {
    case kInput:
    case kInputBackprop:
      return {problem.max_time, spec.input_size};
    case kOutput:
    case kOutputBackprop:
      return {problem.max_time, spec.layer_output_size()};
    case kInputH:
    case kOutputH:
    case kInputHBackprop:
    case kOutputHBackprop:
      return {spec.num_pseudo_layers(), spec.output_size()};
    case kInputC:
    case kOutputC:
    case kInputCBackprop:
    case kOutputCBackprop:
      return {spec.num_pseudo_layers(), spec.is_lstm() ? spec.num_units : 0};
    default:
      return {0, 0};
  }
}

size_t BytesOf(const RnnProblem& problem, CallBuffer buffer) {
  const Shape shape = ShapeOf(problem, buffer);
  return shape.rows * problem.batch_size * shape.size * SizeOf(problem.dtype);
}

// The states h and c, or their gradients.
struct States {
  void* h;
  void* c;
};

// The buffers of a pass as cuDNN sees them: the caller's own, or copies in the
// workspace if the caller's order is another one. Between two parts, the states
// are in the reserve space, after the parts' own reserves, since a backward
// pass reads them too. The gradients of these states are in the workspace.
class CudnnBuffers {
 public:
  // Without addresses, this only computes the layout.
  CudnnBuffers(const CudnnPlan& plan, Pass pass, const CallAddresses& addresses)
      : problem_(plan.problem()),
        callers_(addresses),
        addresses_(addresses),
        arena_(reinterpret_cast<void*>(addresses[kWorkspace])),
        reserve_arena_(reinterpret_cast<void*>(addresses[kReserveSpace])) {
    arena_.Take<char>(plan.workspace_size());
    if (pass == Pass::kForward) {
      for (const CallBuffer buffer :
           {kOutput, kInputH, kInputC, kOutputH, kOutputC, kInput}) {
        Place(buffer);
      }
    } else {
      for (const CallBuffer buffer :
           {kOutput, kInputH, kInputC, kOutputBackprop, kOutputHBackprop,
            kOutputCBackprop, kInputBackprop, kInputHBackprop,
            kInputCBackprop}) {
        Place(buffer);
      }
      // The input's copy uses the memory of its gradient's copy, after the
      // gradient has been copied to the caller.
      if (IsTransposed(kInput)) addresses_[kInput] = addresses_[kInputBackprop];
    }
    const size_t num_parts = plan.parts().size();
    for (size_t i = 0; i < num_parts; ++i) {
      reserves_[i] = reserve_arena_.Take<char>(plan.reserve_size());
    }
    states_[0] = {at(kInputH), at(kInputC)};
    gradients_[0] = {at(kInputHBackprop), at(kInputCBackprop)};
    for (size_t i = 1; i < num_parts; ++i) {
      states_[i] = TakeStates(&reserve_arena_);
      if (pass == Pass::kBackward) gradients_[i] = TakeStates(&arena_);
    }
    states_[num_parts] = {at(kOutputH), at(kOutputC)};
    gradients_[num_parts] = {at(kOutputHBackprop), at(kOutputCBackprop)};
  }

  size_t workspace_bytes() const { return arena_.used(); }
  size_t reserve_bytes() const { return reserve_arena_.used(); }
  void* at(CallBuffer buffer) const {
    return reinterpret_cast<void*>(addresses_[buffer]);
  }
  // Returns the address of the part's first step in a buffer of sequences.
  void* at(CallBuffer buffer, const CudnnPart& part) const {
    const int64_t row_bytes = RowBytes(ShapeOf(problem_, buffer));
    return reinterpret_cast<void*>(
        addresses_[buffer] + part.first_step * problem_.batch_size * row_bytes);
  }
  ResidentNetwork::Buffers OfResident() const {
    return {addresses_[kParams],  addresses_[kInput],    addresses_[kInputH],
            addresses_[kInputC],  addresses_[kOutput],   addresses_[kOutputH],
            addresses_[kOutputC], addresses_[kWorkspace]};
  }
  void* reserve(size_t part) const { return reserves_[part]; }
  // Returns the states before the part `i`; those after it are states(i + 1).
  const States& states(size_t i) const { return states_[i]; }
  const States& gradients(size_t i) const { return gradients_[i]; }
  // Copies a buffer from the caller's order if that is another one.
  RnnStatus CopyIn(CUstream stream, CallBuffer buffer) const {
    if (!IsTransposed(buffer)) return {};
    const Shape shape = ShapeOf(problem_, buffer);
    return EnqueueTranspose(stream, callers_[buffer], addresses_[buffer],
                            problem_.batch_size, shape.rows, RowBytes(shape));
  }
  // Copies a buffer into the caller's order if that is another one.
  RnnStatus CopyOut(CUstream stream, CallBuffer buffer) const {
    if (!IsTransposed(buffer)) return {};
    const Shape shape = ShapeOf(problem_, buffer);
    return EnqueueTranspose(stream, addresses_[buffer], callers_[buffer],
                            shape.rows, problem_.batch_size, RowBytes(shape));
  }

 private:
  // If there is one sequence or one row only, both orders are the same.
  bool IsTransposed(CallBuffer buffer) const {
    return !problem_.time_major && problem_.batch_size > 1 &&
           ShapeOf(problem_, buffer).rows > 1 && BytesOf(problem_, buffer) > 0;
  }
  int64_t RowBytes(const Shape& shape) const {
    return shape.size * static_cast<int64_t>(SizeOf(problem_.dtype));
  }
  void Place(CallBuffer buffer) {
    if (!IsTransposed(buffer)) return;
    addresses_[buffer] = reinterpret_cast<CUdeviceptr>(
        arena_.Take<char>(BytesOf(problem_, buffer)));
  }

  States TakeStates(Arena* arena) const {
    const auto take = [&](size_t bytes) -> void* {
      return bytes > 0 ? arena->Take<char>(bytes) : nullptr;
    };
    void* const h = take(BytesOf(problem_, kInputH));
    return {h, take(BytesOf(problem_, kInputC))};
  }

  const RnnProblem& problem_;
  const CallAddresses callers_;
  CallAddresses addresses_;
  Arena arena_, reserve_arena_;
  std::array<void*, kMaxCudnnParts> reserves_ = {};
  std::array<States, kMaxCudnnParts + 1> states_ = {}, gradients_ = {};
};

RnnStatus EnqueueCudnnForward(const CudnnHandles& handles,
                              const CudnnPlan& plan,
                              const CudnnBuffers& buffers) {
  const bool is_training = plan.problem().is_training;
  for (size_t i = 0; i < plan.parts().size(); ++i) {
    const CudnnPart& part = plan.parts()[i];
    const States &before = buffers.states(i), &after = buffers.states(i + 1);
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNForward(
            handles.handle, plan.rnn(),
            is_training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
            /*devSeqLengths=*/nullptr, part.input.get(),
            buffers.at(kInput, part), part.output.get(),
            buffers.at(kOutput, part), plan.h(), before.h, after.h, plan.c(),
            before.c, after.c, plan.weight_space_size(), buffers.at(kParams),
            plan.workspace_size(), buffers.at(kWorkspace),
            is_training ? plan.reserve_size() : 0, buffers.reserve(i)),
        plan.problem());
  }
  return {};
}

RnnStatus EnqueueForward(const CudnnHandles& handles, const CudnnPlan& plan,
                         const CudnnBuffers& buffers) {
  for (const CallBuffer buffer : {kInput, kInputH, kInputC}) {
    CRNN_RETURN_IF_ERROR(buffers.CopyIn(handles.stream, buffer));
  }
  const ResidentNetwork* const resident = plan.resident();
  CRNN_RETURN_IF_ERROR(resident != nullptr
                           ? resident->Enqueue(handles.blas, handles.stream,
                                               buffers.OfResident())
                           : EnqueueCudnnForward(handles, plan, buffers));
  for (const CallBuffer buffer : {kOutput, kOutputH, kOutputC}) {
    CRNN_RETURN_IF_ERROR(buffers.CopyOut(handles.stream, buffer));
  }
  return {};
}

RnnStatus EnqueueBackward(const CudnnHandles& handles, const CudnnPlan& plan,
                          const CudnnBuffers& buffers) {
  for (const CallBuffer buffer : {kOutput, kOutputBackprop, kInputH, kInputC,
                                  kOutputHBackprop, kOutputCBackprop}) {
    CRNN_RETURN_IF_ERROR(buffers.CopyIn(handles.stream, buffer));
  }
  const std::vector<CudnnPart>& parts = plan.parts();
  for (size_t i = parts.size(); i-- > 0;) {
    const States& states = buffers.states(i);
    const States &before = buffers.gradients(i),
                 &after = buffers.gradients(i + 1);
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardData_v8(
            handles.handle, plan.rnn(), /*devSeqLengths=*/nullptr,
            parts[i].output.get(), buffers.at(kOutput, parts[i]),
            buffers.at(kOutputBackprop, parts[i]), parts[i].input.get(),
            buffers.at(kInputBackprop, parts[i]), plan.h(), states.h, after.h,
            before.h, plan.c(), states.c, after.c, before.c,
            plan.weight_space_size(), buffers.at(kParams),
            plan.workspace_size(), buffers.at(kWorkspace), plan.reserve_size(),
            buffers.reserve(i)),
        plan.problem());
  }
  for (const CallBuffer buffer :
       {kInputBackprop, kInputHBackprop, kInputCBackprop}) {
    CRNN_RETURN_IF_ERROR(buffers.CopyOut(handles.stream, buffer));
  }
  CRNN_RETURN_IF_ERROR(buffers.CopyIn(handles.stream, kInput));
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuMemsetD8Async(
                     reinterpret_cast<CUdeviceptr>(buffers.at(kParamsBackprop)),
                     0, plan.weight_space_size(), handles.stream),
                 "fill device memory"));
  for (size_t i = parts.size(); i-- > 0;) {
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardWeights_v8(
            handles.handle, plan.rnn(), CUDNN_WGRAD_MODE_ADD,
            /*devSeqLengths=*/nullptr, parts[i].input.get(),
            buffers.at(kInput, parts[i]), plan.h(), buffers.states(i).h,
            parts[i].output.get(), buffers.at(kOutput, parts[i]),
            plan.weight_space_size(), buffers.at(kParamsBackprop),
            plan.workspace_size(), buffers.at(kWorkspace), plan.reserve_size(),
            buffers.reserve(i)),
        plan.problem());
  }
  return {};
}

}  // namespace

std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass pass) {
  const RnnProblem& problem = plan.problem();
  const bool backward = pass == Pass::kBackward;
  const CudnnBuffers buffers(plan, pass, {});
  std::array<size_t, kNumCallBuffers> sizes = {};
  for (int i = 0; i < kNumCallBuffers; ++i) {
    const auto buffer = static_cast<CallBuffer>(i);
    if (backward || buffer < kOutputBackprop) {
      sizes[i] = BytesOf(problem, buffer);
    }
  }
  sizes[kParams] = plan.weight_space_size();
  sizes[kParamsBackprop] = backward ? plan.weight_space_size() : 0;
  sizes[kReserveSpace] = problem.is_training ? buffers.reserve_bytes() : 0;
  sizes[kDropoutStates] = plan.dropout_states_size();
  sizes[kWorkspace] = buffers.workspace_bytes();
  return sizes;
}

RnnStatus EnqueuePass(Pass pass, const CudnnHandles& handles, CudnnPlan* plan,
                      const CallAddresses& addresses) {
  const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->AttachDropout(
        handles.handle, reinterpret_cast<void*>(addresses[kDropoutStates])));
  }
  const CudnnBuffers buffers(*plan, pass, addresses);
  return pass == Pass::kForward ? EnqueueForward(handles, *plan, buffers)
                                : EnqueueBackward(handles, *plan, buffers);
}

}  // namespace cudnn_rnn_tf
