// How the small kernels around the products are compiled and launched.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/cublas.h"
#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// The handles that a pass is enqueued with. The pass sets the stream and the
// workspace of `blas`.
struct Handles {
  cublasHandle_t blas;
  CUstream stream;
};

// The macros that tell kernels the type of the data and the kind of cell.
inline const char* TypeMacro(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat32   ? "IS_FLOAT"
         : dtype == RnnDataType::kFloat16 ? "IS_FLOAT16"
                                          : "IS_BFLOAT16";
}
inline const char* ModeMacro(RnnMode mode) {
  return mode == RnnMode::kLstm      ? "IS_LSTM"
         : mode == RnnMode::kGru     ? "IS_GRU"
         : mode == RnnMode::kRnnTanh ? "IS_TANH"
                                     : "IS_RELU";
}

inline RnnStatus Launch(CUkernel kernel, CUstream stream, int64_t blocks,
                        unsigned int threads_x, unsigned int threads_y,
                        void** parameters) {
  return CudaStatus(Gpu().cuda.cuLaunchKernel(
                        reinterpret_cast<CUfunction>(kernel),
                        static_cast<unsigned int>(blocks), 1, 1, threads_x,
                        threads_y, 1, 0, stream, parameters, nullptr),
                    "launch a kernel");
}

// Launches one thread for each number, up to a limit; beyond it, threads take
// several numbers each.
inline constexpr int kThreadsOfNumbers = 256, kMaxBlocksOfNumbers = 2048;
inline RnnStatus LaunchOver(CUkernel kernel, CUstream stream, int64_t count,
                            void** parameters) {
  const int64_t blocks =
      std::clamp<int64_t>((count + kThreadsOfNumbers - 1) / kThreadsOfNumbers,
                          1, kMaxBlocksOfNumbers);
  return Launch(kernel, stream, blocks, kThreadsOfNumbers, 1, parameters);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_
