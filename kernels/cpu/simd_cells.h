// The arithmetic of the cells, forward and backward: see SimdKernels. Only the
// files that are compiled once per instruction set include this.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SIMD_CELLS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SIMD_CELLS_H_

#include <cstdint>

#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
// The functions have internal linkage, so that the linker does not take one
// instruction set's for another's.
namespace {

// Limits c to [-clip, clip], unless clip is 0. A NaN stays a NaN, because both
// comparisons are false.
template <typename T>
inline Vector<T> Clip(Vector<T> c, T clip) {
  if (!(clip > T(0))) return c;
  c = c < -clip ? Vector<T>{} - clip : c;
  return c > clip ? Vector<T>{} + clip : c;
}

// Returns the gradient of a state from that of the clipped state. It is zero if
// clipping limits the state.
template <typename T>
inline Vector<T> ThroughClip(Vector<T> gradient, Vector<T> c, T clip) {
  if (!(clip > T(0))) return gradient;
  gradient = c < clip ? gradient : Vector<T>{};
  return c > -clip ? gradient : Vector<T>{};
}

template <typename T>
void LstmForward(int64_t n, int64_t stride, T clip, T* gates, T* c, T* h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> i = Sigmoid(memory.Load(gates + j));
    const Vector<T> f = Sigmoid(memory.Load(gates + stride + j));
    const Vector<T> g = Tanh(memory.Load(gates + 2 * stride + j));
    const Vector<T> o = Sigmoid(memory.Load(gates + 3 * stride + j));
    const Vector<T> next = f * Clip(memory.Load(c + j), clip) + i * g;
    memory.Store(gates + j, i);
    memory.Store(gates + stride + j, f);
    memory.Store(gates + 2 * stride + j, g);
    memory.Store(gates + 3 * stride + j, o);
    memory.Store(c + j, next);
    memory.Store(h + j, o * Tanh(Clip(next, clip)));
  });
}

template <typename T>
void LstmBackward(int64_t n, int64_t stride, T clip, T* gates, const T* c,
                  const T* c_prev, const T* dh, T* dc, T* y) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> i = memory.Load(gates + j);
    const Vector<T> f = memory.Load(gates + stride + j);
    const Vector<T> g = memory.Load(gates + 2 * stride + j);
    const Vector<T> o = memory.Load(gates + 3 * stride + j);
    const Vector<T> cell = memory.Load(c + j);
    const Vector<T> before = memory.Load(c_prev + j);
    const Vector<T> dy = memory.Load(dh + j);
    const Vector<T> tanh_c = Tanh(Clip(cell, clip));
    const Vector<T> dcell =
        memory.Load(dc + j) +
        ThroughClip(dy * o * (T(1) - tanh_c * tanh_c), cell, clip);
    memory.Store(gates + j, dcell * g * i * (T(1) - i));
    memory.Store(gates + stride + j,
                 dcell * Clip(before, clip) * f * (T(1) - f));
    memory.Store(gates + 2 * stride + j, dcell * i * (T(1) - g * g));
    memory.Store(gates + 3 * stride + j, dy * tanh_c * o * (T(1) - o));
    memory.Store(dc + j, ThroughClip(dcell * f, before, clip));
    if (y != nullptr) memory.Store(y + j, o * tanh_c);
  });
}

template <typename T>
void GruForward(int64_t n, int64_t stride, const T* candidate_bias,
                const T* h_prev, T* gates, T* candidate, T* h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> r = Sigmoid(memory.Load(gates + j));
    const Vector<T> z = Sigmoid(memory.Load(gates + stride + j));
    const Vector<T> recurrent =
        memory.Load(candidate + j) + memory.Load(candidate_bias + j);
    const Vector<T> g =
        Tanh(memory.Load(gates + 2 * stride + j) + r * recurrent);
    memory.Store(gates + j, r);
    memory.Store(gates + stride + j, z);
    memory.Store(gates + 2 * stride + j, g);
    memory.Store(candidate + j, recurrent);
    memory.Store(h + j, (T(1) - z) * g + z * memory.Load(h_prev + j));
  });
}

