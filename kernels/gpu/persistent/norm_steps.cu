// The kernels of steps of a layer that normalises its sums: they take the
// places of forward_step and backward_step. A block takes a sequence in one
// direction, since means and variances are over its units.
//
// Whoever compiles defines ROUNDS: no thread has more units.
#define HAS_EXACT_FUNCTIONS
#include "step_places.cuh"

constexpr int kRounds = ROUNDS, kOwnUnits = kRounds;
#include "norm_cells.cuh"

namespace {

constexpr int kMostThreads = StepBuffers::kMostThreadsOfNorms;

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

// The units of a thread in a sequence.
template <typename Arguments>
struct OwnUnits {
  const Arguments& all;
  const StepBuffers& steps;
  const OwnUnit<Arguments> first = {all, steps, static_cast<int>(blockIdx.x)};
  const Sum per_unit = Sum(1) / steps.units;

  bool Has(int round) const {
    return static_cast<int>(threadIdx.x + round * blockDim.x) < steps.units;
  }
  // Calls use(round, unit) with each of them.
  template <typename Use>
  void ForEach(const Use& use) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!Has(round)) continue;
      use(round, OwnUnit<Arguments>(all, steps, static_cast<int>(blockIdx.x),
                                    threadIdx.x + round * blockDim.x));
    }
  }
  // Returns totals of n numbers of each unit, which number(round, i) returns.
  template <int n, typename Number>
  void AddUp(const Number& number, Sum* totals) const {
    for (int i = 0; i < n; ++i) totals[i] = 0.0f;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < n && Has(round); ++i) totals[i] += number(round, i);
    }
    SumOverBlock<n>(totals);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kMostThreads)
    forward_step(const ForwardArguments all, StepBuffers steps, int step) {
  using Unit = OwnUnit<ForwardArguments>;
  const OwnUnits<ForwardArguments> own = {all, steps};
  if (own.first.IsPadding(step)) {
    own.ForEach([&](int, const Unit& at) { StorePadding(at, step); });
    return;
  }
  NormedCell cells[kRounds] = {};
  Functions functions[kRounds];
  Sum h[kRounds] = {}, c[kRounds] = {};
  own.ForEach([&](int round, const Unit& at) {
    ReadStates(at, step, h + round, c + round);
    if (step < 0) return;
    functions[round] = at.functions(step);
    ReadGates(at, step, cells[round].z);
  });
  if (step >= 0) {
    const auto find = [&](const auto& numbers, int norm, auto) {
      constexpr int n = sizeof(numbers[0]) / sizeof(Sum);
      Sum means[n], squares[n];
      own.AddUp<n>([&](int round, int i) { return numbers[round][i]; }, means);
      for (int i = 0; i < n; ++i) means[i] *= own.per_unit;
      own.AddUp<n>(
          [&](int round, int i) {
            const Sum centred = numbers[round][i] - means[i];
            return centred * centred;
          },
          squares);
      for (int i = 0; i < kRounds * n; ++i) {
        Norm<Sum>& found = cells[i / n].norms[norm + i % n];
        found.mean = means[i % n];
        found.scale = 1.0f / sqrt(squares[i % n] * own.per_unit + all.epsilon);
      }
    };
    NormaliseCells(functions, c, find, cells);
    if (steps.is_training && threadIdx.x == 0) {
      cells[0].StoreNorms(own.first.RowAt(step), own.first.my.norms);
    }
  }
  own.ForEach([&](int round, const Unit& at) {
    if (step >= 0) {
      const NormedCell& cell = cells[round];
      CellType::Outer(functions[round], cell, h + round, c + round);
      Sum kept[kSlots];
      for (int slot = 0; slot < kSlots; ++slot) kept[slot] = cell.Kept(slot);
      StoreCell(at, step, h[round], c[round], kept);
    }
    StoreStates(at, step, h[round], c[round]);
  });
}

