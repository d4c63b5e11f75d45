#include "kernels/cpu/right_matrix.h"

#include <algorithm>
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

// Returns a function that copies a part of B [depth, all_cols] to panels.
template <typename T>
auto FillFrom(typename RightMatrix<T>::Source source, int64_t depth,
              int64_t all_cols) {
  return [=](int64_t start, int64_t block, int64_t col, int64_t cols, T* to,
             int64_t width) {
    if (!source.transposed) {
      const StoredRows<T> from(source.numbers, all_cols);
      return CopyToPanels(from.From(start, col), block, cols, to, width);
    }
    const StoredRows<T> columns(source.numbers, depth);
    const ScratchArray<T> converted(kPackedCols<T> * kMaxBlockDepth);
    for (int64_t c = 0; c < cols; c += width, to += block * width) {
      const int64_t n = std::min(width, cols - c);
      const Rows<const T> from =
          ReadRows(columns.From(col + c, start), n, block, converted.data());
      Kernels<T>().transpose(n, block, from.data, from.stride, to, width);
    }
  };
}

}  // namespace

int64_t PaddedRows(int64_t rows) {
  return CeilDiv(rows, Simd().bfloat16_rows) * Simd().bfloat16_rows;
}

int64_t PaddedDepth(int64_t depth) {
  return CeilDiv(depth, Simd().bfloat16_depth) * Simd().bfloat16_depth;
}

template <typename T>
RightMatrix<T>::RightMatrix(int64_t depth, int64_t cols, bool bfloat16,
                            Arena* arena)
    : depth_(depth), cols_(cols), bfloat16_(bfloat16) {
  const int64_t size = (bfloat16 ? PaddedDepth(depth) : depth) * PaddedCols();
  data_ = bfloat16 ? static_cast<void*>(arena->Take<uint16_t>(size))
                   : arena->Take<T>(size);
}

template <typename T>
int64_t RightMatrix<T>::PanelCols() {
  return Kernels<T>().panel_vectors * Kernels<T>().vector_cols;
}

template <typename T>
int64_t RightMatrix<T>::PaddedCols() const {
  const int64_t width = Kernels<T>().vector_cols;
  return CeilDiv(cols_, width) * width;
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

template <typename T>
int64_t RightMatrix<T>::panels() const {
  return CeilDiv(cols_, PanelCols());
}

template <typename T>
int64_t RightMatrix<T>::NumSpans() const {
  return CeilDiv(WholePanels(), kPackedCols<T> / PanelCols()) + panels() -
         WholePanels();
}

template <typename T>
int64_t RightMatrix<T>::SpanEnd(int64_t panel) const {
  const int64_t end = panel + kPackedCols<T> / PanelCols();
  return std::max(panel + 1, std::min(end, WholePanels()));
}

// fill(start, block, col, cols, to, width) must write the part of B with rows
// [start, start + block) and columns [col, col + cols) to `to`, which holds
// panels of [block, width]. If the last one has fewer columns, it holds zeros
// already.
template <typename T>
template <typename Fill>
void RightMatrix<T>::PackSpan(int64_t start, int64_t first, int64_t last,
                              const Fill& fill, void* to) const {
  const int64_t block = Block(start);
  const int64_t col = first * PanelCols();
  const int64_t width = std::min(PanelCols(), PaddedCols() - col);
  const int64_t cols = std::min(last * PanelCols(), cols_) - col;
  const ScratchArray<T> staged(bfloat16_ ? kMaxBlockDepth * kPackedCols<T> : 0);
  T* const numbers = bfloat16_ ? staged.data() : static_cast<T*>(to);
  const int64_t size = block * width;
  if (cols < (last - first) * width) {
    std::fill_n(numbers + (last - first - 1) * size, size, T(0));
  }
  fill(start, block, col, cols, numbers, width);
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t i = 0; bfloat16_ && i < last - first; ++i) {
      RoundRowPairs(staged.data() + i * size, block, width, width,
                    reinterpret_cast<BfloatPair*>(static_cast<char*>(to) +
                                                  i * PanelBytes(start)));
    }
  }
}

template <typename T>
template <typename Fill>
void RightMatrix<T>::PackSpans(const Fill& fill, Schedule* schedule) const {
  const int64_t spans = NumSpans();
  schedule->Add(1, CeilDiv(depth_, BlockDepth()) * spans,
                [=, matrix = *this](int64_t, int64_t task) {
                  const int64_t start = task / spans * matrix.BlockDepth();
                  const int64_t first =
                      std::min(task % spans * (kPackedCols<T> / PanelCols()),
                               matrix.WholePanels());
                  matrix.PackSpan(start, first, matrix.SpanEnd(first), fill,
                                  matrix.Panel(start, first));
                });
}

template <typename T>
void RightMatrix<T>::Pack(StoredRows<T> b, Schedule* schedule) const {
  const auto fill = [b](int64_t start, int64_t block, int64_t col, int64_t cols,
                        T* to, int64_t width) {
    CopyToPanels(b.From(start, col), block, cols, to, width);
  };
  PackSpans(fill, schedule);
}

template <typename T>
void RightMatrix<T>::Pack(Source source, Schedule* schedule) const {
  PackSpans(FillFrom<T>(source, depth_, cols_), schedule);
}

template <typename T>
void RightMatrix<T>::ForPanelsOfSource(
    int64_t start, int64_t first_panel, int64_t last_panel,
    const std::function<void(int64_t, int64_t, const void*)>& run) const {
  const auto fill = FillFrom<T>(source_, depth_, cols_);
  const ScratchArray<T> packed(kMaxBlockDepth * kPackedCols<T>);
  for (int64_t first = first_panel, last; first < last_panel; first = last) {
    last = std::min(SpanEnd(first), last_panel);
    PackSpan(start, first, last, fill, packed.data());
    run(first, last, packed.data());
  }
}

void RoundRowPairs(const float* from, int64_t depth, int64_t n, int64_t stride,
                   BfloatPair* to) {
  static constexpr float kZeros[kMaxRoundedCols] = {};
  for (int64_t i = 0; i < PaddedDepth(depth); i += 2) {
    const float* const even = i < depth ? from + i * stride : kZeros;
    const float* const odd = i + 1 < depth ? even + stride : kZeros;
    Simd().conversions.to_bfloat16_pairs(n, even, odd, to + i / 2 * stride);
  }
}

template class RightMatrix<float>;
template class RightMatrix<double>;

}  // namespace cudnn_rnn_tf
