// What kernels of single steps share: the places of a unit's numbers, what its
// cell reads and where it writes.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_PLACES_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_PLACES_CUH_

#include "cell_functions.cuh"
#include "elementwise.cuh"
#include "scales.cuh"
#include "sequences.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::StepBuffers;

namespace {

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

// The unit of a sequence, in one direction, that is number i of [D, B, H], in a
// pass; `number` is that of [D, B]. The host makes sure that the numbers of
// [D, G, B, H] can be counted in an int.
template <typename Arguments>
struct OwnUnit {
  const Arguments& all;
  const StepBuffers& steps;
  const int batch = all.sequences.batch;
  int i;
  const int direction, b;
  int unit;
  decltype((all.direction[0])) my = all.direction[direction];
  const Sequence sequence = Sequence(all.sequences, b);
  Index state;  // The place of its first h and of its last.

  OwnUnit(const Arguments& all, const StepBuffers& steps, int number,
          int unit = 0)
      : all(all),
        steps(steps),
        i(number * steps.units + unit),
        direction(number / batch),
        b(number % batch),
        unit(unit),
        state(b * all.state_stride + unit) {}

  // Its number of those that all gates have whose matrices read h.
  int OfGate(int gate) const {
    return direction * steps.direction_stride + gate * steps.gate_stride +
           b * steps.sequence_stride + unit;
  }
  // Its number of [D, B, H] among operands and products.
  int OfUnit() const {
    return (direction * batch + b) * steps.unit_pitch + unit;
  }
  // Its number of a direction's part of [rows, D * H].
  Index OfCell(Index row) const {
    return row * steps.directions * steps.units + unit;
  }
  // Its number of [D, B, P], if it is one of the projected units.
  int OfOutput() const {
    return (direction * batch + b) * steps.output_pitch + unit;
  }
  // The power of a row of the recurrent matrices.
  float RowPower(int gate) const {
    return steps
        .row_powers[(direction * CellType::kGatesOfH + gate) * steps.units +
                    unit];
  }
  // What `carried` has of c and of h.
  Sum& CarriedC() const { return static_cast<Sum*>(steps.carried)[i]; }
  Sum& CarriedH() const {
    const Index of_c =
        CellType::kHasC ? steps.directions * batch * steps.units : 0;
    return static_cast<Sum*>(steps.carried)[of_c + i];
  }
  float& SequencePower() const {
    return steps.sequence_powers[direction * batch + b];
  }
  // That of the h that a step's products read. Without bounds of their own are
  // only the first h, a projected one, and that of a cell that reads h, such as
  // a GRU, which may be as large as its first.
  float PowerOfH(int step) const {
    const bool is_bounded =
        !CellType::kReadsH && step > 0 && steps.projected == nullptr;
    return is_bounded ? 1.0f : SequencePower();
  }
  void StoreHalf(void* to, int at, float value, float power) const {
    static_cast<Half*>(to)[at] = ToHalf(ScaleOf(power) * value);
  }
  // Stores h where the products of a step read it.
  void StoreOperand(Sum h, int step) const {
    const bool halves = steps.row_powers != nullptr;
    if (steps.projected != nullptr) {
      if (halves) {
        StoreHalf(steps.projected, OfOutput(), h, PowerOfH(step));
      } else {
        StoreItem(steps.projected, OfOutput(), h);
      }
    } else if (halves) {
      StoreHalf(steps.operands, OfUnit(), h, PowerOfH(step));
    } else if (steps.masks == nullptr) {
      StoreItem(steps.operands, OfUnit(), h);
    } else {
      const unsigned char mask = steps.masks[i];
#pragma unroll
      for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
        StoreItem(steps.operands, OfGate(gate), Masked(steps, mask, gate, h));
      }
    }
  }
  void MoveTo(int other) {
    i += other - unit;
    state += other - unit;
    unit = other;
  }
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
  Functions functions([[maybe_unused]] int step) const {
    Functions functions = {steps.clip};
    functions.ReadVectors(my.vectors, steps.units, unit);
    if constexpr (CellType::kZones) {
      const int row = sequence.TimeOf(step, direction == 1) * batch + b;
      ZoneoutMasks(all, static_cast<int>(my.pseudo_layer))
          .SetShares(row, steps.units, unit, functions.zones);
    }
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

// Calls use(unit) with what a thread takes. As many blocks share a sequence, in
// one direction, as there are in a launch for each of them.
template <typename Arguments, typename Use>
void ForUnits(const Arguments& all, const StepBuffers& steps, const Use& use) {
  const int blocks = gridDim.x / (steps.directions * all.sequences.batch);
  OwnUnit<Arguments> at(all, steps, blockIdx.x / blocks);
  for (int unit = blockIdx.x % blocks * blockDim.x + threadIdx.x;
       unit < steps.units; unit += blocks * blockDim.x) {
    at.MoveTo(unit);
    use(at);
  }
}

// What is added to the product of a gate: its input's product, which `gates`
// holds, and its biases. `of_step` is the step's row.
struct GateInput {
  Sum product = 0.0f, input_bias = 0.0f, recurrent_bias = 0.0f;
  float row_power = 1.0f, step_power = 1.0f;

  void Load(const OwnUnit<ForwardArguments>& at, const Item* gates, int gate,
            Index of_step) {
    const int of_gate = gate * at.steps.units + at.unit;
    product = ToFloat(gates[gate * at.steps.units]);
    if (at.steps.step_powers != nullptr) {
      const int row = at.direction * kGates * at.steps.units + of_gate;
      row_power = at.steps.input_row_powers[row];
      step_power = at.steps.step_powers[of_step];
    }
    if (at.my.input_bias != nullptr) {
      input_bias = LoadItem(at.my.input_bias, of_gate);
    }
    if (at.my.recurrent_bias != nullptr) {
      recurrent_bias = LoadItem(at.my.recurrent_bias, of_gate);
    }
  }
  void AddTo(const StepBuffers& steps, int gate, Sum* inputs) const {
    inputs[CellType::RecurrentSlot(gate)] += recurrent_bias;
    const Sum input = steps.step_powers == nullptr
                          ? product
                          : Unscaled(product, row_power, step_power);
    inputs[gate] += input + input_bias;
  }
};

// Sets what the gates read in a step, but those that a reset needs first. All
// numbers are loaded before one is used, so that a thread waits only once.
void ReadGates(const OwnUnit<ForwardArguments>& at, int step, Sum* z) {
  const Index row = at.RowAt(step);
  const StepBuffers& steps = at.steps;
  const bool is_anew = at.StartsAnew(step);
  const bool halves = steps.row_powers != nullptr;
  GateInput inputs[kGates];
  Sum products[kGates] = {};
  float row_powers[kGates] = {}, power = 1.0f;
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    if (CellType::IsOfReset(gate)) continue;
    inputs[gate].Load(at, at.GatesAt(row), gate, row);
    if (halves) row_powers[gate] = at.RowPower(gate);
    if (is_anew) continue;
    products[gate] =
        gate < CellType::kGatesOfH
            ? static_cast<const Sum*>(steps.products)[at.OfGate(gate)]
            : static_cast<const Sum*>(steps.candidate_products)[at.i];
  }
  if (halves) power = at.PowerOfH(step);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) z[slot] = 0.0f;
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    if (CellType::IsOfReset(gate)) continue;
    inputs[gate].AddTo(steps, gate, z);
    z[CellType::RecurrentSlot(gate)] +=
        halves ? Unscaled(products[gate], row_powers[gate], power)
               : products[gate];
  }
}

