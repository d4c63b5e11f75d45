#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

// A block of A this large, packed, stays in the L2 cache.
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTaskPanels = 8;
constexpr int64_t kMaxBlockDepth = 384;

template <typename T>
int64_t BlockDepth() {
  return std::min(Kernels<T>().block_depth, kMaxBlockDepth);
}

template <typename T>
int64_t PaddedCols(int64_t cols) {
  const int64_t width = Kernels<T>().panel_cols;
  return CeilDiv(cols, width) * width;
}

// Panels [first, last) of one block of depth, for all rows.
template <typename T>
void BlockTimesPanels(int64_t rows, int64_t cols, int64_t first, int64_t last,
                      int64_t depth, const T* a, int64_t a_row_stride,
                      int64_t a_col_stride, int64_t a_block_stride,
                      const T* panels, T* c, int64_t c_row_stride,
                      bool accumulate) {
  const SimdKernels<T>& simd = Kernels<T>();
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t col = panel * simd.panel_cols;
    for (int64_t row = 0; row < rows; row += simd.block_rows) {
      const int64_t height = std::min(simd.block_rows, rows - row);
      simd.gemm[height](depth, a + row / simd.block_rows * a_block_stride,
                        a_row_stride, a_col_stride,
                        panels + panel * depth * simd.panel_cols,
                        c + row * c_row_stride + col, c_row_stride,
                        std::min(simd.panel_cols, cols - col), accumulate);
    }
  }
}

}  // namespace

template <typename T>
int64_t PackedSize(int64_t depth, int64_t cols) {
  return depth * PaddedCols<T>(cols);
}

template <typename T>
void PackPanels(int64_t depth, int64_t cols, MatrixView<T> b, T* packed,
                const ParallelFor& parallel_for) {
  const int64_t width = Kernels<T>().panel_cols;
  const int64_t panels = CeilDiv(cols, width);
  parallel_for(panels, 4.0 * depth * width, [&](int64_t begin, int64_t end) {
    for (int64_t start = 0; start < depth; start += BlockDepth<T>()) {
      const int64_t block = std::min(BlockDepth<T>(), depth - start);
      for (int64_t panel = begin; panel < end; ++panel) {
        T* to = packed + start * panels * width + panel * block * width;
        const int64_t col = panel * width;
        const int64_t present = std::min(width, cols - col);
        const T* from = b.data + start * b.row_stride + col * b.col_stride;
        if (b.col_stride == 1) {
          for (int64_t k = 0; k < block; ++k) {
            std::copy_n(from + k * b.row_stride, present, to + k * width);
            std::fill_n(to + k * width + present, width - present, T(0));
          }
        } else {
          for (int64_t j = 0; j < width; ++j) {
            for (int64_t k = 0; k < block; ++k) {
              to[k * width + j] =
                  j < present ? from[k * b.row_stride + j * b.col_stride]
                              : T(0);
            }
          }
        }
      }
    }
  });
}

template <typename T>
void GemmPacked(int64_t rows, int64_t cols, int64_t depth, MatrixView<T> a,
                const T* packed_b, T* c, int64_t c_row_stride,
                bool accumulate) {
  const int64_t padded = PaddedCols<T>(cols);
  const int64_t panels = padded / Kernels<T>().panel_cols;
  for (int64_t start = 0; start < depth; start += BlockDepth<T>()) {
    const int64_t block = std::min(BlockDepth<T>(), depth - start);
    BlockTimesPanels(
        rows, cols, 0, panels, block, a.data + start * a.col_stride,
        a.row_stride, a.col_stride, Kernels<T>().block_rows * a.row_stride,
        packed_b + start * padded, c, c_row_stride, accumulate || start > 0);
  }
}

template <typename T>
void Gemm(int64_t rows, int64_t cols, int64_t depth, MatrixView<T> a,
          MatrixView<T> b, T* c, int64_t c_row_stride, bool accumulate,
          T* workspace, const ParallelFor& parallel_for) {
  const SimdKernels<T>& simd = Kernels<T>();
  PackPanels(depth, cols, b, workspace, parallel_for);
  const int64_t panels = CeilDiv(cols, simd.panel_cols);
  const int64_t row_tasks = CeilDiv(rows, kTaskRows);
  const int64_t panel_tasks = CeilDiv(panels, kTaskPanels);
  const double flops = 2.0 * std::min(rows, kTaskRows) * depth *
                       std::min(cols, kTaskPanels * simd.panel_cols);
  parallel_for(row_tasks * panel_tasks, flops, [&](int64_t begin, int64_t end) {
    alignas(64) T packed_a[kTaskRows * kMaxBlockDepth];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / panel_tasks * kTaskRows;
      const int64_t first = task % panel_tasks * kTaskPanels;
      const int64_t last = std::min(first + kTaskPanels, panels);
      const int64_t height = std::min(kTaskRows, rows - row);
      for (int64_t start = 0; start < depth; start += BlockDepth<T>()) {
        const int64_t block = std::min(BlockDepth<T>(), depth - start);
        const T* from = a.data + row * a.row_stride + start * a.col_stride;
        for (int64_t r = 0; r < height; ++r) {
          T* to = packed_a + r / simd.block_rows * simd.block_rows * block +
                  r % simd.block_rows;
          for (int64_t k = 0; k < block; ++k) {
            to[k * simd.block_rows] = from[r * a.row_stride + k * a.col_stride];
          }
        }
        BlockTimesPanels(height, cols, first, last, block, packed_a, int64_t{1},
                         simd.block_rows, simd.block_rows * block,
                         workspace + start * panels * simd.panel_cols,
                         c + row * c_row_stride, c_row_stride,
                         accumulate || start > 0);
      }
    }
  });
}

#define CRNN_INSTANTIATE(T)                                             \
  template int64_t PackedSize<T>(int64_t, int64_t);                     \
  template void PackPanels<T>(int64_t, int64_t, MatrixView<T>, T*,      \
                              const ParallelFor&);                      \
  template void GemmPacked<T>(int64_t, int64_t, int64_t, MatrixView<T>, \
                              const T*, T*, int64_t, bool);             \
  template void Gemm<T>(int64_t, int64_t, int64_t, MatrixView<T>,       \
                        MatrixView<T>, T*, int64_t, bool, T*,           \
                        const ParallelFor&)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
