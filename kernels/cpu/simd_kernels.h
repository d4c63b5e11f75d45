// The inner loops of the CPU backend, compiled once per instruction set.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SIMD_KERNELS_H_

#include <cstdint>

namespace cudnn_rnn_tf {

// Two bfloat16 numbers that follow each other.
struct BfloatPair {
  uint16_t even, odd;
};

// Plain pointers and numbers only: simd_kernels.cc is compiled with several
// instruction sets, and an inline function of any other header would be emitted
// for all of them under one name.
template <typename T>
struct SimdKernels {
  static constexpr int kTileRows = 6;
  static constexpr int kMaxVectors = 4;

  // One tile of a product: for each of its rows r,
  // c[r][0:cols] = init[r][0:cols] + sum over k of a[r][k * a_stride] *
  // panel[k], where a row of the panel has as many whole vectors as cols needs;
  // beyond cols it holds zeros. init may be null (zeros) and may be c.
  template <typename A, typename Panel>
  using TileKernel = void (*)(int64_t depth, const A* const* a,
                              int64_t a_stride, const Panel* panel,
                              const T* const* init, T* const* c, int64_t cols);
  // Indices are the numbers of rows and of vectors in the panel, from 1 on.
  template <typename A, typename Panel>
  using Tiles = TileKernel<A, Panel>[kTileRows + 1][kMaxVectors + 1];
  Tiles<T, T> tile;
  // For T = float, panels may hold bfloat16 numbers: a pair is of two rows of
  // the panel that follow each other, the last of which may hold zeros.
  Tiles<T, BfloatPair> bfloat16_tile;
  // So may A, whose pairs are along its rows; the depth counts pairs. One of
  // the two is null: A is rounded where the processor multiplies pairs.
  Tiles<BfloatPair, BfloatPair> bfloat16_pair_tile;
  int64_t vector_cols;
  int64_t panel_vectors;

  // to[c * to_stride + r] = from[r * from_stride + c], for r in [0, rows) and c
  // in [0, cols).
  void (*transpose)(int64_t rows, int64_t cols, const T* from,
                    int64_t from_stride, T* to, int64_t to_stride);
  // sums[j] += the sum of from[r * stride + j] over r in [0, rows).
  void (*add_column_sums)(int64_t rows, int64_t n, const T* from,
                          int64_t stride, T* sums);

  // Each works on n units of one row; gate g's stand at gates + g * stride.
  // Forward, gates hold preactivations and are left with their activations;
  // backward, these give way to the gradients of the preactivations. Cell
  // states are kept as they are and clipped where they are read; clip = 0: no
  // clipping.
  void (*lstm_forward)(int64_t n, int64_t stride, T clip, T* gates, T* c, T* h);
  // `candidate` holds R_h h on entry and R_h h + b_Rh on return.
  void (*gru_forward)(int64_t n, int64_t stride, const T* candidate_bias,
                      const T* h_prev, T* gates, T* candidate, T* h);
  void (*rnn_tanh_forward)(int64_t n, T* gates, T* h);
  void (*rnn_relu_forward)(int64_t n, T* gates, T* h);
  // `dc` goes from the gradient of the cell state after the step to that
  // before it. `y`, unless null, is left with the output before the projection.
  void (*lstm_backward)(int64_t n, int64_t stride, T clip, T* gates, const T* c,
                        const T* c_prev, const T* dh, T* dc, T* y);
  // `candidate` is left with the candidate's gradient on the recurrent side,
  // `dh` with its share that skips the gates, z * dh.
  void (*gru_backward)(int64_t n, int64_t stride, T* gates, T* candidate,
                       const T* h_prev, T* dh);
  void (*rnn_tanh_backward)(int64_t n, T* gates, const T* dh);
  void (*rnn_relu_backward)(int64_t n, T* gates, const T* dh);
};

// Elementwise functions on their own, for tests of their accuracy.
struct SimdFunctions {
  void (*sigmoid)(int64_t n, const float* x, float* y);
  void (*tanh)(int64_t n, const float* x, float* y);
};

// Between float and the bits of the half types, rounding to the nearest number,
// or the even one of two. A NaN stays one, with its sign.
struct SimdConversions {
  void (*from_float16)(int64_t n, const uint16_t* from, float* to);
  void (*to_float16)(int64_t n, const float* from, uint16_t* to);
  void (*from_bfloat16)(int64_t n, const uint16_t* from, float* to);
  void (*to_bfloat16)(int64_t n, const float* from, uint16_t* to);
  // to[i] = the pair of even[i] and odd[i], rounded.
  void (*to_bfloat16_pairs)(int64_t n, const float* even, const float* odd,
                            BfloatPair* to);
};

struct SimdTable {
  const char* name;
  SimdKernels<float> float32;
  SimdKernels<double> float64;
  SimdFunctions functions;
  SimdConversions conversions;

  // Whether the processor multiplies bfloat16 numbers, and faster than floats.
  bool multiplies_bfloat16() const {
    return float32.bfloat16_pair_tile[1][1] != nullptr;
  }
};

// The table for the best instruction set this processor has, or the one that
// the environment variable CUDNN_RNN_TF_CPU_ISA names ("baseline", "avx2",
// "avx512" or "avx512bf16"); a name the processor cannot run is ignored.
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
