// The backward pass of a network.
#include <algorithm>

#include "kernels/arena.h"
#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/persistent/network_memory.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// In TF32, the gradients of matrices with at least this many numbers are
// computed from a transposed input or h. Then cuBLAS can read this operand
// along the sum, which is over the steps. On an H200, with 512 units, that made
// the product 1.5 times as fast; with fewer units, the transposition took as
// long as it saved.
constexpr int64_t kTransposedWeights = int64_t{1} << 20;

Sequences WithoutLengths(Sequences sequences) {
  sequences.lengths = sequences.order = nullptr;
  return sequences;
}

}  // namespace

int64_t Network::TransposedPitch() const { return (rows_ + 31) / 32 * 32; }

bool Network::IsTransposed(bool is_recurrent, int64_t columns) const {
  // With recurrent dropout, each gate's recurrent matrix has its own operand.
  const int64_t gates =
      is_recurrent && problem_.has_recurrent_dropout() ? 1 : spec_.num_gates();
  return problem_.dtype == RnnDataType::kFloat32 && allows_tf32_ &&
         gates * spec_.num_units * columns >= kTransposedWeights;
}

RnnStatus Network::MakeOperand(CUstream stream, const Sequences& sequences,
                               bool is_recurrent, int64_t width,
                               const void* values, void* memory,
                               StepsOperand* operand) const {
  if (IsTransposed(is_recurrent, width)) {
    *operand = {memory, true, TransposedPitch()};
    return auxiliary_.TransposeSteps(stream, sequences, rows_,
                                     static_cast<int>(width), operand->pitch,
                                     values, memory);
  }
  *operand = {sequences.lengths == nullptr ? values : memory, false, width};
  if (sequences.lengths == nullptr) return {};
  return auxiliary_.CopyWithoutPadding(stream, sequences, rows_ * width,
                                       static_cast<int>(width), values, memory);
}

// cuBLAS divides such sums as well, but into few parts, which it adds one after
// the other. The parts have the same number of rows each, so there may be less
// of them than the GPU could compute at the same time.
int64_t Network::PartsOfSum(int64_t m, int64_t n) const {
  constexpr int64_t kFewestParts = 8, kFewestRows = 64;
  const int64_t tiles = CeilDiv(m, kTileSize) * CeilDiv(n, kTileSize);
  for (int64_t parts = std::min(kMostTiles / tiles, rows_ / kFewestRows);
       parts >= kFewestParts; --parts) {
    if (rows_ % parts == 0) return parts;
  }
  return 1;
}

RnnStatus Network::MultiplySteps(const Handles& handles, int64_t m, int64_t n,
                                 const void* gates, int64_t gates_pitch,
                                 const StepsOperand& operand, void* parts,
                                 void* gradient) const {
  const int64_t num_parts = PartsOfSum(m, n);
  if (num_parts == 1) {
    return Multiply(handles, true, operand.is_transposed, m, n, rows_, gates,
                    gates_pitch, operand.values, operand.pitch, false, gradient,
                    n);
  }
  // A matrix with so few numbers has no transposed operand.
  const BlasFactor one(problem_.dtype, 1.0), zero(problem_.dtype, 0.0);
  const int64_t rows = rows_ / num_parts;
  const cudaDataType_t type = CudaType(problem_.dtype);
  CRNN_RETURN_IF_ERROR(CublasStatus(
      Gpu().cublas.cublasGemmStridedBatchedEx_64(
          handles.blas, CUBLAS_OP_N, CUBLAS_OP_T, n, m, rows, one.get(),
          operand.values, type, operand.pitch, rows * operand.pitch, gates,
          type, gates_pitch, rows * gates_pitch, zero.get(), parts,
          CudaType(SumType(problem_.dtype)), n, m * n, num_parts,
          ComputeType(problem_.dtype, allows_tf32_), CUBLAS_GEMM_DEFAULT),
      "multiply"));
  return auxiliary_.AddParts(handles.stream, m * n, static_cast<int>(num_parts),
                             parts, gradient);
}

