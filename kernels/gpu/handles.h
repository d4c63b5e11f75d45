#ifndef CUDNN_RNN_TF_KERNELS_GPU_HANDLES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_HANDLES_H_

#include <cuda.h>
#include <cudnn.h>

#include "kernels/gpu/cublas.h"

namespace cudnn_rnn_tf {

// A pass is enqueued with these. Those of cuBLAS and cuDNN are null unless
// somebody made them. Of cuBLAS, the pass sets the stream and the workspace.
struct Handles {
  CUstream stream = nullptr;
  cublasHandle_t blas = nullptr;
  cudnnHandle_t cudnn = nullptr;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_HANDLES_H_
