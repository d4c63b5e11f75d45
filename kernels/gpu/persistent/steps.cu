// The kernels of a layer whose steps are enqueued one by one: cuBLAS computes
// the products of a step, and one of these kernels the cells.
#define HAS_EXACT_FUNCTIONS
#include "cell_functions.cuh"
#include "elementwise.cuh"
#include "scales.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::StepBuffers;

namespace {

// In the choice of a power, a float counts this much less than the operands.
constexpr float kFarBelow = 1.0f / (1ull << 60);

// These load and store a number of an array of the network's type.
Sum LoadItem(const void* items, Index at) {
  return ToFloat(static_cast<const Item*>(items)[at]);
}
void StoreItem(void* items, Index at, Sum value) {
  static_cast<Item*>(items)[at] = FromFloat(value);
}

// Returns a number as a gate's matrix reads it.
Sum Masked(const StepBuffers& steps, unsigned char mask, int gate, Sum value) {
  const Sum scale = 1.0f / (1.0f - static_cast<Sum>(steps.rate));
  return mask >> gate & 1 ? value * scale : 0.0f;
}

// The unit of a sequence, in one direction, that is number i of [D, B, H]. The
// host makes sure that the numbers of [D, G, B, H] can be counted in an int.
struct Place {
  const StepBuffers& steps;
  int batch, i, direction, b, unit;

  Place(const StepBuffers& steps, int batch, Index number)
      : steps(steps),
        batch(batch),
        i(static_cast<int>(number)),
        direction(i / steps.units / batch),
        b(i / steps.units % batch),
        unit(i % steps.units) {}

  static int Count(const StepBuffers& steps, int batch) {
    return steps.directions * batch * steps.units;
  }
  // Its number of those that all gates have whose matrices read h.
  int OfGate(int gate) const {
    return direction * CellType::kGatesOfH * batch * steps.units +
           gate * steps.gate_stride + b * steps.sequence_stride + unit;
  }
  // Its number of [D, B, P], if it is one of the projected units.
  int OfOutput() const {
    return (direction * batch + b) * steps.outputs + unit;
  }
  // The power of a row of the recurrent matrices.
  float RowPower(int gate) const {
    return steps
        .row_powers[(direction * CellType::kGatesOfH + gate) * steps.units +
                    unit];
  }
  float& SequencePower() const {
    return steps.sequence_powers[direction * batch + b];
  }
  // That of the h that a step's products read. Without bounds of their own are
  // only the first h, and a GRU's, which may be as large as its first.
  float PowerOfH(int step) const {
    return CellType::kReadsH || step == 0 ? SequencePower() : 1.0f;
  }
  void StoreHalf(int at, float value, float power) const {
    static_cast<Half*>(steps.operands)[at] = ToHalf(ScaleOf(power) * value);
  }
  // Stores h where the products of a step read it.
  void StoreOperand(Sum h, int step) const {
    if (steps.row_powers != nullptr) {
      StoreHalf(i, h, PowerOfH(step));
    } else if (steps.projected != nullptr) {
      StoreItem(steps.projected, OfOutput(), h);
    } else if (steps.masks == nullptr) {
      StoreItem(steps.operands, i, h);
    } else {
      const unsigned char mask = steps.masks[i];
#pragma unroll
      for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
        StoreItem(steps.operands, OfGate(gate), Masked(steps, mask, gate, h));
      }
    }
  }
};

// Such a unit in a pass.
template <typename Arguments>
struct Own : Place {
  const Arguments& all;
  decltype((all.direction[0])) my;
  const Sequence sequence;
  const Index state;  // The place of its first h and of its last.

  Own(const Arguments& all, const StepBuffers& steps, Index i)
      : Place(steps, all.sequences.batch, i),
        all(all),
        my(all.direction[direction]),
        sequence(all.sequences, b),
        state(b * all.state_stride + unit) {}

