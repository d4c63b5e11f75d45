// Kernels that compute number by number share this file.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_

#include "arguments.h"
#include "items.cuh"
#include "philox.cuh"

using Index = long long;

static Index FirstIndex() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}
static Index IndexStep() { return static_cast<Index>(gridDim.x) * blockDim.x; }

// Returns the largest word of a block's threads, which call this together and
// are whole warps.
static Word LargestOfBlock(Word word) {
  __shared__ Word largest;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  word = __reduce_max_sync(~0u, word);
  const bool is_asked = threadIdx.x % 32 == 0;
#else
  const bool is_asked = true;
#endif
  __syncthreads();  // All have read what an earlier call found.
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  if (is_asked) atomicMax(&largest, word);
  __syncthreads();
  return largest;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ELEMENTWISE_CUH_
