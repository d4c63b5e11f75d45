// Wraps an OpKernel so that exceptions in Compute become a status.
#ifndef CUDNN_RNN_TF_KERNELS_NO_THROW_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_NO_THROW_KERNEL_H_

#include "kernels/op_status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace cudnn_rnn_tf {

// An `Op` whose Compute returns exceptions to TensorFlow as a status. The
// constructors of `Op` must handle their own exceptions, since a derived class
// cannot stop those of its base.
template <typename Op>
class NoThrowKernel final : public Op {
 public:
  using Op::Op;

  void Compute(tensorflow::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, WithoutExceptions([&] {
                     Op::Compute(context);
                     return absl::OkStatus();
                   }));
  }
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_NO_THROW_KERNEL_H_
