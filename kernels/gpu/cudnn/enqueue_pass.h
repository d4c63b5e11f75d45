// The calls that compute a pass, of cuDNN or of the algorithm resident, over
// device memory given by address: in the problem's layout, but for parameters,
// which are in the plan's.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_

#include <array>

#include "kernels/gpu/call_addresses.h"
#include "kernels/gpu/cudnn/plan.h"

namespace cudnn_rnn_tf {

// Calls enqueue their work by these: cuDNN's handle and the stream that is set
// for it. cuBLAS's handle is there if a plan was made that wants it; each call
// sets its stream.
struct CudnnHandles {
  cudnnHandle_t handle;
  CUstream stream;
  cublasHandle_t blas;
};

// Bytes of the buffers that a pass of the plan uses; 0 of the others. The
// workspace of a backward pass serves a forward pass too. The reserve space is
// a multiple of Arena::kAlign.
std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass pass);

// Batch-major data are brought into cuDNN's order and back in the workspace:
// cuDNN's own way with them takes several times as long.
RnnStatus EnqueuePass(Pass pass, const CudnnHandles& handles, CudnnPlan* plan,
                      const CallAddresses& addresses);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ENQUEUE_PASS_H_