  bool IsPadding(int step) const { return step >= sequence.length; }
  bool IsLast(int step) const { return step + 1 == sequence.length; }
  // The row of a step. Past the sequence's end, both directions go forward.
  Index RowAt(int step) const {
    return sequence.RowAt(all.sequences, step,
                          direction == 1 && !IsPadding(step));
  }
  bool StartsAnew(int step) const {
    return step >= 0 && !IsPadding(step) &&
           ::StartsAnew(all.sequences, step, RowAt(step), direction == 1);
  }
  Item* GatesAt(Index row) const {
    return static_cast<Item*>(my.gates) + row * kSlots * steps.units + unit;
  }
  Functions functions() const {
    Functions functions = {steps.clip};
    functions.ReadVectors(my.vectors, steps.units, unit);
    return functions;
  }
  // The sums of its sequence's gradients in the slots.
  Sum* BiasSums() const {
    return reinterpret_cast<Sum*>(my.bias_sums) +
           static_cast<Index>(b) * kSlots * steps.units + unit;
  }
  // This stands for a number where a step has none.
  Sum Padding() const { return sequence.is_invalid ? InvalidValue() : 0.0f; }
};

// Adds to `inputs` what is added to the product of a gate: its input's product,
// which `gates` holds, and its biases. `of_step` is the step's row.
void AddInput(const Own<ForwardArguments>& at, const Item* gates, int gate,
              Index of_step, Sum* inputs) {
  const int of_gate = gate * at.steps.units + at.unit;
  if (at.my.recurrent_bias != nullptr) {
    inputs[CellType::RecurrentSlot(gate)] +=
        LoadItem(at.my.recurrent_bias, of_gate);
  }
  Sum input = ToFloat(gates[gate * at.steps.units]);
  if (at.steps.step_powers != nullptr) {
    const int row = at.direction * kGates * at.steps.units + of_gate;
    input = Unscaled(input, at.steps.input_row_powers[row],
                     at.steps.step_powers[of_step]);
  }
  if (at.my.input_bias != nullptr) {
    input += LoadItem(at.my.input_bias, of_gate);
  }
  inputs[gate] += input;
}

// Stores the projected h of the step before where it is wanted.
void StoreProjected(const Own<ForwardArguments>& at, int step) {
  if (step <= 0 || step > at.sequence.length) return;
  const Item h = static_cast<const Item*>(at.steps.projected)[at.OfOutput()];
  static_cast<Item*>(
      at.my.output)[at.RowAt(step - 1) * at.all.output_stride + at.unit] = h;
  if (step == at.sequence.length) {
    static_cast<Item*>(at.my.last_h)[at.state] = h;
  } else if (at.my.previous_h != nullptr) {
    static_cast<Item*>(
        at.my.previous_h)[at.RowAt(step) * at.steps.outputs + at.unit] =
        at.StartsAnew(step) ? FromFloat(0.0f) : h;
  }
}

// Returns the gradient of the output of the step before, with which the sum
// begins that is the gradient of the projected h after that step.
Sum BegunSum(const Own<BackwardArguments>& at, int step) {
  if (step == 0 || step > at.sequence.length) return 0.0f;
  Sum sum = LoadItem(at.my.output_backprop,
                     at.RowAt(step - 1) * at.all.output_stride + at.unit);
  if (step == at.sequence.length) {
    sum += LoadItem(at.my.last_h_backprop, at.state);
  }
  return sum;
}

// Stores the gradient of the projected h after this step, or what stands for it
// in the padding.
void StoreProjectedGradient(const Own<BackwardArguments>& at, int step) {
  Sum gradient = LoadItem(at.steps.projected, at.OfOutput());
  if (at.steps.row_powers != nullptr) {
    gradient = Unscaled(gradient, at.SequencePower(), 1.0f);
  }
  if (step < 0) {
    // A sequence without steps has not begun a sum.
    StoreItem(at.my.first_h_backprop, at.state,
              at.sequence.is_invalid ? InvalidValue()
              : at.sequence.length == 0
                  ? LoadItem(at.my.last_h_backprop, at.state)
                  : gradient);
  } else if (step < at.all.sequences.steps) {
    StoreItem(at.my.projected_backprop,
              at.RowAt(step) * at.steps.outputs + at.unit,
              at.IsPadding(step) ? at.Padding() : gradient);
  }
}

}  // namespace

