// Kernels whose exceptions end in a status.
#ifndef CUDNN_RNN_TF_KERNELS_NO_THROW_H_
#define CUDNN_RNN_TF_KERNELS_NO_THROW_H_

#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace cudnn_rnn_tf {

// `Op`, for TensorFlow to call. Constructors see to their exceptions
// themselves, since what derives from them cannot.
template <typename Op>
class NoThrow final : public Op {
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

#endif  // CUDNN_RNN_TF_KERNELS_NO_THROW_H_
