// The steps of the cells on vectors: see CellKernels. They are compiled with
// simd_kernels.cc alone.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_

#include <cstdint>
#include <type_traits>

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
  using V = Register<T>;
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
  V vectors[3], zones[2];

  V Sigmoid(V x) const { return CRNN_SIMD_NAME::Sigmoid(x); }
  V Tanh(V x) const { return CRNN_SIMD_NAME::Tanh(x); }
  // Comparisons are written so that a NaN stays a NaN.
  V Relu(V x) const { return x < T(0) ? V{} : x; }
  V Gate(V x) const { return Sigmoid(x); }
  V Activate(V x) const { return Tanh(x); }
  V GateSlope(V y) const { return y * OneMinus(y); }
  V Slope(V y) const { return OneMinus(y * y); }
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
  V Zone(int i) const { return zones[i]; }
};

// The same, with the activations that a row names.
template <typename T>
struct ChosenFunctions : CellFunctions<T> {
  using V = Register<T>;
  int activation, recurrent_activation;

  V Linear(V x, double a, double b) const { return T(a) * x + T(b); }
  V Abs(V x) const { return x < T(0) ? -x : x; }
  V Min0(V x) const { return x > T(0) ? V{} : x; }
  V ExpMinus1(V x) const { return CRNN_SIMD_NAME::ExpMinus1(x); }
  V Within01(V x) const {
    x = x < T(0) ? V{} : x;
    return x > T(1) ? V{} + T(1) : x;
  }
  V Step(V y) const { return y > T(0) ? V{} + T(1) : V{}; }
  V Inside01(V y) const { return y < T(1) ? Step(y) : V{}; }

  // Calls keep the loops small, of which there is one for each kind of cell.
  __attribute__((noinline)) V Of(int which, V x) const {
    return Activated(*this, which, x);
  }
  __attribute__((noinline)) V SlopeOf(int which, V y) const {
    return SlopeAt(*this, which, y);
  }
  V Gate(V x) const { return Of(recurrent_activation, x); }
  V Activate(V x) const { return Of(activation, x); }
  V GateSlope(V y) const { return SlopeOf(recurrent_activation, y); }
  V Slope(V y) const { return SlopeOf(activation, y); }
};

// Of a function that calls others for each vector. There are so many kinds of
// cells that the compiler would not have inlined all.
#define CRNN_INLINES_ALL __attribute__((flatten))

// Returns the functions for a row and, at a vector's units, with their numbers.
template <typename Functions, typename T>
__attribute__((always_inline)) inline Functions FunctionsOf(
    const CellRow<T>& row) {
  Functions functions;
  functions.clip = row.clip;
  if constexpr (std::is_same_v<Functions, ChosenFunctions<T>>) {
    functions.activation = row.activation;
    functions.recurrent_activation = row.recurrent_activation;
  }
  return functions;
}
template <typename Cell, typename Functions, typename T, typename Memory>
__attribute__((always_inline)) inline Functions FunctionsAt(
    const CellRow<T>& row, Memory memory, int64_t j) {
  auto functions = FunctionsOf<Functions>(row);
  static_assert(Cell::kVectors <= std::extent_v<decltype(functions.vectors)>);
  for (int i = 0; i < Cell::kVectors; ++i) {
    functions.vectors[i] = memory.Load(row.vectors + i * row.stride + j);
  }
  for (int i = 0; i < (Cell::kZones ? 1 + Cell::kHasC : 0); ++i) {
    functions.zones[i] = memory.Load(row.zones + i * row.stride + j);
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
  void Load(Memory memory, int64_t j, Register<T>* to) const {
    ForEach(j, [&](int slot, T* at) { to[slot] = memory.Load(at); });
  }
  template <typename Memory>
  void Store(Memory memory, int64_t j, const Register<T>* from) const {
    ForEach(j, [&](int slot, T* at) { memory.Store(at, from[slot]); });
  }
};

template <typename T, typename Cell, typename Functions>
CRNN_INLINES_ALL void CellForward(int64_t n, const CellRow<T>& given) {
  // Stores of vectors might change any memory, but not a copy.
  const CellRow<T> row = given;
  const Slots<Cell, false, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const auto functions = FunctionsAt<Cell, Functions>(row, memory, j);
    Register<T> z[Cell::kSlots], kept[Cell::kSlots], h = {}, c = {};
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

template <typename T, typename Cell, typename Functions>
CRNN_INLINES_ALL void CellBackward(int64_t n, const CellRow<T>& given) {
  const CellRow<T> row = given;
  const Slots<Cell, false, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const auto functions = FunctionsAt<Cell, Functions>(row, memory, j);
    Register<T> kept[Cell::kSlots], dz[Cell::kSlots];
    Register<T> h_before = {}, c = {}, c_before = {}, carry_h = {}, dc = {};
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
    Register<T> of_vectors[Cell::kVectors + 1];
    Cell::VectorGradients(functions, dz, c, c_before, of_vectors);
    for (int i = 0; i < Cell::kVectors; ++i) {
      T* const sum = row.vector_sums + i * row.stride + j;
      memory.Store(sum, memory.Load(sum) + of_vectors[i]);
    }
    if constexpr (Cell::kReadsH) memory.Store(row.dh + j, carry_h);
    if constexpr (Cell::kHasC) {
      memory.Store(row.dc + j, dc);
      if (row.h == nullptr) return;
      memory.Store(row.h + j, Cell::Output(functions, kept, c));
    }
  });
}

template <typename T, typename Cell, typename Functions>
void CellResetForward(int64_t n, const CellRow<T>& given) {
  const CellRow<T> row = given;
  const auto functions = FunctionsOf<Functions>(row);
  const Slots<Cell, true, T> slots = {row};
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    Register<T> z[Cell::kSlots] = {}, kept[Cell::kSlots] = {};
    slots.Load(memory, j, z);
    Cell::ResetForward(functions, z, memory.Load(row.h_before + j), kept);
    slots.Store(memory, j, kept);
  });
}

template <typename T, typename Cell, typename Functions>
void CellResetBackward(int64_t n, const CellRow<T>& given, const T* through) {
  const CellRow<T> row = given;
  const auto functions = FunctionsOf<Functions>(row);
  ForVectors<T>(n, [&](auto memory, int64_t j) __attribute__((always_inline)) {
    const Register<T> reset = memory.Load(row.gates + j);
    Register<T> dh = memory.Load(row.dh + j), dz = {};
    Cell::ResetBackward(functions, reset, memory.Load(row.h_before + j),
                        memory.Load(through + j), &dh, &dz);
    memory.Store(row.dh + j, dh);
    memory.Store(row.gates + j, dz);
  });
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CELL_LOOPS_H_
