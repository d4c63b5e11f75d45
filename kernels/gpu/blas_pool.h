#ifndef CUDNN_RNN_TF_KERNELS_GPU_BLAS_POOL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_BLAS_POOL_H_

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/gpu/descriptors.h"

namespace cudnn_rnn_tf {

// Lends each caller a handle of cuBLAS of its own for a device and stream,
// since a handle serves one thread at a time.
class BlasPool {
 public:
  static BlasPool& Instance();

  RnnStatus Take(int device, void* stream,
                 std::unique_ptr<CublasHandle>* handle);
  void Return(int device, void* stream, std::unique_ptr<CublasHandle> handle);

 private:
  struct Idle {
    int device;
    void* stream;
    std::unique_ptr<CublasHandle> handle;
  };

  std::mutex mutex_;
  std::vector<Idle> idle_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_BLAS_POOL_H_
