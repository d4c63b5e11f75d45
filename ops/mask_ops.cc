// Registers the ops for masks: ReadMask finds the steps that a mask selects,
// PackSteps moves them to the front, and UnpackSteps moves them back.
#include "ops/no_throw_shape.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ReadMaskShape(InferenceContext* c) {
  ShapeHandle mask, values, steps;
  bool time_major;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 2, &mask));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(mask, 3, &mask));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 3, &values));
  TF_RETURN_IF_ERROR(c->GetAttr("time_major", &time_major));
  const DimensionHandle batch = c->Dim(values, time_major ? 1 : 0);
  steps = c->Matrix(batch, c->Dim(values, time_major ? 0 : 1));
  c->set_output(0, c->Vector(batch));
  c->set_output(1, steps);
  c->set_output(2, steps);
  return absl::OkStatus();
}

absl::Status MoveStepsShape(InferenceContext* c) {
  ShapeHandle values, steps;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &steps));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &steps));
  c->set_output(0, values);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CudnnRnnTf>ReadMask")
    .Input("mask: bool")
    .Input("values: T")
    .Output("sequence_lengths: int64")
    .Output("places: int64")
    .Output("steps: int64")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("time_major: bool = false")
    .Attr("go_backwards: bool = false")
    .Attr("owner: string = ''")
    .SetShapeFn(NoThrowShape<ReadMaskShape>)
    .Doc(R"doc(
Finds the steps of sequences that a mask selects, in the order of reading.

mask: True for each step to read, [batch, time] or [1, time]; time-major, [time,
  batch] or [time, 1]. A last dimension of size 1 may follow.
values: The sequences, [batch, time, size]; time-major, [time, batch, size].
  Only their shape is read.
sequence_lengths: How many steps are to be read, [batch].
places: Where a step's place is among those to be read, [batch, time]. If it is
  masked and n of the sequence's steps before it are not, -1 - n.
steps: Which step has a place, [batch, time]; -1 at the places that have none.
go_backwards: If true, sequences are read from the end, and the steps in
  `places` and `steps` are counted from there.
owner: The name of the layer that has the mask, for the error message.
)doc");

#define CRNN_REGISTER_MOVE(NAME, DOC)             \
  REGISTER_OP("CudnnRnnTf>" NAME)                 \
      .Input("values: T")                         \
      .Input("places: int64")                     \
      .Input("steps: int64")                      \
      .Output("moved: T")                         \
      .Attr("T: {half, bfloat16, float, double}") \
      .Attr("time_major: bool = false")           \
      .Attr("go_backwards: bool = false")         \
      .Attr("repeat_masked: bool = false")        \
      .SetShapeFn(NoThrowShape<MoveStepsShape>)   \
      .Doc(DOC)

CRNN_REGISTER_MOVE("PackSteps", R"doc(
Moves the steps that a mask selects to the front of their sequences.

Places that no step has get zeros or, on a CPU, what is there, if no step has
another place than before.

values: [batch, time, size]; time-major, [time, batch, size].
places: As ReadMask returns them.
steps: As ReadMask returns them.
go_backwards: As of ReadMask.
repeat_masked: Computes the gradient of UnpackSteps with this attribute: the sum
  of a step and the masked steps that follow it.
)doc");

CRNN_REGISTER_MOVE("UnpackSteps", R"doc(
Moves steps that PackSteps has moved to where they were.

values: [batch, time, size]; time-major, [time, batch, size].
places: As ReadMask returns them.
steps: As ReadMask returns them.
go_backwards: As of ReadMask.
repeat_masked: If true, masked steps get the values of the last step before them
  that is not masked, in the order of reading. If there is none, and if this is
  false, they get zeros.
)doc");
#undef CRNN_REGISTER_MOVE

}  // namespace cudnn_rnn_tf
