// Matrix products on a CPU. The left factor is read row by row where it is, and
// the right one in panels.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {

// This many rows of a block of A stay in the L2 cache beside a panel.
constexpr int64_t kCachedRows = 192;

// Returns how many of the `rows` rows that are left go into the next tile.
// Seven or eight are halved, so that no tile is left with only one or two rows:
// so few sums are slow, since each addition waits for the one before it.
inline int64_t TileHeight(int64_t rows) {
  return rows == 7 || rows == 8 ? 4 : std::min<int64_t>(6, rows);
}

// Computes C[rows, cols] = init + A[rows, depth] B for panels of B that are of
// one block of its depth, tile by tile. `init` may be C itself, or null for
// zeros. There are kCachedRows rows at most. Factor is T, or BfloatPair for
// rows of A that hold pairs; the numbers of a row are a_stride apart.
template <typename T, typename Factor>
void RunTiles(const Panels& b, Rows<const Factor> a, int64_t a_stride,
              int64_t rows, Rows<const T> init, Rows<T> c);

// A division of a matrix of sums into tasks, which one thread each computes.
// Its rows are divided into row_parts, in whole tiles, and its columns into
// panel_parts, in whole panels. Each row part with each panel part is a task.
struct TaskGrid {
  // The most rows and panels of a task, and the times that a task takes to
  // bring one number of its rows, or of its columns, into a near cache, in
  // multiplications.
  struct Limits {
    int64_t rows, panels, cost_of_row, cost_of_col;
  };
  // A task computes these rows of some panels.
  struct Task {
    int64_t first_row, last_row, first_panel, last_panel;
  };

  // Makes the grid with which, by an estimate, the slowest thread is done
  // first.
  TaskGrid(int64_t rows, int64_t tile_rows, int64_t panels, int64_t panel_cols,
           const Limits& limits, int64_t threads);

  int64_t num_tasks() const { return row_parts * panel_parts; }
  Task At(int64_t row_part, int64_t panel_part) const {
    const int64_t tiles = CeilDiv(rows, tile_rows);
    return {row_part * tiles / row_parts * tile_rows,
            std::min((row_part + 1) * tiles / row_parts * tile_rows, rows),
            panel_part * panels / panel_parts,
            (panel_part + 1) * panels / panel_parts};
  }

  int64_t rows, tile_rows, panels, row_parts, panel_parts;
};

// Computes C[rows, cols] = init + A[rows, depth] B. `init` may be C itself, or
// null for zeros. Each row of C is the same to the bit, whichever rows and
// panels are computed together with it.
template <typename T>
struct Product {
  int64_t rows = 0;
  // Numbers of a half type are widened, unless both factors are rounded. Such
  // rows have no gaps between them if there is an index.
  // Otherwise their stride is even, and rows and depth are padded: the memory
  // has PaddedRows(rows) rows with PaddedDepth(depth) numbers. What is behind a
  // row is multiplied by zero, so an infinity there makes the row's sums NaN.
  StoredRows<T> a;
  RightMatrix<T> b;
  // Whether both factors are multiplied as bfloat16. The processor must
  // multiply such numbers, and B hold them.
  bool rounds_both = false;
  Rows<const T> init;
  Rows<T> c;

  void AddTo(Schedule* schedule) const;
  // Computes the columns of panels [first, last) of B at once, on the calling
  // thread.
  void RunPanels(int64_t first, int64_t last) const;

 private:
  using Task = TaskGrid::Task;
  // Computes a task with kCachedRows rows at most.
  void Run(const Task& task) const;
  // Does so for one block of the depth, if B is read where it is stored.
  void RunDots(const Task& task, int64_t start, Rows<const T> before) const;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_H_
