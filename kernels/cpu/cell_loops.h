// The steps of the cells on vectors: see CellKernels. Only simd_kernels.cc
// includes this file.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_

#include <cstdint>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
// The functions have internal linkage, so that the linker does not take one
// instruction set's for another's.
namespace {

#include "kernels/cells/cells.h"

// The functions of a vector's numbers that cells.h asks for.
template <typename T>
struct CellFunctions {
  using V = Vector<T>;
  using Mask = decltype(V{} < V{});
  // Numbers that a gradient is multiplied by one after the other. The compiler
  // leaves out multiplications by 1.
  struct Factor {
    V a = V{} + T(1), b = V{} + T(1), c = V{} + T(1), d = V{} + T(1),
      e = V{} + T(1);
    Mask passes = V{} == V{};  // Where it is not, the product is 0.

    friend V operator*(V x, const Factor& by) {
      return (V)((Mask)(x * by.a * by.b * by.c * by.d * by.e) & by.passes);
    }
  };

  T clip;  // 0 for none.
  V vectors[3];

  V Sigmoid(V x) const { return CRNN_SIMD_NAME::Sigmoid(x); }
  V Tanh(V x) const { return CRNN_SIMD_NAME::Tanh(x); }
  // Comparisons are written so that a NaN stays a NaN.
  V Relu(V x) const { return x < T(0) ? V{} : x; }
  V OneMinus(V x) const { return T(1) - x; }
  V Between(V a, V x, V y) const { return (T(1) - a) * y + a * x; }
  V Limit(V c) const {
    if (!(clip > T(0))) return c;
    c = c < -clip ? V{} - clip : c;
    return c > clip ? V{} + clip : c;
  }
  template <typename... Vs>
  Factor Product(Vs... x) const {
    return Factor{x...};
  }
  Factor ThroughLimit(V c, Factor factor) const {
    if (clip > T(0)) factor.passes = (c < clip) & (c > -clip);
    return factor;
  }
  Factor ReluSlope(V y) const {
    Factor slope;
    slope.passes = y > T(0);
    return slope;
  }
  V OfVector(int i) const { return vectors[i]; }
};

// Returns the functions for a vector's units.
template <typename Cell, typename T, typename Memory>
__attribute__((always_inline)) inline CellFunctions<T> FunctionsAt(
    const CellRow<T>& row, Memory memory, int64_t j) {
  CellFunctions<T> functions;
  functions.clip = row.clip;
  for (int i = 0; i < Cell::kVectors; ++i) {
    functions.vectors[i] = memory.Load(row.vectors + i * row.stride + j);
  }
  return functions;
}

// The numbers of a row's slots; the last may be in an array of its own. Half
// steps of cells that reset before have some slots, and steps the others.
template <typename Cell, bool is_reset, typename T>
struct Slots {
  const CellRow<T>& row;

  template <typename Body>
  __attribute__((always_inline)) void ForEach(int64_t j,
                                              const Body& body) const {
#pragma GCC unroll 4
    for (int slot = 0; slot < Cell::kSlots; ++slot) {
      if (Cell::IsOfReset(slot) != is_reset) continue;
      body(slot, j + (slot < Cell::kGates ? row.gates + slot * row.stride
                                          : row.last_slot));
    }
  }
  template <typename Memory>
  void Load(Memory memory, int64_t j, Vector<T>* to) const {
    ForEach(j, [&](int slot, T* at) { to[slot] = memory.Load(at); });
  }
  template <typename Memory>
  void Store(Memory memory, int64_t j, const Vector<T>* from) const {
    ForEach(j, [&](int slot, T* at) { memory.Store(at, from[slot]); });
  }
};

template <typename T, typename Cell>
void CellForward(int64_t n, const CellRow<T>& given) {
  // Stores of vectors might change any memory, but not a copy.
  const CellRow<T> row = given;
  const Slots<Cell, false, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const auto functions = FunctionsAt<Cell>(row, memory, j);
    Vector<T> z[Cell::kSlots], kept[Cell::kSlots], h = {}, c = {};
    slots.Load(memory, j, z);
    if constexpr (Cell::kSplitsGate) {
      z[Cell::kGates] += memory.Load(row.last_bias + j);
    }
    if constexpr (Cell::kReadsH) h = memory.Load(row.h_before + j);
    if constexpr (Cell::kHasC) c = memory.Load(row.c + j);
    Cell::Forward(functions, z, &h, &c, kept);
    slots.Store(memory, j, kept);
    if constexpr (Cell::kHasC) memory.Store(row.c + j, c);
    memory.Store(row.h + j, h);
  });
}

