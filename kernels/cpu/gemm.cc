#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

// A panel's block of this depth stays in the L2 cache, and the sums it adds to
// are read and written seldom enough.
constexpr int64_t kMaxBlockDepth = 512;
// One thread takes so much at a time.
constexpr int64_t kTaskRows = 48;
constexpr int64_t kTaskCols = 512;
// As many rows of a transposed product, copied, find a place in the L2 cache
// beside a panel; the more there are, the less often panels are read.
constexpr int64_t kCopiedRows = 96;
// Deeper matrices are packed in parts of this depth, which stay in the L3
// cache.
constexpr int64_t kPackedDepth = 768;
constexpr int64_t kMaxPanelCols = 64;
// As many rows of this depth stay in the L2 cache beside a panel.
constexpr int64_t kCachedRows = 192;

// Rows are fetched this many ahead of the one that is copied.
constexpr int64_t kAhead = 16;

// Blocks are as deep as each other, or nearly.
int64_t BlockDepth(int64_t depth) {
  return CeilDiv(depth, CeilDiv(depth, kMaxBlockDepth));
}

// So that no tile is left with one or two rows, which would wait for their own
// sums.
int64_t TileHeight(int64_t rows) {
  return rows == 7 || rows == 8 ? 4 : std::min<int64_t>(6, rows);
}

// Copies the first n elements of each row.
template <typename T>
void CopyRows(Rows<const T> from, int64_t rows, int64_t n, T* to,
              int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    if (i + kAhead < rows) Prefetch(from[i + kAhead], n);
    std::copy_n(from[i], n, to + i * to_stride);
  }
}

}  // namespace

template <typename T>
PackedMatrix<T>::PackedMatrix(int64_t depth, int64_t cols, bool bfloat16,
                              Arena* arena)
    : depth_(depth), cols_(cols), bfloat16_(bfloat16) {
  const int64_t size = depth * PaddedCols();
  data_ = bfloat16 ? static_cast<void*>(arena->Take<uint16_t>(size))
                   : arena->Take<T>(size);
}

template <typename T>
int64_t PackedMatrix<T>::PanelCols() {
  return Kernels<T>().panel_vectors * Kernels<T>().vector_cols;
}

template <typename T>
int64_t PackedMatrix<T>::PaddedCols() const {
  const int64_t width = Kernels<T>().vector_cols * (bfloat16_ ? 2 : 1);
  return CeilDiv(cols_, width) * width;
}

template <typename T>
int64_t PackedMatrix<T>::panels() const {
  return CeilDiv(cols_, PanelCols());
}

template <typename T>
const void* PackedMatrix<T>::Panel(int64_t start, int64_t panel) const {
  const int64_t block = std::min(BlockDepth(depth_), depth_ - start);
  const int64_t offset = start * PaddedCols() + panel * block * PanelCols();
  return bfloat16_ ? static_cast<const void*>(
                         static_cast<const uint16_t*>(data_) + offset)
                   : static_cast<const T*>(data_) + offset;
}

template <typename T>
int64_t PackedMatrix<T>::NumTasks() const {
  return CeilDiv(depth_, BlockDepth(depth_)) * panels();
}

// fill(start, block, col, cols, to, width): the part of B with those rows and
// columns, into [block, width], whose columns from `cols` on are zeros already.
template <typename T>
template <typename Fill>
void PackedMatrix<T>::PackPanel(int64_t task, const Fill& fill) const {
  const int64_t start = task / panels() * BlockDepth(depth_);
  const int64_t block = std::min(BlockDepth(depth_), depth_ - start);
  const int64_t panel = task % panels();
  const int64_t col = panel * PanelCols();
  const int64_t width = std::min(PanelCols(), PaddedCols() - col);
  const int64_t cols = std::min(width, cols_ - col);
  void* const panel_data = const_cast<void*>(Panel(start, panel));
  alignas(64) T staged[kMaxBlockDepth * kMaxPanelCols];
  T* const to = bfloat16_ ? staged : static_cast<T*>(panel_data);
  if (cols < width) std::fill_n(to, block * width, T(0));
  fill(start, block, col, cols, to, width);
  if (!bfloat16_) return;
  const int64_t vector = Kernels<T>().vector_cols;
  uint32_t* words = static_cast<uint32_t*>(panel_data);
  for (int64_t i = 0; i < block * width; i += 2 * vector) {
    for (int64_t j = 0; j < vector; ++j) {
      uint32_t low, high;
      std::memcpy(&low, staged + i + j, sizeof(low));
      std::memcpy(&high, staged + i + vector + j, sizeof(high));
      *words++ = low >> 16 | high;
    }
  }
}

