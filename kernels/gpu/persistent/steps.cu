// The kernels of a layer whose steps are enqueued one by one. With recurrent
// dropout, each gate's recurrent matrix reads h through a mask of its own, so a
// step is one product for each gate, which cuBLAS computes, and one of these
// kernels, which computes the cells.
//
// Whoever compiles defines one of IS_FLOAT, IS_FLOAT16 and IS_BFLOAT16, and one
// of IS_LSTM, IS_GRU, IS_TANH and IS_RELU.
#include "cells.cuh"
#include "elementwise.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::BackwardDirection;
using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::ForwardDirection;
using cudnn_rnn_tf::persistent::StepBuffers;

namespace {

// The unit of a sequence, in one direction, that is number i of [D, B, H]. The
// host makes sure that the numbers of [D, G, B, H] can be counted in an int.
struct Place {
  int direction, b, unit;

  __device__ Place(const StepBuffers& steps, int batch, int i)
      : direction(i / steps.units / batch),
        b(i / steps.units % batch),
        unit(i % steps.units) {}

  // Its number of [D, G, B, H].
  __device__ int OfGate(const StepBuffers& steps, int batch, int gate) const {
    return ((direction * kGates + gate) * batch + b) * steps.units + unit;
  }
};

__device__ int Count(const StepBuffers& steps, int batch) {
  return steps.directions * batch * steps.units;
}

__device__ float Masked(const StepBuffers& steps, unsigned char mask, int gate,
                        float value) {
  return mask >> gate & 1 ? value * steps.scale : 0.0f;
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
      const Index element =
          first_gate * batch * steps.units + at.OfGate(steps, batch, gate);
      if (!IsDropped(seed, layer, element, steps.threshold)) mask |= 1 << gate;
    }
    steps.masks[i] = static_cast<unsigned char>(mask);
  }
}

// Computes the cells of a step after its products. Step -1 stands for the first
// states, which the first step reads.
extern "C" __global__ void forward_step(const ForwardArguments all,
                                        StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const ForwardDirection& my = all.direction[at.direction];
    const Sequence sequence(sequences, at.b);
    const bool is_padding = step >= sequence.length;
    // Past the sequence's end, both directions go forward.
    const bool is_reversed = at.direction == 1 && !is_padding;
    const Index row = sequence.RowAt(sequences, step, is_reversed);
    const Index of_row = row * units + at.unit;
    const Index of_output = row * all.output_stride + at.unit;
    if (is_padding) {
      static_cast<Item*>(my.output)[of_output] =
          FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      static_cast<Item*>(my.previous_h)[of_row] = FromFloat(0.0f);
      continue;
    }
    const Index state = at.b * all.state_stride + at.unit;
    float h = 0.0f, c = 0.0f;
    if (step <= 0) {
      h = ToFloat(static_cast<const Item*>(my.first_h)[state]);
#if defined(IS_LSTM)
      c = ToFloat(static_cast<const Item*>(my.first_c)[state]);
#endif
    } else {
      h = steps.carried[i];
#if defined(IS_LSTM)
      const Index before = sequence.RowAt(sequences, step - 1, is_reversed);
      c = my.cells[before * units + at.unit];
#endif
    }
    if (sequence.is_invalid) h = c = InvalidValue();
    if (step >= 0) {
      static_cast<Item*>(my.previous_h)[of_row] = FromFloat(h);
      Item* const gates =
          static_cast<Item*>(my.gates) + row * kSlots * units + at.unit;
      float sums[kGates], inputs[kSlots] = {}, values[kSlots];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const int of_gate = gate * units + at.unit;
        if (my.recurrent_bias != nullptr) {
          inputs[gate] +=
              ToFloat(static_cast<const Item*>(my.recurrent_bias)[of_gate]);
        }
        float input = ToFloat(gates[gate * units]);
        if (my.input_bias != nullptr) {
          input += ToFloat(static_cast<const Item*>(my.input_bias)[of_gate]);
        }
        inputs[OtherSlot(gate)] += input;
        sums[gate] = steps.products[at.OfGate(steps, batch, gate)];
      }
      ComputeCell(sums, inputs, &h, &c, values);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot * units] = FromFloat(values[slot]);
      }
      static_cast<Item*>(my.output)[of_output] = FromFloat(h);