// Sets the states before a step or, of step -1, the first ones.
void ReadStates(const OwnUnit<ForwardArguments>& at, int step, Sum* h, Sum* c) {
  if (step >= 0) {
    if (at.StartsAnew(step)) return;
    if constexpr (CellType::kHasC) *c = at.CarriedC();
    if constexpr (CellType::kReadsH) *h = at.CarriedH();
    return;
  }
  if (at.unit < at.steps.outputs) *h = LoadItem(at.my.first_h, at.state);
  if constexpr (CellType::kHasC) {
    *c = LoadItem(at.my.first_c, at.b * at.steps.cell_stride + at.unit);
  }
  if (at.sequence.is_invalid) *h = *c = InvalidValue();
}

// Stores what stands for a step in the padding.
void StorePadding(const OwnUnit<ForwardArguments>& at, int step) {
  const Index row = at.RowAt(step);
  if (at.my.all_c != nullptr) {
    StoreItem(at.my.all_c, at.OfCell(row), at.Padding());
  }
  if (at.unit < at.steps.outputs) {
    StoreItem(at.my.output, row * at.all.output_stride + at.unit, at.Padding());
  }
}

// Stores the results of a step's cell, and what the backward pass reads.
void StoreCell(const OwnUnit<ForwardArguments>& at, int step, Sum h, Sum c,
               const Sum* kept) {
  const auto& my = at.my;
  const int units = at.steps.units;
  const bool projects = at.steps.projected != nullptr;
  const Index row = at.RowAt(step);
  if (!projects) {
    StoreItem(my.output, row * at.all.output_stride + at.unit, h);
  } else if (at.steps.row_powers != nullptr) {
    at.StoreHalf(at.steps.operands, at.OfUnit(), h, 1.0f);
  } else {
    StoreItem(at.steps.operands, at.OfUnit(), h);
  }
  if (my.all_c != nullptr) StoreItem(my.all_c, at.OfCell(row), c);
  if (!at.steps.is_training) return;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (CellType::IsOfReset(slot)) continue;
    at.GatesAt(row)[slot * units] = FromFloat(kept[slot]);
  }
  if constexpr (CellType::kHasC) {
    StoreItem(my.cells, row * units + at.unit, c);
  }
}