template <typename T, typename Cell>
void CellBackward(int64_t n, const CellRow<T>& given) {
  const CellRow<T> row = given;
  const Slots<Cell, false, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const auto functions = FunctionsAt<Cell>(row, memory, j);
    Vector<T> kept[Cell::kSlots], dz[Cell::kSlots];
    Vector<T> h_before = {}, c = {}, c_before = {}, carry_h = {}, dc = {};
    slots.Load(memory, j, kept);
    if constexpr (Cell::kReadsH) h_before = memory.Load(row.h_before + j);
    if constexpr (Cell::kHasC) {
      c = memory.Load(row.c + j);
      c_before = memory.Load(row.c_before + j);
      dc = memory.Load(row.dc + j);
    }
    const auto factors = Cell::Prepare(functions, kept, h_before, c, c_before);
    Cell::Backward(factors, memory.Load(row.dh + j), &carry_h, &dc, dz);
    slots.Store(memory, j, dz);
    if constexpr (Cell::kReadsH) memory.Store(row.dh + j, carry_h);
    if constexpr (Cell::kHasC) {
      memory.Store(row.dc + j, dc);
      if (row.h == nullptr) return;
      memory.Store(row.h + j, Cell::Output(functions, kept, c));
    }
  });
}

template <typename T, typename Cell>
void CellResetForward(int64_t n, const CellRow<T>& given) {
  const CellRow<T> row = given;
  const CellFunctions<T> functions = {row.clip, {}};
  const Slots<Cell, true, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    Vector<T> z[Cell::kSlots] = {}, kept[Cell::kSlots] = {};
    slots.Load(memory, j, z);
    Cell::ResetForward(functions, z, memory.Load(row.h_before + j), kept);
    slots.Store(memory, j, kept);
  });
}

template <typename T, typename Cell>
void CellResetBackward(int64_t n, const CellRow<T>& given, const T* through) {
  const CellRow<T> row = given;
  const CellFunctions<T> functions = {row.clip, {}};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const Vector<T> reset = memory.Load(row.gates + j);
    Vector<T> dh = memory.Load(row.dh + j), dz = {};
    Cell::ResetBackward(functions, &reset, memory.Load(row.h_before + j),
                        memory.Load(through + j), &dh, &dz);
    memory.Store(row.dh + j, dh);
    memory.Store(row.gates + j, dz);
  });
}

template <typename T, typename Cell>
void CellAddVectors(int64_t n, const CellRow<T>& given, T* sums) {
  const CellRow<T> row = given;
  const CellFunctions<T> functions = {row.clip, {}};
  const Slots<Cell, false, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    Vector<T> dz[Cell::kSlots], of_step[Cell::kVectors + 1];
    slots.Load(memory, j, dz);
    Cell::VectorGradients(functions, dz, memory.Load(row.c + j),
                          memory.Load(row.c_before + j), of_step);
    for (int i = 0; i < Cell::kVectors; ++i) {
      T* const sum = sums + i * row.stride + j;
      memory.Store(sum, memory.Load(sum) + of_step[i]);
    }
  });
}

// Returns the kernels of all cells, in the order of the list.
template <typename T, typename... Cells>
const CellKernels<T>* MakeCellKernels(CellList<Cells...>) {
  static constexpr CellKernels<T> kernels[] = {
      {CellForward<T, Cells>, CellBackward<T, Cells>,
       CellResetForward<T, Cells>, CellResetBackward<T, Cells>,
       Cells::kVectors > 0 ? CellAddVectors<T, Cells> : nullptr}...};
  return kernels;
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_