// The gradient of the recurrent side of a GRU's candidate is in the slot after
// the gates or, if the reset gate acts before the product, what the candidate's
// matrix reads is there. Neighbouring gates whose matrices read the same
// numbers share a product.
RnnStatus Network::BackwardRecurrentWeights(const Handles& handles,
                                            const BackwardWorkspace& workspace,
                                            const ParamLayout::PseudoLayer& at,
                                            int64_t d,
                                            const BackwardArguments& arguments,
                                            void* params_backprop) const {
  const int64_t units = spec_.num_units, num_gates = spec_.num_gates();
  const int64_t outputs = spec_.output_size();
  const BackwardDirection& direction = arguments.direction[d];
  const bool has_masks = problem_.has_recurrent_dropout();
  StepsOperand operand = {};
  for (int64_t gate = 0, count = 0; gate < num_gates; gate += count) {
    const bool is_candidate = spec_.is_gru() && gate == 2;
    if (is_candidate && spec_.resets_before()) {
      return MultiplySteps(
          handles, units, outputs, At(direction.gates, gate * units),
          slots_ * units,
          {At(direction.gates, 3 * units), false, slots_ * units},
          workspace.parts,
          At(params_backprop, at.recurrent_weights + gate * units * outputs));
    }
    const int64_t slot = is_candidate ? 3 : gate;
    if (has_masks) {
      count = 1;
      CRNN_RETURN_IF_ERROR(loop_->MaskStates(
          handles.stream, *workspace.step_memory, arguments.sequences, d, gate,
          direction.previous_h, workspace.masked_h));
    } else {
      count = spec_.is_gru() && gate == 0 ? 2 : num_gates - gate;
    }
    if (gate == 0 || has_masks) {
      CRNN_RETURN_IF_ERROR(
          MakeOperand(handles.stream, WithoutLengths(arguments.sequences),
                      /*is_recurrent=*/true, outputs,
                      has_masks ? workspace.masked_h : direction.previous_h,
                      workspace.operand, &operand));
    }
    CRNN_RETURN_IF_ERROR(MultiplySteps(
        handles, count * units, outputs, At(direction.gates, slot * units),
        slots_ * units, operand, workspace.parts,
        At(params_backprop, at.recurrent_weights + gate * units * outputs)));
  }
  return {};
}

BackwardArguments Network::ArgumentsOfBackward(
    int64_t l, const Reserve& reserve, const BackwardWorkspace& workspace,
    const void* output_backprop, const RnnBackwardBuffers& buffers) const {
  const ParamLayout layout(spec_);
  const Reserve::OfLayer& kept = reserve.layers[l];
  BackwardArguments arguments = {};
  arguments.sequences = SequencesOf(reserve.lengths, reserve.order);
  arguments.output_stride = spec_.layer_output_size();
  arguments.state_stride = StateStride();
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const int64_t pseudo_layer = l * spec_.num_dirs() + d;
    const int64_t state = StateOffset(pseudo_layer, spec_.output_size());
    const ParamLayout::PseudoLayer& at = layout.pseudo_layer(pseudo_layer);
    BackwardDirection& direction = arguments.direction[d];
    direction.recurrent_weights = Param(buffers.params, at.recurrent_weights);
    direction.projection = Param(buffers.params, at.projection);
    direction.gates = kept.gates[d];
    direction.cells = kept.cells[d];
    direction.previous_h = kept.previous_h[d];
    direction.output_backprop = At(output_backprop, d * spec_.output_size());
    direction.last_h_backprop = At(buffers.output_h_backprop, state);
    direction.first_h_backprop = At(buffers.input_h_backprop, state);
    direction.bias_sums = workspace.bias_sums[d];
    direction.projected_backprop = workspace.projected_backprop[d];
    if (spec_.is_lstm()) {
      const int64_t cell_state = StateOffset(pseudo_layer, spec_.num_units);
      direction.first_c = At(buffers.input_c, cell_state);
      direction.last_c_backprop = At(buffers.output_c_backprop, cell_state);
      direction.first_c_backprop = At(buffers.input_c_backprop, cell_state);
    }
  }
  return arguments;
}

RnnStatus Network::BackwardInputs(const Handles& handles, int64_t l,
                                  const BackwardArguments& arguments,
                                  const void* params,
                                  void* input_backprop) const {
  const int64_t units = spec_.num_units, num_gates = spec_.num_gates();
  if (!spec_.has_input_weights(l)) {
    return auxiliary_.GatherInputs(
        handles.stream, rows_ * units, static_cast<int>(units),
        static_cast<int>(num_gates), static_cast<int>(slots_),
        arguments.direction[0].gates, arguments.direction[1].gates,
        input_backprop);
  }
  const ParamLayout layout(spec_);
  const int64_t input_size = spec_.layer_input_size(l);
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const ParamLayout::PseudoLayer& at =
        layout.pseudo_layer(l * spec_.num_dirs() + d);
    CRNN_RETURN_IF_ERROR(Multiply(handles, false, false, rows_, input_size,
                                  num_gates * units,
                                  arguments.direction[d].gates, slots_ * units,
                                  Param(params, at.input_weights), input_size,
                                  /*adds=*/d > 0, input_backprop, input_size));
  }
  return {};
}

