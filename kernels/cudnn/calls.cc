#include "kernels/cudnn/calls.h"

namespace cudnn_rnn_tf {
namespace {

RnnStatus EnqueueForward(const CudnnLane& lane, const CudnnPlan& plan,
                         const CallAddresses& addresses) {
  auto at = [&](CallBuffer buffer) {
    return reinterpret_cast<void*>(addresses[buffer]);
  };
  const bool is_training = plan.problem().is_training;
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNForward(
          lane.handle, plan.rnn(),
          is_training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
          /*devSeqLengths=*/nullptr, plan.input(), at(kInput), plan.output(),
          at(kOutput), plan.h(), at(kInputH), at(kOutputH), plan.c(),
          at(kInputC), at(kOutputC), plan.weight_space_size(), at(kParams),
          plan.workspace_size(), at(kWorkspace),
          is_training ? plan.reserve_size() : 0, at(kReserveSpace)),
      plan.problem());
  return {};
}

RnnStatus EnqueueBackward(const CudnnLane& lane, const CudnnPlan& plan,
                          const CallAddresses& addresses) {
  auto at = [&](CallBuffer buffer) {
    return reinterpret_cast<void*>(addresses[buffer]);
  };
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardData_v8(
          lane.handle, plan.rnn(), /*devSeqLengths=*/nullptr, plan.output(),
          at(kOutput), at(kOutputBackprop), plan.input(), at(kInputBackprop),
          plan.h(), at(kInputH), at(kOutputHBackprop), at(kInputHBackprop),
          plan.c(), at(kInputC), at(kOutputCBackprop), at(kInputCBackprop),
          plan.weight_space_size(), at(kParams), plan.workspace_size(),
          at(kWorkspace), plan.reserve_size(), at(kReserveSpace)),
      plan.problem());
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Gpu().cuda.cuMemsetD8Async(addresses[kParamsBackprop], 0,
                                 plan.weight_space_size(), lane.stream),
      "fill device memory"));
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardWeights_v8(
          lane.handle, plan.rnn(), CUDNN_WGRAD_MODE_ADD,
          /*devSeqLengths=*/nullptr, plan.input(), at(kInput), plan.h(),
          at(kInputH), plan.output(), at(kOutput), plan.weight_space_size(),
          at(kParamsBackprop), plan.workspace_size(), at(kWorkspace),
          plan.reserve_size(), at(kReserveSpace)),
      plan.problem());
  return {};
}

}  // namespace

RnnStatus EnqueuePass(Pass pass, const CudnnLane& lane, CudnnPlan* plan,
                      const CallAddresses& addresses) {
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->AttachDropout(
        lane.handle, reinterpret_cast<void*>(addresses[kDropoutStates])));
  }
  return pass == Pass::kForward ? EnqueueForward(lane, *plan, addresses)
                                : EnqueueBackward(lane, *plan, addresses);
}

}  // namespace cudnn_rnn_tf
