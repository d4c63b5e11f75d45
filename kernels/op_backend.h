// The bridge between TensorFlow's OpKernels and a backend.
#ifndef CUDNN_RNN_TF_KERNELS_OP_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_OP_BACKEND_H_

#include <memory>

#include "kernels/rnn_backend.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace cudnn_rnn_tf {

class CpuPackedParams;

// Tags that name a kernel's device.
struct CpuDevice {};
struct GpuDevice {};

// Makes the device's backend for one call, on the threads or the stream of that
// call. On a CPU, forward passes read the parameters in `packed`, unless it is
// null.
std::unique_ptr<RnnBackend> MakeBackend(
    CpuDevice, tensorflow::OpKernelContext* context,
    std::shared_ptr<const CpuPackedParams> packed = nullptr);
std::unique_ptr<RnnBackend> MakeBackend(
    GpuDevice, tensorflow::OpKernelContext* context,
    std::shared_ptr<const CpuPackedParams> packed = nullptr);

// The data type of tensors that an op takes, which must be one of the four.
inline RnnDataType DataTypeOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_DOUBLE:
      return RnnDataType::kFloat64;
    case tensorflow::DT_HALF:
      return RnnDataType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return RnnDataType::kBfloat16;
    default:
      return RnnDataType::kFloat32;
  }
}

absl::Status ToTensorFlow(const RnnStatus& status);

// Allocates memory on the op's device. If that fails, returns null and puts the
// reason into `status`.
std::shared_ptr<void> AllocateTemp(tensorflow::OpKernelContext* context,
                                   size_t bytes, absl::Status* status);

// The address of a tensor's data, whatever the element type.
inline void* DataOf(const tensorflow::Tensor& tensor) { return tensor.data(); }

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_OP_BACKEND_H_
