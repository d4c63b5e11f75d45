// The backward pass of a network.
#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/persistent/network_memory.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

Sequences WithoutLengths(Sequences sequences) {
  sequences.lengths = sequences.order = nullptr;
  return sequences;
}

}  // namespace

struct Network::BackwardPass {
  const Network& network;
  const Handles& handles;
  const RnnBackwardBuffers& buffers;
  const RnnSpec& spec = network.spec_;
  const Auxiliary& auxiliary = network.auxiliary_;
  const ParamLayout& layout = network.layout_;
  const BackwardWorkspace workspace = {network, buffers.workspace};
  const Reserve reserve = {network, buffers.reserve_space};
  const BackwardProducts& products = workspace.products;
  const int64_t units = spec.num_units;

  // Computes the gradients of a direction's recurrent matrices. The gradient of
  // the recurrent side of a GRU's candidate is in the slot after the gates or,
  // if the reset gate acts before the product, what the candidate's matrix
  // reads is there. Neighbouring gates whose matrices read the same numbers
  // share a product.
  RnnStatus RecurrentWeights(const ParamLayout::PseudoLayer& at, int64_t d,
                             const BackwardArguments& arguments,
                             void* room) const {
    const CellKind& kind = spec.kind();
    const int64_t outputs = spec.output_size(), num_gates = kind.num_gates;
    const BackwardDirection& direction = arguments.direction[d];
    const bool has_masks = network.problem_.has_recurrent_dropout();
    const StepRows previous_h = Auxiliary::StatesBefore(
        arguments.sequences, d, direction.output, arguments.output_stride,
        direction.first_h, arguments.state_stride);
    Factor operand = {};
    const auto make_operand = [&](const StepRows& values) {
      return products.MakeOperand(handles, d, direction.gates, outputs, values,
                                  room, &operand);
    };
    if (has_masks) {
      CRNN_RETURN_IF_ERROR(
          auxiliary.CopySteps(handles.stream, previous_h, outputs, room));
    }
    for (int64_t gate = 0, count = 0; gate < num_gates; gate += count) {
      void* const gradient =
          network.At(buffers.params_backprop,
                     at.recurrent_weights + gate * units * outputs);
      const bool is_joint = gate < kind.joint_gates;
      if (!is_joint && kind.resets_before) {
        CRNN_RETURN_IF_ERROR(
            make_operand({WithoutLengths(arguments.sequences),
                          network.At(direction.gates, num_gates * units),
                          network.slots_ * units}));
        return products.Gates(handles, units, outputs, direction.gates, gate,
                              operand, gradient);
      }
      const int64_t slot = is_joint ? gate : num_gates;
      if (has_masks) {
        count = 1;
        CRNN_RETURN_IF_ERROR(network.loop_->MaskStates(
            handles.stream, *workspace.step_memory, arguments.sequences, d,
            gate, room, workspace.masked_h));
      } else {
        count = is_joint ? kind.joint_gates : 1;
      }
      if (has_masks) {
        CRNN_RETURN_IF_ERROR(make_operand({WithoutLengths(arguments.sequences),
                                           workspace.masked_h, outputs}));
      } else if (gate == 0) {
        CRNN_RETURN_IF_ERROR(make_operand(previous_h));
      }
      CRNN_RETURN_IF_ERROR(products.Gates(handles, count * units, outputs,
                                          direction.gates, slot, operand,
                                          gradient));
    }
    return {};
  }

