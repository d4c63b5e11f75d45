#include "kernels/gpu/blas_pool.h"

#include <new>
#include <utility>

namespace cudnn_rnn_tf {

BlasPool& BlasPool::Instance() {
  // Never destroyed: at exit the CUDA context may be gone before it.
  alignas(BlasPool) static char storage[sizeof(BlasPool)];
  static BlasPool* const pool = ::new (storage) BlasPool;
  return *pool;
}

RnnStatus BlasPool::Take(int device, void* stream,
                         std::unique_ptr<CublasHandle>* handle) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      if (idle_[i].device == device && idle_[i].stream == stream) {
        *handle = std::move(idle_[i].handle);
        idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
        return {};
      }
    }
  }
  auto made = std::make_unique<CublasHandle>();
  CRNN_RETURN_IF_ERROR(CublasStatus(made->Create(), "make a handle"));
  CRNN_RETURN_IF_ERROR(
      CublasStatus(Gpu().cublas.cublasSetStream_v2(
                       made->get(), static_cast<cudaStream_t>(stream)),
                   "use a stream"));
  *handle = std::move(made);
  return {};
}

void BlasPool::Return(int device, void* stream,
                      std::unique_ptr<CublasHandle> handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back({device, stream, std::move(handle)});
}

}  // namespace cudnn_rnn_tf
