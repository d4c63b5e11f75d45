// The kernels of steps of a layer that normalises its sums: they take the
// places of forward_step and backward_step. A block takes a sequence in one
// direction, since means and variances are over its units. A thread takes the
// same units all the time, so it alone reads what it has stored.
#define HAS_EXACT_FUNCTIONS
#include "step_places.cuh"

namespace {

constexpr int kMostThreads = StepBuffers::kMostThreadsOfNorms;
constexpr int kNorms = CellType::kNorms, kLast = kNorms - 1;
// The numbers that a block keeps for each unit, in this order.
constexpr int kInner = 0, kCandidate = 1, kLastSlot = 2, kOfNorms = 3;
static_assert(kOfNorms == StepBuffers::kNumbersBesideNorms);
// In the forward pass, the gates' sums follow the results of Inner.
constexpr int kSums = 1;
static_assert(kSums + kSlots <= kOfNorms + kNorms);

// Adds up n numbers of each of a block's threads, which call this together.
// The order of the terms is always the same.
template <int n>
void SumOverBlock(Sum* values) {
  constexpr int kWarp = 32;
  __shared__ Sum sums[n][kMostThreads / kWarp];  // Those of the warps.
  const int threads = blockDim.x, thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    for (int lanes = min(kWarp, threads) / 2; lanes > 0; lanes /= 2) {
      values[i] += __shfl_xor_sync(~0u, values[i], lanes);
    }
  }
  __syncthreads();
  for (int i = 0; i < n && thread % kWarp == 0; ++i) {
    sums[i][thread / kWarp] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < n; ++i) {
    values[i] = sums[i][0];
    for (int warp = 1; warp * kWarp < threads; ++warp) {
      values[i] += sums[i][warp];
    }
  }
}

// Norms of a sequence at a step.
struct Norms {
  const StepBuffers& steps;
  const void* const vectors;
  Norm<Sum> norm[kNorms] = {};

  // Computes norms [first, last) of the sums that sum_of(norm, unit) returns.
  template <int first, int last, typename SumOf>
  void Find(Sum epsilon, const SumOf& sum_of) {
    const Sum units = static_cast<Sum>(steps.units);
    Sum totals[kNorms] = {}, squares[kNorms] = {};
    for (int unit = threadIdx.x; unit < steps.units; unit += blockDim.x) {
      for (int k = first; k < last; ++k) totals[k] += sum_of(k, unit);
    }
    SumOverBlock<last - first>(totals + first);
    for (int k = first; k < last; ++k) norm[k].mean = totals[k] / units;
    for (int unit = threadIdx.x; unit < steps.units; unit += blockDim.x) {
      for (int k = first; k < last; ++k) {
        const Sum centred = sum_of(k, unit) - norm[k].mean;
        squares[k] += centred * centred;
      }
    }
    SumOverBlock<last - first>(squares + first);
    for (int k = first; k < last; ++k) {
      norm[k].scale = 1.0f / sqrt(squares[k] / units + epsilon);
    }
  }
  Sum Gamma(int k, int unit) const {
    return LoadItem(vectors, 2 * k * steps.units + unit);
  }
  Sum Of(int k, int unit, Sum sum) const {
    return norm[k].Of(sum, Gamma(k, unit),
                      LoadItem(vectors, (2 * k + 1) * steps.units + unit));
  }
  // The normalised sums of the gates.
  void OfGates(const Sum* z, int unit, Sum* y) const {
    for (int k = 0; k < kLast; ++k) y[k] = Of(k, unit, z[k]);
  }
};