template <typename T>
void GruBackward(int64_t n, int64_t stride, T* gates, T* candidate,
                 const T* h_prev, T* dh) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> r = memory.Load(gates + j);
    const Vector<T> z = memory.Load(gates + stride + j);
    const Vector<T> g = memory.Load(gates + 2 * stride + j);
    const Vector<T> dy = memory.Load(dh + j);
    const Vector<T> dg = dy * (T(1) - z) * (T(1) - g * g);
    memory.Store(gates + j, dg * memory.Load(candidate + j) * r * (T(1) - r));
    memory.Store(gates + stride + j,
                 dy * (memory.Load(h_prev + j) - g) * z * (T(1) - z));
    memory.Store(gates + 2 * stride + j, dg);
    memory.Store(candidate + j, dg * r);
    memory.Store(dh + j, dy * z);
  });
}

// The first half of a step of a GRU whose reset gate acts before the product.
template <typename T>
void ResetBeforeForward(int64_t n, int64_t stride, const T* h_prev, T* gates,
                        T* reset_h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> r = Sigmoid(memory.Load(gates + j));
    memory.Store(gates + j, r);
    memory.Store(gates + stride + j, Sigmoid(memory.Load(gates + stride + j)));
    memory.Store(reset_h + j, r * memory.Load(h_prev + j));
  });
}

// The second half, after the product.
template <typename T>
void CandidateForward(int64_t n, int64_t stride, const T* h_prev, T* gates,
                      T* h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> z = memory.Load(gates + stride + j);
    const Vector<T> g = Tanh(memory.Load(gates + 2 * stride + j));
    memory.Store(gates + 2 * stride + j, g);
    memory.Store(h + j, (T(1) - z) * g + z * memory.Load(h_prev + j));
  });
}

template <typename T>
void CandidateBackward(int64_t n, int64_t stride, T* gates, const T* h_prev,
                       T* dh) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> z = memory.Load(gates + stride + j);
    const Vector<T> g = memory.Load(gates + 2 * stride + j);
    const Vector<T> dy = memory.Load(dh + j);
    memory.Store(gates + stride + j,
                 dy * (memory.Load(h_prev + j) - g) * z * (T(1) - z));
    memory.Store(gates + 2 * stride + j, dy * (T(1) - z) * (T(1) - g * g));
    memory.Store(dh + j, dy * z);
  });
}

template <typename T>
void ResetBeforeBackward(int64_t n, T* gates, const T* h_prev,
                         const T* reset_h_backprop, T* dh) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> r = memory.Load(gates + j);
    const Vector<T> dreset_h = memory.Load(reset_h_backprop + j);
    memory.Store(gates + j,
                 dreset_h * memory.Load(h_prev + j) * r * (T(1) - r));
    memory.Store(dh + j, memory.Load(dh + j) + dreset_h * r);
  });
}

template <typename T>
void RnnTanhForward(int64_t n, T* gates, T* h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> y = Tanh(memory.Load(gates + j));
    memory.Store(gates + j, y);
    memory.Store(h + j, y);
  });
}

template <typename T>
void RnnReluForward(int64_t n, T* gates, T* h) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> x = memory.Load(gates + j);
    // The comparison is written so that a NaN stays a NaN.
    const Vector<T> y = x < T(0) ? Vector<T>{} : x;
    memory.Store(gates + j, y);
    memory.Store(h + j, y);
  });
}

template <typename T>
void RnnTanhBackward(int64_t n, T* gates, const T* dh) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> y = memory.Load(gates + j);
    memory.Store(gates + j, memory.Load(dh + j) * (T(1) - y * y));
  });
}

template <typename T>
void RnnReluBackward(int64_t n, T* gates, const T* dh) {
  ForVectors<T>(n, [&](auto memory, int64_t j) {
    const Vector<T> y = memory.Load(gates + j);
    memory.Store(gates + j, y > T(0) ? memory.Load(dh + j) : Vector<T>{});
  });
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SIMD_CELLS_H_
