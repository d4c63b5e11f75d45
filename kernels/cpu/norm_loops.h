// The steps of the cells of layer_norm.h on vectors: see CellKernels. In
// the package, only simd_kernels.cc includes this file.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_NORM_LOOPS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_NORM_LOOPS_H_

#include "kernels/cpu/cell_loops.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

template <typename T>
T SumOf(const Register<T>& terms) {
  T sum = 0;
  for (int64_t i = 0; i < kWidth<T>; ++i) sum += terms[i];
  return sum;
}

template <typename T>
struct NormOfRow : Norm<T> {
  const T *gamma, *beta;

  NormOfRow() = default;
  NormOfRow(int64_t n, const CellRow<T>& row, int number, const T* sums)
      : gamma(row.vectors + 2 * number * row.stride), beta(gamma + row.stride) {
    Register<T> total = {}, squares = {};
    ForVectors<T>(n,
                  [&](auto memory, int64_t j) __attribute__((always_inline)) {
                    total += memory.Only(memory.Load(sums + j));
                  });
    const T mean = this->mean = SumOf<T>(total) / n;
    ForVectors<T>(
        n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
          const Register<T> x = memory.Only(memory.Load(sums + j) - mean);
          squares += x * x;
        });
    const T variance = SumOf<T>(squares) / n + row.epsilon;
    if constexpr (sizeof(T) == sizeof(float)) {
      this->scale = 1 / __builtin_sqrtf(variance);
    } else {
      this->scale = 1 / __builtin_sqrt(variance);
    }
  }

  template <typename Memory>
  Register<T> At(Memory memory, int64_t j, Register<T> x) const {
    return this->Of(x, memory.Load(gamma + j), memory.Load(beta + j));
  }
};

// A row's passes forward and backward begin with this.
template <typename T, typename Cell, typename Functions>
struct NormRow {
  static constexpr int kLast = Cell::kNorms - 1;
  const CellRow<T> row;
  const Functions functions;
  const Slots<Cell, false, T> slots;
  NormOfRow<T> norms[Cell::kNorms];

  NormRow(int64_t n, const CellRow<T>& given)
      : row(given), functions(FunctionsOf<Functions>(row)), slots{row} {
    for (int k = 0; k < kLast; ++k) {
      norms[k] = NormOfRow<T>(n, row, k, row.gates + k * row.stride);
    }
  }
  // All but `last`.
  template <typename Memory>
  NormStep<Cell, Register<T>> At(Memory memory, int64_t j,
                                 const T* all_c) const {
    NormStep<Cell, Register<T>> at = {};
    slots.Load(memory, j, at.z);
    for (int k = 0; k < kLast; ++k) at.y[k] = norms[k].At(memory, j, at.z[k]);
    if constexpr (Cell::kReadsH) at.h = memory.Load(row.h_before + j);
    if constexpr (Cell::kHasC) at.c = memory.Load(all_c + j);
    return at;
  }
  // Computes what the last norm normalises.
  void Inner(int64_t n, const T* all_c, T* to) {
    ForVectors<T>(
        n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
          memory.Store(to + j, Cell::Inner(functions, At(memory, j, all_c)));
        });
    norms[kLast] = NormOfRow<T>(n, row, kLast, to);
  }
};

template <typename T, typename Cell, typename Functions>
CRNN_INLINES_ALL void NormForward(int64_t n, const CellRow<T>& given) {
  if constexpr (Cell::kSplitsGate) {
    ForVectors<T>(n, [&](auto memory,
                         int64_t j) __attribute__((always_inline)) {
      memory.Store(given.last_slot + j, memory.Load(given.last_slot + j) +
                                            memory.Load(given.last_bias + j));
    });
  }
  constexpr int kLast = Cell::kNorms - 1;
  NormRow<T, Cell, Functions> all(n, given);
  const CellRow<T>& row = all.row;
  // h has the results of Inner until it is known itself.
  all.Inner(n, row.c, row.h);
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    auto at = all.At(memory, j, row.c);
    at.last = all.norms[kLast].At(memory, j, memory.Load(row.h + j));
    Cell::Outer(all.functions, at, &at.h, &at.c);
    if constexpr (Cell::kHasC) memory.Store(row.c + j, at.c);
    memory.Store(row.h + j, at.h);
  });
}

