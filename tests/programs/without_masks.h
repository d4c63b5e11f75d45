// Takes the place of masked_steps.cc and keras_tensors.cc in programs that run
// passes only.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_

#include <vector>

#include "kernels/gpu/keras_tensors.h"
#include "kernels/gpu/masked_steps.h"

namespace cudnn_rnn_tf {

RnnStatus EnqueueReadMask(CUstream, const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus EnqueueMoveSteps(CUstream, const StepMove&) { return {}; }
RnnStatus ReadMaskOnHost(CUstream, const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus MoveStepsOnHost(CUstream, const StepMove&) { return {}; }
RnnStatus EnqueueKerasTensors(CUstream, const KerasLayout&, size_t, bool,
                              const std::vector<void*>&, void*) {
  return {};
}
RnnStatus MoveKerasTensorsOnHost(CUstream, const KerasLayout&, size_t, bool,
                                 const std::vector<void*>&, void*) {
  return {};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