  // Computes h of a direction, before its projection, from what is kept. The
  // layer's steps overwrite that.
  RnnStatus ComputeH(int64_t l, int64_t d, int64_t pitch, void* to) const {
    return auxiliary.Enqueue(
        "compute_h", handles.stream, GridOver(network.rows_ * 32),
        Auxiliary::Unordered(
            network.SequencesOf(reserve.lengths, reserve.order, nullptr)),
        network.rows_, auxiliary.units, spec.cell_clip,
        reserve.layers[l].gates[d], reserve.layers[l].cells[d], pitch, to);
  }
  // Makes the outputs of layer `l` anew, if they are not kept.
  RnnStatus MakeOutputs(int64_t l, void* to) const {
    for (int64_t d = 0; auxiliary.remakes_outputs && d < spec.num_dirs(); ++d) {
      CRNN_RETURN_IF_ERROR(
          ComputeH(l, d, spec.layer_output_size(), network.At(to, d * units)));
    }
    return {};
  }
  // Where the outputs of an inner layer are while its matrices' gradients are
  // computed. Those made anew stand in gates that have been read by then: where
  // the layer above reads them too, in those of the layer above that one.
  void* OutputsOf(int64_t l) const {
    if (!auxiliary.remakes_outputs) return reserve.layers[l].output;
    if (l + 2 < spec.num_layers) return reserve.layers[l + 2].gates[0];
    return reserve.layers[l + 1].cells[0] -
           Arena::Rounded(network.rows_ * spec.layer_output_size() *
                          network.item_);
  }

