// Projections around the persistent kernels. These run the steps of a layer
// without one: what its recurrent matrices R multiply is P m, where P is the
// projection and m is h before it, so the steps read m through R P, one matrix.
// The rest are products over all steps.
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/persistent/network_memory.h"

namespace cudnn_rnn_tf {
namespace persistent {

RnnStatus Network::Fold(const Handles& handles, const Workspace& workspace,
                        const void* recurrent, const void* projection,
                        int64_t d) const {
  const int64_t units = spec_.num_units, outputs = spec_.num_proj;
  return Multiply(handles.blas, products_.type(), spec_.num_gates() * units,
                  units, outputs, {recurrent, outputs}, {projection, units},
                  {workspace.folded[d], problem_.dtype, units});
}

RnnStatus Network::ForwardProjected(const Handles& handles,
                                    const ForwardWorkspace& workspace,
                                    const ForwardArguments& arguments) const {
  const int64_t units = spec_.num_units, outputs = spec_.num_proj;
  const int64_t gate_rows = spec_.num_gates() * units;
  ForwardArguments steps = arguments;
  steps.output_stride = units;
  steps.state_stride = StateStride(units);
  CRNN_RETURN_IF_ERROR(EnqueueFill(
      handles.stream, workspace.states, 0,
      problem_.batch_size * spec_.num_pseudo_layers() * units * item_));
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const ForwardDirection& of = arguments.direction[d];
    CRNN_RETURN_IF_ERROR(
        Fold(handles, workspace, of.recurrent_weights, of.projection, d));
    CRNN_RETURN_IF_ERROR(Multiply(
        handles.blas, products_.type(), problem_.batch_size, gate_rows, outputs,
        {of.first_h, arguments.state_stride},
        {of.recurrent_weights, outputs, /*is_transposed=*/true},
        {workspace.first_products[d], SumType(problem_.dtype), gate_rows}));
    CRNN_RETURN_IF_ERROR(auxiliary_.Enqueue(
        "add_first_products", handles.stream,
        GridOver(problem_.batch_size * gate_rows),
        Auxiliary::Unordered(arguments.sequences), static_cast<int>(gate_rows),
        d == 1, workspace.first_products[d], of.gates));
    ForwardDirection& my = steps.direction[d];
    my.recurrent_weights = workspace.folded[d];
    my.first_h = At(workspace.states, StateOffset(d, units));
    my.last_h = At(workspace.last_states, StateOffset(d, units));
    my.output = workspace.unprojected[d];
  }
  CRNN_RETURN_IF_ERROR(
      forward_.Enqueue(handles.stream, workspace.team_memory, &steps));
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const ForwardDirection& of = arguments.direction[d];
    CRNN_RETURN_IF_ERROR(
        Multiply(handles.blas, products_.type(), rows_, outputs, units,
                 {workspace.unprojected[d], units},
                 {of.projection, units, /*is_transposed=*/true},
                 {of.output, problem_.dtype, arguments.output_stride}));
    CRNN_RETURN_IF_ERROR(auxiliary_.Enqueue(
        "store_last_states", handles.stream,
        GridOver(problem_.batch_size * outputs),
        Auxiliary::Unordered(arguments.sequences), static_cast<int>(outputs),
        d == 1, of.output, arguments.output_stride, of.first_h,
        arguments.state_stride, of.last_h));
  }
  return {};
}

RnnStatus Network::BackwardProjected(const Handles& handles,
                                     const BackwardWorkspace& workspace,
                                     const BackwardArguments& arguments) const {
  const int64_t units = spec_.num_units, outputs = spec_.num_proj;
  const int64_t gate_rows = spec_.num_gates() * units;
  BackwardArguments steps = arguments;
  steps.output_stride = units;
  steps.state_stride = StateStride(units);
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const BackwardDirection& of = arguments.direction[d];
    BackwardDirection& my = steps.direction[d];
    CRNN_RETURN_IF_ERROR(
        Fold(handles, workspace, of.recurrent_weights, of.projection, d));
    my.recurrent_weights = workspace.folded[d];
    void* const outputs_backprop = workspace.unprojected_backprop[d];
    void* const states = At(workspace.states, StateOffset(d, units));
    const auto multiply = [&](int64_t rows, const Factor& gradients, void* to,
                              int64_t pitch) {
      return Multiply(handles.blas, products_.type(), rows, units, outputs,
                      gradients, {of.projection, units},
                      {to, problem_.dtype, pitch});
    };
    CRNN_RETURN_IF_ERROR(multiply(rows_,
                                  {of.output_backprop, arguments.output_stride},
                                  outputs_backprop, units));
    CRNN_RETURN_IF_ERROR(multiply(problem_.batch_size,
                                  {of.last_h_backprop, arguments.state_stride},
                                  states, StateStride(units)));
    my.output_backprop = outputs_backprop;
    my.last_h_backprop = my.first_h_backprop = states;
  }
  CRNN_RETURN_IF_ERROR(
      backward_.Enqueue(handles.stream, workspace.team_memory, &steps));
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const BackwardDirection& of = arguments.direction[d];
    // What the steps have read makes room for the gradients of the projected h
    // before each step.
    void* const before = workspace.unprojected_backprop[d];
    CRNN_RETURN_IF_ERROR(Multiply(handles.blas, products_.type(), rows_,
                                  outputs, gate_rows, {of.gates, gate_rows},
                                  {of.recurrent_weights, outputs},
                                  {before, problem_.dtype, outputs}));
    CRNN_RETURN_IF_ERROR(auxiliary_.Enqueue(
        "add_gradients", handles.stream, GridOver(rows_ * outputs),
        Auxiliary::Unordered(arguments.sequences), rows_ * outputs,
        static_cast<int>(outputs), d == 1, of.output_backprop,
        arguments.output_stride, of.last_h_backprop, arguments.state_stride,
        before, of.first_h_backprop, of.projected_backprop));
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