template <typename T>
template <typename Fill>
void PackedMatrix<T>::PackPanels(const Fill& fill, Schedule* schedule) const {
  schedule->Add(1, NumTasks(), [matrix = *this, fill](int64_t, int64_t task) {
    matrix.PackPanel(task, fill);
  });
}

template <typename T>
void PackedMatrix<T>::Pack(Rows<const T> b, Schedule* schedule) const {
  const auto fill = [b](int64_t start, int64_t block, int64_t col, int64_t cols,
                        T* to, int64_t width) {
    CopyRows(b.From(start, col), block, cols, to, width);
  };
  PackPanels(fill, schedule);
}

template <typename T>
void PackedMatrix<T>::Pack(Stored<T> b, Schedule* schedule) const {
  if (b.in_place()) return Pack(Rows<const T>{b.InPlace(), cols_}, schedule);
  const auto fill = [b, stride = cols_](int64_t start, int64_t block,
                                        int64_t col, int64_t cols, T* to,
                                        int64_t width) {
    for (int64_t i = 0; i < block; ++i) {
      b.From((start + i) * stride + col).Copy(cols, to + i * width);
    }
  };
  PackPanels(fill, schedule);
}

template <typename T>
void PackedMatrix<T>::PackTransposed(Stored<T> b_transposed,
                                     Schedule* schedule) const {
  const auto fill = [b_transposed, stride = depth_](
                        int64_t start, int64_t block, int64_t col, int64_t cols,
                        T* to, int64_t width) {
    const Stored<T> from = b_transposed.From(col * stride + start);
    const auto transpose = Kernels<T>().transpose;
    if (from.in_place()) {
      return transpose(cols, block, from.InPlace(), stride, to, width);
    }
    alignas(64) T converted[kMaxPanelCols * kMaxBlockDepth];
    for (int64_t c = 0; c < cols; ++c) {
      from.From(c * stride).Copy(block, converted + c * kMaxBlockDepth);
    }
    transpose(cols, block, converted, kMaxBlockDepth, to, width);
  };
  PackPanels(fill, schedule);
}

template <typename T>
void Product<T>::RunTile(int64_t row, int64_t height, int64_t start,
                         int64_t block, int64_t panel, const T* const* a_rows,
                         int64_t a_stride) const {
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t col = panel * PackedMatrix<T>::PanelCols();
  const int64_t cols = std::min(PackedMatrix<T>::PanelCols(), b.cols_ - col);
  const T* init_rows[SimdKernels<T>::kTileRows];
  T* c_rows[SimdKernels<T>::kTileRows];
  const Rows<const T> before = start > 0 ? Rows<const T>(c) : init;
  for (int64_t r = 0; r < height; ++r) {
    c_rows[r] = c[row + r] + col;
    if (before.data != nullptr) init_rows[r] = before[row + r] + col;
  }
  const auto& kernels = b.bfloat16_ ? simd.bfloat16_tile : simd.tile;
  int64_t vectors = CeilDiv(cols, simd.vector_cols);
  if (b.bfloat16_) vectors = CeilDiv(vectors, 2) * 2;
  kernels[height][vectors](block, a_rows, a_stride, b.Panel(start, panel),
                           before.data == nullptr ? nullptr : init_rows, c_rows,
                           cols);
}

template <typename T>
void Product<T>::RunRows(int64_t first_row, int64_t last_row,
                         int64_t first_panel, int64_t last_panel) const {
  const int64_t block_depth = BlockDepth(b.depth_);
  for (int64_t start = 0; start < b.depth_; start += block_depth) {
    const int64_t block = std::min(block_depth, b.depth_ - start);
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      for (int64_t row = first_row; row < last_row;) {
        const T* a_rows[SimdKernels<T>::kTileRows];
        const int64_t height = TileHeight(last_row - row);
        for (int64_t r = 0; r < height; ++r) a_rows[r] = a[row + r] + start;
        RunTile(row, height, start, block, panel, a_rows, 1);
        row += height;
      }
    }
  }
}

template <typename T>
void Product<T>::RunPanels(int64_t first, int64_t last) const {
  for (int64_t row = 0; row < rows; row += kCachedRows) {
    RunRows(row, std::min(row + kCachedRows, rows), first, last);
  }
}

