// Copies from device memory to the host, which waits for the device.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_

#include <cstdint>
#include <memory>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Memory of the host for an array that is in device memory.
template <typename T>
class HostCopy {
 public:
  explicit HostCopy(int64_t size)
      : size_(size), items_(std::make_unique<T[]>(size)) {}

  T* items() const { return items_.get(); }
  RnnStatus Fetch(CUstream stream, const void* from) const {
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuMemcpyDtoHAsync(items(),
                                     reinterpret_cast<CUdeviceptr>(from),
                                     size_ * sizeof(T), stream),
        "copy to the host"));
    return CudaStatus(Gpu().cuda.cuStreamSynchronize(stream),
                      "wait for a copy");
  }

 private:
  int64_t size_;
  std::unique_ptr<T[]> items_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_