#if defined(IS_LSTM)
      my.cells[of_row] = c;
#endif
    }
    if (step + 1 == sequence.length) {
      static_cast<Item*>(my.last_h)[state] = FromFloat(h);
#if defined(IS_LSTM)
      static_cast<Item*>(my.last_c)[state] = FromFloat(c);
#endif
      continue;
    }
    steps.carried[i] = h;
    const unsigned char mask = steps.masks[i];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      static_cast<Item*>(steps.operands)[at.OfGate(steps, batch, gate)] =
          FromFloat(Masked(steps, mask, gate, h));
    }
  }
}

// Computes the gradients of a step's gates. Step -1 stands for the first
// states, whose gradients are the last to be computed.
extern "C" __global__ void backward_step(const BackwardArguments all,
                                         StepBuffers steps, int step) {
  const Sequences& sequences = all.sequences;
  const int batch = sequences.batch, units = steps.units;
  for (Index i = FirstIndex(); i < Count(steps, batch); i += IndexStep()) {
    const Place at(steps, batch, static_cast<int>(i));
    const BackwardDirection& my = all.direction[at.direction];
    const Sequence sequence(sequences, at.b);
    const bool is_padding = step >= sequence.length;
    const bool is_reversed = at.direction == 1 && !is_padding;
    const Index row = sequence.RowAt(sequences, step, is_reversed);
    Item* const gates =
        static_cast<Item*>(my.gates) + row * kSlots * units + at.unit;
    if (is_padding) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot * units] =
            FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      }
      continue;
    }
    // After a sequence's last step, there are no products yet.
    const bool is_last = step + 1 == sequence.length;
    const Index state = at.b * all.state_stride + at.unit;
    float dh = 0.0f, carried = 0.0f;
    if (is_last) {
      dh = ToFloat(static_cast<const Item*>(my.last_h_backprop)[state]);
#if defined(IS_LSTM)
      carried = ToFloat(static_cast<const Item*>(my.last_c_backprop)[state]);
#endif
    } else {
#if defined(IS_LSTM)
      carried = steps.carried[i];
#elif defined(IS_GRU)
      dh = steps.carried[i];
#endif
      const unsigned char mask = steps.masks[i];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        dh += Masked(steps, mask, gate,
                     steps.products[at.OfGate(steps, batch, gate)]);
      }
    }
    float* const bias_sums =
        my.bias_sums + static_cast<Index>(at.b) * kSlots * units + at.unit;
    if (sequence.is_invalid) dh = carried = InvalidValue();
    if (step < 0) {
      static_cast<Item*>(my.first_h_backprop)[state] = FromFloat(dh);
#if defined(IS_LSTM)
      static_cast<Item*>(my.first_c_backprop)[state] = FromFloat(carried);
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
    in.c = my.cells[row * units + at.unit];
    in.c_before = step > 0
                      ? my.cells[row_before * units + at.unit]
                      : ToFloat(static_cast<const Item*>(my.first_c)[state]);
#elif defined(IS_GRU)
    in.h_before =
        static_cast<const Item*>(my.previous_h)[row * units + at.unit];
#endif
    const Item output_backprop = static_cast<const Item*>(
        my.output_backprop)[row * all.output_stride + at.unit];
    Factors factors;
    factors.Compute(in);
    float carry_h, gradients[kSlots];
    factors.Apply(dh + ToFloat(output_backprop), &carry_h, &carried, gradients);
#if defined(IS_LSTM)
    steps.carried[i] = carried;
#elif defined(IS_GRU)
    steps.carried[i] = carry_h;
#endif
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      gates[slot * units] = FromFloat(gradients[slot]);
      bias_sums[slot * units] =
          (is_last ? 0.0f : bias_sums[slot * units]) + gradients[slot];
    }
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      static_cast<Item*>(steps.operands)[at.OfGate(steps, batch, gate)] =
          FromFloat(gradients[OtherSlot(gate)]);
    }
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