template <typename T>
void Product<T>::AddTo(Schedule* schedule) const {
  const int64_t panels = b.panels();
  if (schedule->num_threads() == 1) {
    schedule->Add(1, 1, [product = *this, panels](int64_t, int64_t) {
      product.RunPanels(0, panels);
    });
    return;
  }
  const int64_t task_panels = kTaskCols / PackedMatrix<T>::PanelCols();
  const int64_t row_tasks = CeilDiv(rows, kTaskRows);
  // Neighbours, which one thread takes, share their panels.
  schedule->Add(1, row_tasks * CeilDiv(panels, task_panels),
                [=, product = *this](int64_t, int64_t task) {
                  const int64_t row = task % row_tasks * kTaskRows;
                  const int64_t first = task / row_tasks * task_panels;
                  product.RunRows(row, std::min(row + kTaskRows, product.rows),
                                  first, std::min(first + task_panels, panels));
                });
}

template <typename T>
int64_t TransposedProducts<T>::AddB(Rows<const T> b, int64_t cols) {
  rights_.push_back({b, cols});
  return static_cast<int64_t>(rights_.size()) - 1;
}

template <typename T>
void TransposedProducts<T>::AddA(Rows<const T> a, int64_t rows,
                                 std::vector<Term> terms) {
  lefts_.push_back({a, rows, std::move(terms)});
}

template <typename T>
void TransposedProducts<T>::RunRows(const Left& left,
                                    const std::vector<PackedMatrix<T>>& packed,
                                    int64_t first_depth, int64_t first_row,
                                    int64_t last_row) {
  constexpr int64_t kTileRows = SimdKernels<T>::kTileRows;
  alignas(64) T copied[kCopiedRows * kMaxBlockDepth];
  const int64_t depth = packed[0].depth();
  const int64_t block_depth = BlockDepth(depth);
  for (int64_t start = 0; start < depth; start += block_depth) {
    const int64_t block = std::min(block_depth, depth - start);
    CopyRows(left.a.From(first_depth + start, first_row), block,
             last_row - first_row, copied, kCopiedRows);
    for (const Term& term : left.terms) {
      Product<T> product;
      product.b = packed[term.b];
      product.c = term.c;
      if (first_depth > 0) product.init = term.c;
      for (int64_t panel = 0; panel < product.b.panels(); ++panel) {
        for (int64_t row = first_row; row < last_row; row += kTileRows) {
          const T* a_rows[kTileRows];
          const int64_t height = std::min(kTileRows, last_row - row);
          for (int64_t r = 0; r < height; ++r) {
            a_rows[r] = copied + row - first_row + r;
          }
          product.RunTile(row, height, start, block, panel, a_rows,
                          kCopiedRows);
        }
      }
    }
  }
}

template <typename T>
void TransposedProducts<T>::AddTo(Arena* arena, Schedule* schedule) const {
  constexpr int64_t kTileRows = SimdKernels<T>::kTileRows;
  for (int64_t first = 0; first < depth_; first += kPackedDepth) {
    // The next part is packed in the same place.
    const Arena::Scope scope(arena);
    std::vector<PackedMatrix<T>> packed;
    for (const Right& right : rights_) {
      packed.emplace_back(std::min(kPackedDepth, depth_ - first), right.cols,
                          /*bfloat16=*/false, arena);
      if (arena->only_counts()) continue;
      packed.back().Pack(right.rows.From(first), schedule);
    }
    if (arena->only_counts()) continue;
    for (const Left& left : lefts_) {
      const int64_t tiles = CeilDiv(left.rows, kTileRows);
      // Every thread gets as much as the others.
      const int64_t threads = schedule->num_threads();
      const int64_t tasks =
          std::min(tiles, CeilDiv(left.rows, threads * kCopiedRows) * threads);
      schedule->Add(1, tasks, [=](int64_t, int64_t task) {
        RunRows(left, packed, first, task * tiles / tasks * kTileRows,
                std::min((task + 1) * tiles / tasks * kTileRows, left.rows));
      });
    }
  }
}

template class PackedMatrix<float>;
template class PackedMatrix<double>;
template struct Product<float>;
template struct Product<double>;
template class TransposedProducts<float>;
template class TransposedProducts<double>;

}  // namespace cudnn_rnn_tf
