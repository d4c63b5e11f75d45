// Copies between device memory and the host, which waits for the device.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_

#include <cstdint>
#include <memory>

#include "kernels/gpu/engine.h"
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
    return Wait(stream);
  }
  // Does nothing if `to` is null.
  RnnStatus Store(CUstream stream, void* to) const {
    if (to == nullptr) return {};
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(to), items(),
                                     size_ * sizeof(T), stream),
        "copy from the host"));
    return Wait(stream);
  }

 private:
  static RnnStatus Wait(CUstream stream) {
    return CudaStatus(Gpu().cuda.cuStreamSynchronize(stream),
                      "wait for a copy");
  }

  int64_t size_;
  std::unique_ptr<T[]> items_;
};

// Loads the driver and does work by a kernel or, if the device has none for it,
// on the host. That is for installations without CUDA's compiler, which are
// rare. Both functions take the stream.
template <typename ByKernel, typename OnHost>
RnnStatus ByKernelOrOnHost(const GpuResources& gpu, const ByKernel& by_kernel,
                           const OnHost& on_host) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  const auto stream = static_cast<CUstream>(gpu.stream);
  const RnnStatus status = by_kernel(stream);
  if (status.code != RnnStatus::Code::kUnimplemented &&
      status.code != RnnStatus::Code::kFailedPrecondition) {
    return status;
  }
  gpu.warn(status.message +
           "; masks and the weights of Keras's layers are copied to the host "
           "and back, which is slow");
  return on_host(stream);
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_HOST_COPY_H_
