// The places of the ops' inputs and outputs, for their registrations, kernels
// and lowerings to XLA alike.
#ifndef CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_

#include <array>
#include <cstdint>
#include <vector>

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

// The axes of tensors whose sizes the data decide. Of a reserve space, the plan
// does.
enum Axis : int64_t { kTime = -1, kBatch = -2, kAnySize = -3 };

// The name and the shape of a pass's tensor.
struct TensorForm {
  const char* name;
  int rank;
  std::array<int64_t, 3> axes;  // Sizes, or an Axis.
  int64_t item_bytes = 0;       // 0 stands for those of the problem's type.
};
struct PassForms {
  std::vector<TensorForm> inputs, outputs;
};
// Returns the forms of an op's tensors, in their order. If the input size is
// not known, it and that of the parameters are kAnySize.
inline PassForms FormsOf(const RnnProblem& problem, int64_t input_size,
                         int64_t params_size, bool is_backward) {
  const RnnSpec& spec = problem.spec;
  const int64_t first = problem.time_major ? kTime : kBatch;
  const int64_t second = problem.time_major ? kBatch : kTime;
  const int64_t layers = spec.num_pseudo_layers();
  const auto vector = [](const char* name, int64_t n, int64_t item_bytes = 0) {
    return TensorForm{name, 1, {n}, item_bytes};
  };
  const auto sequence = [&](const char* name, int64_t n) {
    return TensorForm{name, 3, {first, second, n}};
  };
  const auto states = [&](const char* name, int64_t n) {
    return problem.time_major ? TensorForm{name, 3, {layers, kBatch, n}}
                              : TensorForm{name, 3, {kBatch, layers, n}};
  };
  const auto h = [&](const char* name) {
    return states(name, spec.output_size());
  };
  const auto c = [&](const char* name) {
    return spec.has_c() ? states(name, spec.num_units) : vector(name, 0);
  };
  const auto output = [&](const char* name) {
    return sequence(name, spec.layer_output_size());
  };
  const TensorForm reserve_space = vector("reserve_space", kAnySize, 1);

  PassForms forms;
  auto& [inputs, outputs] = forms;
  inputs = {sequence("input", input_size), h("input_h"), c("input_c"),
            vector("params", params_size),
            vector("sequence_lengths",
                   problem.has_sequence_lengths ? int64_t{kBatch} : 0, 8)};
  if (problem.has_seed) inputs.push_back(vector("seed", 2, 8));
  if (is_backward) {
    outputs.assign(inputs.begin(), inputs.begin() + kNumBackprops);
    inputs.insert(inputs.end(),
                  {output("output"), h("output_h"), c("output_c"),
                   output("output_backprop"), h("output_h_backprop"),
                   c("output_c_backprop"), reserve_space});
  } else {
    outputs = {output("output"), h("output_h"), c("output_c"), reserve_space};
  }
  if (problem.has_resets) inputs.push_back({"resets", 2, {first, second}, 1});
  if (problem.has_cell_sequences) {
    const int64_t n = spec.num_dirs() * spec.num_units;
    is_backward ? inputs.push_back(sequence("cell_sequences_backprop", n))
                : outputs.push_back(sequence("cell_sequences", n));
  }
  return forms;
}

inline int64_t SizeOfAxis(int64_t axis, const RnnProblem& problem) {
  return axis == kTime    ? problem.max_time
         : axis == kBatch ? problem.batch_size
                          : axis;
}

// Returns the buffers of a pass besides lengths, seeds and memory. `input(i)`
// and `output(i)` are the addresses of the op's tensors, and `own_inputs` is
// the number of inputs that both ops begin with. Of a backward pass, the
// reserve space is left out.
template <typename Buffers, typename Address, typename Result>
Buffers BuffersOf(const RnnProblem& problem, const Address& input,
                  int own_inputs, const Result& output) {
  Buffers buffers;
  buffers.input = input(kInput);
  buffers.input_h = input(kInputH);
  buffers.input_c = input(kInputC);
  buffers.params = input(kParams);
  int last = own_inputs + (kIsForward<Buffers> ? 0 : kNumBackwardInputs);
  if (problem.has_resets) buffers.resets = input(last++);
  if constexpr (kIsForward<Buffers>) {
    buffers.output = output(kOutput);
    buffers.output_h = output(kOutputH);
    buffers.output_c = output(kOutputC);
    buffers.reserve_space = output(kReserveSpace);
    if (problem.has_cell_sequences) {
      buffers.cell_sequences = output(kCellSequences);
    }
  } else {
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
  }
  return buffers;
}

// ReadMask.
enum MaskInput { kMask, kMasked };
enum MaskOutput { kMaskLengths, kMaskPlaces, kMaskSteps, kNumMaskOutputs };
// PackSteps and UnpackSteps, which have one output.
enum MoveInput { kUnmoved, kPlaces, kSteps };

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_OP_TENSORS_H_
