// Matrix products on one CPU.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
#define CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace cudnn_rnn_tf {

// A matrix in memory that the caller owns; strides in elements.
template <typename T>
struct MatrixView {
  const T* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;

  MatrixView Transposed() const { return {data, col_stride, row_stride}; }
};

// Number of elements that PackPanels writes for a [depth, cols] matrix.
template <typename T>
int64_t PackedSize(int64_t depth, int64_t cols);

// Copies the right-hand side of a product into the panels that the inner loops
// read: blocks of depth, then panels of columns, zero-padded.
template <typename T>
void PackPanels(int64_t depth, int64_t cols, MatrixView<T> b, T* packed,
                const ParallelFor& parallel_for);

// C[rows, cols] = A[rows, depth] * B, or += where accumulate is set, on the
// calling thread. Each row of C is the same, to the bit, whichever rows are
// computed with it.
template <typename T>
void GemmPacked(int64_t rows, int64_t cols, int64_t depth, MatrixView<T> a,
                const T* packed_b, T* c, int64_t c_row_stride, bool accumulate);

// The same on several threads, packing B into `workspace`, which holds
// PackedSize(depth, cols) elements.
template <typename T>
void Gemm(int64_t rows, int64_t cols, int64_t depth, MatrixView<T> a,
          MatrixView<T> b, T* c, int64_t c_row_stride, bool accumulate,
          T* workspace, const ParallelFor& parallel_for);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
