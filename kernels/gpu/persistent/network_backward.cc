// The backward pass of a network.
#include <algorithm>

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

bool Network::IsTransposed(int64_t columns) const {
  return problem_.dtype == RnnDataType::kFloat32 && allows_tf32_ && !halves_ &&
         spec_.num_gates() * spec_.num_units * columns >= kTransposedWeights;
}

struct Network::BackwardPass {
  const Network& network;
  const Handles& handles;
  const RnnBackwardBuffers& buffers;
  const RnnSpec& spec = network.spec_;
  const Auxiliary& auxiliary = network.auxiliary_;
  const ParamLayout& layout = network.layout_;
  const BackwardWorkspace workspace = {network, buffers.workspace};
  const Reserve reserve = {network, buffers.reserve_space};
  const int64_t units = spec.num_units, rows = network.rows_;
  // The numbers of a unit's gates, and those that its slots have in memory.
  const int64_t gate_rows = spec.num_gates() * units;
  const int64_t gates_pitch = network.slots_ * units;

  // Sets `operand` to values, [rows, width], with rows that are `pitch` numbers
  // apart, as products with the gates of direction `d` over all steps read
  // them. Their padding is undefined if `sequences` has lengths. The powers of
  // the gates' steps differ, so the other operand is multiplied by them.
  RnnStatus MakeOperand(const Sequences& sequences, int64_t d,
                        bool may_transpose, int64_t width, int64_t pitch,
                        const void* values, Factor* operand) const {
    if (network.halves_) {
      *operand = {workspace.operand, Halves::Pitch(width)};
      return network.halves_->Columns(
          handles.stream, sequences, rows, width, pitch, values,
          workspace.step_powers[d], workspace.column_powers, workspace.operand);
    }
    if (may_transpose && network.IsTransposed(width)) {
      *operand = {workspace.operand, network.TransposedPitch(), true};
      return auxiliary.TransposeSteps(handles.stream, sequences, width,
                                      operand->pitch, values,
                                      workspace.operand);
    }
    *operand = {values, pitch};
    if (sequences.lengths == nullptr) return {};
    void* const copy = network.InputFitsAbove() ? reserve.layers[1].gates[0]
                                                : workspace.operand;
    operand->numbers = copy;
    return auxiliary.CopyWithoutPadding(handles.stream, sequences, width,
                                        values, copy);
  }
  // Returns the gradients of a gate and those after it, as products over all
  // steps read them.
  Factor OfGates(const BackwardDirection& direction, int64_t gate) const {
    if (!network.halves_) {
      return {network.At(direction.gates, gate * units), gates_pitch};
    }
    return {static_cast<uint16_t*>(direction.gates) + gate * units,
            2 * gates_pitch};
  }
  // Puts the gradients of a direction's gates in float16 where they stand.
  RnnStatus HalveGates(const BackwardDirection& direction, int64_t d) const {
    // A GRU that resets before has what its candidate reads in the last slot.
    const int64_t width = spec.resets_before() ? gate_rows : gates_pitch;
    return network.halves_->Rows(handles.stream, rows, width, gates_pitch,
                                 direction.gates, /*least=*/0.0f,
                                 2 * gates_pitch, direction.gates,
                                 workspace.step_powers[d]);
  }

  // Returns the number of parts that the sum over all steps is divided into for
  // the gradient of a matrix, [m, n]. They are computed at the same time.
  // cuBLAS divides such sums as well, but into few parts, which it adds one
  // after the other. The parts have the same number of rows each, so there may
  // be less of them than the GPU could compute at the same time.
  int64_t PartsOfSum(int64_t m, int64_t n) const {
    constexpr int64_t kFewestParts = 8, kFewestRows = 64;
    const int64_t tiles = CeilDiv(m, kTileSize) * CeilDiv(n, kTileSize);
    for (int64_t parts = std::min(kMostTiles / tiles, rows / kFewestRows);
         parts >= kFewestParts; --parts) {
      if (rows % parts == 0) return parts;
    }
    return 1;
  }

  // Computes a product, [m, n], of operands in float16, of which `b` has rows
  // of Halves::Pitch(n) numbers, and divides it by the powers of b's columns
  // and of a's rows, if those have any. cuBLAS takes three times as long for
  // products whose columns are no multiple of eight, so it gets those of b's
  // padding too.
  RnnStatus MultiplyHalves(int64_t m, int64_t n, int64_t k, const Factor& a,
                           const Factor& b, const float* of_rows,
                           void* result) const {
    const int64_t pitch = Halves::Pitch(n);
    void* const products = pitch == n ? result : workspace.padded;
    CRNN_RETURN_IF_ERROR(Multiply(handles.blas, kHalfProducts, m, pitch, k, a,
                                  b,
                                  {products, network.problem_.dtype, pitch}));
    return network.halves_->Unscale(handles.stream, m, n, pitch, of_rows,
                                    workspace.column_powers, products, result);
  }

