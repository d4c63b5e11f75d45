// Registers CudnnRnnTf>LengthsFromMask, which turns a mask into sequence
// lengths.
#include "ops/no_throw_shape.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status LengthsFromMaskShape(InferenceContext* c) {
  ShapeHandle mask;
  bool time_major;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &mask));
  TF_RETURN_IF_ERROR(c->GetAttr("time_major", &time_major));
  c->set_output(0, c->Vector(c->Dim(mask, time_major ? 1 : 0)));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CudnnRnnTf>LengthsFromMask")
    .Input("mask: bool")
    .Output("sequence_lengths: int64")
    .Attr("time_major: bool = false")
    .Attr("owner: string = ''")
    .SetShapeFn(NoThrowShape<LengthsFromMaskShape>)
    .Doc(R"doc(
Counts the steps of sequences that are padded on the right.

On a CPU, a sequence that is padded otherwise is an error. On a GPU, it has the
length -1, for which Forward gives NaN, so that the host need not wait.

mask: True for each step to read, [batch, time]; time-major, [time, batch].
sequence_lengths: [batch].
owner: The name of the layer that has the mask, for the error message.
)doc");

}  // namespace cudnn_rnn_tf