// Draws the masks of a layer. They are those of a [gates of all layers, B, H]
// array, of which the layer's first gate is `first_gate`; `layer` is the number
// that the generator has for this array.
extern "C" __global__ void draw_masks(StepBuffers steps, int batch,
                                      Index first_gate, int layer,
                                      const unsigned long long* seed) {
  const Index count = Place::Count(steps, batch);
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Place at(steps, batch, i);
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

// The following two kernels are for cells that reset before. This one computes
// what the matrices of the candidates read.
extern "C" __global__ void reset_forward(const ForwardArguments all,
                                         StepBuffers steps, int step) {
  const Index count = Place::Count(steps, all.sequences.batch);
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Own<ForwardArguments> at(all, steps, i);
    if (at.IsPadding(step)) continue;
    const Index row = at.RowAt(step);
    Item* const gates = at.GatesAt(row);
    Sum z[kSlots] = {}, kept[kSlots] = {};
    AddInput(at, gates, 0, row, z);
    Sum h = 0.0f;
    if (!at.StartsAnew(step)) {
      z[0] += static_cast<const Sum*>(steps.products)[at.OfGate(0)];
      h = static_cast<const Sum*>(steps.carried)[i];
    }
    if (steps.masks != nullptr)
      h = Masked(steps, steps.masks[i], kGates - 1, h);
    CellType::ResetForward(Functions(), z, h, kept);
    StoreItem(steps.candidate_operands, i, kept[kSlots - 1]);
    if (at.my.previous_h == nullptr) continue;
    gates[0] = FromFloat(kept[0]);
    gates[(kSlots - 1) * steps.units] = FromFloat(kept[kSlots - 1]);
  }
}

// Computes the gradients of the reset gates, after the products of those of the
// candidates.
extern "C" __global__ void reset_backward(const BackwardArguments all,
                                          StepBuffers steps, int step) {
  const Index count = Place::Count(steps, all.sequences.batch);
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Own<BackwardArguments> at(all, steps, i);
    if (at.IsPadding(step)) continue;
    const Index row = at.RowAt(step);
    Item& gate = *at.GatesAt(row);
    const Sum h = LoadItem(at.my.previous_h, row * steps.units + at.unit);
    Sum through = at.StartsAnew(step)
                      ? 0.0f
                      : static_cast<const Sum*>(steps.candidate_products)[i];
    if (steps.masks != nullptr) {
      through = Masked(steps, steps.masks[i], kGates - 1, through);
    }
    const Sum reset = ToFloat(gate);
    Sum gradient = 0.0f;
    CellType::ResetBackward(Functions(), &reset, h, through,
                            static_cast<Sum*>(steps.carried) + i, &gradient);
    gate = FromFloat(gradient);
    StoreItem(steps.operands, at.OfGate(0), gradient);
    Sum& bias_sum = *at.BiasSums();
    bias_sum = (at.IsLast(step) ? 0.0f : bias_sum) + gradient;
  }
}

