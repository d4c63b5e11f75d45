// Enqueues the calls that compute a pass, those of cuDNN or of the algorithm
// resident. Buffers are given by their addresses in device memory. They are in
// the problem's layout, except for parameters, which are in the plan's.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_

#include <array>

#include "kernels/gpu/call_addresses.h"
#include "kernels/gpu/cudnn/plan.h"

namespace cudnn_rnn_tf {

// The handles with which calls enqueue their work: that of cuDNN with the
// stream that was set for it, and that of cuBLAS, which is null until a plan is
// made that needs it. Each call sets the stream of cuBLAS's handle.
struct CudnnHandles {
  cudnnHandle_t handle;
  CUstream stream;
  cublasHandle_t blas;
};

// Returns the sizes in bytes of the buffers that a pass of the plan uses, and 0
// for the others. The workspace of a backward pass is large enough for a
// forward pass too. The size of the reserve space is a multiple of
// Arena::kAlign.
std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass pass);

// Enqueues a pass. Batch-major data are copied into cuDNN's order and back, in
// the workspace: cuDNN's own way with them takes several times as long.
RnnStatus EnqueuePass(Pass pass, const CudnnHandles& handles, CudnnPlan* plan,
                      const CallAddresses& addresses);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_
