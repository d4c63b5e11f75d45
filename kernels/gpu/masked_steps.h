#ifndef CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_H_

#include "kernels/gpu/libraries.h"
#include "kernels/masked_steps.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Enqueue the work that kernels/masked_steps.h describes, all of whose arrays
// are in device memory. If CUDA's compiler is missing, the status says so.
RnnStatus EnqueueReadMask(CUstream stream, const RnnMask& mask,
                          const MaskedSteps& found);
RnnStatus EnqueueMoveSteps(CUstream stream, const StepMove& move);

// Do the same on the host, which waits for the device.
RnnStatus ReadMaskOnHost(CUstream stream, const RnnMask& mask,
                         const MaskedSteps& found);
RnnStatus MoveStepsOnHost(CUstream stream, const StepMove& move);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_H_
