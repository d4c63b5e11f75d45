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
                                 const void* gates, const StepsOperand& operand,
                                 float* parts, void* gradient) const {
  const int64_t num_parts = PartsOfSum(m, n);
  const int64_t gates_pitch = slots_ * spec_.num_units;
  if (num_parts == 1) {
    return Multiply(handles, true, operand.is_transposed, m, n, rows_, gates,
                    gates_pitch, operand.values, operand.pitch, false, gradient,
                    n);
  }
  // A matrix with so few numbers has no transposed operand.
  const float one = 1.0f, zero = 0.0f;
  const int64_t rows = rows_ / num_parts;
  const cudaDataType_t type = CudaType(problem_.dtype);
  CRNN_RETURN_IF_ERROR(CublasStatus(
      Gpu().cublas.cublasGemmStridedBatchedEx_64(
          handles.blas, CUBLAS_OP_N, CUBLAS_OP_T, n, m, rows, &one,
          operand.values, type, operand.pitch, rows * operand.pitch, gates,
          type, gates_pitch, rows * gates_pitch, &zero, parts, CUDA_R_32F, n,
          m * n, num_parts, ComputeType(problem_.dtype, allows_tf32_),
          CUBLAS_GEMM_DEFAULT),
      "multiply"));
  return auxiliary_.AddParts(handles.stream, m * n, static_cast<int>(num_parts),
                             parts, gradient);
}

// The gradient of the recurrent side of a GRU's candidate is in the slot after
// the gates. Neighbouring gates whose matrices read the same numbers share a
// product.
RnnStatus Network::BackwardRecurrentWeights(const Handles& handles,
                                            const BackwardWorkspace& workspace,
                                            const ParamLayout::PseudoLayer& at,
                                            int64_t d,
                                            const BackwardArguments& arguments,
                                            void* params_backprop) const {
  const int64_t units = spec_.num_units, num_gates = spec_.num_gates();
  const BackwardDirection& direction = arguments.direction[d];
  StepsOperand operand = {};
  for (int64_t gate = 0, count = 0; gate < num_gates; gate += count) {
    const int64_t slot = spec_.is_gru() && gate == 2 ? 3 : gate;
    if (workspace.step_memory) {
      count = 1;
      CRNN_RETURN_IF_ERROR(loop_.MaskStates(
          handles.stream, *workspace.step_memory, arguments.sequences, d, gate,
          direction.previous_h, workspace.masked_h));
    } else {
      count = spec_.is_gru() && gate == 0 ? 2 : num_gates - gate;
    }
    if (gate == 0 || workspace.step_memory) {
      CRNN_RETURN_IF_ERROR(MakeOperand(
          handles.stream, WithoutLengths(arguments.sequences),
          /*is_recurrent=*/true, units,
          workspace.step_memory ? workspace.masked_h : direction.previous_h,
          workspace.operand, &operand));
    }
    CRNN_RETURN_IF_ERROR(MultiplySteps(
        handles, count * units, units, At(direction.gates, slot * units),
        operand, workspace.parts,
        At(params_backprop, at.recurrent_weights + gate * units * units)));
  }
  return {};
}