// Computes the cells of a step after its products. Step -1 stands for the first
// states, which the first step reads. With projections, a step also stores the
// h of the step before, so there is one more after the last.
extern "C" __global__ void forward_step(const ForwardArguments all,
                                        StepBuffers steps, int step) {
  const Index count = Place::Count(steps, all.sequences.batch);
  const int units = steps.units;
  const bool projects = steps.projected != nullptr;
  for (Index i = FirstIndex(); i < count; i += IndexStep()) {
    const Own<ForwardArguments> at(all, steps, i);
    const auto& my = at.my;
    const bool is_training = my.previous_h != nullptr;
    const bool has_output = at.unit < steps.outputs;
    if (projects && has_output) StoreProjected(at, step);
    if (step == all.sequences.steps) continue;
    const Index row = at.RowAt(step);
    const Index of_row = row * units + at.unit;
    const Index of_output = row * all.output_stride + at.unit;
    if (at.IsPadding(step)) {
      if (has_output) StoreItem(my.output, of_output, at.Padding());
      if (!is_training) continue;
      if (has_output) {
        StoreItem(my.previous_h, row * steps.outputs + at.unit, 0.0f);
      }
      if (projects) StoreItem(my.unprojected, of_row, 0.0f);
      continue;
    }
    [[maybe_unused]] Sum* const carried = static_cast<Sum*>(steps.carried) + i;
    Sum h = 0.0f, c = 0.0f;
    if (step < 0) {
      if (has_output) h = LoadItem(my.first_h, at.state);
      if constexpr (CellType::kHasC) {
        c = LoadItem(my.first_c, at.b * steps.cell_stride + at.unit);
      }
      if (at.sequence.is_invalid) h = c = InvalidValue();
    } else {
      const bool is_anew = at.StartsAnew(step);
      if constexpr (CellType::kHasC) c = is_anew ? 0.0f : *carried;
      if constexpr (CellType::kReadsH) h = is_anew ? 0.0f : *carried;
      Item* const gates = at.GatesAt(row);
      Sum z[kSlots] = {}, values[kSlots];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        if (CellType::IsOfReset(gate)) continue;
        AddInput(at, gates, gate, row, z);
        if (is_anew) continue;
        Sum product =
            gate < CellType::kGatesOfH
                ? static_cast<const Sum*>(steps.products)[at.OfGate(gate)]
                : static_cast<const Sum*>(steps.candidate_products)[i];
        if (steps.row_powers != nullptr) {
          product = Unscaled(product, at.RowPower(gate), at.PowerOfH(step));
        }
        z[CellType::RecurrentSlot(gate)] += product;
      }
      CellType::Forward(at.functions(), z, &h, &c, values);
      if (projects) {
        StoreItem(steps.operands, i, h);
      } else {
        StoreItem(my.output, of_output, h);
      }
      if (is_training) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          if (CellType::IsOfReset(slot)) continue;
          gates[slot * units] = FromFloat(values[slot]);
        }
        if constexpr (CellType::kHasC) {
          reinterpret_cast<Sum*>(my.cells)[of_row] = c;
        }
        if (projects) StoreItem(my.unprojected, of_row, h);
      }
    }
    const bool is_last = at.IsLast(step);
    if constexpr (CellType::kHasC) {
      *carried = c;
      if (is_last) {
        StoreItem(my.last_c, at.b * steps.cell_stride + at.unit, c);
      }
    }
    if constexpr (CellType::kReadsH) *carried = h;
    // What follows is for h after its projection, which is not known yet.
    if (!has_output || (projects && step >= 0)) continue;
    if (is_last) {
      StoreItem(my.last_h, at.state, h);
      continue;
    }
    at.StoreOperand(h, step + 1);
    if (is_training) {
      StoreItem(my.previous_h, at.RowAt(step + 1) * steps.outputs + at.unit,
                at.StartsAnew(step + 1) ? 0.0f : h);
    }
  }
}

