// The base of the OpKernels.
#ifndef CUDNN_RNN_TF_KERNELS_STATUS_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_STATUS_KERNEL_H_

#include "kernels/op_status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

// An OpKernel that hands failures and exceptions to TensorFlow as a status.
// Constructors must handle their own exceptions.
class StatusKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    OP_REQUIRES_OK(context, WithoutExceptions([&] { return Run(context); }));
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* context) = 0;
};

// The shapes of a call's inputs.
struct InputShapes {
  tensorflow::OpKernelContext* context;

  const tensorflow::TensorShape& operator()(int i) const {
    return context->input(i).shape();
  }
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_STATUS_KERNEL_H_
