// The arithmetic of a cell in one step, forward and backward. The persistent
// kernels and those of single steps share this file; the latter define
// HAS_EXACT_FUNCTIONS, for a sigmoid and a tanh that are as exact as the type
// that kernels compute in. Beside the products of cuBLAS, they take little
// time.
//
// Whoever compiles defines one of IS_LSTM, IS_GRU, IS_TANH, IS_RELU and
// IS_GRU_RESET_BEFORE, which is a GRU whose reset gate acts before the product,
// and a type as items.cuh says.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELLS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELLS_CUH_

#include "arguments.h"
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

#if defined(IS_GRU_RESET_BEFORE)
#define IS_GRU
constexpr bool kResetsBefore = true;
#else
constexpr bool kResetsBefore = false;
#endif

#if defined(IS_LSTM)
constexpr int kGates = 4, kSlots = 4;
#elif defined(IS_GRU)
constexpr int kGates = 3, kSlots = 4;
#else
constexpr int kGates = 1, kSlots = 1;
#endif

// The slot of a gate's other side. A GRU's candidate keeps its input side and
// its recurrent side in two slots, since the reset gate multiplies the latter
// alone; other gates have one slot for both. If the reset gate acts before the
// product, the last slot holds r * h as the candidate's matrix reads it.
constexpr int OtherSlot(int gate) {
  return kGates == 3 && !kResetsBefore && gate == 2 ? 3 : gate;
}
// The gates whose matrices read h itself. They come first.
constexpr int kGatesOfH = kResetsBefore ? 2 : kGates;

// Limits an LSTM's c to [-clip, clip], unless `clip` is 0. The comparisons are
// false for NaN, which therefore stays NaN.
static Sum Limit(Sum c, Sum clip) {
  if (clip == 0.0f) return c;
  return c < -clip ? -clip : c > clip ? clip : c;
}

// Computes a cell's step. `inputs` are added to `sums`, the recurrent products;
// those of a GRU's candidate are on the recurrent side in slot 2 and on the
// input side in slot 3. `gates` are set to what a backward pass reads, but for
// r * h before a product. Where c is read, it is limited to `clip`, but it is
// handed on as it is.
static void ComputeCell(const Sum* sums, const Sum* inputs, Sum* h, Sum* c,
                        Sum* gates, Sum clip = 0.0f) {
#if defined(IS_LSTM)
  gates[0] = Sigmoid(sums[0] + inputs[0]);
  gates[1] = Sigmoid(sums[1] + inputs[1]);
  gates[2] = Tanh(sums[2] + inputs[2]);
  gates[3] = Sigmoid(sums[3] + inputs[3]);
  *c = gates[1] * Limit(*c, clip) + gates[0] * gates[2];
  *h = gates[3] * Tanh(Limit(*c, clip));
#elif defined(IS_GRU_RESET_BEFORE)
  gates[0] = Sigmoid(sums[0] + inputs[0]);
  gates[1] = Sigmoid(sums[1] + inputs[1]);
  gates[2] = Tanh(sums[2] + inputs[2]);
  *h = gates[2] + gates[1] * (*h - gates[2]);
#elif defined(IS_GRU)
  gates[0] = Sigmoid(sums[0] + inputs[0]);
  gates[1] = Sigmoid(sums[1] + inputs[1]);
  gates[3] = sums[2] + inputs[2];
  gates[2] = Tanh(inputs[3] + gates[0] * gates[3]);
  *h = gates[2] + gates[1] * (*h - gates[2]);
#elif defined(IS_TANH)
  *h = gates[0] = Tanh(sums[0] + inputs[0]);
#else
  // The comparison is false for NaN, which therefore stays NaN.
  const Sum sum = sums[0] + inputs[0];
  *h = gates[0] = sum < 0.0f ? 0.0f : sum;
#endif
}

// The numbers that a cell's step reads.
struct CellInputs {
  Item gates[kSlots];
  Item h_before, output_backprop;
  Sum c, c_before;
};

// A cell's gradients are these factors times the gradients of its h and c, so
// that all but a few products can be made before the latter are known.
struct Factors {
#if defined(IS_LSTM)
  Sum h_to_c, input, forget, candidate, output, c_to_c;
#elif defined(IS_GRU)
  Sum reset, update, candidate, recurrent, h_to_h;
#else
  Sum gate;
#endif

  void Compute(const CellInputs& in, Sum clip = 0.0f) {
    Sum g[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) g[slot] = ToFloat(in.gates[slot]);
#if defined(IS_LSTM)
    // No gradient passes through a limit that was reached.
    const auto passes = [=](Sum c) {
      return clip == 0.0f || (c < clip && c > -clip);
    };
    const Sum tanh_c = Tanh(Limit(in.c, clip));
    h_to_c = passes(in.c) ? g[3] * (1.0f - tanh_c * tanh_c) : 0.0f;
    input = g[2] * g[0] * (1.0f - g[0]);
    forget = Limit(in.c_before, clip) * g[1] * (1.0f - g[1]);
    candidate = g[0] * (1.0f - g[2] * g[2]);
    output = tanh_c * g[3] * (1.0f - g[3]);
    c_to_c = passes(in.c_before) ? g[1] : 0.0f;
#elif defined(IS_GRU)
    candidate = (1.0f - g[1]) * (1.0f - g[2] * g[2]);
    recurrent = candidate * g[0];
    reset = candidate * g[3] * g[0] * (1.0f - g[0]);
    update = (ToFloat(in.h_before) - g[2]) * g[1] * (1.0f - g[1]);
    h_to_h = g[1];
#elif defined(IS_TANH)
    gate = 1.0f - g[0] * g[0];
#else
    gate = g[0] > 0.0f ? 1.0f : 0.0f;
#endif
  }

  // Computes the gradients of the gates' inputs, in the order of the slots.
  // `dh` is the gradient of the cell's h. `carry_h` is set to the gradient that
  // goes to the previous h without passing a gate. `carry_c`, the gradient of
  // c, is replaced by that of the previous c.
  void Apply(Sum dh, Sum* carry_h, Sum* carry_c, Sum* gradients) const {
    *carry_h = 0.0f;
#if defined(IS_LSTM)
    const Sum dc = *carry_c + dh * h_to_c;
    gradients[0] = dc * input;
    gradients[1] = dc * forget;
    gradients[2] = dc * candidate;
    gradients[3] = dh * output;
    *carry_c = dc * c_to_c;
#elif defined(IS_GRU)
    gradients[0] = dh * reset;
    gradients[1] = dh * update;
    gradients[2] = dh * candidate;
    gradients[3] = dh * recurrent;
    *carry_h = dh * h_to_h;
#else
    gradients[0] = dh * gate;
#endif
  }
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_CELLS_CUH_
