#include "kernels/cudnn/calls.h"

#include "kernels/arena.h"
#include "kernels/cudnn/exchange.h"

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

// The buffers of a pass as cuDNN sees them: the caller's own, or copies in the
// workspace where the caller's order is another one.
class CudnnBuffers {
 public:
  // Without addresses it only lays out.
  CudnnBuffers(const CudnnPlan& plan, Pass pass, const CallAddresses& addresses)
      : problem_(plan.problem()),
        callers_(addresses),
        addresses_(addresses),
        arena_(reinterpret_cast<void*>(addresses[kWorkspace])) {
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
      // Brought after the gradient has been returned from there.
      if (IsExchanged(kInput)) addresses_[kInput] = addresses_[kInputBackprop];
    }
  }

  size_t workspace_bytes() const { return arena_.used(); }
  void* at(CallBuffer buffer) const {
    return reinterpret_cast<void*>(addresses_[buffer]);
  }
  // From the caller's order.
  RnnStatus Bring(CUstream stream, CallBuffer buffer) const {
    if (!IsExchanged(buffer)) return {};
    const Shape shape = ShapeOf(problem_, buffer);
    return EnqueueExchange(stream, callers_[buffer], addresses_[buffer],
                           problem_.batch_size, shape.rows, RowBytes(shape));
  }
  // Into the caller's order.
  RnnStatus Return(CUstream stream, CallBuffer buffer) const {
    if (!IsExchanged(buffer)) return {};
    const Shape shape = ShapeOf(problem_, buffer);
    return EnqueueExchange(stream, addresses_[buffer], callers_[buffer],
                           shape.rows, problem_.batch_size, RowBytes(shape));
  }

 private:
  // Of one sequence, or of one row, both orders are the same.
  bool IsExchanged(CallBuffer buffer) const {
    return !problem_.time_major && problem_.batch_size > 1 &&
           ShapeOf(problem_, buffer).rows > 1 && BytesOf(problem_, buffer) > 0;
  }
  int64_t RowBytes(const Shape& shape) const {
    return shape.size * static_cast<int64_t>(SizeOf(problem_.dtype));
  }
  void Place(CallBuffer buffer) {
    if (!IsExchanged(buffer)) return;
    addresses_[buffer] = reinterpret_cast<CUdeviceptr>(
        arena_.Take<char>(BytesOf(problem_, buffer)));
  }

  const RnnProblem& problem_;
  const CallAddresses callers_;
  CallAddresses addresses_;
  Arena arena_;
};

RnnStatus EnqueueForward(const CudnnLane& lane, const CudnnPlan& plan,
                         const CudnnBuffers& buffers) {
  const bool is_training = plan.problem().is_training;
  for (const CallBuffer buffer : {kInput, kInputH, kInputC}) {
    CRNN_RETURN_IF_ERROR(buffers.Bring(lane.stream, buffer));
  }
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNForward(
          lane.handle, plan.rnn(),
          is_training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
          /*devSeqLengths=*/nullptr, plan.input(), buffers.at(kInput),
          plan.output(), buffers.at(kOutput), plan.h(), buffers.at(kInputH),
          buffers.at(kOutputH), plan.c(), buffers.at(kInputC),
          buffers.at(kOutputC), plan.weight_space_size(), buffers.at(kParams),
          plan.workspace_size(), buffers.at(kWorkspace),
          is_training ? plan.reserve_size() : 0, buffers.at(kReserveSpace)),
      plan.problem());
  for (const CallBuffer buffer : {kOutput, kOutputH, kOutputC}) {
    CRNN_RETURN_IF_ERROR(buffers.Return(lane.stream, buffer));
  }
  return {};
}

RnnStatus EnqueueBackward(const CudnnLane& lane, const CudnnPlan& plan,
                          const CudnnBuffers& buffers) {
  for (const CallBuffer buffer : {kOutput, kOutputBackprop, kInputH, kInputC,
                                  kOutputHBackprop, kOutputCBackprop}) {
    CRNN_RETURN_IF_ERROR(buffers.Bring(lane.stream, buffer));
  }
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardData_v8(
          lane.handle, plan.rnn(), /*devSeqLengths=*/nullptr, plan.output(),
          buffers.at(kOutput), buffers.at(kOutputBackprop), plan.input(),
          buffers.at(kInputBackprop), plan.h(), buffers.at(kInputH),
          buffers.at(kOutputHBackprop), buffers.at(kInputHBackprop), plan.c(),
          buffers.at(kInputC), buffers.at(kOutputCBackprop),
          buffers.at(kInputCBackprop), plan.weight_space_size(),
          buffers.at(kParams), plan.workspace_size(), buffers.at(kWorkspace),
          plan.reserve_size(), buffers.at(kReserveSpace)),
      plan.problem());
  for (const CallBuffer buffer :
       {kInputBackprop, kInputHBackprop, kInputCBackprop}) {
    CRNN_RETURN_IF_ERROR(buffers.Return(lane.stream, buffer));
  }
  CRNN_RETURN_IF_ERROR(buffers.Bring(lane.stream, kInput));
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuMemsetD8Async(
                     reinterpret_cast<CUdeviceptr>(buffers.at(kParamsBackprop)),
                     0, plan.weight_space_size(), lane.stream),
                 "fill device memory"));
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardWeights_v8(
          lane.handle, plan.rnn(), CUDNN_WGRAD_MODE_ADD,
          /*devSeqLengths=*/nullptr, plan.input(), buffers.at(kInput), plan.h(),
          buffers.at(kInputH), plan.output(), buffers.at(kOutput),
          plan.weight_space_size(), buffers.at(kParamsBackprop),
          plan.workspace_size(), buffers.at(kWorkspace), plan.reserve_size(),
          buffers.at(kReserveSpace)),
      plan.problem());
  return {};
}

}  // namespace

std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass pass) {
  const RnnProblem& problem = plan.problem();
  const bool backward = pass == Pass::kBackward;
  std::array<size_t, kNumCallBuffers> sizes = {};
  for (int i = 0; i < kNumCallBuffers; ++i) {
    const auto buffer = static_cast<CallBuffer>(i);
    if (backward || buffer < kOutputBackprop) {
      sizes[i] = BytesOf(problem, buffer);
    }
  }
  sizes[kParams] = plan.weight_space_size();
  sizes[kParamsBackprop] = backward ? plan.weight_space_size() : 0;
  sizes[kReserveSpace] = problem.is_training ? plan.reserve_size() : 0;
  sizes[kDropoutStates] = plan.dropout_states_size();
  sizes[kWorkspace] = CudnnBuffers(plan, pass, {}).workspace_bytes();
  return sizes;
}

RnnStatus EnqueuePass(Pass pass, const CudnnLane& lane, CudnnPlan* plan,
                      const CallAddresses& addresses) {
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->AttachDropout(
        lane.handle, reinterpret_cast<void*>(addresses[kDropoutStates])));
  }
  const CudnnBuffers buffers(*plan, pass, addresses);
  return pass == Pass::kForward ? EnqueueForward(lane, *plan, buffers)
                                : EnqueueBackward(lane, *plan, buffers);
}

}  // namespace cudnn_rnn_tf
