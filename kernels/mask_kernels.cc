// The kernels of the ops for masks.
#include <memory>
#include <string>
#include <type_traits>

#include "kernels/kernel.h"
#include "kernels/mask_shapes.h"
#include "kernels/masked_steps.h"
#include "kernels/op_backend.h"
#include "kernels/op_status.h"
#include "kernels/op_tensors.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Device>
class ReadMaskOp {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return ReadMaskAttrs(context, &mask_, &owner_);
  }
  absl::Status Run(OpKernelContext* context) const {
    const Tensor& mask = context->input(kMask);
    RnnMask values = mask_;
    TF_RETURN_IF_ERROR(ReadMaskShapes(
        mask.shape(), context->input(kMasked).shape(), owner_, &values));
    values.values = mask.flat<bool>().data();
    const TensorShape steps({values.batch_size, values.max_time});
    Tensor* found[kNumMaskOutputs];
    for (int i = 0; i < kNumMaskOutputs; ++i) {
      TF_RETURN_IF_ERROR(context->allocate_output(
          i, i == kMaskLengths ? TensorShape({values.batch_size}) : steps,
          &found[i]));
    }
    return ToTensorFlow(
        MakeBackend(Device(), context)
            ->ReadMask(values, {found[kMaskLengths]->flat<int64_t>().data(),
                                found[kMaskPlaces]->flat<int64_t>().data(),
                                found[kMaskSteps]->flat<int64_t>().data()}));
  }

 private:
  RnnMask mask_;
  std::string owner_;
};

template <typename Device>
class MoveStepsOp {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return ReadMoveAttrs(context, &move_);
  }
  absl::Status Run(OpKernelContext* context) const {
    const Tensor& values = context->input(kUnmoved);
    StepMove move = move_;
    TF_RETURN_IF_ERROR(ReadMoveShapes(InputShapes{context}, &move));
    move.places = context->input(kPlaces).flat<int64_t>().data();
    move.steps = context->input(kSteps).flat<int64_t>().data();
    bool keeps_places = false;
    if constexpr (std::is_same_v<Device, CpuDevice>) {
      keeps_places = KeepsPlaces(move);
    }
    if (keeps_places && move.packs) {
      context->set_output(0, values);
      return absl::OkStatus();
    }
    Tensor* moved;
    TF_RETURN_IF_ERROR(
        keeps_places ? context->forward_input_or_allocate_output(
                           {kUnmoved}, 0, values.shape(), &moved)
                     : context->allocate_output(0, values.shape(), &moved));
    move.from = DataOf(values);
    move.to = DataOf(*moved);
    return ToTensorFlow(MakeBackend(Device(), context)->MoveSteps(move));
  }

 private:
  StepMove move_;
};

CRNN_REGISTER_KERNEL(CPU, "ReadMask", ReadMaskOp<CpuDevice>);
CRNN_REGISTER_KERNEL(GPU, "ReadMask", ReadMaskOp<GpuDevice>);
CRNN_REGISTER_KERNEL(CPU, "PackSteps", MoveStepsOp<CpuDevice>);
CRNN_REGISTER_KERNEL(GPU, "PackSteps", MoveStepsOp<GpuDevice>);
CRNN_REGISTER_KERNEL(CPU, "UnpackSteps", MoveStepsOp<CpuDevice>);
CRNN_REGISTER_KERNEL(GPU, "UnpackSteps", MoveStepsOp<GpuDevice>);

}  // namespace
}  // namespace cudnn_rnn_tf
