// The right-hand factors of matrix products on a CPU, in the order in which the
// inner loops read them.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_RIGHT_MATRIX_H_
#define CUDNN_RNN_TF_KERNELS_CPU_RIGHT_MATRIX_H_

#include <algorithm>
#include <cstdint>

#include "kernels/arena.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {

// A block of a right-hand side has at most this depth. A panel of it stays in
// the L2 cache, and the sums are seldom read and written.
constexpr int64_t kMaxBlockDepth = 512;

// The most columns that are packed together, which are those of several panels.
template <typename T>
constexpr int64_t kPackedCols = 256 / sizeof(T);

// Products may read bfloat16 numbers up to this many rows, and this depth of
// each row.
inline int64_t PaddedRows(int64_t rows) {
  return CeilDiv(rows, Simd().bfloat16_rows) * Simd().bfloat16_rows;
}
inline int64_t PaddedDepth(int64_t depth) {
  return CeilDiv(depth, Simd().bfloat16_depth) * Simd().bfloat16_depth;
}

// Takes memory for rows of bfloat16 numbers from the arena.
template <typename T>
DestinationRows<T> TakeRounded(int64_t rows, int64_t stride, Arena* arena) {
  return {{arena->Take<uint16_t>(PaddedRows(rows) * stride), &Simd().bfloat16},
          stride};
}

// Returns the first n numbers of each of some rows. If they must be converted,
// they are in `buffer`, whose rows have room for kMaxBlockDepth numbers.
template <typename T>
Rows<const T> ReadRows(StoredRows<T> from, int64_t rows, int64_t n, T* buffer) {
  if (from.in_place()) return from.InPlace();
  for (int64_t i = 0; i < rows; ++i) {
    if (i + 1 < rows) from[i + 1].Prefetch(n);
    from[i].Copy(n, buffer + i * kMaxBlockDepth);
  }
  return {buffer, kMaxBlockDepth};
}

// Some neighbouring panels of one block of a right-hand side: see RightMatrix.
struct Panels {
  void* data;  // One after the other.
  int64_t panel_bytes;
  int64_t depth;
  int64_t first_col, cols;  // Those of all panels together.
  bool bfloat16;            // Whether they hold such numbers, in pairs.
};

// The right-hand side B [depth, cols] of a product. Products read it in the
// order of their inner loops: B is divided into blocks along its depth, a block
// into panels of columns, and a panel is stored row by row. The last panel has
// only as many whole vectors of columns as it needs.
template <typename T>
class RightMatrix {
 public:
  // B in memory that the caller owns: its rows or, if it is transposed, its
  // columns.
  struct Source {
    StoredRows<T> rows;
    bool transposed = false;
  };

  RightMatrix() = default;
  // Takes memory for the panels from the arena, and adds the work that fills
  // them to the schedule. The source must live until the schedule has run. With
  // `bfloat16`, elements are rounded to bfloat16. If the processor multiplies
  // such numbers, products may round their other factor to bfloat16 as well.
  RightMatrix(int64_t depth, int64_t cols, bool bfloat16, const Source& source,
              Arena* arena, Schedule* schedule);
  // Has products read B's columns where they are, one after the other. Each row
  // of a product takes longer then, but nothing is packed.
  RightMatrix(int64_t depth, int64_t cols, const T* columns)
      : depth_(depth), cols_(cols), columns_(columns) {}

  int64_t depth() const { return depth_; }
  int64_t cols() const { return cols_; }
  bool bfloat16() const { return bfloat16_; }
  // B in place, [cols, depth], if products read it there; else null.
  const T* columns() const { return columns_; }
  int64_t panels() const { return CeilDiv(cols_, PanelCols()); }
  // Returns the number of columns of a panel; the last panel may have fewer.
  static int64_t PanelCols() {
    return Kernels<T>().panel_vectors * Kernels<T>().vector_cols;
  }
  // Tasks begin at multiples of this number of rows. It is that of a tile's
  // rows. Tall tiles, and tiles of matrix registers, may have twice as many,
  // but smaller tasks make more even shares.
  int64_t TileRows() const;
  // Returns the depth of all blocks but the last, which is nearly as deep and
  // the only one that may need padding. Blocks decide the order of additions,
  // so they are the same with and without bfloat16.
  int64_t BlockDepth() const;
  // Returns the depth of the block that begins at row `start`.
  int64_t Block(int64_t start) const {
    return std::min(BlockDepth(), depth_ - start);
  }

  // Returns panels [first, last) of the block that begins at row `start`. The
  // products of small steps would take long over more divisions, or more
  // questions what the instruction set is.
  Panels PanelsOf(int64_t start, int64_t first, int64_t last) const {
    const int64_t width = PanelCols(), block = Block(start);
    const int64_t element_bytes = bfloat16_ ? sizeof(uint16_t) : sizeof(T);
    const int64_t depth = bfloat16_ ? PaddedDepth(block) : block;
    const int64_t panel_bytes = depth * width * element_bytes;
    const int64_t before = start > 0 ? start * PaddedCols() * element_bytes : 0;
    return {static_cast<char*>(data_) + before + first * panel_bytes,
            panel_bytes,
            block,
            first * width,
            std::min(last * width, cols_) - first * width,
            bfloat16_};
  }

 private:
  // Writes panels [first, last) of the block that begins at row `start`.
  void Pack(const Source& source, int64_t start, int64_t first,
            int64_t last) const;
  int64_t PaddedCols() const {
    return CeilDiv(cols_, Kernels<T>().vector_cols) * Kernels<T>().vector_cols;
  }

  int64_t depth_ = 0;
  int64_t cols_ = 0;
  bool bfloat16_ = false;
  void* data_ = nullptr;  // The panels, or null.
  const T* columns_ = nullptr;
};

// Rounds n numbers of each of the rows [depth, stride] to bfloat16 and writes
// them as pairs of rows, [PaddedDepth(depth) / 2, stride], with zeros beyond
// the depth. n is at most kMaxRoundedCols.
constexpr int64_t kMaxRoundedCols = 96;
void RoundRowPairs(const float* from, int64_t depth, int64_t n, int64_t stride,
                   BfloatPair* to);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_RIGHT_MATRIX_H_