template <typename T, typename Cell, typename Functions>
CRNN_INLINES_ALL void NormBackward(int64_t n, const CellRow<T>& given) {
  NormRow<T, Cell, Functions> all(n, given);
  const CellRow<T>& row = all.row;
  constexpr int kLast = Cell::kNorms - 1;
  T* const work = row.work;
  T* const sums = row.vector_sums;
  T* const inner = work + Cell::kNorms * row.stride;
  all.Inner(n, row.c_before, inner);

  // `d` is the gradient of the result of norm k for x. Its means over the
  // units, and those of its products with what is standardized, are known when
  // all units have been met; only then Through is the gradient of x.
  Register<T> totals[Cell::kNorms][2] = {};
  T means[Cell::kNorms][2];
  const auto meet = [&](auto memory, int64_t j, int k, Register<T> x,
                        Register<T> d) __attribute__((always_inline)) {
    const auto add = [&](T* to, Register<T> term) {
      memory.Store(to, memory.Load(to) + term);
    };
    const Register<T> standard = all.norms[k].Standard(x);
    add(sums + 2 * k * row.stride + j, d * standard);
    add(sums + (2 * k + 1) * row.stride + j, d);
    d *= memory.Load(all.norms[k].gamma + j);
    memory.Store(work + k * row.stride + j, d);
    totals[k][0] += memory.Only(d);
    totals[k][1] += memory.Only(d * standard);
  };
  const auto finish = [&](int k) {
    for (int i = 0; i < 2; ++i) means[k][i] = SumOf<T>(totals[k][i]) / n;
  };
  const auto through = [&](auto memory, int64_t j, int k,
                           Register<T> x) __attribute__((always_inline)) {
    const Register<T> d = memory.Load(work + k * row.stride + j);
    return all.norms[k].Through(d, x, means[k][0], means[k][1]);
  };

  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    Register<T> dc = {}, carry_h = {}, dy[kLast];
    auto at = all.At(memory, j, row.c_before);
    if constexpr (Cell::kHasC) dc = memory.Load(row.dc + j);
    const Register<T> x = memory.Load(inner + j);
    at.last = all.norms[kLast].At(memory, j, x);
    const Register<T> d = Cell::OuterBackward(
        all.functions, at, memory.Load(row.dh + j), dc, &carry_h, dy);
    if constexpr (Cell::kReadsH) memory.Store(row.dh + j, carry_h);
    meet(memory, j, kLast, x, d);
    meet(memory, j, Cell::kOuterGate, at.z[Cell::kOuterGate],
         dy[Cell::kOuterGate]);
  });
  finish(kLast);
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    Register<T> dc = {}, dy[kLast], dz[Cell::kSlots];
    const auto at = all.At(memory, j, row.c_before);
    const Register<T> d = through(memory, j, kLast, memory.Load(inner + j));
    Cell::InnerBackward(all.functions, at, d, &dc, dy, dz);
    if constexpr (Cell::kHasC) memory.Store(row.dc + j, dc);
    for (int k = 0; k < kLast; ++k) {
      if (k != Cell::kOuterGate) meet(memory, j, k, at.z[k], dy[k]);
    }
    all.slots.ForEach(j, [&](int slot, T* at) {
      if (slot >= kLast) memory.Store(at, dz[slot]);
    });
  });
  for (int k = 0; k < kLast; ++k) {
    finish(k);
    T* const gate = row.gates + k * row.stride;
    ForVectors<T>(
        n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
          memory.Store(gate + j, through(memory, j, k, memory.Load(gate + j)));
        });
  }
}

template <typename T, typename Cell, typename Functions>
constexpr CellKernels<T> KernelsOf() {
  static_assert(Cell::kGates <= kMostGates);
  // A step has either these phases or those of a projection, which c allows.
  static_assert(!Cell::kHasC || !Cell::kResetsBefore);
  CellKernels<T> kernels = {};
  if constexpr (Cell::kNorms > 0) {
    kernels.forward = NormForward<T, Cell, Functions>;
    kernels.backward = NormBackward<T, Cell, Functions>;
  } else {
    kernels.forward = CellForward<T, Cell, Functions>;
    kernels.backward = CellBackward<T, Cell, Functions>;
    kernels.reset_forward = CellResetForward<T, Cell, Functions>;
    kernels.reset_backward = CellResetBackward<T, Cell, Functions>;
  }
  return kernels;
}

// Returns the kernels of all cells, in the order of the list.
template <typename T, typename Functions, typename... Cells>
const CellKernels<T>* MakeCellKernels(CellList<Cells...>) {
  static constexpr CellKernels<T> kernels[] = {
      KernelsOf<T, Cells, Functions>()...};
  return kernels;
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_NORM_LOOPS_H_
