// Registers CudnnRnnTf>Forward and Backward, each of which runs a whole
// recurrent network.
#include <vector>

#include "kernels/op_tensors.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "ops/no_throw_shape.h"
#include "ops/op_attrs.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Infers the outputs' shapes of Forward, or of Backward.
template <bool is_backward>
absl::Status InferShapes(InferenceContext* c) {
  RnnProblem problem;
  TF_RETURN_IF_ERROR(ReadProblem(c, is_backward, &problem));
  ShapeHandle input;
  if (!c->WithRank(c->input(kInput), 3, &input).ok()) {
    return InvalidArgument("expected input of rank 3, ",
                           problem.time_major ? "[time, batch, input_size]"
                                              : "[batch, time, input_size]",
                           ", but received ", c->DebugString(c->input(kInput)));
  }
  DimensionHandle time = c->Dim(input, problem.time_major ? 0 : 1);
  DimensionHandle batch = c->Dim(input, problem.time_major ? 1 : 0);
  // The configuration is checked first, since the shapes expected below follow
  // from it. An unknown input size is replaced by num_units, which is valid in
  // every configuration.
  const DimensionHandle input_size = c->Dim(input, 2);
  const bool is_known = c->ValueKnown(input_size);
  RnnSpec& spec = problem.spec;
  spec.input_size = is_known ? c->Value(input_size) : spec.num_units;
  TF_RETURN_IF_ERROR(CheckSpec(spec));
  const PassForms forms =
      FormsOf(problem, is_known ? spec.input_size : kAnySize,
              is_known ? ParamLayout(spec).size() : kAnySize, is_backward);

  const auto shape_of = [&](const TensorForm& form) {
    std::vector<DimensionHandle> dims;
    for (int i = 0; i < form.rank; ++i) {
      const int64_t axis = form.axes[i];
      dims.push_back(axis == kTime      ? time
                     : axis == kBatch   ? batch
                     : axis == kAnySize ? c->UnknownDim()
                                        : c->MakeDim(axis));
    }
    return c->MakeShape(dims);
  };
  std::vector<ShapeHandle> inputs;
  for (const TensorForm& form : forms.inputs) {
    const ShapeHandle given = c->input(inputs.size()),
                      expected = shape_of(form);
    ShapeHandle& merged = inputs.emplace_back();
    if (!c->Merge(given, expected, &merged).ok()) {
      return InvalidArgument("expected ", form.name, " of shape ",
                             c->DebugString(expected), ", but received ",
                             c->DebugString(given));
    }
    for (int i = 0; i < form.rank; ++i) {
      if (form.axes[i] == kTime) time = c->Dim(merged, i);
      if (form.axes[i] == kBatch) batch = c->Dim(merged, i);
    }
  }
  for (size_t i = 0; i < forms.outputs.size(); ++i) {
    ShapeHandle shape = shape_of(forms.outputs[i]);
    if (is_backward) TF_RETURN_IF_ERROR(c->Merge(shape, inputs[i], &shape));
    if (i == kReserveSpace && !is_backward && !problem.is_training) {
      shape = c->Vector(0);
    }
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("CudnnRnnTf>Forward")
    .Input("input: T")
    .Input("input_h: T")
    .Input("input_c: T")
    .Input("params: T")
    .Input("sequence_lengths: Tlengths")
    .Input("seed: Tseed")
    .Input("resets: Tresets")
    .Output("output: T")
    .Output("output_h: T")
    .Output("output_c: T")
    .Output("reserve_space: uint8")
    .Output("cell_sequences: Tcells")
    .CRNN_TYPE_ATTR.CRNN_SPEC_ATTRS.CRNN_RUN_ATTRS
    .Attr("is_training: bool = true")
    .Attr(
        "algorithm: {'auto', 'standard', 'persist_static', "
        "'persist_static_small_h', 'resident', 'persistent', 'cudnn'} = 'auto'")
    .Attr("may_keep_params: bool = false")
    .SetShapeFn(NoThrowShape<InferShapes<false>>)
    .Doc(R"doc(
Runs a stack of recurrent layers over whole sequences.

In the shapes, P is num_proj if it is set, else num_units; L is num_layers; D is
2 for a bidirectional network, else 1. Shapes are given time-major; if time_major
is false, the first two dimensions of each are exchanged.

rnn_mode: In gru_reset_before, the reset gate multiplies h before the recurrent
  matrix does, and in gru the product. GPUs run the former by the algorithm
  persistent only, step by step.
input: [time, batch, input_size].
input_h: The initial hidden states, [L * D, batch, P].
input_c: An LSTM's initial cell states, [L * D, batch, num_units]; else empty, [0].
params: The opaque parameter buffer, [params_size].
sequence_lengths: [batch], each in [0, time], if has_sequence_lengths; else
  empty, [0], and every sequence has all time steps. Outputs past a sequence's
  end are zero, and its final state is the state at its end. On a GPU, int32
  lengths are read from host memory and int64 lengths from the GPU's memory; an
  int64 length that is out of range makes its sequence's outputs NaN.
seed: One tensor, [2]. The masks of dropout, recurrent_dropout and zoneout are a
  function of these two integers and of a number's place. It is the same function on CPUs and
  in a GPU's persistent kernels. cuDNN has another one for dropout, which also
  depends on the sequences' shape. Where no masks are drawn, there may be no
  seed: it is read from host memory, and a constant there splits a function that
  runs on a GPU into two parts, which takes the host longer to call.
resets: At most one tensor, [time, batch], true where the state starts anew from
  zeros: that of a forward direction before the step, and that of a backward
  direction after it. A GPU runs it by the algorithm persistent only.
output: The last layer's outputs, [time, batch, D * P].
output_h: The final hidden states, shaped as input_h.
output_c: The final cell states, shaped as input_c.
reserve_space: If is_training, data that Backward reads; else empty, [0].
cell_sequences: At most one tensor, of an LSTM: the last layer's cell states after
  each step, [time, batch, D * num_units], as output_c; zero past a sequence's end. A
  GPU computes it by the algorithm persistent only, step by step.
dropout: The rate at which outputs of all layers but the last are dropped, in
  training only.
cell_clip: An LSTM's cell states are clipped to [-cell_clip, cell_clip] wherever
  a step reads them: before the forget gate and before tanh. output_c holds the
  last ones, unclipped if there is no zoneout. With 0, nothing is clipped.
recurrent_dropout: The rate at which numbers of the hidden states are dropped
  before the recurrent matrices multiply them, in training only. Each gate of each
  pseudo-layer has a mask of its own, [batch, P], which stays the same in all
  steps. GPUs run it by the algorithm persistent only.
zoneout: The rate at which units of h stay what they were before a step. In
  training with a seed, a mask says which; otherwise h is the mean of both by this
  rate. GPUs run it by the algorithm persistent only, step by step.
cell_zoneout: The same of an LSTM's c. The new h is made of the new c, of which
  nothing has stayed. Before that, cell_clip limits both c.
algorithm: What runs the network on a GPU. persistent stands for this package's
  kernels; standard, persist_static and persist_static_small_h are algorithms of
  cuDNN's; cudnn is one of these by a rule; auto is what a rule takes for the
  fastest of all, and so is resident, in graphs of earlier versions. A CPU ignores
  it.
may_keep_params: Whether a CPU may keep params, rearranged, for later calls with
  the same tensor with the same numbers, if not is_training. It must be false if
  they may change during the call, as TensorFlow 1's reference variables may.
)doc");

REGISTER_OP("CudnnRnnTf>Backward")
    .Input("input: T")
    .Input("input_h: T")
    .Input("input_c: T")
    .Input("params: T")
    .Input("sequence_lengths: Tlengths")
    .Input("seed: Tseed")
    .Input("output: T")
    .Input("output_h: T")
    .Input("output_c: T")
    .Input("output_backprop: T")
    .Input("output_h_backprop: T")
    .Input("output_c_backprop: T")
    .Input("reserve_space: uint8")
    .Input("resets: Tresets")
    .Input("cell_sequences_backprop: Tcells")
    .Output("input_backprop: T")
    .Output("input_h_backprop: T")
    .Output("input_c_backprop: T")
    .Output("params_backprop: T")
    .CRNN_TYPE_ATTR.CRNN_SPEC_ATTRS.CRNN_RUN_ATTRS
    .SetShapeFn(NoThrowShape<InferShapes<true>>)
    .Doc(R"doc(
Computes the gradients of a Forward with is_training, with respect to its inputs.

It takes the inputs, outputs and attributes of that Forward, and the gradients
with respect to output, output_h, output_c and cell_sequences.
)doc");

}  // namespace cudnn_rnn_tf
