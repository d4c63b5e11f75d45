// The kernels of a layer whose steps are enqueued one by one: cuBLAS computes
// the products of a step, and one of these kernels the cells.
//
// Whoever compiles defines one of IS_FLOAT64, IS_FLOAT, IS_FLOAT16 and
// IS_BFLOAT16, and one of the kinds of cells that cells.cuh names.
#define HAS_EXACT_FUNCTIONS
#include "cells.cuh"
#include "elementwise.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::BackwardDirection;
using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::ForwardDirection;
using cudnn_rnn_tf::persistent::StepBuffers;

namespace {

// These load and store a number of an array of the network's type.
Sum LoadItem(const void* items, Index at) {
  return ToFloat(static_cast<const Item*>(items)[at]);
}
void StoreItem(void* items, Index at, Sum value) {
  static_cast<Item*>(items)[at] = FromFloat(value);
}

// The unit of a sequence, in one direction, that is number i of [D, B, H]. The
// host makes sure that the numbers of [D, G, B, H] can be counted in an int.
struct Place {
  int i, direction, b, unit;

  Place(const StepBuffers& steps, int batch, int i)
      : i(i),
        direction(i / steps.units / batch),
        b(i / steps.units % batch),
        unit(i % steps.units) {}

  // Its number of those that all gates have whose matrices read h.
  int OfGate(const StepBuffers& steps, int batch, int gate) const {
    return direction * kGatesOfH * batch * steps.units +
           gate * steps.gate_stride + b * steps.sequence_stride + unit;
  }
  // Its number of [D, B, P], if it is one of the projected units.
  int OfOutput(const StepBuffers& steps, int batch) const {
    return (direction * batch + b) * steps.outputs + unit;
  }
};

int Count(const StepBuffers& steps, int batch) {
  return steps.directions * batch * steps.units;
}

Sum Masked(const StepBuffers& steps, unsigned char mask, int gate, Sum value) {
  const Sum scale = 1.0f / (1.0f - static_cast<Sum>(steps.rate));
  return mask >> gate & 1 ? value * scale : 0.0f;
}

// Stores h where the next step's products read it.
void StoreOperand(const StepBuffers& steps, int batch, const Place& at, Sum h) {
  Item* const operands = static_cast<Item*>(steps.operands);
  if (steps.projected != nullptr) {
    StoreItem(steps.projected, at.OfOutput(steps, batch), h);
  } else if (steps.masks == nullptr) {
    operands[at.i] = FromFloat(h);
  } else {
    const unsigned char mask = steps.masks[at.i];
#pragma unroll
    for (int gate = 0; gate < kGatesOfH; ++gate) {
      operands[at.OfGate(steps, batch, gate)] =
          FromFloat(Masked(steps, mask, gate, h));
    }
  }
}

// Returns what is added to the product of gate `gate`, if its input has one
// slot: its input's product, which `gates` holds, and its biases.
template <typename Direction>
Sum InputOf(const Direction& my, const StepBuffers& steps, const Place& at,
            const Item* gates, int gate) {
  const int of_gate = gate * steps.units + at.unit;
  Sum input = ToFloat(gates[gate * steps.units]);
  if (my.input_bias != nullptr) {
    input += LoadItem(my.input_bias, of_gate);
  }
  if (my.recurrent_bias != nullptr) {
    input += LoadItem(my.recurrent_bias, of_gate);
  }
  return input;
}

// Stores the projected h of the step before where it is wanted.
void StoreProjected(const ForwardArguments& all, const ForwardDirection& my,
                    const StepBuffers& steps, const Place& at,
                    const Sequence& sequence, int step) {
  const Sequences& sequences = all.sequences;
  if (step <= 0 || step > sequence.length) return;
  const bool is_reversed = at.direction == 1;
  const Item h = static_cast<const Item*>(
      steps.projected)[at.OfOutput(steps, sequences.batch)];
  const Index row = sequence.RowAt(sequences, step - 1, is_reversed);
  static_cast<Item*>(my.output)[row * all.output_stride + at.unit] = h;
  if (step == sequence.length) {
    static_cast<Item*>(my.last_h)[at.b * all.state_stride + at.unit] = h;
  } else if (my.previous_h != nullptr) {
    const Index next = sequence.RowAt(sequences, step, is_reversed);
    static_cast<Item*>(my.previous_h)[next * steps.outputs + at.unit] = h;
  }
}

// Stores the gradient of the projected h after this step, or what stands for it
// in the padding, and begins the sum of that after the step before.
void StoreProjectedGradient(const BackwardArguments& all,
                            const BackwardDirection& my,
                            const StepBuffers& steps, const Place& at,
                            const Sequence& sequence, int step) {
  const Sequences& sequences = all.sequences;
  Item& gradient =
      static_cast<Item*>(steps.projected)[at.OfOutput(steps, sequences.batch)];
  const Index state = at.b * all.state_stride + at.unit;
  const bool is_padding = step >= sequence.length;
  if (step < 0) {
    // A sequence without steps has not begun a sum.
    static_cast<Item*>(my.first_h_backprop)[state] =
        sequence.is_invalid ? FromFloat(InvalidValue())
        : sequence.length == 0
            ? static_cast<const Item*>(my.last_h_backprop)[state]
            : gradient;
    return;
  }
  if (step < sequences.steps) {
    const bool is_reversed = at.direction == 1 && !is_padding;
    const Index row = sequence.RowAt(sequences, step, is_reversed);
    static_cast<Item*>(my.projected_backprop)[row * steps.outputs + at.unit] =
        !is_padding ? gradient
                    : FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
  }
  Sum sum = 0.0f;
  if (step > 0 && step <= sequence.length) {
    const Index before = sequence.RowAt(sequences, step - 1, at.direction == 1);
    sum = LoadItem(my.output_backprop, before * all.output_stride + at.unit);
    if (step == sequence.length) {
      sum += LoadItem(my.last_h_backprop, state);
    }
  }
  gradient = FromFloat(sum);
}

}  // namespace