extern "C" __global__ void __launch_bounds__(kMostThreads)
    backward_step(const BackwardArguments all, StepBuffers steps, int step) {
  using Unit = OwnUnit<BackwardArguments>;
  const int units = steps.units;
  const OwnUnits<BackwardArguments> own = {all, steps};
  const bool is_last = own.first.IsLast(step);
  const auto store_vector_sums = [&](const Unit& at, const auto& sum_of) {
    Sum* const sums = reinterpret_cast<Sum*>(at.my.vector_sums) +
                      static_cast<Index>(at.b) * kVectors * units + at.unit;
    for (int v = 0; v < kVectors; ++v) {
      sums[v * units] = (is_last ? 0.0f : sums[v * units]) + sum_of(v);
    }
  };
  if (step < 0 || own.first.IsPadding(step)) {
    own.ForEach([&](int, const Unit& at) {
      if (step >= 0) {
        for (int slot = 0; slot < kSlots; ++slot) {
          at.GatesAt(at.RowAt(step))[slot * units] = FromFloat(at.Padding());
        }
        return;
      }
      Sum dh, dc;
      ReadGradients(at, step, &dh, &dc);
      StoreFirstGradients(at, dh, dc);
      if (is_last) store_vector_sums(at, [&](int) { return at.Padding(); });
    });
    return;
  }
  const Index row = own.first.RowAt(step);
  const bool is_anew = own.first.StartsAnew(step);
  Norm<Sum> norms[kNorms];
  for (int k = 0; k < kNorms; ++k) {
    norms[k] =
        static_cast<const Norm<Sum>*>(own.first.my.norms)[row * kNorms + k];
  }
  NormedCell cells[kRounds] = {};
  NormedGradients gradients = {};
  Functions functions[kRounds];
  Sum carry_h[kRounds] = {}, carry_c[kRounds] = {};
  Sum of_slots[kRounds][kSlots] = {};
  own.ForEach([&](int round, const Unit& at) {
    CellInputs in = {};
    for (int slot = 0; slot < kSlots; ++slot) {
      in.gates[slot] = at.GatesAt(row)[slot * units];
    }
    if constexpr (CellType::kHasC)
      in.c_before = FromFloat(CellBefore(at, step));
    if constexpr (CellType::kReadsH) in.h_before = FromFloat(HBefore(at, step));
    functions[round] = at.functions(step);
    cells[round].Set(norms, in, functions[round]);
    ReadGradients(at, step, gradients.dh + round, carry_c + round);
    gradients.dh[round] +=
        LoadItem(at.my.output_backprop, row * all.output_stride + at.unit);
  });
  const auto add_up = [&](auto& sums, auto) {
    constexpr int n = sizeof(sums[0]) / sizeof(Sum);
    Sum totals[n];
    own.AddUp<n>([&](int round, int i) { return sums[round][i]; }, totals);
    for (int i = 0; i < kRounds * n; ++i) sums[i / n][i % n] = totals[i % n];
  };
  gradients.Compute(
      functions, cells, [&](int round) { return own.Has(round); }, own.per_unit,
      add_up, carry_h, carry_c, of_slots);
  own.ForEach([&](int round, const Unit& at) {
    if constexpr (CellType::kHasC) {
      at.CarriedC() = is_anew ? 0.0f : carry_c[round];
    }
    if constexpr (CellType::kReadsH) {
      at.CarriedH() = is_anew ? 0.0f : carry_h[round];
    }
    store_vector_sums(at, [&](int v) { return gradients.vectors[round][v]; });
    for (int slot = 0; slot < kSlots; ++slot) {
      const Sum gradient = of_slots[round][slot];
      Sum& bias_sum = at.BiasSums()[slot * units];
      at.GatesAt(row)[slot * units] = FromFloat(gradient);
      bias_sum = (is_last ? 0.0f : bias_sum) + gradient;
    }
    for (int gate = 0; gate < CellType::kGatesOfH; ++gate) {
      const int slot = CellType::RecurrentSlot(gate);
      StoreItem(steps.operands, at.OfGate(gate),
                is_anew ? 0.0f : of_slots[round][slot]);
    }
  });
}
