// What moves data around passes. If the device has no kernel for it, as without
// CUDA's compiler, the host does the same, with a warning, and waits for the
// device.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_MOVES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_MOVES_H_

#include <vector>

#include "kernels/gpu/engine.h"
#include "kernels/keras_layout.h"
#include "kernels/masked_steps.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// These do the work of RnnBackend's functions of the same names. All arrays are
// in device memory.
RnnStatus ReadMask(const GpuResources& gpu, const RnnMask& mask,
                   const MaskedSteps& found);
RnnStatus MoveSteps(const GpuResources& gpu, const StepMove& move);
RnnStatus MoveKerasTensors(const GpuResources& gpu, const KerasLayout& layout,
                           size_t item_bytes, bool to_params,
                           const std::vector<void*>& tensors, void* params);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_MOVES_H_