  // Computes the gradient of a matrix, [m, n], whose place in the parameters is
  // `offset`, from the gradients of its products, [rows, m]. Operands may be
  // `halved`.
  RnnStatus MultiplySteps(int64_t m, int64_t n, Factor of_products,
                          const Factor& operand, bool halved,
                          int64_t offset) const {
    const RnnDataType dtype = network.problem_.dtype;
    const ProductType type = halved ? kHalfProducts : network.product_type();
    void* const gradient = network.At(buffers.params_backprop, offset);
    const int64_t parts = PartsOfSum(m, n), of_part = rows / parts;
    of_products.is_transposed = true;
    if (halved && parts == 1) {
      return MultiplyHalves(m, n, rows, of_products, operand,
                            /*of_rows=*/nullptr, gradient);
    }
    of_products.stride = of_part * of_products.pitch;
    CRNN_RETURN_IF_ERROR(Multiply(
        handles.blas, type, m, n, of_part, of_products,
        {operand.numbers, operand.pitch, operand.is_transposed,
         of_part * operand.pitch},
        parts == 1 ? Product{gradient, dtype, n}
                   : Product{workspace.parts, SumType(dtype), n, false, m * n},
        parts));
    if (parts > 1) {
      CRNN_RETURN_IF_ERROR(auxiliary.AddParts(handles.stream, m * n, parts,
                                              workspace.parts, gradient));
    }
    if (!halved) return {};
    return network.halves_->Unscale(
        handles.stream, m, n, n,
        /*of_rows=*/nullptr, workspace.column_powers, gradient, gradient);
  }

  // Computes the gradients of a direction's recurrent matrices. The gradient of
  // the recurrent side of a GRU's candidate is in the slot after the gates or,
  // if the reset gate acts before the product, what the candidate's matrix
  // reads is there. Neighbouring gates whose matrices read the same numbers
  // share a product.
  RnnStatus RecurrentWeights(const ParamLayout::PseudoLayer& at, int64_t d,
                             const BackwardArguments& arguments,
                             void* previous_h) const {
    const CellKind& kind = spec.kind();
    const int64_t outputs = spec.output_size(), num_gates = kind.num_gates;
    const BackwardDirection& direction = arguments.direction[d];
    const bool has_masks = network.problem_.has_recurrent_dropout();
    const bool halved = network.halves_.has_value();
    const Sequences sequences = WithoutLengths(arguments.sequences);
    // Nothing but these products reads the states that are transposed.
    const bool transposes = !has_masks && network.IsTransposed(outputs);
    Factor operand = {};
    if (transposes) {
      operand = {workspace.operand, network.TransposedPitch(), true};
    }
    CRNN_RETURN_IF_ERROR(auxiliary.ShiftStates(
        handles.stream, arguments, d, outputs, operand.pitch,
        transposes ? workspace.operand : previous_h));
    for (int64_t gate = 0, count = 0; gate < num_gates; gate += count) {
      const int64_t offset = at.recurrent_weights + gate * units * outputs;
      const bool is_joint = gate < kind.joint_gates;
      if (!is_joint && kind.resets_before) {
        CRNN_RETURN_IF_ERROR(MakeOperand(
            sequences, d, /*may_transpose=*/false, outputs, gates_pitch,
            network.At(direction.gates, num_gates * units), &operand));
        return MultiplySteps(units, outputs, OfGates(direction, gate), operand,
                             halved, offset);
      }
      const int64_t slot = is_joint ? gate : num_gates;
      if (has_masks) {
        count = 1;
        CRNN_RETURN_IF_ERROR(network.loop_->MaskStates(
            handles.stream, *workspace.step_memory, arguments.sequences, d,
            gate, previous_h, workspace.masked_h));
      } else {
        count = is_joint ? kind.joint_gates : 1;
      }
      if (has_masks || (gate == 0 && !transposes)) {
        CRNN_RETURN_IF_ERROR(
            MakeOperand(sequences, d, /*may_transpose=*/false, outputs, outputs,
                        has_masks ? workspace.masked_h : previous_h, &operand));
      }
      CRNN_RETURN_IF_ERROR(MultiplySteps(count * units, outputs,
                                         OfGates(direction, slot), operand,
                                         halved, offset));
    }
    return {};
  }

