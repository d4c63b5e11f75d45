// The inner loops of the CPU backend, compiled once per instruction set.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_

#include <cstdint>

namespace cudnn_rnn_tf {

// Plain pointers and numbers only: simd_kernels.cc is compiled with several
// instruction sets, and an inline function of any other header would be emitted
// for all of them under one name.
template <typename T>
struct SimdKernels {
  static constexpr int kMaxRows = 8;

  // C[rows, cols] = A[rows, depth] * panel, or += where accumulate is set. The
  // panel holds panel_cols columns of the right-hand side, depth-major and
  // zero-padded; cols says how many of them exist.
  using GemmKernel = void (*)(int64_t depth, const T* a, int64_t a_row_stride,
                              int64_t a_col_stride, const T* panel, T* c,
                              int64_t c_row_stride, int64_t cols,
                              bool accumulate);
  GemmKernel gemm[kMaxRows + 1];  // By number of rows; 0 is unused.
  int64_t panel_cols;
  int64_t block_rows;   // Rows per full kernel.
  int64_t block_depth;  // Depth of a panel that stays in the L1 cache.

  // Each works on one row of n units. `gates` holds the gates' preactivations
  // [num_gates * n] and is left with their activations. States are updated in
  // place. Cell states are kept as they are and clipped where they are read;
  // clip = 0: no clipping.
  void (*lstm_forward)(int64_t n, T clip, T* gates, T* c, T* h);
  // `recurrent` is R h [3 n]; `candidate_bias` the recurrent bias of the
  // candidate [n]; `candidate` is left with R_h h + b_Rh [n].
  void (*gru_forward)(int64_t n, const T* recurrent, const T* candidate_bias,
                      T* gates, T* candidate, T* h);
  void (*rnn_tanh_forward)(int64_t n, T* gates, T* h);
  void (*rnn_relu_forward)(int64_t n, T* gates, T* h);

  // dz: the gradients of the preactivations. `dc` goes from the gradient of the
  // cell state after the step to that before it.
  void (*lstm_backward)(int64_t n, T clip, const T* gates, const T* c,
                        const T* c_prev, const T* dh, T* dc, T* dz);
  // dz [4 n]: reset, update, candidate on the input side, candidate on the
  // recurrent side. `dh` is left with its share that skips the gates, z * dh.
  void (*gru_backward)(int64_t n, const T* gates, const T* candidate,
                       const T* h_prev, T* dh, T* dz);
  void (*rnn_tanh_backward)(int64_t n, const T* h, const T* dh, T* dz);
  void (*rnn_relu_backward)(int64_t n, const T* h, const T* dh, T* dz);
  // y = o * tanh(c), an LSTM's output before its projection.
  void (*lstm_output)(int64_t n, T clip, const T* output_gate, const T* c,
                      T* y);
};

// Elementwise functions on their own, for tests of their accuracy.
struct SimdFunctions {
  void (*sigmoid)(int64_t n, const float* x, float* y);
  void (*tanh)(int64_t n, const float* x, float* y);
};

struct SimdTable {
  const char* name;
  SimdKernels<float> float32;
  SimdKernels<double> float64;
  SimdFunctions functions;
};

// The table for the best instruction set this processor has, or the one that
// the environment variable CUDNN_RNN_TF_CPU_ISA names ("baseline", "avx2" or
// "avx512"); a name the processor cannot run is ignored.
const SimdTable& Simd();

template <typename T>
const SimdKernels<T>& Kernels();
template <>
inline const SimdKernels<float>& Kernels<float>() {
  return Simd().float32;
}
template <>
inline const SimdKernels<double>& Kernels<double>() {
  return Simd().float64;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_
