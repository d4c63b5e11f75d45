// Takes the place of masked_steps.cc and keras_tensors.cc in programs that run
// passes only.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_

#include <vector>

#include "kernels/gpu/moves.h"

namespace cudnn_rnn_tf {

RnnStatus ReadMask(const GpuResources&, const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus MoveSteps(const GpuResources&, const StepMove&) { return {}; }
RnnStatus MoveKerasTensors(const GpuResources&, const KerasLayout&, size_t,
                           bool, const std::vector<void*>&, void*) {
  return {};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