// Copies a matrix to where it is aligned and beside the other direction's.
extern "C" __global__ void copy_weights(Index count, const Item* from,
                                        Item* to) {
  for (Index i = FirstIndex(); i < count; i += IndexStep()) to[i] = from[i];
}

// Draws the masks of a layer. They are those of a [gates of all layers, B, H]
// array, of which the layer's first gate is `first_gate`; `layer` is the number
// that the generator has for this array.
extern "C" __global__ void draw_masks(StepBuffers steps, int batch,
                                      Index first_gate, int layer,
                                      const unsigned long long* seed) {
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    int mask = 0;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const Index row =
          (first_gate + at.direction * kGates + gate) * batch + at.b;
      const Index element = row * steps.units + at.unit;
      if (!IsDropped(seed, layer, element, steps.threshold)) mask |= 1 << gate;
    }
    steps.masks[i] = static_cast<unsigned char>(mask);
  }
}

#if defined(IS_GRU_RESET_BEFORE)
// Multiplies h by the reset gate, for the products of the candidates.
extern "C" __global__ void reset_forward(const ForwardArguments all,
                                         StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const ForwardDirection& my = all.direction[at.direction];
    const Sequence sequence(sequences, at.b);
    if (step >= sequence.length) continue;
    const Index row = sequence.RowAt(sequences, step, at.direction == 1);
    const Item* const gates =
        static_cast<const Item*>(my.gates) + row * kSlots * units + at.unit;
    const Sum reset = Sigmoid(
        static_cast<const Sum*>(steps.products)[at.OfGate(steps, batch, 0)] +
        InputOf(my, steps, at, gates, 0));
    Sum h = static_cast<const Sum*>(steps.carried)[i];
    if (steps.masks != nullptr) h = Masked(steps, steps.masks[i], 2, h);
    StoreItem(steps.candidate_operands, i, reset * h);
  }
}

// Computes the gradients of the reset gates, after the products of those of the
// candidates.
extern "C" __global__ void reset_backward(const BackwardArguments all,
                                          StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const BackwardDirection& my = all.direction[at.direction];
    const Sequence sequence(sequences, at.b);
    if (step >= sequence.length) continue;
    const Index row = sequence.RowAt(sequences, step, at.direction == 1);
    Item& gate = static_cast<Item*>(my.gates)[row * kSlots * units + at.unit];
    const Sum reset = ToFloat(gate);
    const Sum h = LoadItem(my.previous_h, row * units + at.unit);
    Sum through = static_cast<const Sum*>(steps.candidate_products)[i];
    if (steps.masks != nullptr) {
      through = Masked(steps, steps.masks[i], 2, through);
    }
    static_cast<Sum*>(steps.carried)[i] += through * reset;
    const Sum gradient = through * h * reset * (1.0f - reset);
    gate = FromFloat(gradient);
    StoreItem(steps.operands, at.OfGate(steps, batch, 0), gradient);
    Sum& bias_sum = reinterpret_cast<Sum*>(
        my.bias_sums)[static_cast<Index>(at.b) * kSlots * units + at.unit];
    bias_sum = (step + 1 == sequence.length ? 0.0f : bias_sum) + gradient;
  }
}
#endif

