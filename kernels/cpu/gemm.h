// Matrix products on a CPU. The left factor is read row by row where it is, and
// the right one in panels.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
#define CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/schedule.h"

namespace cudnn_rnn_tf {

// Returns how many of the `rows` rows that are left go into the next tile.
// Seven or eight are halved, so that no tile is left with only one or two rows:
// so few sums are slow, since each addition waits for the one before it.
inline int64_t TileHeight(int64_t rows) {
  return rows == 7 || rows == 8 ? 4 : std::min<int64_t>(6, rows);
}

// Computes C[rows, cols] = init + A[rows, depth] B. `init` may be C itself, or
// null for zeros. Each row of C is the same to the bit, whichever rows and
// panels are computed together with it.
template <typename T>
struct Product {
  int64_t rows = 0;
  // Numbers that are not of type T are bfloat16, which B must hold then as well
  // and the processor multiply. Their depth must be even if there is an index.
  // Without one, rows and depth are padded: the memory has PaddedRows(rows)
  // rows with PaddedDepth(depth) numbers. What is behind a row is multiplied by
  // zero, so an infinity there makes the row's sums NaN.
  StoredRows<T> a;
  RightMatrix<T> b;
  // Whether numbers of type T are rounded if B holds bfloat16 and the processor
  // multiplies these.
  bool rounds_a = true;
  Rows<const T> init;
  Rows<T> c;

  void AddTo(Schedule* schedule) const;
  // Computes the columns of panels [first, last) of B at once, on the calling
  // thread.
  void RunPanels(int64_t first, int64_t last) const;

 private:
  // Computes the panels' columns of these rows, which are kCachedRows at most.
  void RunRows(int64_t first_row, int64_t last_row, int64_t first_panel,
               int64_t last_panel) const;
  // Computes the panel's columns of these rows, for one block of the depth, if
  // B is read where it is stored.
  void RunDots(int64_t first_row, int64_t last_row, int64_t start,
               int64_t block, int64_t panel) const;
  // Computes all tiles of these rows and panels, for one block of the depth.
  // `panels` holds these panels, one after the other. a_row(row) returns where
  // the block's part of a row of A begins, whose elements, of type T or
  // BfloatPair, are a_stride apart.
  template <typename ARow>
  void RunTiles(int64_t first_row, int64_t last_row, int64_t start,
                int64_t block, int64_t first_panel, int64_t last_panel,
                const void* panels, const ARow& a_row, int64_t a_stride) const;

  template <typename U>
  friend class TransposedProducts;
};

// Computes products C[rows, cols] = A^T B of matrices A[depth, rows] and
// B[depth, cols] that have the same large depth. Gradients of weights are such
// products, since they are sums over all steps. Every B is packed once, one
// part of its depth at a time. What is copied of an A serves all products of
// that A, and also the sums of its columns, which are gradients of biases.
template <typename T>
class TransposedProducts {
 public:
  struct Term {
    int64_t b;         // The number that AddB returned for it.
    Destination<T> c;  // [rows, cols], without gaps between rows.
  };

  // With `bfloat16`, both factors are rounded to bfloat16.
  TransposedProducts(int64_t depth, bool bfloat16)
      : depth_(depth), bfloat16_(bfloat16) {}

  int64_t AddB(StoredRows<T> b, int64_t cols);
  // Adds the products of A with the B of every term. Also writes the sums of
  // A's columns to each array in `sums`, [rows].
  void AddA(Rows<const T> a, int64_t rows, std::vector<Term> terms,
            std::vector<Destination<T>> sums);
  // Adds all products to the schedule, with memory from the arena.
  void AddTo(Arena* arena, Schedule* schedule) const;

 private:
  struct Right {
    StoredRows<T> rows;
    int64_t cols;
  };
  struct Left {
    Rows<const T> a;
    int64_t rows;
    std::vector<Term> terms;
    std::vector<Destination<T>> sums;
  };
  struct Conversion {
    const T* from;
    int64_t n;
    Destination<T> to;
  };
  // A part of the products with one A that is computed on its own. Panels are
  // counted through the B of all terms, one after the other.
  struct Task {
    int64_t first_row, last_row, first_panel, last_panel;
  };
  int64_t NumPanels(const Left& left) const;
  // Replaces destinations of another type than T by memory from the arena.
  // Returns the conversions to do when all sums are complete.
  std::vector<Conversion> SumInArena(Arena* arena,
                                     std::vector<Left>* lefts) const;
  static void Run(const Left& left, const std::vector<RightMatrix<T>>& packed,
                  int64_t first_depth, const Task& task);

  const int64_t depth_;
  const bool bfloat16_;
  std::vector<Right> rights_;
  std::vector<Left> lefts_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