RnnStatus Network::BackwardParams(const Handles& handles, int64_t l,
                                  const Reserve& reserve,
                                  const BackwardWorkspace& workspace,
                                  const BackwardArguments& arguments,
                                  const Sequences& sequences, const void* input,
                                  void* params_backprop) const {
  const ParamLayout layout(spec_);
  const int64_t units = spec_.num_units, num_gates = spec_.num_gates();
  const int64_t input_size = spec_.layer_input_size(l);
  const auto pseudo_layer = [&](int64_t d) -> const ParamLayout::PseudoLayer& {
    return layout.pseudo_layer(l * spec_.num_dirs() + d);
  };
  // All directions' products with the input come before the others, which may
  // make another operand in the same memory.
  if (spec_.has_input_weights(l)) {
    StepsOperand operand = {};
    CRNN_RETURN_IF_ERROR(MakeOperand(handles.stream, sequences,
                                     /*is_recurrent=*/false, input_size, input,
                                     workspace.operand, &operand));
    for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
      CRNN_RETURN_IF_ERROR(MultiplySteps(
          handles, num_gates * units, input_size, arguments.direction[d].gates,
          slots_ * units, operand, workspace.parts,
          At(params_backprop, pseudo_layer(d).input_weights)));
    }
  }
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    const ParamLayout::PseudoLayer& at = pseudo_layer(d);
    CRNN_RETURN_IF_ERROR(BackwardRecurrentWeights(handles, workspace, at, d,
                                                  arguments, params_backprop));
    if (spec_.num_proj > 0) {
      const void* const unprojected = reserve.layers[l].unprojected[d];
      CRNN_RETURN_IF_ERROR(MultiplySteps(
          handles, spec_.num_proj, units, workspace.projected_backprop[d],
          spec_.num_proj, {unprojected, false, units}, workspace.parts,
          At(params_backprop, at.projection)));
    }
    if (at.input_bias < 0 && at.recurrent_bias < 0) continue;
    const auto bias = [&](int64_t offset) {
      return offset < 0 ? nullptr : At(params_backprop, offset);
    };
    CRNN_RETURN_IF_ERROR(auxiliary_.SumBiases(
        handles.stream, workspace.bias_sums[d], BiasRows(),
        static_cast<int>(units), static_cast<int>(num_gates),
        static_cast<int>(slots_),
        static_cast<int>(spec_.resets_before() ? num_gates : slots_) - 1,
        bias(at.input_bias), bias(at.recurrent_bias)));
  }
  return {};
}

RnnStatus Network::Backward(const Handles& handles,
                            const RnnBackwardBuffers& buffers) const {
  Arena workspace_arena(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const BackwardWorkspace workspace(*this, &workspace_arena);
  const Reserve reserve(*this, &reserve_arena);
  CRNN_RETURN_IF_ERROR(SetUpBlas(handles, workspace.blas));
  const void* output_backprop = buffers.output_backprop;
  for (int64_t l = spec_.num_layers; l-- > 0;) {
    BackwardArguments arguments =
        ArgumentsOfBackward(l, reserve, workspace, output_backprop, buffers);
    const Sequences& sequences = arguments.sequences;
    CRNN_RETURN_IF_ERROR(workspace.step_memory
                             ? loop_->Backward(handles, *workspace.step_memory,
                                               l, reserve.seed, arguments)
                             : kernel_.Enqueue(handles.stream, shares_,
                                               AtOnce(), workspace.ring,
                                               &arguments));

    // The gradient of the inputs goes to the layer below, or to the caller.
    void* const input_backprop =
        l == 0 ? buffers.input_backprop : workspace.gradients[(l - 1) % 2];
    CRNN_RETURN_IF_ERROR(
        BackwardInputs(handles, l, arguments, buffers.params, input_backprop));
    if (problem_.has_dropout_between_layers() && l > 0) {
      CRNN_RETURN_IF_ERROR(Dropout(handles.stream, sequences, l - 1,
                                   reserve.seed, input_backprop));
    }
    // Padding in the caller's input may hold anything; ours holds zeros.
    CRNN_RETURN_IF_ERROR(
        BackwardParams(handles, l, reserve, workspace, arguments,
                       l == 0 ? sequences : WithoutLengths(sequences),
                       l == 0 ? buffers.input : reserve.layers[l - 1].output,
                       buffers.params_backprop));
    output_backprop = input_backprop;
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