// Computes the cells of a step after its products. Step -1 stands for the first
// states, which the first step reads. With projections, a step also stores the
// h of the step before, so there is one more after the last.
extern "C" __global__ void forward_step(const ForwardArguments all,
                                        StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  const bool projects = steps.projected != nullptr;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const ForwardDirection& my = all.direction[at.direction];
    const bool is_training = my.previous_h != nullptr;
    const bool has_output = at.unit < steps.outputs;
    const Sequence sequence(sequences, at.b);
    if (projects && has_output) {
      StoreProjected(all, my, steps, at, sequence, step);
    }
    if (step == sequences.steps) continue;
    const bool is_padding = step >= sequence.length;
    // Past the sequence's end, both directions go forward.
    const bool is_reversed = at.direction == 1 && !is_padding;
    const Index row = sequence.RowAt(sequences, step, is_reversed);
    const Index of_row = row * units + at.unit;
    const Index of_output = row * all.output_stride + at.unit;
    if (is_padding) {
      if (has_output) {
        StoreItem(my.output, of_output,
                  sequence.is_invalid ? InvalidValue() : 0.0f);
      }
      if (!is_training) continue;
      if (has_output) {
        StoreItem(my.previous_h, row * steps.outputs + at.unit, 0.0f);
      }
      if (projects) StoreItem(my.unprojected, of_row, 0.0f);
      continue;
    }
    const Index state = at.b * all.state_stride + at.unit;
    [[maybe_unused]] Sum* const carried = static_cast<Sum*>(steps.carried) + i;
    Sum h = 0.0f, c = 0.0f;
    if (step < 0) {
      if (has_output) h = LoadItem(my.first_h, state);
#if defined(IS_LSTM)
      c = LoadItem(my.first_c, at.b * steps.cell_stride + at.unit);
#endif
      if (sequence.is_invalid) h = c = InvalidValue();
    } else {
#if defined(IS_LSTM)
      c = *carried;
#elif defined(IS_GRU)
      h = *carried;
#endif
      Item* const gates =
          static_cast<Item*>(my.gates) + row * kSlots * units + at.unit;
      Sum sums[kGates], inputs[kSlots] = {}, values[kSlots];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const int of_gate = gate * units + at.unit;
        if (my.recurrent_bias != nullptr) {
          inputs[gate] += LoadItem(my.recurrent_bias, of_gate);
        }
        Sum input = ToFloat(gates[gate * units]);
        if (my.input_bias != nullptr) {
          input += LoadItem(my.input_bias, of_gate);
        }
        inputs[OtherSlot(gate)] += input;
        sums[gate] = gate < kGatesOfH
                         ? static_cast<const Sum*>(
                               steps.products)[at.OfGate(steps, batch, gate)]
                         : static_cast<const Sum*>(steps.candidate_products)[i];
      }
      ComputeCell(sums, inputs, &h, &c, values, steps.clip);
      if (projects) {
        StoreItem(steps.operands, i, h);
      } else {
        StoreItem(my.output, of_output, h);
      }
      if (is_training) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          if (kResetsBefore && slot == 3) continue;
          gates[slot * units] = FromFloat(values[slot]);
        }
#if defined(IS_GRU_RESET_BEFORE)
        gates[3 * units] =
            static_cast<const Item*>(steps.candidate_operands)[i];
#elif defined(IS_LSTM)
        reinterpret_cast<Sum*>(my.cells)[of_row] = c;
#endif
        if (projects) StoreItem(my.unprojected, of_row, h);
      }
    }
    const bool is_last = step + 1 == sequence.length;
#if defined(IS_LSTM)
    *carried = c;
    if (is_last) {
      StoreItem(my.last_c, at.b * steps.cell_stride + at.unit, c);
    }
#elif defined(IS_GRU)
    *carried = h;
#endif
    // What follows is for h after its projection, which is not known yet.
    if (!has_output || (projects && step >= 0)) continue;
    if (is_last) {
      StoreItem(my.last_h, state, h);
      continue;
    }
    StoreOperand(steps, batch, at, h);
    if (is_training) {
      const Index next = sequence.RowAt(sequences, step + 1, at.direction == 1);
      StoreItem(my.previous_h, next * steps.outputs + at.unit, h);
    }
  }
}