// The numbers that the block keeps.
Sum& Kept(const StepBuffers& steps, int number, int unit) {
  const Index first = static_cast<Index>(blockIdx.x) * (kNorms + kOfNorms);
  return static_cast<Sum*>(steps.kept)[(first + number) * steps.units + unit];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kMostThreads)
    norm_forward_step(const ForwardArguments all, StepBuffers steps, int step) {
  const int units = steps.units;
  const auto of_unit = [&](int unit) {
    return Own<ForwardArguments>(all, steps, blockIdx.x, unit);
  };
  const Own<ForwardArguments> first = of_unit(0);
  if (first.IsPadding(step)) {
    for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
      StorePadding(of_unit(unit), step);
    }
    return;
  }
  const Functions functions;
  Norms norms = {steps, first.my.vectors};
  const auto load = [&](int unit, Sum* z, Sum* y) {
    for (int slot = 0; slot < kSlots; ++slot) {
      z[slot] = Kept(steps, kSums + slot, unit);
    }
    norms.OfGates(z, unit, y);
  };
  if (step >= 0) {
    for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
      Sum z[kSlots];
      ReadGates(of_unit(unit), step, z);
      for (int slot = 0; slot < kSlots; ++slot) {
        Kept(steps, kSums + slot, unit) = z[slot];
      }
    }
    norms.Find<0, kLast>(all.epsilon, [&](int k, int unit) {
      return Kept(steps, kSums + k, unit);
    });
    for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
      Sum z[kSlots], y[kLast], h = 0.0f, c = 0.0f;
      ReadStates(of_unit(unit), step, &h, &c);
      load(unit, z, y);
      Kept(steps, kInner, unit) = CellType::Inner(functions, y, z, c);
    }
    norms.Find<kLast, kNorms>(
        all.epsilon, [&](int, int unit) { return Kept(steps, kInner, unit); });
    for (int k = 0; k < kNorms && steps.is_training && threadIdx.x == 0; ++k) {
      static_cast<Norm<Sum>*>(first.my.norms)[first.RowAt(step) * kNorms + k] =
          norms.norm[k];
    }
  }
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    const Own<ForwardArguments> at = of_unit(unit);
    Sum h = 0.0f, c = 0.0f;
    ReadStates(at, step, &h, &c);
    if (step >= 0) {
      Sum z[kSlots], y[kLast];
      load(unit, z, y);
      CellType::Outer(functions, y,
                      norms.Of(kLast, unit, Kept(steps, kInner, unit)), &h, &c);
      StoreCell(at, step, h, c, z);
    }
    StoreStates(at, step, h, c);
  }
}

