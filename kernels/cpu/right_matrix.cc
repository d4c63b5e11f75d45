#include "kernels/cpu/right_matrix.h"

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "kernels/cpu/scratch_array.h"

namespace cudnn_rnn_tf {
namespace {

static_assert(kPackedCols<float> <= kMaxRoundedCols, "");

// Copies the first n numbers of some rows to panels of [rows, width].
template <typename T>
void CopyToPanels(StoredRows<T> from, int64_t rows, int64_t n, T* to,
                  int64_t width) {
  alignas(64) T converted[kPackedCols<T>];
  for (int64_t i = 0; i < rows; ++i) {
    if (i + kAhead < rows) from[i + kAhead].Prefetch(n);
    Kernels<T>().copy_to_panels(n, from[i].Read(n, converted), to + i * width,
                                rows * width);
  }
}

// Does so with the first n numbers of the columns.
template <typename T>
void TransposeToPanels(StoredRows<T> columns, int64_t rows, int64_t n, T* to,
                       int64_t width) {
  const ScratchArray<T> converted(kPackedCols<T> * kMaxBlockDepth);
  for (int64_t c = 0; c < n; c += width, to += rows * width) {
    const int64_t cols = std::min(width, n - c);
    const Rows<const T> from =
        ReadRows(columns.From(c), cols, rows, converted.data());
    Kernels<T>().transpose(cols, rows, from.data, from.stride, to, width);
  }
}

}  // namespace

template <typename T>
RightMatrix<T>::RightMatrix(int64_t depth, int64_t cols, bool bfloat16,
                            const Source& source, Arena* arena,
                            Schedule* schedule)
    : depth_(depth), cols_(cols), bfloat16_(bfloat16) {
  assert(!bfloat16 || (std::is_same_v<T, float>));
  assert(PanelCols() <= kPackedCols<T>);
  const int64_t size = (bfloat16 ? PaddedDepth(depth) : depth) * PaddedCols();
  data_ = bfloat16 ? static_cast<void*>(arena->Take<uint16_t>(size))
                   : arena->Take<T>(size);
  // Panels are packed in spans, so that more neighbouring numbers are read at a
  // time. A last panel of fewer vectors is a span of its own.
  const int64_t whole = PaddedCols() / PanelCols();
  const int64_t span = kPackedCols<T> / PanelCols();
  const int64_t whole_spans = CeilDiv(whole, span);
  const int64_t spans = whole_spans + panels() - whole;
  schedule->Add(1, CeilDiv(depth_, BlockDepth()) * spans,
                [=, matrix = *this](int64_t, int64_t task) {
                  const int64_t start = task / spans * matrix.BlockDepth();
                  const int64_t first = std::min(task % spans * span, whole);
                  const int64_t last =
                      first < whole ? std::min(first + span, whole) : whole + 1;
                  matrix.Pack(source, start, first, last);
                });
}

template <typename T>
int64_t RightMatrix<T>::BlockDepth() const {
  // The products of a small step would take long over these divisions.
  if (depth_ <= kMaxBlockDepth) return kMaxBlockDepth;
  return PaddedDepth(CeilDiv(depth_, CeilDiv(depth_, kMaxBlockDepth)));
}

template <typename T>
int64_t RightMatrix<T>::TileRows() const {
  if (!bfloat16_) return SimdKernels<T>::kTileRows;
  return Simd().multiplies_matrices() ? Simd().bfloat16_rows
                                      : Kernels<T>().bfloat16_tile_rows;
}

// If the last panel has fewer columns, it holds zeros beyond them.
template <typename T>
void RightMatrix<T>::Pack(const Source& source, int64_t start, int64_t first,
                          int64_t last) const {
  const Panels to = PanelsOf(start, first, last);
  const int64_t block = to.depth, col = to.first_col, cols = to.cols;
  const int64_t width = std::min(PanelCols(), PaddedCols() - col);
  const ScratchArray<T> staged(bfloat16_ ? kMaxBlockDepth * kPackedCols<T> : 0);
  T* const numbers = bfloat16_ ? staged.data() : static_cast<T*>(to.data);
  const int64_t size = block * width;
  if (cols < (last - first) * width) {
    std::fill_n(numbers + (last - first - 1) * size, size, T(0));
  }
  if (source.transposed) {
    TransposeToPanels(source.rows.From(col, start), block, cols, numbers,
                      width);
  } else {
    CopyToPanels(source.rows.From(start, col), block, cols, numbers, width);
  }
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t i = 0; bfloat16_ && i < last - first; ++i) {
      RoundRowPairs(staged.data() + i * size, block, width, width,
                    reinterpret_cast<BfloatPair*>(static_cast<char*>(to.data) +
                                                  i * to.panel_bytes));
    }
  }
}

void RoundRowPairs(const float* from, int64_t depth, int64_t n, int64_t stride,
                   BfloatPair* to) {
  static constexpr float kZeros[kMaxRoundedCols] = {};
  for (int64_t i = 0; i < PaddedDepth(depth); i += 2) {
    const float* const even = i < depth ? from + i * stride : kZeros;
    const float* const odd = i + 1 < depth ? even + stride : kZeros;
    Simd().pairs.round(n, even, odd, to + i / 2 * stride);
  }
}

template class RightMatrix<float>;
template class RightMatrix<double>;

}  // namespace cudnn_rnn_tf