// Computes the gradients of a step's gates. Step -1 stands for the first
// states, whose gradients are the last to be computed. With projections, each
// step begins the sums of the step before, so there is one more, which is the
// first to be computed.
extern "C" __global__ void backward_step(const BackwardArguments all,
                                         StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  const bool projects = steps.projected != nullptr;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const BackwardDirection& my = all.direction[at.direction];
    const Sequence sequence(sequences, at.b);
    if (projects && at.unit < steps.outputs) {
      StoreProjectedGradient(all, my, steps, at, sequence, step);
    }
    if (step == sequences.steps) continue;
    const bool is_padding = step >= sequence.length;
    const bool is_reversed = at.direction == 1 && !is_padding;
    const Index row = sequence.RowAt(sequences, step, is_reversed);
    Item* const gates =
        static_cast<Item*>(my.gates) + row * kSlots * units + at.unit;
    Item* const operands = static_cast<Item*>(steps.operands);
    if (is_padding) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot * units] =
            FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      }
      if (!projects) continue;
      // The products are added to the sums that were begun.
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        operands[at.OfGate(steps, batch, gate)] = FromFloat(0.0f);
      }
      continue;
    }
    // After a sequence's last step, there are no products yet.
    const bool is_last = step + 1 == sequence.length;
    const Index state = at.b * all.state_stride + at.unit;
    const Sum* const products = static_cast<const Sum*>(steps.products);
    [[maybe_unused]] Sum* const carry = static_cast<Sum*>(steps.carried) + i;
    Sum dh = 0.0f, carried = 0.0f;
#if defined(IS_LSTM)
    const Index cell_state = at.b * steps.cell_stride + at.unit;
    carried = is_last ? LoadItem(my.last_c_backprop, cell_state) : *carry;
#elif defined(IS_GRU)
    if (!is_last) dh = *carry;
#endif
    if (projects) {
      if (step >= 0) dh = products[i];
    } else if (is_last) {
      dh = LoadItem(my.last_h_backprop, state);
    } else if (steps.masks == nullptr) {
      dh += products[i];
    } else {
      const unsigned char mask = steps.masks[i];
#pragma unroll
      for (int gate = 0; gate < kGatesOfH; ++gate) {
        dh +=
            Masked(steps, mask, gate, products[at.OfGate(steps, batch, gate)]);
      }
    }
    Sum* const bias_sums = reinterpret_cast<Sum*>(my.bias_sums) +
                           static_cast<Index>(at.b) * kSlots * units + at.unit;
    if (sequence.is_invalid) dh = carried = InvalidValue();
    if (step < 0) {
      if (!projects) {
        StoreItem(my.first_h_backprop, state, dh);
      }
#if defined(IS_LSTM)
      StoreItem(my.first_c_backprop, cell_state, carried);
#endif
      if (!is_last) continue;
      // The sequence has no steps.
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        bias_sums[slot * units] = sequence.is_invalid ? InvalidValue() : 0.0f;
      }
      continue;
    }
    CellInputs in = {};
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      in.gates[slot] = gates[slot * units];
    }
#if defined(IS_LSTM)
    const Index row_before = sequence.RowAt(sequences, step - 1, is_reversed);
    const Sum* const cells = reinterpret_cast<const Sum*>(my.cells);
    in.c = cells[row * units + at.unit];
    in.c_before = step > 0 ? cells[row_before * units + at.unit]
                           : LoadItem(my.first_c, cell_state);
#elif defined(IS_GRU)
    in.h_before =
        static_cast<const Item*>(my.previous_h)[row * units + at.unit];
#endif
    if (!projects) {
      dh += LoadItem(my.output_backprop, row * all.output_stride + at.unit);
    }
    Factors factors;
    factors.Compute(in, steps.clip);
    Sum carry_h, gradients[kSlots];
    factors.Apply(dh, &carry_h, &carried, gradients);
#if defined(IS_LSTM)
    *carry = carried;
#elif defined(IS_GRU)
    *carry = carry_h;
#endif
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      // The reset gate's gradient follows, and r * h stays.
      if (kResetsBefore && (slot == 0 || slot == 3)) continue;
      gates[slot * units] = FromFloat(gradients[slot]);
      bias_sums[slot * units] =
          (is_last ? 0.0f : bias_sums[slot * units]) + gradients[slot];
    }
#pragma unroll
    for (int gate = kResetsBefore ? 1 : 0; gate < kGatesOfH; ++gate) {
      operands[at.OfGate(steps, batch, gate)] =
          FromFloat(gradients[OtherSlot(gate)]);
    }
#if defined(IS_GRU_RESET_BEFORE)
    StoreItem(steps.candidate_operands, i, gradients[2]);
#endif
  }
}

// Masks the states before each step, [rows, H], as a gate's recurrent matrix
// has read them.
extern "C" __global__ void mask_states(Sequences all, StepBuffers steps,
                                       int direction, int gate,
                                       const Item* previous_h, Item* to) {
  const Index rows = static_cast<Index>(all.batch) * all.steps;
  for (Index i = FirstIndex(); i < rows * steps.units; i += IndexStep()) {
    const Index sequence = static_cast<Index>(direction) * all.batch +
                           StepOfRow(all, i / steps.units).b;
    const unsigned char mask =
        steps.masks[sequence * steps.units + i % steps.units];
    to[i] = FromFloat(Masked(steps, mask, gate, ToFloat(previous_h[i])));
  }
}
