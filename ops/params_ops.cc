// Registers CudnnRnnTf>ParamsSize, CanonicalToParams and ParamsToCanonical,
// which convert between the opaque buffer of parameters and the tensors it
// holds.
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "ops/no_throw_shape.h"
#include "ops/op_attrs.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ReadParamsSpec(InferenceContext* c, RnnSpec* spec) {
  TF_RETURN_IF_ERROR(ReadSpec(c, spec));
  TF_RETURN_IF_ERROR(c->GetAttr("input_size", &spec->input_size));
  return CheckSpec(*spec);
}

absl::Status CheckCounts(InferenceContext* c, const ParamLayout& layout) {
  int64_t num_weights, num_biases;
  TF_RETURN_IF_ERROR(c->GetAttr("num_weights", &num_weights));
  TF_RETURN_IF_ERROR(c->GetAttr("num_biases", &num_biases));
  const int64_t expected_weights = layout.weights().size();
  const int64_t expected_biases = layout.biases().size();
  if (num_weights != expected_weights) {
    return InvalidArgument("expected ", expected_weights,
                           " weights for this configuration, but received ",
                           num_weights);
  }
  if (num_biases != expected_biases) {
    return InvalidArgument("expected ", expected_biases,
                           " biases for this configuration, but received ",
                           num_biases);
  }
  return absl::OkStatus();
}

ShapeHandle BlockShape(InferenceContext* c, const ParamBlock& block,
                       bool is_bias) {
  return is_bias ? c->Vector(block.rows) : c->Matrix(block.rows, block.cols);
}

absl::Status ParamsSizeShape(InferenceContext* c) {
  RnnSpec spec;
  TF_RETURN_IF_ERROR(ReadParamsSpec(c, &spec));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

absl::Status CanonicalToParamsShape(InferenceContext* c) {
  RnnSpec spec;
  TF_RETURN_IF_ERROR(ReadParamsSpec(c, &spec));
  const ParamLayout layout(spec);
  TF_RETURN_IF_ERROR(CheckCounts(c, layout));
  int input = 0;
  for (const bool is_bias : {false, true}) {
    for (const ParamBlock& block :
         is_bias ? layout.biases() : layout.weights()) {
      ShapeHandle unused;
      const ShapeHandle expected = BlockShape(c, block, is_bias);
      if (!c->Merge(c->input(input), expected, &unused).ok()) {
        return InvalidArgument("expected shape ", c->DebugString(expected),
                               " for ", block.Name(), ", but received ",
                               c->DebugString(c->input(input)));
      }
      ++input;
    }
  }
  c->set_output(0, c->Vector(layout.size()));
  return absl::OkStatus();
}

absl::Status ParamsToCanonicalShape(InferenceContext* c) {
  RnnSpec spec;
  TF_RETURN_IF_ERROR(ReadParamsSpec(c, &spec));
  const ParamLayout layout(spec);
  TF_RETURN_IF_ERROR(CheckCounts(c, layout));
  ShapeHandle unused;
  if (!c->Merge(c->input(0), c->Vector(layout.size()), &unused).ok()) {
    return InvalidArgument("expected params of shape [", layout.size(),
                           "] for this configuration, but received ",
                           c->DebugString(c->input(0)));
  }
  int output = 0;
  for (const ParamBlock& block : layout.weights()) {
    c->set_output(output++, BlockShape(c, block, /*is_bias=*/false));
  }
  for (const ParamBlock& block : layout.biases()) {
    c->set_output(output++, BlockShape(c, block, /*is_bias=*/true));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CudnnRnnTf>ParamsSize")
    .Output("params_size: int64")
    .CRNN_SPEC_ATTRS.Attr("input_size: int >= 1")
    .SetShapeFn(NoThrowShape<ParamsSizeShape>)
    .Doc(R"doc(
Returns the number of elements in a network's opaque parameter buffer.
)doc");

REGISTER_OP("CudnnRnnTf>CanonicalToParams")
    .Input("weights: num_weights * T")
    .Input("biases: num_biases * T")
    .Output("params: T")
    .CRNN_TYPE_ATTR.CRNN_SPEC_ATTRS.Attr("input_size: int >= 1")
    .Attr("num_weights: int >= 1")
    .Attr("num_biases: int >= 0")
    .SetShapeFn(NoThrowShape<CanonicalToParamsShape>)
    .Doc(R"doc(
Packs canonical weights and biases into one opaque parameter buffer.

weights: Matrices of shape [num_units, fan_in], pseudo-layer by pseudo-layer and
  linear-layer id by linear-layer id; a projection, [num_proj, num_units], comes
  last in its pseudo-layer.
biases: Vectors of shape [num_units] in the same order.
params: The buffer, of shape [params_size].
)doc");

REGISTER_OP("CudnnRnnTf>ParamsToCanonical")
    .Input("params: T")
    .Output("weights: num_weights * T")
    .Output("biases: num_biases * T")
    .CRNN_TYPE_ATTR.CRNN_SPEC_ATTRS.Attr("input_size: int >= 1")
    .Attr("num_weights: int >= 1")
    .Attr("num_biases: int >= 0")
    .SetShapeFn(NoThrowShape<ParamsToCanonicalShape>)
    .Doc(R"doc(
Takes an opaque parameter buffer apart: the inverse of CanonicalToParams.
)doc");

}  // namespace cudnn_rnn_tf