// Hands the states after a step to the next one, or returns the last ones.
void StoreStates(const OwnUnit<ForwardArguments>& at, int step, Sum h, Sum c) {
  const auto& my = at.my;
  const bool is_last = at.IsLast(step);
  if constexpr (CellType::kHasC) {
    at.CarriedC() = c;
    if (is_last) {
      StoreItem(my.last_c, at.b * at.steps.cell_stride + at.unit, c);
    }
  }
  if constexpr (CellType::kReadsH) at.CarriedH() = h;
  // What follows is for h after its projection, which is not known yet.
  const bool projects = at.steps.projected != nullptr;
  if (at.unit >= at.steps.outputs || (projects && step >= 0)) return;
  if (is_last) {
    StoreItem(my.last_h, at.state, h);
    return;
  }
  at.StoreOperand(h, step + 1);
}

// Stores the gradients of the first c and, unless it is projected, of the first
// h. A sequence without steps adds nothing to its sums.
void StoreFirstGradients(const OwnUnit<BackwardArguments>& at, Sum dh, Sum dc) {
  if (at.steps.projected == nullptr) {
    StoreItem(at.my.first_h_backprop, at.state, dh);
  }
  if constexpr (CellType::kHasC) {
    StoreItem(at.my.first_c_backprop, at.b * at.steps.cell_stride + at.unit,
              dc);
  }
  if (!at.IsLast(-1)) return;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    at.BiasSums()[slot * at.steps.units] = at.Padding();
  }
}

// Sets the gradients of h and c after a step that come from the step after it.
void ReadGradients(const OwnUnit<BackwardArguments>& at, int step, Sum* dh,
                   Sum* dc) {
  const StepBuffers& steps = at.steps;
  const Sum* const products = static_cast<const Sum*>(steps.products);
  const bool projects = steps.projected != nullptr;
  // After a sequence's last step, there are no products yet.
  const bool is_last = at.IsLast(step);
  *dh = *dc = 0.0f;
  if constexpr (CellType::kHasC) {
    *dc = is_last ? LoadItem(at.my.last_c_backprop,
                             at.b * steps.cell_stride + at.unit)
                  : at.CarriedC();
    if (step >= 0 && at.my.all_c_backprop != nullptr) {
      *dc += LoadItem(at.my.all_c_backprop, at.OfCell(at.RowAt(step)));
    }
  }
  if constexpr (CellType::kReadsH) {
    if (!is_last) *dh = at.CarriedH();
  }
  if (!projects && is_last) {
    *dh = LoadItem(at.my.last_h_backprop, at.state);
  } else if (steps.masks == nullptr) {
    if (!projects || step >= 0) {
      *dh += steps.row_powers != nullptr
                 ? Unscaled(products[at.OfUnit()], at.SequencePower(), 1.0f)
                 : products[at.OfUnit()];
    }
  } else {
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      *dh += Masked(steps, steps.masks[at.i], gate, products[at.OfGate(gate)]);
    }
  }
  if (at.sequence.is_invalid) *dh = *dc = InvalidValue();
}

// Returns a GRU's h before a step.
[[maybe_unused]] Sum HBefore(const OwnUnit<BackwardArguments>& at, int step) {
  if (at.StartsAnew(step)) return 0.0f;
  return step > 0
             ? LoadItem(at.my.output,
                        at.RowAt(step - 1) * at.all.output_stride + at.unit)
             : LoadItem(at.my.first_h, at.state);
}

// Returns an LSTM's c before a step.
Sum CellBefore(const OwnUnit<BackwardArguments>& at, int step) {
  if (at.StartsAnew(step)) return 0.0f;
  if (step > 0) {
    return LoadItem(at.my.cells, at.RowAt(step - 1) * at.steps.units + at.unit);
  }
  return LoadItem(at.my.first_c, at.b * at.steps.cell_stride + at.unit);
}

}  // namespace

// Draws the masks of a layer. They are those of a [gates of all layers, B, H]
// array, of which the layer's first gate is `first_gate`; `layer` is the number
// that the generator has for this array.
extern "C" __global__ void draw_masks(StepBuffers steps, int batch,
                                      Index first_gate, int layer,
                                      const unsigned long long* seed) {
  const Index states = static_cast<Index>(batch) * steps.units;
  for (Index i = FirstIndex(); i < steps.directions * states;
       i += IndexStep()) {
    int mask = 0;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const Index of_gate = first_gate + i / states * kGates + gate;
      const Index element = of_gate * states + i % states;
      if (!IsDropped(seed, layer, element, steps.threshold)) mask |= 1 << gate;
    }
    steps.masks[i] = static_cast<unsigned char>(mask);
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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_PLACES_CUH_
