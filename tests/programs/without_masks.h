// Takes the place of masked_steps.cc and keras_tensors.cc in programs that run
// passes only.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_

#include <vector>

#include "kernels/gpu/gpu_backend.h"

namespace cudnn_rnn_tf {

RnnStatus GpuBackend::ReadMask(const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus GpuBackend::MoveSteps(const StepMove&) { return {}; }
RnnStatus GpuBackend::MoveKerasTensors(const KerasLayout&, RnnDataType, bool,
                                       const std::vector<void*>&, void*) {
  return {};
}

// Such programs give a backend these resources.
inline GpuResources ResourcesOf(uintptr_t stream) {
  GpuResources resources;
  resources.stream = reinterpret_cast<void*>(stream);
  resources.is_profiled = [] { return false; };
  resources.log = [](const std::string&) {};
  return resources;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_WITHOUT_MASKS_H_
