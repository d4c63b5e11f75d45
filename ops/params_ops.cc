// Registers CudnnRnnTf>ParamsSize and the ops that convert between the opaque
// buffer of parameters and the tensors it holds: CanonicalToParams and
// ParamsToCanonical, KerasToParams and ParamsToKeras.
#include <vector>

#include "kernels/conversion.h"
#include "kernels/keras_layout.h"
#include "kernels/param_layout.h"
#include "ops/no_throw_shape.h"
#include "ops/op_attrs.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

template <typename Tensor>
ShapeHandle ShapeOf(InferenceContext* c, const Tensor& tensor) {
  std::vector<DimensionHandle> sizes;
  for (const int64_t size : tensor.Shape()) sizes.push_back(c->MakeDim(size));
  return c->MakeShape(sizes);
}

absl::Status ParamsSizeShape(InferenceContext* c) {
  Conversion<ParamLayout> network;
  TF_RETURN_IF_ERROR(network.ReadNetwork(c));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

// The shape of the params that are made of the layout's tensors.
template <typename Layout>
absl::Status ToParamsShape(InferenceContext* c) {
  Conversion<Layout> conversion;
  TF_RETURN_IF_ERROR(conversion.Read(c));
  const Layout& layout = conversion.layout();
  int input = 0;
  for (const auto& tensor : layout.tensors()) {
    ShapeHandle unused;
    const ShapeHandle expected = ShapeOf(c, tensor);
    if (!c->Merge(c->input(input), expected, &unused).ok()) {
      return InvalidArgument("expected shape ", c->DebugString(expected),
                             " for ", tensor.Name(), ", but received ",
                             c->DebugString(c->input(input)));
    }
    ++input;
  }
  c->set_output(0, c->Vector(layout.size()));
  return absl::OkStatus();
}

// The shapes of the layout's tensors, which are taken from the params.
template <typename Layout>
absl::Status FromParamsShape(InferenceContext* c) {
  Conversion<Layout> conversion;
  TF_RETURN_IF_ERROR(conversion.Read(c));
  const Layout& layout = conversion.layout();
  ShapeHandle unused;
  if (!c->Merge(c->input(0), c->Vector(layout.size()), &unused).ok()) {
    return InvalidArgument("expected params of shape [", layout.size(),
                           "] for this configuration, but received ",
                           c->DebugString(c->input(0)));
  }
  int output = 0;
  for (const auto& tensor : layout.tensors()) {
    c->set_output(output++, ShapeOf(c, tensor));
  }
  return absl::OkStatus();
}

}  // namespace

#define CRNN_CONVERSION_ATTRS                                 \
  CRNN_TYPE_ATTR.CRNN_SPEC_ATTRS.Attr("input_size: int >= 1") \
      .Attr("num_weights: int >= 1")                          \
      .Attr("num_biases: int >= 0")

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
    .CRNN_CONVERSION_ATTRS.SetShapeFn(NoThrowShape<ToParamsShape<ParamLayout>>)
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
    .CRNN_CONVERSION_ATTRS
    .SetShapeFn(NoThrowShape<FromParamsShape<ParamLayout>>)
    .Doc(R"doc(
Takes an opaque parameter buffer apart: the inverse of CanonicalToParams.
)doc");

REGISTER_OP("CudnnRnnTf>KerasToParams")
    .Input("weights: num_weights * T")
    .Input("biases: num_biases * T")
    .Output("params: T")
    .CRNN_CONVERSION_ATTRS.Attr("may_keep_params: bool = false")
    .SetShapeFn(NoThrowShape<ToParamsShape<KerasLayout>>)
    .Doc(R"doc(
Packs the weights of Keras's recurrent layers into one opaque parameter buffer.

weights: For each pseudo-layer a kernel [fan_in, gates * num_units], unless it is
  one of skip_input, and a recurrent kernel [num_units, gates * num_units]. A
  GRU's gates are in Keras's order, update gate first. Keras has no projection;
  one is [num_units, num_proj], after its recurrent kernel [num_proj, …].
biases: For each pseudo-layer [gates * num_units], or with bias_mode 'double'
  [2, gates * num_units], the input side first.
params: The buffer, of shape [params_size].
may_keep_params: Whether a CPU may keep the buffer for later calls with the same
  tensors; for reference variables of TensorFlow 1, it must be false.
)doc");

REGISTER_OP("CudnnRnnTf>ParamsToKeras")
    .Input("params: T")
    .Output("weights: num_weights * T")
    .Output("biases: num_biases * T")
    .CRNN_CONVERSION_ATTRS
    .SetShapeFn(NoThrowShape<FromParamsShape<KerasLayout>>)
    .Doc(R"doc(
Takes an opaque parameter buffer apart: the inverse of KerasToParams.
)doc");

}  // namespace cudnn_rnn_tf
