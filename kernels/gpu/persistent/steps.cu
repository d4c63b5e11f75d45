// The kernels of a layer whose steps are enqueued one by one: cuBLAS computes
// the products of a step, and one of these kernels the cells.
#define HAS_EXACT_FUNCTIONS
#include "step_places.cuh"

namespace {

// In the choice of a power, a float counts this much less than the operands.
constexpr float kFarBelow = 1.0f / (1ull << 60);

// Returns the gradient of the output of the step before, with which the sum
// begins that is the gradient of the projected h after that step.
Sum BegunSum(const OwnUnit<BackwardArguments>& at, int step) {
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
void StoreProjectedGradient(const OwnUnit<BackwardArguments>& at, int step) {
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

// The following two kernels are for cells that reset before. This one computes
// what the matrices of the candidates read.
extern "C" __global__ void reset_forward(const ForwardArguments all,
                                         StepBuffers steps, int step) {
  ForUnits(all, steps, [&](const OwnUnit<ForwardArguments>& at) {
    if (at.IsPadding(step)) return;
    const Index row = at.RowAt(step);
    Item* const gates = at.GatesAt(row);
    Sum z[kSlots] = {}, kept[kSlots] = {};
    GateInput input;
    input.Load(at, gates, 0, row);
    input.AddTo(steps, 0, z);
    Sum h = 0.0f;
    if (!at.StartsAnew(step)) {
      z[0] += static_cast<const Sum*>(steps.products)[at.OfGate(0)];
      h = at.CarriedH();
    }
    if (steps.masks != nullptr)
      h = Masked(steps, steps.masks[at.i], kGates - 1, h);
    CellType::ResetForward(Functions(), z, h, kept);
    StoreItem(steps.candidate_operands, at.i, kept[kSlots - 1]);
    if (!steps.is_training) return;
    gates[0] = FromFloat(kept[0]);
    gates[(kSlots - 1) * steps.units] = FromFloat(kept[kSlots - 1]);
  });
}

// Computes the gradients of the reset gates, after the products of those of the
// candidates.
extern "C" __global__ void reset_backward(const BackwardArguments all,
                                          StepBuffers steps, int step) {
  ForUnits(all, steps, [&](const OwnUnit<BackwardArguments>& at) {
    if (at.IsPadding(step)) return;
    const Index row = at.RowAt(step);
    Item& gate = *at.GatesAt(row);
    const Sum h = HBefore(at, step);
    Sum through = at.StartsAnew(step)
                      ? 0.0f
                      : static_cast<const Sum*>(steps.candidate_products)[at.i];
    if (steps.masks != nullptr) {
      through = Masked(steps, steps.masks[at.i], kGates - 1, through);
    }
    const Sum reset = ToFloat(gate);
    Sum gradient = 0.0f;
    CellType::ResetBackward(Functions(), reset, h, through, &at.CarriedH(),
                            &gradient);
    gate = FromFloat(gradient);
    StoreItem(steps.operands, at.OfGate(0), gradient);
    Sum& bias_sum = *at.BiasSums();
    bias_sum = (at.IsLast(step) ? 0.0f : bias_sum) + gradient;
  });
}

// Computes the cells of a step after its products. Step -1 stands for the first
// states, which the first step reads. Some blocks on a multiprocessor make up
// for each other's waits.
extern "C" __global__ void __launch_bounds__(StepBuffers::kMostThreadsOfUnits,
                                             4)
    forward_step(const ForwardArguments all, StepBuffers steps, int step) {
  ForUnits(all, steps, [&](const OwnUnit<ForwardArguments>& at) {
    if (at.IsPadding(step)) {
      StorePadding(at, step);
      return;
    }
    Sum h = 0.0f, c = 0.0f;
    ReadStates(at, step, &h, &c);
    if (step >= 0) {
      Sum z[kSlots], kept[kSlots];
      ReadGates(at, step, z);
      CellType::Forward(at.functions(step), z, &h, &c, kept);
      StoreCell(at, step, h, c, kept);
    }
    StoreStates(at, step, h, c);
  });
}

// Stores the projected h after a step, and makes what the next step's products
// read. A block takes a sequence in one direction, of whose h it finds the
// power if products are in float16.
extern "C" __global__ void __launch_bounds__(1024)
    project_step(const ForwardArguments all, StepBuffers steps, int step) {
  const bool halves = steps.row_powers != nullptr;
  OwnUnit<ForwardArguments> at(all, steps, blockIdx.x);
  if (at.IsPadding(step)) return;
  const bool is_last = at.IsLast(step);
  Item* const output =
      static_cast<Item*>(at.my.output) + at.RowAt(step) * all.output_stride;
  Word largest = 0;
  for (int unit = threadIdx.x; unit < steps.outputs; unit += blockDim.x) {
    at.MoveTo(unit);
    Sum h = static_cast<const Sum*>(steps.projected_sums)[at.OfOutput()];
    if (halves) {
      const int row = at.direction * steps.outputs + unit;
      h = Unscaled(h, steps.projection_powers[row], 1.0f);
      largest = max(largest, MagnitudeOf(h));
    }
    output[unit] = FromFloat(h);
    if (is_last) {
      StoreItem(at.my.last_h, at.state, h);
    } else if (!halves) {
      StoreItem(steps.projected, at.OfOutput(), h);
    }
  }
  if (!halves || is_last) return;
  const float power = PowerOf(LargestOfBlock(largest));
  if (threadIdx.x == 0) at.SequencePower() = power;
  for (int unit = threadIdx.x; unit < steps.outputs; unit += blockDim.x) {
    at.MoveTo(unit);
    at.StoreHalf(steps.projected, at.OfOutput(), ToFloat(output[unit]), power);
  }
}

// Computes the gradients of a step's gates. Step -1 stands for the first
// states, whose gradients are the last to be computed. With projections, each
// step begins the sums of the step before, so there is one more, which is the
// first to be computed. If products are in float16, a block takes a sequence in
// one direction, of whose gradients it finds the power.
extern "C" __global__ void __launch_bounds__(1024)
    backward_step(const BackwardArguments all, StepBuffers steps, int step) {
  const int units = steps.units;
  const bool projects = steps.projected != nullptr;
  const bool halves = steps.row_powers != nullptr;
  Word largest = 0;
  ForUnits(all, steps, [&](const OwnUnit<BackwardArguments>& at) {
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
    if (step == all.sequences.steps) return;
    const Index row = at.RowAt(step);
    Item* const gates = at.GatesAt(row);
    if (at.IsPadding(step)) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        gates[slot * units] = FromFloat(at.Padding());
      }
      if (!projects || halves) return;
      // The products are added to the sums that were begun.
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        StoreItem(steps.operands, at.OfGate(gate), 0.0f);
      }
      return;
    }
    // Nothing passes from such a step to the one before.
    const bool is_anew = at.StartsAnew(step);
    // All numbers are loaded before one is used or stored, so that a thread
    // waits only once.
    CellInputs in = {};
    Sum* const bias_sums = at.BiasSums();
    Sum sums[kSlots] = {}, dh, carried;
    float row_powers[CellType::kGatesOfH] = {};
    if (step >= 0) {
#pragma unroll
      for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
        if (halves) row_powers[gate] = at.RowPower(gate);
      }
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        in.gates[slot] = gates[slot * units];
        if (!at.IsLast(step)) sums[slot] = bias_sums[slot * units];
      }
      if constexpr (CellType::kHasC) {
        in.c = static_cast<const Item*>(my.cells)[row * units + at.unit];
        in.c_before = FromFloat(CellBefore(at, step));
      }
      if constexpr (CellType::kReadsH) {
        in.h_before = FromFloat(HBefore(at, step));
      }
      if (!projects) {
        in.output_backprop = static_cast<const Item*>(
            my.output_backprop)[row * all.output_stride + at.unit];
      }
    }
    ReadGradients(at, step, &dh, &carried);
    if (step < 0) {
      StoreFirstGradients(at, dh, carried);
      return;
    }
    if (!projects) dh += ToFloat(in.output_backprop);
    Sum carry_h, gradients[kSlots];
    CellType::Backward(MakeFactors(in, at.functions(step)), dh, &carry_h,
                       &carried, gradients);
    if constexpr (CellType::kHasC) at.CarriedC() = is_anew ? 0.0f : carried;
    if constexpr (CellType::kReadsH) at.CarriedH() = is_anew ? 0.0f : carry_h;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (CellType::IsOfReset(slot)) continue;
      gates[slot * units] = FromFloat(gradients[slot]);
      bias_sums[slot * units] = sums[slot] + gradients[slot];
    }
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      if (CellType::IsOfReset(gate)) continue;
      const Sum gradient =
          is_anew ? 0.0f : gradients[CellType::RecurrentSlot(gate)];
      if (halves) {
        largest = max(largest, MagnitudeOf(row_powers[gate] * gradient));
      } else {
        StoreItem(steps.operands, at.OfGate(gate), gradient);
      }
    }
    if constexpr (CellType::kResetsBefore) {
      StoreItem(steps.candidate_operands, at.i, gradients[kGates - 1]);
    }
  });
  if (!halves || step < 0) return;
  const float power = PowerOf(LargestOfBlock(largest));
  ForUnits(all, steps, [&](const OwnUnit<BackwardArguments>& at) {
    const bool is_padding = at.IsPadding(step);
    if (is_padding && !projects) return;
    if (at.unit == 0) at.SequencePower() = power;
    // The products are added to the sums that are begun here.
    if (projects && at.unit < steps.outputs) {
      StoreItem(steps.projected, at.OfOutput(),
                ScaleOf(power) * ScaleOf(1.0f) * BegunSum(at, step));
    }
    if (step == all.sequences.steps) return;
    const Item* const gates = at.GatesAt(at.RowAt(step));
    const bool has_none = is_padding || at.StartsAnew(step);
    float gradients[CellType::kGatesOfH];
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      const int slot = CellType::RecurrentSlot(gate);
      gradients[gate] =
          has_none ? 0.0f : at.RowPower(gate) * ToFloat(gates[slot * units]);
    }
#pragma unroll
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      at.StoreHalf(steps.operands, at.OfGate(gate), gradients[gate], power);
    }
  });
}