  // Returns what the backward kernel reads and writes for layer `l`.
  BackwardArguments Arguments(int64_t l, const void* output_backprop) const {
    BackwardArguments arguments = {};
    arguments.sequences =
        network.SequencesOf(reserve.lengths, reserve.order, buffers.resets);
    arguments.output_stride = spec.layer_output_size();
    arguments.state_stride = network.StateStride(spec.output_size());
    arguments.zoneout = network.ZoneoutOf(reserve.seed);
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      const int64_t pseudo_layer = l * spec.num_dirs() + d;
      const int64_t state =
          network.StateOffset(pseudo_layer, spec.output_size());
      BackwardDirection& direction = arguments.direction[d];
      network.SetDirection(pseudo_layer, buffers, reserve.layers[l].gates[d],
                           reserve, &direction);
      direction.vector_sums = workspace.vector_sums[d];
      direction.output =
          network.At(l + 1 == spec.num_layers ? buffers.output : OutputsOf(l),
                     d * spec.output_size());
      direction.output_backprop =
          network.At(output_backprop, d * spec.output_size());
      direction.last_h_backprop = network.At(buffers.output_h_backprop, state);
      direction.first_h_backprop = network.At(buffers.input_h_backprop, state);
      direction.bias_sums = workspace.bias_sums[d];
      direction.projected_backprop = workspace.projected_backprop[d];
      if (spec.has_c()) {
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

  // Where a layer has room for the arrays of BackwardWorkspace::room.
  void* RoomOf(int64_t l) const {
    return workspace.room != nullptr ? workspace.room
                                     : reserve.layers[l].cells[0];
  }

  // The following compute the gradients of layer `l` from those of its gates,
  // which the backward kernel has put in the place of the gates.
  RnnStatus Inputs(int64_t l, const BackwardArguments& arguments,
                   void* input_backprop) const {
    if (!products.HasInputs(l)) return {};
    std::array<const void*, kMaxDirs> gates = {}, weights = {};
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      gates[d] = arguments.direction[d].gates;
      weights[d] = network.Param(
          buffers.params,
          layout.pseudo_layer(l * spec.num_dirs() + d).input_weights);
    }
    return products.Inputs(handles, l, gates, weights, input_backprop);
  }
  RnnStatus Params(int64_t l, const BackwardArguments& arguments) const {
    // Padding in our own input holds zeros.
    const Sequences sequences = l == 0
                                    ? Auxiliary::Unordered(arguments.sequences)
                                    : WithoutLengths(arguments.sequences);
    const void* input = buffers.input;
    if (l > 0) {
      // The last layer's gates have not been read yet.
      void* const below = auxiliary.remakes_outputs && l + 1 == spec.num_layers
                              ? RoomOf(l)
                              : OutputsOf(l - 1);
      CRNN_RETURN_IF_ERROR(MakeOutputs(l - 1, below));
      input = below;
    }
    if (network.problem_.has_dropout_between_layers() && l > 0) {
      CRNN_RETURN_IF_ERROR(auxiliary.ApplyDropout(
          handles.stream, sequences, spec.layer_output_size(), l - 1,
          reserve.seed, input, RoomOf(l)));
      input = RoomOf(l);
    }
    const int64_t input_size = spec.layer_input_size(l);
    // The gradient of the input takes this place when a copy has been read.
    void* const room =
        products.HasInputs(l) ? buffers.input_backprop : RoomOf(l);
    const auto pseudo_layer = [&](int64_t d) -> auto& {
      return layout.pseudo_layer(l * spec.num_dirs() + d);
    };
    // All directions' products with the input come before the others, which may
    // make another operand in the same memory.
    if (spec.has_input_weights(l)) {
      Factor operand = {};
      for (int64_t d = 0; d < spec.num_dirs(); ++d) {
        if (d == 0 || network.products_.halves()) {
          CRNN_RETURN_IF_ERROR(products.MakeOperand(
              handles, d, arguments.direction[d].gates, input_size,
              {sequences, input, input_size}, room, &operand));
        }
        CRNN_RETURN_IF_ERROR(
            products.Gates(handles, spec.num_gates() * units, input_size,
                           arguments.direction[d].gates, 0, operand,
                           network.At(buffers.params_backprop,
                                      pseudo_layer(d).input_weights)));
      }
    }
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      const ParamLayout::PseudoLayer& at = pseudo_layer(d);
      CRNN_RETURN_IF_ERROR(RecurrentWeights(at, d, arguments, RoomOf(l)));
      if (spec.num_proj > 0) {
        CRNN_RETURN_IF_ERROR(products.Matrix(
            handles, spec.num_proj, units,
            {workspace.projected_backprop[d], spec.num_proj},
            {workspace.unprojected[d], units},
            /*halved=*/false,
            network.At(buffers.params_backprop, at.projection)));
      }
      if (at.input_bias < 0 && at.recurrent_bias < 0) continue;
      const int slots = auxiliary.slots, gates = auxiliary.gates;
      CRNN_RETURN_IF_ERROR(auxiliary.Enqueue(
          "sum_biases", handles.stream,
          {CeilDiv(slots * auxiliary.units, 32), 32,
           std::clamp(static_cast<int>(network.BiasRows()) / 8, 8, 32)},
          workspace.bias_sums[d], network.BiasRows(), auxiliary.units, gates,
          slots, (spec.kind().splits_gate() ? slots : gates) - 1,
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
      for (int64_t d = 0; spec.num_proj > 0 && d < spec.num_dirs(); ++d) {
        CRNN_RETURN_IF_ERROR(ComputeH(l, d, units, workspace.unprojected[d]));
      }
      if (l + 2 == spec.num_layers) {
        CRNN_RETURN_IF_ERROR(MakeOutputs(l, OutputsOf(l)));
      }
      CRNN_RETURN_IF_ERROR(
          workspace.step_memory
              ? network.loop_->Backward(handles, *workspace.step_memory, l,
                                        reserve.seed, arguments)
          : network.folds()
              ? network.BackwardProjected(handles, workspace, arguments)
              : network.backward_.Enqueue(handles.stream, workspace.team_memory,
                                          &arguments));

      // The gradient of the inputs goes to the layer below, or to the caller.
      void* const input_backprop = l == 0 ? buffers.input_backprop
                                   : workspace.gradient != nullptr
                                       ? workspace.gradient
                                       : RoomOf(l);
      // Gates are halved in place, so products that read floats come first.
      const bool reads_floats = products.ReadsFloats(l);
      if (reads_floats) {
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
              handles.stream, arguments, d, network.StateStride(units),
              products.parts(), network.At(buffers.params_backprop, vectors)));
        }
        CRNN_RETURN_IF_ERROR(
            products.Halve(handles, d, arguments.direction[d].gates));
      }
      CRNN_RETURN_IF_ERROR(Params(l, arguments));
      if (!reads_floats) {
        CRNN_RETURN_IF_ERROR(Inputs(l, arguments, input_backprop));
      }
      if (network.problem_.has_dropout_between_layers() && l > 0) {
        CRNN_RETURN_IF_ERROR(auxiliary.ApplyDropout(
            handles.stream, sequences, spec.layer_output_size(), l - 1,
            reserve.seed, input_backprop, input_backprop));
      }
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