// Computes the gradients of a step's gates. Step -1 stands for the first
// states, whose gradients are the last to be computed. With projections, each
// step begins the sums of the step before, so there is one more, which is the
// first to be computed. If products are in float16, a block takes a sequence in
// one direction, of whose gradients it finds the power.
extern "C" __global__ void __launch_bounds__(1024)
    backward_step(const BackwardArguments all, StepBuffers steps, int step) {
  const Index count = Place::Count(steps, all.sequences.batch);
  const int units = steps.units;
  const bool projects = steps.projected != nullptr;
  const bool halves = steps.row_powers != nullptr;
  const Index first = halves
                          ? static_cast<Index>(blockIdx.x) * units + threadIdx.x
                          : FirstIndex();
  const Index end = halves ? (blockIdx.x + 1LL) * units : count;
  const Index stride = halves ? blockDim.x : IndexStep();
  Word largest = 0;
  for (Index i = first; i < end; i += stride) {
    const Own<BackwardArguments> at(all, steps, i);
    const auto& my = at.my;
    if (projects && at.unit < steps.outputs) {
      StoreProjectedGradient(at, step);
      const Sum begun = step < 0 ? 0.0f : BegunSum(at, step);
      // As an operand in float16 would have it, but far below the gates'
      // gradients, since this is a float.
      if (halves) {
        largest = max(largest, MagnitudeOf(kFarBelow * begun));
      } else {
        StoreItem(steps.projected, at.OfOutput(), begun);
      }
    }
    if (step == all.sequences.steps) continue;
    const Index row = at.RowAt(step);
    Item* const gates = at.GatesAt(row);
    if (at.IsPadding(step)) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot * units] = FromFloat(at.Padding());
      }
      if (!projects || halves) continue;
      // The products are added to the sums that were begun.
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        StoreItem(steps.operands, at.OfGate(gate), 0.0f);
      }
      continue;
    }
    // After a sequence's last step, there are no products yet.
    const bool is_last = at.IsLast(step);
    const Sum* const products = static_cast<const Sum*>(steps.products);
    [[maybe_unused]] Sum* const carry = static_cast<Sum*>(steps.carried) + i;
    Sum dh = 0.0f, carried = 0.0f;
    [[maybe_unused]] const Index cell_state =
        at.b * steps.cell_stride + at.unit;
    if constexpr (CellType::kHasC) {
      carried = is_last ? LoadItem(my.last_c_backprop, cell_state) : *carry;
    }
    if constexpr (CellType::kReadsH) {
      if (!is_last) dh = *carry;
    }
    if (!projects && is_last) {
      dh = LoadItem(my.last_h_backprop, at.state);
    } else if (steps.masks == nullptr) {
      if (!projects || step >= 0) {
        dh += halves ? Unscaled(products[i], at.SequencePower(), 1.0f)
                     : products[i];
      }
    } else {
      const unsigned char mask = steps.masks[i];
#pragma unroll
      for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
        dh += Masked(steps, mask, gate, products[at.OfGate(gate)]);
      }
    }
    Sum* const bias_sums = at.BiasSums();
    if (at.sequence.is_invalid) dh = carried = InvalidValue();
    if (step < 0) {
      if (!projects) StoreItem(my.first_h_backprop, at.state, dh);
      if constexpr (CellType::kHasC) {
        StoreItem(my.first_c_backprop, cell_state, carried);
      }
      if (!is_last) continue;
      // The sequence has no steps.
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        bias_sums[slot * units] = at.Padding();
      }
      continue;
    }
    // Nothing passes from such a step to the one before.
    const bool is_anew = at.StartsAnew(step);
    CellInputs in = {};
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      in.gates[slot] = gates[slot * units];
    }
    if constexpr (CellType::kHasC) {
      const Sum* const cells = reinterpret_cast<const Sum*>(my.cells);
      in.c = cells[row * units + at.unit];
      in.c_before = is_anew    ? 0.0f
                    : step > 0 ? cells[at.RowAt(step - 1) * units + at.unit]
                               : LoadItem(my.first_c, cell_state);
    }
    if constexpr (CellType::kReadsH) {
      in.h_before =
          static_cast<const Item*>(my.previous_h)[row * units + at.unit];
    }
    if (!projects) {
      dh += LoadItem(my.output_backprop, row * all.output_stride + at.unit);
    }
    Sum carry_h, gradients[kSlots];
    CellType::Backward(MakeFactors(in, at.functions()), dh, &carry_h, &carried,
                       gradients);
    if constexpr (CellType::kHasC) *carry = is_anew ? 0.0f : carried;
    if constexpr (CellType::kReadsH) *carry = is_anew ? 0.0f : carry_h;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (CellType::IsOfReset(slot)) continue;
      gates[slot * units] = FromFloat(gradients[slot]);
      bias_sums[slot * units] =
          (is_last ? 0.0f : bias_sums[slot * units]) + gradients[slot];
    }
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      if (CellType::IsOfReset(gate)) continue;
      const Sum gradient =
          is_anew ? 0.0f : gradients[CellType::RecurrentSlot(gate)];
      if (halves) {
        largest = max(largest, MagnitudeOf(at.RowPower(gate) * gradient));
      } else {
        StoreItem(steps.operands, at.OfGate(gate), gradient);
      }
    }
    if constexpr (CellType::kResetsBefore) {
      StoreItem(steps.candidate_operands, i, gradients[kGates - 1]);
    }
  }
  if (!halves || step < 0) return;
  const float power = PowerOf(LargestOfBlock(largest));
  for (Index i = first; i < end; i += stride) {
    const Own<BackwardArguments> at(all, steps, i);
    const bool is_padding = at.IsPadding(step);
    if (is_padding && !projects) return;
    if (at.unit == 0) at.SequencePower() = power;
    // The products are added to the sums that are begun here.
    if (projects && at.unit < steps.outputs) {
      StoreItem(steps.projected, at.OfOutput(),
                ScaleOf(power) * ScaleOf(1.0f) * BegunSum(at, step));
    }
    if (step == all.sequences.steps) continue;
    const Item* const gates = at.GatesAt(at.RowAt(step));
    const bool has_none = is_padding || at.StartsAnew(step);
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      const Sum gradient =
          has_none ? 0.0f
                   : ToFloat(gates[CellType::RecurrentSlot(gate) * units]);
      at.StoreHalf(at.OfGate(gate), at.RowPower(gate) * gradient, power);
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
