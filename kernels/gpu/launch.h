// How small kernels of our own are launched.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_LAUNCH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_LAUNCH_H_

#include <algorithm>
#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// The blocks of a launch and the threads of each of them, in two dimensions.
struct Grid {
  int64_t blocks;
  int threads, threads_y = 1;
  int64_t blocks_y = 1;
};

// Threads take several numbers each where more blocks than these would be
// needed.
inline constexpr int64_t kMaxBlocksOfNumbers = 2048;

// Returns the grid of a kernel that computes number by number.
inline Grid GridOver(int64_t count) {
  constexpr int kThreads = 256;
  return {std::clamp<int64_t>(CeilDiv(count, kThreads), 1, kMaxBlocksOfNumbers),
          kThreads};
}

// Enqueues a kernel. The arguments must have the types of its parameters, where
// device memory is of any type.
template <typename... Arguments>
RnnStatus Launch(CUkernel kernel, CUstream stream, const Grid& grid,
                 const Arguments&... arguments) {
  void* parameters[] = {
      const_cast<void*>(static_cast<const void*>(&arguments))...};
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel),
                                static_cast<unsigned int>(grid.blocks),
                                static_cast<unsigned int>(grid.blocks_y), 1,
                                static_cast<unsigned int>(grid.threads),
                                static_cast<unsigned int>(grid.threads_y), 1,
                                /*sharedMemBytes=*/0, stream, parameters,
                                /*extra=*/nullptr),
      "launch a kernel");
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_LAUNCH_H_