extern "C" __global__ void __launch_bounds__(kMostThreads)
    norm_backward_step(const BackwardArguments all, StepBuffers steps,
                       int step) {
  const int units = steps.units;
  const auto of_unit = [&](int unit) {
    return Own<BackwardArguments>(all, steps, blockIdx.x, unit);
  };
  const Own<BackwardArguments> first = of_unit(0);
  const bool is_last = first.IsLast(step);
  const auto sum_of_vector = [&](int number, int unit) -> Sum& {
    const Index before = static_cast<Index>(first.b) * kVectors + number;
    return reinterpret_cast<Sum*>(first.my.vector_sums)[before * units + unit];
  };
  if (step < 0 || first.IsPadding(step)) {
    for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
      const Own<BackwardArguments> at = of_unit(unit);
      if (step >= 0) {
        for (int slot = 0; slot < kSlots; ++slot) {
          at.GatesAt(at.RowAt(step))[slot * units] = FromFloat(at.Padding());
        }
        continue;
      }
      Sum dh, dc;
      ReadGradients(at, step, &dh, &dc);
      StoreFirstGradients(at, dh, dc);
      for (int v = 0; is_last && v < kVectors; ++v) {
        sum_of_vector(v, unit) = at.Padding();
      }
    }
    return;
  }
  const Index row = first.RowAt(step);
  const bool is_anew = first.StartsAnew(step);
  const Functions functions;
  Norms norms = {steps, first.my.vectors};
  const auto sum_of_gate = [&](int slot, int unit) {
    return ToFloat(of_unit(unit).GatesAt(row)[slot * units]);
  };
  const auto load = [&](int unit, Sum* z, Sum* y) {
    for (int slot = 0; slot < kSlots; ++slot) z[slot] = sum_of_gate(slot, unit);
    norms.OfGates(z, unit, y);
  };
  const auto cell_before = [&](int unit) -> Sum {
    if constexpr (CellType::kHasC) return CellBefore(of_unit(unit), step);
    return 0.0f;
  };
  for (int k = 0; k < kNorms; ++k) {
    norms.norm[k] =
        static_cast<const Norm<Sum>*>(first.my.norms)[row * kNorms + k];
  }

  // `d` is the gradient of the result of norm k for a sum. Its totals over the
  // units, and those of its products with what is standardized, are known when
  // all units have been met; only then Through is the gradient of the sum.
  Sum totals[2 * kNorms] = {};
  const auto meet = [&](int k, int unit, Sum sum, Sum d) {
    const Sum standard = norms.norm[k].Standard(sum);
    Sum& of_gamma = sum_of_vector(2 * k, unit);
    Sum& of_beta = sum_of_vector(2 * k + 1, unit);
    of_gamma = (is_last ? 0.0f : of_gamma) + d * standard;
    of_beta = (is_last ? 0.0f : of_beta) + d;
    d *= norms.Gamma(k, unit);
    Kept(steps, kOfNorms + k, unit) = d;
    totals[2 * k] += d;
    totals[2 * k + 1] += d * standard;
  };
  const auto through = [&](int k, int unit, Sum sum) {
    const Sum count = static_cast<Sum>(units);
    return norms.norm[k].Through(Kept(steps, kOfNorms + k, unit), sum,
                                 totals[2 * k] / count,
                                 totals[2 * k + 1] / count);
  };

  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    const Own<BackwardArguments> at = of_unit(unit);
    Sum dh, dc, z[kSlots], y[kLast], dy[kLast], h_before = 0.0f, carry_h = 0.0f;
    ReadGradients(at, step, &dh, &dc);
    dh += LoadItem(at.my.output_backprop, row * all.output_stride + unit);
    load(unit, z, y);
    if constexpr (CellType::kReadsH) h_before = HBefore(at, step);
    const Sum inner = CellType::Inner(functions, y, z, cell_before(unit));
    Kept(steps, kInner, unit) = inner;
    const Sum d =
        CellType::OuterBackward(functions, y, norms.Of(kLast, unit, inner),
                                h_before, dh, dc, &carry_h, dy);
    if constexpr (CellType::kReadsH) {
      at.CarriedH() = is_anew ? 0.0f : carry_h;
    }
    meet(kLast, unit, inner, d);
    meet(CellType::kOuterGate, unit, z[CellType::kOuterGate],
         dy[CellType::kOuterGate]);
  }
  SumOverBlock<2>(totals + 2 * kLast);
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    Sum z[kSlots], y[kLast], dy[kLast], dz[kSlots] = {}, dc = 0.0f;
    load(unit, z, y);
    CellType::InnerBackward(functions, y, z, cell_before(unit),
                            through(kLast, unit, Kept(steps, kInner, unit)),
                            &dc, dy, dz);
    for (int k = 0; k < kLast; ++k) {
      if (k != CellType::kOuterGate) meet(k, unit, z[k], dy[k]);
    }
    const Own<BackwardArguments> at = of_unit(unit);
    if constexpr (CellType::kHasC) {
      at.CarriedC() = is_anew ? 0.0f : dc;
    }
    // These are not normalised, and wait here for the others.
    static_assert(kSlots == kLast || kSlots == kLast + 2);
    if constexpr (kSlots > kLast) {
      Kept(steps, kCandidate, unit) = dz[kLast];
      Kept(steps, kLastSlot, unit) = dz[kSlots - 1];
    }
  }
  SumOverBlock<2 * kLast>(totals);
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    const Own<BackwardArguments> at = of_unit(unit);
    Item* const gates = at.GatesAt(row);
    Sum* const bias_sums = at.BiasSums();
    Sum gradients[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) {
      gradients[slot] = slot < kLast
                            ? through(slot, unit, ToFloat(gates[slot * units]))
                        : slot == kLast ? Kept(steps, kCandidate, unit)
                                        : Kept(steps, kLastSlot, unit);
      gates[slot * units] = FromFloat(gradients[slot]);
      bias_sums[slot * units] =
          (is_last ? 0.0f : bias_sums[slot * units]) + gradients[slot];
    }
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      StoreItem(steps.operands, at.OfGate(gate),
                is_anew ? 0.0f : gradients[CellType::RecurrentSlot(gate)]);
    }
  }
}
