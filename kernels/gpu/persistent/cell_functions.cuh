// The functions that cells.h asks for, and what kernels need around a cell. The
// persistent kernels and those of single steps share this file; the latter
// define HAS_EXACT_FUNCTIONS, for a sigmoid and a tanh that are as exact as the
// type that kernels compute in. Beside the products of cuBLAS, they take little
// time.
//
// Whoever compiles defines CELL, a type of cells.h, and a type as items.cuh
// says.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELL_FUNCTIONS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELL_FUNCTIONS_CUH_

#include "arguments.h"
#include "cells.h"
#include "philox.cuh"
#if !defined(HAS_EXACT_FUNCTIONS)
#include "device.cuh"
#else
#include "items.cuh"
#if defined(IS_FLOAT64)
static double Sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double Tanh(double x) { return tanh(x); }
#else
static float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static float Tanh(float x) { return tanhf(x); }
#endif
#endif

// The numbers of the activations, if they are not the cell's own.
#if !defined(ACTIVATION)
#define ACTIVATION 1
#endif
#if !defined(RECURRENT_ACTIVATION)
#define RECURRENT_ACTIVATION 2
#endif

using CellType = CELL;
constexpr int kGates = CellType::kGates, kSlots = CellType::kSlots;
constexpr int kVectors = CellType::kVectors;

struct Functions {
  using Factor = Sum;
  Sum clip = 0.0f;                 // 0 for none.
  Sum vectors[kVectors + 1] = {};  // The unit's numbers of them.
  Sum zones[2] = {};               // With zoneout.

  Sum Sigmoid(Sum x) const { return ::Sigmoid(x); }
  Sum Tanh(Sum x) const { return ::Tanh(x); }
  // Comparisons are false for NaN, which therefore stays NaN.
  Sum Relu(Sum x) const { return x < 0.0f ? 0.0f : x; }
  Sum OneMinus(Sum x) const { return 1.0f - x; }
  Sum Between(Sum a, Sum x, Sum y) const { return y + a * (x - y); }
  Sum Limit(Sum c) const {
    if (clip == 0.0f) return c;
    return c < -clip ? -clip : c > clip ? clip : c;
  }
  template <typename... Sums>
  Sum Product(Sums... x) const {
    return (... * x);
  }
  Sum ThroughLimit(Sum c, Sum factor) const {
    return clip == 0.0f || (c < clip && c > -clip) ? factor : 0.0f;
  }
  Sum ReluSlope(Sum y) const { return y > 0.0f ? 1.0f : 0.0f; }
  Sum Linear(Sum x, Sum a, Sum b) const { return a * x + b; }
  Sum Abs(Sum x) const { return x < 0.0f ? -x : x; }
  Sum Min0(Sum x) const { return x > 0.0f ? 0.0f : x; }
  Sum ExpMinus1(Sum x) const { return expm1(x); }
  Sum Within01(Sum x) const { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }
  Sum Step(Sum y) const { return y > 0.0f ? 1.0f : 0.0f; }
  Sum Inside01(Sum y) const { return y > 0.0f && y < 1.0f ? 1.0f : 0.0f; }
  Sum Gate(Sum x) const { return Activated(*this, RECURRENT_ACTIVATION, x); }
  Sum Activate(Sum x) const { return Activated(*this, ACTIVATION, x); }
  Sum GateSlope(Sum y) const { return SlopeAt(*this, RECURRENT_ACTIVATION, y); }
  Sum Slope(Sum y) const { return SlopeAt(*this, ACTIVATION, y); }
  Sum OfVector(int i) const { return vectors[i]; }
  Sum Zone(int i) const { return zones[i]; }

  // Reads the unit's numbers from [kVectors, units].
  void ReadVectors(const void* from, int units, int unit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      vectors[i] = ToFloat(static_cast<const Item*>(from)[i * units + unit]);
    }
  }
};

// Draws what zoneout leaves as it was in a direction. The masks are those of a
// [L * D, 2, T, B, H] array.
class ZoneoutMasks {
 public:
  ZoneoutMasks(const cudnn_rnn_tf::persistent::PassArguments& all,
               int pseudo_layer)
      : all_(all), first_state_(2 * pseudo_layer) {
    // To load these in each step would take longer than to draw.
    for (int i = 0; i < 2 && all.zoneout.seed != nullptr; ++i) {
      seed_[i] = all.zoneout.seed[i];
    }
  }
  // Whether numbers stay by chance. Otherwise, shares of all of them do.
  bool draws() const { return all_.zoneout.seed != nullptr; }
  // Sets the shares of h and c that stay of a unit. `row` is that of a step of
  // a sequence in [T, B].
  void SetShares(int row, int units, int unit, Sum* shares) const {
    const auto& zoneout = all_.zoneout;
#pragma unroll
    for (int state = 0; state < 1 + CellType::kHasC; ++state) {
      shares[state] = draws() ? IsDropped(seed_, zoneout.mask_layer,
                                          RowOf(state, row) * units + unit,
                                          zoneout.thresholds[state])
                              : zoneout.rates[state];
    }
  }
  // Returns a bit for each of four units, one of which is `unit`: whether its h
  // (state 0) or c stays. They begin at a multiple of four, as `units` is.
  Word FourStay(int state, int row, int units, int unit) const {
    const auto& zoneout = all_.zoneout;
    const unsigned long long element = RowOf(state, row) * units + unit;
    const Words4 words = WordsOf(seed_, zoneout.mask_layer, element / 4);
    Word bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits |= (words.word[i] < zoneout.thresholds[state] ? 1u : 0u) << i;
    }
    return bits;
  }

 private:
  long long RowOf(int state, int row) const {
    const long long of_state = first_state_ + state;
    return of_state * all_.sequences.steps * all_.sequences.batch + row;
  }

  const cudnn_rnn_tf::persistent::PassArguments& all_;
  const int first_state_;
  unsigned long long seed_[2] = {};
};

// The numbers that a cell's step backward reads, as they are in memory: to
// convert them when they are loaded would be to wait for the loads.
template <typename T>
struct InputsOf {
  T gates[kSlots];
  T h_before, output_backprop, c, c_before, c_backprop;
};
using CellInputs = InputsOf<Item>;

// A cell's gradients are factors times the gradients of its h and c, so that
// all but a few products can be made before the latter are known.
template <typename Cell = CellType>
static auto MakeFactors(const CellInputs& in, const Functions& functions) {
  Sum kept[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    kept[slot] = ToFloat(in.gates[slot]);
  return Cell::Prepare(functions, kept, ToFloat(in.h_before), ToFloat(in.c),
                       ToFloat(in.c_before));
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELL_FUNCTIONS_CUH_
