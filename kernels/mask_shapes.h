// Reads the attributes of the mask ops and the shapes of their tensors, for the
// kernels and for the lowerings to XLA.
#ifndef CUDNN_RNN_TF_KERNELS_MASK_SHAPES_H_
#define CUDNN_RNN_TF_KERNELS_MASK_SHAPES_H_

#include <string>

#include "kernels/op_backend.h"
#include "kernels/op_status.h"
#include "kernels/op_tensors.h"
#include "kernels/rnn_backend.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

inline absl::Status ReadMaskAttrs(tensorflow::OpKernelConstruction* context,
                                  RnnMask* mask, std::string* owner) {
  TF_RETURN_IF_ERROR(context->GetAttr("owner", owner));
  TF_RETURN_IF_ERROR(context->GetAttr("time_major", &mask->time_major));
  return context->GetAttr("go_backwards", &mask->is_reversed);
}
inline absl::Status ReadMoveAttrs(tensorflow::OpKernelConstruction* context,
                                  StepMove* move) {
  move->packs = context->def().op() == "CudnnRnnTf>PackSteps";
  move->dtype = DataTypeOf(context->input_type(0));
  TF_RETURN_IF_ERROR(context->GetAttr("repeat_masked", &move->repeats));
  TF_RETURN_IF_ERROR(context->GetAttr("time_major", &move->time_major));
  return context->GetAttr("go_backwards", &move->is_reversed);
}

// Reads the shapes of ReadMask's inputs.
inline absl::Status ReadMaskShapes(const tensorflow::TensorShape& shape,
                                   const tensorflow::TensorShape& sequences,
                                   const std::string& owner, RnnMask* mask) {
  if (sequences.dims() != 3) {
    return InvalidArgument("expected values of rank 3, but received shape ",
                           sequences.DebugString());
  }
  const int time_axis = mask->time_major ? 0 : 1, batch_axis = 1 - time_axis;
  mask->max_time = sequences.dim_size(time_axis);
  mask->batch_size = sequences.dim_size(batch_axis);
  const bool has_rank =
      shape.dims() == 2 || (shape.dims() == 3 && shape.dim_size(2) == 1);
  const int64_t rows = has_rank ? shape.dim_size(batch_axis) : 0;
  mask->is_shared = rows == 1 && mask->batch_size != 1;
  if (has_rank && shape.dim_size(time_axis) == mask->max_time &&
      (rows == mask->batch_size || rows == 1)) {
    return absl::OkStatus();
  }
  return InvalidArgument("expected the mask of ", owner, " to have the shape ",
                         mask->time_major ? "[time, batch]" : "[batch, time]",
                         ", where batch is ", mask->batch_size, " and time ",
                         mask->max_time, ", but received shape ",
                         shape.DebugString());
}

// Reads the shapes of PackSteps' and UnpackSteps' inputs. `shape_of(i)` is that
// of input i.
template <typename ShapeOf>
absl::Status ReadMoveShapes(const ShapeOf& shape_of, StepMove* move) {
  const tensorflow::TensorShape& values = shape_of(kUnmoved);
  if (values.dims() != 3) {
    return InvalidArgument("expected values of rank 3, but received shape ",
                           values.DebugString());
  }
  move->max_time = values.dim_size(move->time_major ? 0 : 1);
  move->batch_size = values.dim_size(move->time_major ? 1 : 0);
  move->width = values.dim_size(2);
  const tensorflow::TensorShape steps({move->batch_size, move->max_time});
  for (const int input : {kPlaces, kSteps}) {
    if (shape_of(input) == steps) continue;
    return InvalidArgument("expected places and steps of shape ",
                           steps.DebugString(), ", but received ",
                           shape_of(input).DebugString());
  }
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_MASK_SHAPES_H_
