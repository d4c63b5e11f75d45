// The bridge between TensorFlow's OpKernels and a backend.
#ifndef CUDNN_RNN_TF_KERNELS_OP_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_OP_BACKEND_H_

#include <algorithm>
#include <array>
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

// TensorFlow's data types, in the order of RnnDataType.
inline constexpr std::array kTensorFlowTypes = {
    tensorflow::DT_DOUBLE, tensorflow::DT_FLOAT, tensorflow::DT_HALF,
    tensorflow::DT_BFLOAT16};
static_assert(kTensorFlowTypes.size() == kNumNames<RnnDataType>);
// The data type of tensors that an op takes, which must be one of these.
inline RnnDataType DataTypeOf(tensorflow::DataType dtype) {
  return static_cast<RnnDataType>(
      std::find(kTensorFlowTypes.begin(), kTensorFlowTypes.end(), dtype) -
      kTensorFlowTypes.begin());
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
