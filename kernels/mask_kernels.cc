// The kernels of CudnnRnnTf>LengthsFromMask.
#include <memory>
#include <string>

#include "kernels/no_throw_kernel.h"
#include "kernels/op_backend.h"
#include "kernels/op_status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Device>
class LengthsFromMaskOp : public OpKernel {
 public:
  explicit LengthsFromMaskOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("time_major", &time_major_));
    OP_REQUIRES_OK(context, context->GetAttr("owner", &owner_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& mask = context->input(0);
    OP_REQUIRES(
        context, mask.dims() == 2,
        InvalidArgument("expected a mask of rank 2, but received shape ",
                        mask.shape().DebugString()));
    const RnnMask values = {mask.flat<bool>().data(),
                            mask.dim_size(time_major_ ? 0 : 1),
                            mask.dim_size(time_major_ ? 1 : 0), time_major_};
    Tensor* lengths;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({values.batch_size}), &lengths));
    if (values.batch_size == 0) return;
    const std::unique_ptr<RnnBackend> backend = MakeBackend<Device>(context);
    RnnStatus status =
        backend->LengthsOfMask(values, lengths->flat<int64_t>().data());
    if (status.code == RnnStatus::Code::kInvalidArgument) {
      status.message =
          "expected the mask of " + owner_ +
          " to be padded on the right (in each sequence all true "
          "values before all false ones; pad_sequences makes it so with "
          "padding=\"post\", and the layers of cudnn_rnn_tf.keras take any "
          "mask), but " +
          status.message;
    }
    OP_REQUIRES_OK(context, ToTensorFlow(status));
  }

 private:
  bool time_major_ = false;
  std::string owner_;
};

REGISTER_KERNEL_BUILDER(
    Name("CudnnRnnTf>LengthsFromMask").Device(tensorflow::DEVICE_CPU),
    NoThrowKernel<LengthsFromMaskOp<CpuDevice>>);
REGISTER_KERNEL_BUILDER(
    Name("CudnnRnnTf>LengthsFromMask").Device(tensorflow::DEVICE_GPU),
    NoThrowKernel<LengthsFromMaskOp<GpuDevice>>);

}  // namespace
}  // namespace cudnn_rnn_tf
