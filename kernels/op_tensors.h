// The places of the ops' inputs and outputs, for their registrations, kernels
// and lowerings to XLA alike.
#ifndef CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// What Forward and Backward begin with. There may be no seed. Resets, if any,
// are Forward's next input. Backward's last inputs are resets and the gradient
// of the cell sequences, if any.
enum PassInput { kInput, kInputH, kInputC, kParams, kSequenceLengths, kSeed };
enum ForwardOutput {
  kOutput,
  kOutputH,
  kOutputC,
  kReserveSpace,
  kCellSequences,  // There may be none.
  kMostForwardOutputs
};
// What Backward has in addition, after the seed or, without one, in its place.
enum BackwardInput {
  kForwardOutput,
  kForwardOutputH,
  kForwardOutputC,
  kOutputBackprop,
  kOutputHBackprop,
  kOutputCBackprop,
  kForwardReserveSpace,
  kNumBackwardInputs
};
inline constexpr const char* kBackwardInputNames[kNumBackwardInputs] = {
    "output",          "output_h",          "output_c",
    "output_backprop", "output_h_backprop", "output_c_backprop",
    "reserve_space"};
// The gradients of the inputs with these numbers.
enum BackwardOutput {
  kInputBackprop,
  kInputHBackprop,
  kInputCBackprop,
  kParamsBackprop,
  kNumBackprops
};
// The calls of XLA's handlers have these results as well: the memory of a pass,
// and the reserve space, which a backward pass overwrites. A forward pass's
// workspace comes after all its outputs.
enum BackwardResult { kUsedReserveSpace = kNumBackprops, kBackwardWorkspace };

// Return the buffers of a pass besides lengths, seeds and memory. `input(i)`
// and `output(i)` are the addresses of the op's tensors, and `own_inputs` is
// the number of inputs that both ops begin with. Of a backward pass, the
// reserve space is left out.
template <typename Address, typename Result>
RnnForwardBuffers ForwardBuffersOf(const RnnProblem& problem,
                                   const Address& input, int own_inputs,
                                   const Result& output) {
  RnnForwardBuffers buffers;
  buffers.input = input(kInput);
  buffers.input_h = input(kInputH);
  buffers.input_c = input(kInputC);
  buffers.params = input(kParams);
  if (problem.has_resets) buffers.resets = input(own_inputs);
  buffers.output = output(kOutput);
  buffers.output_h = output(kOutputH);
  buffers.output_c = output(kOutputC);
  buffers.reserve_space = output(kReserveSpace);
  if (problem.has_cell_sequences)
    buffers.cell_sequences = output(kCellSequences);
  return buffers;
}
template <typename Address, typename Result>
RnnBackwardBuffers BackwardBuffersOf(const RnnProblem& problem,
                                     const Address& input, int own_inputs,
                                     const Result& output) {
  RnnBackwardBuffers buffers;
  buffers.input = input(kInput);
  buffers.input_h = input(kInputH);
  buffers.input_c = input(kInputC);
  buffers.params = input(kParams);
  int last = own_inputs + kNumBackwardInputs;
  if (problem.has_resets) buffers.resets = input(last++);
  if (problem.has_cell_sequences) {
    buffers.cell_sequences_backprop = input(last);
  }
  buffers.output = input(own_inputs + kForwardOutput);
  buffers.output_backprop = input(own_inputs + kOutputBackprop);
  buffers.output_h_backprop = input(own_inputs + kOutputHBackprop);
  buffers.output_c_backprop = input(own_inputs + kOutputCBackprop);
  buffers.input_backprop = output(kInputBackprop);
  buffers.input_h_backprop = output(kInputHBackprop);
  buffers.input_c_backprop = output(kInputCBackprop);
  buffers.params_backprop = output(kParamsBackprop);
  return buffers;
}

// ReadMask.
enum MaskInput { kMask, kMasked };
enum MaskOutput { kMaskLengths, kMaskPlaces, kMaskSteps, kNumMaskOutputs };
// PackSteps and UnpackSteps, which have one output.
enum MoveInput { kUnmoved, kPlaces, kSteps };

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_
