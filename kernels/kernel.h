// Makes TensorFlow's OpKernels of operations.
#ifndef CUDNN_RNN_TF_KERNELS_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_KERNEL_H_

#include "kernels/op_status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

// The kernel of an Operation, which is a class with
//   absl::Status Read(OpKernelConstruction*), which reads the attributes, and
//   absl::Status Run(OpKernelContext*) const, which computes.
// Failures and exceptions of both are handed to TensorFlow.
template <typename Operation>
class Kernel final : public tensorflow::OpKernel {
 public:
  explicit Kernel(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    Report(WithoutExceptions([&] { return operation_.Read(context); }),
           context);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    Report(WithoutExceptions([&] { return operation_.Run(context); }), context);
  }

 private:
  // TensorFlow's macros would log a line of this file, which tells nothing.
  template <typename Context>
  static void Report(const absl::Status& status, Context* context) {
    if (!status.ok()) context->CtxFailureWithWarning(status);
  }

  Operation operation_;
};

// The shapes of a call's inputs.
struct InputShapes {
  tensorflow::OpKernelContext* context;

  const tensorflow::TensorShape& operator()(int i) const {
    return context->input(i).shape();
  }
};

}  // namespace cudnn_rnn_tf

// Registers an operation as the kernel of an op of the package on a device.
#define CRNN_REGISTER_KERNEL(DEVICE, NAME, ...)                     \
  REGISTER_KERNEL_BUILDER(                                          \
      Name("CudnnRnnTf>" NAME).Device(tensorflow::DEVICE_##DEVICE), \
      Kernel<__VA_ARGS__>)

#endif  // CUDNN_RNN_TF_KERNELS_KERNEL_H_