RnnStatus Network::Backward(const Handles& handles,
                            const CallAddresses& addresses) const {
  const auto buffer = [&](CallBuffer which) {
    return reinterpret_cast<void*>(addresses[which]);
  };
  const ParamLayout layout(spec_);
  Arena workspace_arena(buffer(kWorkspace));
  Arena reserve_arena(buffer(kReserveSpace));
  const BackwardWorkspace workspace(*this, &workspace_arena);
  const Reserve reserve(*this, &reserve_arena);
  CRNN_RETURN_IF_ERROR(
      CublasStatus(Gpu().cublas.cublasSetWorkspace_v2(
                       handles.blas, workspace.blas, kBlasBytes),
                   "take memory"));
  const Sequences sequences = SequencesOf(reserve.lengths, reserve.order);
  const int64_t units = spec_.num_units, num_dirs = spec_.num_dirs();
  const int64_t gate_rows = spec_.num_gates() * units;
  const void* output_backprop = buffer(kOutputBackprop);
  for (int64_t l = spec_.num_layers; l-- > 0;) {
    const Reserve::Layer& kept = reserve.layers[l];
    const int64_t input_size = spec_.layer_input_size(l);
    BackwardArguments arguments = {};
    arguments.sequences = sequences;
    arguments.output_stride = spec_.layer_output_size();
    arguments.state_stride = StateStride();
    for (int64_t d = 0; d < num_dirs; ++d) {
      const int64_t pseudo_layer = l * num_dirs + d;
      const int64_t state = StateOffset(pseudo_layer);
      BackwardDirection& direction = arguments.direction[d];
      direction.recurrent_weights = Param(
          buffer(kParams), layout.pseudo_layer(pseudo_layer).recurrent_weights);
      direction.gates = kept.gates[d];
      direction.cells = kept.cells[d];
      direction.previous_h = kept.previous_h[d];
      direction.output_backprop = At(output_backprop, d * units);
      direction.last_h_backprop = At(buffer(kOutputHBackprop), state);
      direction.first_h_backprop = At(buffer(kInputHBackprop), state);
      direction.bias_sums = workspace.bias_sums[d];
      if (spec_.is_lstm()) {
        direction.first_c = At(buffer(kInputC), state);
        direction.last_c_backprop = At(buffer(kOutputCBackprop), state);
        direction.first_c_backprop = At(buffer(kInputCBackprop), state);
      }
    }
    CRNN_RETURN_IF_ERROR(workspace.step_memory
                             ? loop_.Backward(handles, *workspace.step_memory,
                                              l, reserve.seed, arguments)
                             : kernel_.Enqueue(handles.stream, shares_,
                                               static_cast<int>(num_dirs),
                                               workspace.ring, &arguments));

    // The gradient of the inputs goes to the layer below, or to the caller.
    void* const input_backprop =
        l == 0 ? buffer(kInputBackprop) : workspace.gradients[(l - 1) % 2];
    if (spec_.has_input_weights(l)) {
      for (int64_t d = 0; d < num_dirs; ++d) {
        CRNN_RETURN_IF_ERROR(
            Multiply(handles, false, false, rows_, input_size, gate_rows,
                     kept.gates[d], slots_ * units,
                     Param(buffer(kParams),
                           layout.pseudo_layer(l * num_dirs + d).input_weights),
                     input_size, d > 0, input_backprop, input_size));
      }
    } else {
      CRNN_RETURN_IF_ERROR(auxiliary_.GatherInputs(
          handles.stream, rows_ * units, static_cast<int>(units),
          static_cast<int>(spec_.num_gates()), static_cast<int>(slots_),
          kept.gates[0], kept.gates[1], input_backprop));
    }
    if (problem_.has_dropout_between_layers() && l > 0) {
      CRNN_RETURN_IF_ERROR(Dropout(handles.stream, sequences, l - 1,
                                   reserve.seed, input_backprop));
    }

    // Padding in the caller's input may hold anything; ours holds zeros.
    StepsOperand operand = {};
    if (spec_.has_input_weights(l)) {
      CRNN_RETURN_IF_ERROR(MakeOperand(
          handles.stream, l == 0 ? sequences : WithoutLengths(sequences),
          /*is_recurrent=*/false, input_size,
          l == 0 ? buffer(kInput) : reserve.layers[l - 1].output,
          workspace.operand, &operand));
    }
    for (int64_t d = 0; d < num_dirs && spec_.has_input_weights(l); ++d) {
      CRNN_RETURN_IF_ERROR(MultiplySteps(
          handles, gate_rows, input_size, kept.gates[d], operand,
          workspace.parts,
          At(buffer(kParamsBackprop),
             layout.pseudo_layer(l * num_dirs + d).input_weights)));
    }
    for (int64_t d = 0; d < num_dirs; ++d) {
      const ParamLayout::PseudoLayer& at =
          layout.pseudo_layer(l * num_dirs + d);
      CRNN_RETURN_IF_ERROR(BackwardRecurrentWeights(
          handles, workspace, at, d, arguments, buffer(kParamsBackprop)));
      const auto bias = [&](int64_t offset) {
        return offset < 0 ? nullptr : At(buffer(kParamsBackprop), offset);
      };
      if (at.input_bias < 0 && at.recurrent_bias < 0) continue;
      CRNN_RETURN_IF_ERROR(auxiliary_.SumBiases(
          handles.stream, workspace.bias_sums[d], BiasRows(),
          static_cast<int>(units), static_cast<int>(spec_.num_gates()),
          static_cast<int>(slots_), static_cast<int>(slots_ - 1),
          bias(at.input_bias), bias(at.recurrent_bias)));
    }
    output_backprop = input_backprop;
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