  // Returns what the backward kernel reads and writes for layer `l`.
  BackwardArguments Arguments(int64_t l, const void* output_backprop) const {
    const Reserve::OfLayer& kept = reserve.layers[l];
    BackwardArguments arguments = {};
    arguments.sequences =
        network.SequencesOf(reserve.lengths, reserve.order, buffers.resets);
    arguments.output_stride = spec.layer_output_size();
    arguments.state_stride = network.StateStride();
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      const int64_t pseudo_layer = l * spec.num_dirs() + d;
      const int64_t state =
          network.StateOffset(pseudo_layer, spec.output_size());
      BackwardDirection& direction = arguments.direction[d];
      network.SetDirection(pseudo_layer, buffers, kept.gates[d], reserve,
                           &direction);
      direction.vector_sums = workspace.vector_sums[d];
      direction.output =
          network.At(l + 1 == spec.num_layers ? buffers.output : kept.output,
                     d * spec.output_size());
      direction.output_backprop =
          network.At(output_backprop, d * spec.output_size());
      direction.last_h_backprop = network.At(buffers.output_h_backprop, state);
      direction.first_h_backprop = network.At(buffers.input_h_backprop, state);
      direction.bias_sums = workspace.bias_sums[d];
      direction.projected_backprop = workspace.projected_backprop[d];
      if (spec.is_lstm()) {
        const int64_t cell_state = network.StateOffset(pseudo_layer, units);
        direction.last_c_backprop =
            network.At(buffers.output_c_backprop, cell_state);
        direction.first_c_backprop =
            network.At(buffers.input_c_backprop, cell_state);
        if (l + 1 == spec.num_layers && network.problem_.has_cell_sequences) {
          direction.all_c_backprop =
              network.At(buffers.cell_sequences_backprop, d * units);
        }
      }
    }
    return arguments;
  }

  // Tells whether the gradient of a layer's input is computed in float16. Those
  // of two directions, whose powers differ, could not be added to each other.
  bool HalvesInputs(int64_t l) const {
    return network.halves_ && spec.num_dirs() == 1 && spec.has_input_weights(l);
  }
  // The following compute the gradients of layer `l` from those of its gates,
  // which the backward kernel has put in the place of the gates.
  RnnStatus Inputs(int64_t l, const BackwardArguments& arguments,
                   void* input_backprop) const {
    if (!spec.has_input_weights(l)) {
      return auxiliary.GatherInputs(
          handles.stream, arguments.direction[0].gates,
          arguments.direction[1].gates, input_backprop);
    }
    const int64_t input_size = spec.layer_input_size(l);
    if (HalvesInputs(l)) {
      const int64_t weights = layout.pseudo_layer(l).input_weights;
      CRNN_RETURN_IF_ERROR(network.halves_->Columns(
          handles.stream, {}, gate_rows, input_size, input_size,
          network.Param(buffers.params, weights), /*factors=*/nullptr,
          workspace.column_powers, workspace.weights));
      return MultiplyHalves(rows, input_size, gate_rows,
                            OfGates(arguments.direction[0], 0),
                            {workspace.weights, Halves::Pitch(input_size)},
                            workspace.step_powers[0], input_backprop);
    }
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      const int64_t weights =
          layout.pseudo_layer(l * spec.num_dirs() + d).input_weights;
      CRNN_RETURN_IF_ERROR(
          Multiply(handles.blas, network.product_type(), rows, input_size,
                   gate_rows, {arguments.direction[d].gates, gates_pitch},
                   {network.Param(buffers.params, weights), input_size},
                   {input_backprop, network.problem_.dtype, input_size,
                    /*adds=*/d > 0}));
    }
    return {};
  }
  RnnStatus Params(int64_t l, const BackwardArguments& arguments) const {
    // Padding in the caller's input may hold anything; ours holds zeros.
    const Sequences sequences =
        l == 0 ? arguments.sequences : WithoutLengths(arguments.sequences);
    const void* input = l == 0 ? buffers.input : reserve.layers[l - 1].output;
    if (network.problem_.has_dropout_between_layers() && l > 0) {
      CRNN_RETURN_IF_ERROR(auxiliary.ApplyDropout(
          handles.stream, sequences, spec.layer_output_size(), l - 1,
          reserve.seed, input, workspace.copy));
      input = workspace.copy;
    }
    const int64_t input_size = spec.layer_input_size(l);
    const auto pseudo_layer = [&](int64_t d) -> auto& {
      return layout.pseudo_layer(l * spec.num_dirs() + d);
    };
    // All directions' products with the input come before the others, which may
    // make another operand in the same memory.
    if (spec.has_input_weights(l)) {
      Factor operand = {};
      const bool halved = network.halves_.has_value();
      for (int64_t d = 0; d < spec.num_dirs(); ++d) {
        if (d == 0 || halved) {
          CRNN_RETURN_IF_ERROR(MakeOperand(sequences, d, /*may_transpose=*/true,
                                           input_size, input_size, input,
                                           &operand));
        }
        CRNN_RETURN_IF_ERROR(MultiplySteps(
            gate_rows, input_size, OfGates(arguments.direction[d], 0), operand,
            halved, pseudo_layer(d).input_weights));
      }
    }
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      const ParamLayout::PseudoLayer& at = pseudo_layer(d);
      CRNN_RETURN_IF_ERROR(RecurrentWeights(at, d, arguments,
                                            workspace.copy != nullptr
                                                ? workspace.copy
                                                : reserve.layers[l].cells[d]));
      if (spec.num_proj > 0) {
        CRNN_RETURN_IF_ERROR(
            MultiplySteps(spec.num_proj, units,
                          {workspace.projected_backprop[d], spec.num_proj},
                          {reserve.layers[l].unprojected[d], units},
                          /*halved=*/false, at.projection));
      }
      if (at.input_bias < 0 && at.recurrent_bias < 0) continue;
      CRNN_RETURN_IF_ERROR(auxiliary.SumBiases(
          handles.stream, workspace.bias_sums[d], network.BiasRows(),
          network.Param(buffers.params_backprop, at.input_bias),
          network.Param(buffers.params_backprop, at.recurrent_bias)));
    }
    return {};
  }

  RnnStatus Run() const {
    CRNN_RETURN_IF_ERROR(SetUpBlas(handles, workspace.blas, kBlasBytes));
    const void* output_backprop = buffers.output_backprop;
    for (int64_t l = spec.num_layers; l-- > 0;) {
      BackwardArguments arguments = Arguments(l, output_backprop);
      const Sequences& sequences = arguments.sequences;
      CRNN_RETURN_IF_ERROR(
          workspace.step_memory
              ? network.loop_->Backward(handles, *workspace.step_memory, l,
                                        reserve.seed, arguments)
          : network.folds()
              ? network.BackwardProjected(handles, workspace, arguments)
              : network.backward_.Enqueue(handles.stream, workspace.ring,
                                          &arguments));

      // The gradient of the inputs goes to the layer below, or to the caller.
      void* const input_backprop = l == 0 || workspace.gradient == nullptr
                                       ? buffers.input_backprop
                                       : workspace.gradient;
      // Gates are halved in place, so products that read floats come first.
      if (!HalvesInputs(l)) {
        CRNN_RETURN_IF_ERROR(Inputs(l, arguments, input_backprop));
      }
      for (int64_t d = 0; d < spec.num_dirs(); ++d) {
        const int64_t vectors =
            layout.pseudo_layer(l * spec.num_dirs() + d).vectors;
        if (spec.normalizes()) {
          CRNN_RETURN_IF_ERROR(auxiliary.AddParts(
              handles.stream, spec.kind().num_vectors * spec.num_units,
              network.BiasRows(), workspace.vector_sums[d],
              network.At(buffers.params_backprop, vectors)));
        } else if (vectors >= 0) {
          CRNN_RETURN_IF_ERROR(auxiliary.SumVectors(
              handles.stream, arguments, d, network.CellStride(),
              workspace.parts, network.At(buffers.params_backprop, vectors)));
        }
        if (network.halves_) {
          CRNN_RETURN_IF_ERROR(HalveGates(arguments.direction[d], d));
        }
      }
      if (HalvesInputs(l)) {
        CRNN_RETURN_IF_ERROR(Inputs(l, arguments, input_backprop));
      }
      if (network.problem_.has_dropout_between_layers() && l > 0) {
        CRNN_RETURN_IF_ERROR(auxiliary.ApplyDropout(
            handles.stream, sequences, spec.layer_output_size(), l - 1,
            reserve.seed, input_backprop, input_backprop));
      }
      CRNN_RETURN_IF_ERROR(Params(l, arguments));
      output_backprop = input_backprop;
    }
    return {};
  }
};

RnnStatus Network::Backward(const Handles& handles,
                            const RnnBackwardBuffers& buffers) const {
  return BackwardPass{*this, handles, buffers}.Run();
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
