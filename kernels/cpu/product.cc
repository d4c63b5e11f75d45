#include "kernels/cpu/product.h"

#include <limits>
#include <type_traits>

#include "kernels/cpu/scratch_array.h"

namespace cudnn_rnn_tf {
namespace {

// The most rows and columns of a task. Tasks are smaller if there are many
// threads.
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTaskCols = 256;
// The costs of rows and columns that a task reads.
constexpr int64_t kCostOfRow = 13;
constexpr int64_t kCostOfCol = 13;
constexpr int64_t kTileRows = SimdKernels<float>::kTileRows;
static_assert(kCachedRows >= kTaskRows, "");
// A matrix register reads 16 rows at a time from an array of this size.
static_assert(kCachedRows % 16 == 0, "");

// Does what TileHeight does, for a tall tile and at least seven rows. If rows
// are left, there are at least four, for the same reason.
int64_t TallTileHeight(int64_t rows) {
  constexpr int64_t kMost = SimdKernels<float>::kMaxTileRows;
  return rows <= kMost ? rows : std::min(kMost, rows - 4);
}

// Returns rows of bfloat16 numbers as rows of pairs.
Rows<const BfloatPair> Pairs(const StoredRows<float>& rows) {
  return {reinterpret_cast<const BfloatPair*>(rows.numbers.Halves()),
          rows.stride / 2, rows.index};
}

}  // namespace

template <typename T, typename Factor>
void RunTiles(const Panels& b, Rows<const Factor> a, int64_t a_stride,
              int64_t rows, Rows<const T> init, Rows<T> c) {
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t panel_cols = simd.panel_vectors * simd.vector_cols;
  const bool in_matrices =
      !std::is_same_v<Factor, T> && Simd().multiplies_matrices();
  const Factor* a_rows[kCachedRows];
  const T* init_rows[kCachedRows];
  T* c_rows[kCachedRows];
  for (int64_t r = 0; r < rows; ++r) {
    a_rows[r] = a[r];
    c_rows[r] = c[r];
    if (init.data != nullptr) init_rows[r] = init[r];
  }
  const auto most_panels = [&](int64_t height) -> int64_t {
    if (in_matrices) return 1;
    return simd.tile_vectors[height] / simd.panel_vectors;
  };
  const auto next_height = [&](int64_t row, int64_t together) {
    const int64_t left = rows - row;
    if (in_matrices) return std::min(Simd().matrices.rows, left);
    const int64_t most = b.bfloat16 ? simd.bfloat16_tile_rows : kTileRows;
    if (most < kTileRows) return std::min(most, left);
    // A panel may come from a far cache when the first tile reads it. A tall
    // tile then has more to do in that time.
    const bool is_tall = left > kTileRows && (row == 0 || together == 1) &&
                         simd.tile_vectors[kTileRows + 1] > 0;
    return is_tall ? TallTileHeight(left) : TileHeight(left);
  };
  // Panels are taken `together`, as many as a tile can cover that is not tall,
  // if these panels are whole. A tile that covers fewer of them is computed for
  // one after the other.
  const int64_t most_at_a_time = most_panels(std::min(rows, kTileRows));
  const int64_t whole_panels = b.cols / panel_cols;
  for (int64_t panel = 0, together; panel * panel_cols < b.cols;
       panel += together) {
    together = most_at_a_time;
    while (together > 1 && panel + together > whole_panels) together /= 2;
    for (int64_t row = 0, height; row < rows; row += height) {
      height = next_height(row, together);
      const int64_t tile_panels = std::min(together, most_panels(height));
      const Factor* const* const of_a = a_rows + row;
      const T* const* const inits =
          init.data == nullptr ? nullptr : init_rows + row;
      T* const* const sums = c_rows + row;
      for (int64_t first = panel; first < panel + together;
           first += tile_panels) {
        const int64_t col = first * panel_cols;
        const int64_t cols = std::min(tile_panels * panel_cols, b.cols - col);
        const int64_t vectors = CeilDiv(cols, simd.vector_cols);
        const void* const data =
            static_cast<const char*>(b.data) + first * b.panel_bytes;
        const auto run = [&](const auto& tiles, int64_t depth,
                             const auto* numbers) {
          tiles[height][vectors](depth, of_a, a_stride, numbers,
                                 b.panel_bytes / sizeof(*numbers), inits, sums,
                                 col, cols);
        };
        if constexpr (!std::is_same_v<Factor, T>) {
          const auto* const pairs = static_cast<const BfloatPair*>(data);
          const int64_t depth = PaddedDepth(b.depth) / 2;
          if (in_matrices) {
            // With one row, the stride of 0 has that row read 16 times.
            const int64_t row_stride = height > 1 ? of_a[1] - of_a[0] : 0;
            Simd().matrices.tile[vectors](height, depth, of_a[0], row_stride,
                                          pairs, inits, sums, col, cols);
          } else {
            run(simd.bfloat16_pair_tile, depth, pairs);
          }
        } else if (b.bfloat16) {
          run(simd.bfloat16_tile, b.depth,
              static_cast<const BfloatPair*>(data));
        } else {
          run(simd.tile, b.depth, static_cast<const T*>(data));
        }
      }
    }
  }
}

TaskGrid::TaskGrid(int64_t rows, int64_t tile_rows, int64_t panels,
                   int64_t panel_cols, const Limits& limits, int64_t threads)
    : rows(rows), tile_rows(tile_rows), panels(panels) {
  const int64_t tiles = CeilDiv(rows, tile_rows);
  const int64_t few_rows = CeilDiv(tiles * tile_rows, limits.rows);
  const int64_t few_panels = CeilDiv(panels, limits.panels);
  row_parts = few_rows;
  panel_parts = few_panels;
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto try_parts = [&](int64_t of_rows, int64_t of_panels) {
    of_rows = std::clamp(of_rows, few_rows, tiles);
    const int64_t task_rows = CeilDiv(tiles, of_rows) * tile_rows;
    const int64_t task_cols = CeilDiv(panels, of_panels) * panel_cols;
    const int64_t cost =
        CeilDiv(of_rows * of_panels, threads) *
        (task_rows * task_cols + task_rows * limits.cost_of_row +
         task_cols * limits.cost_of_col);
    if (cost >= least) return;
    least = cost;
    row_parts = of_rows;
    panel_parts = of_panels;
  };
  for (int64_t parts = few_panels; parts <= panels; parts *= 2) {
    // In each round, every thread computes one task. The rows are divided such
    // that the last round is full, or nearly.
    const int64_t rounds = CeilDiv(few_rows * parts, threads);
    try_parts(rounds * threads / parts, parts);
    try_parts((rounds + 1) * threads / parts, parts);
  }
}

template <typename T>
void Product<T>::RunDots(const Task& task, int64_t start,
                         Rows<const T> before) const {
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const Rows<const T> left = a.InPlace();
  const int64_t last = std::min(task.last_panel * panel_cols, b.cols());
  for (int64_t col = task.first_panel * panel_cols; col < last;
       col += simd.vector_cols) {
    const int64_t cols = std::min(simd.vector_cols, last - col);
    for (int64_t row = task.first_row; row < task.last_row; ++row) {
      simd.dots(b.Block(start), left[row] + start,
                b.columns() + col * b.depth() + start, b.depth(), cols,
                before.data == nullptr ? nullptr : before[row] + col,
                c[row] + col);
    }
  }
}

template <typename T>
void Product<T>::Run(const Task& task) const {
  const int64_t first_row = task.first_row, rows = task.last_row - first_row;
  for (int64_t start = 0; start < b.depth(); start += b.BlockDepth()) {
    const Rows<const T> before = start > 0 ? c : init;
    if (b.columns() != nullptr) {
      RunDots(task, start, before);
      continue;
    }
    const auto run_tiles = [&](const auto& left) {
      const Panels panels =
          b.PanelsOf(start, task.first_panel, task.last_panel);
      const int64_t col = panels.first_col;
      RunTiles(panels, left, 1, rows,
               before.data == nullptr ? before : before.From(first_row, col),
               c.From(first_row, col));
    };
    const StoredRows<T> left = a.From(first_row, start);
    if (a.in_place() && !rounds_both) {
      run_tiles(left.InPlace());
    } else if constexpr (std::is_same_v<T, float>) {
      const int64_t block = b.Block(start);
      if (!rounds_both) {
        const ScratchArray<float> widened(kCachedRows * kMaxBlockDepth);
        run_tiles(ReadRows(left, rows, block, widened.data()));
        continue;
      }
      // Matrix registers read rows that are equally far apart, and the last
      // pair of an odd row would reach into the next row.
      const bool copies = a.index != nullptr &&
                          (a.stride % 2 != 0 || Simd().multiplies_matrices());
      if (!a.in_place() && !copies) {
        run_tiles(Pairs(left));
        continue;
      }
      const ScratchArray<uint16_t> rounded(kCachedRows * kMaxBlockDepth);
      for (int64_t row = 0; row < rows; ++row) {
        uint16_t* const to = rounded.data() + row * kMaxBlockDepth;
        if (a.in_place()) {
          Simd().bfloat16.round(block, left[row].InPlace(), to);
        } else {
          std::copy_n(left[row].Halves(), block, to);
        }
        std::fill(to + block, to + PaddedDepth(block), uint16_t{0});
      }
      run_tiles(Pairs({{rounded.data()}, kMaxBlockDepth}));
    }
  }
}

template <typename T>
void Product<T>::RunPanels(int64_t first, int64_t last) const {
  for (int64_t row = 0; row < rows; row += kCachedRows) {
    Run({row, std::min(row + kCachedRows, rows), first, last});
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
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const TaskGrid grid(
      rows, b.TileRows(), panels, panel_cols,
      {kTaskRows, kTaskCols / panel_cols, kCostOfRow, kCostOfCol},
      schedule->num_threads());
  // Neighbouring tasks share their panels, since one thread usually takes
  // several of them in turn.
  schedule->Add(
      1, grid.num_tasks(), [grid, product = *this](int64_t, int64_t task) {
        product.Run(grid.At(task % grid.row_parts, task / grid.row_parts));
      });
}

template struct Product<float>;
template struct Product<double>;
template void RunTiles(const Panels&, Rows<const float>, int64_t, int64_t,
                       Rows<const float>, Rows<float>);
template void RunTiles(const Panels&, Rows<const BfloatPair>, int64_t, int64_t,
                       Rows<const float>, Rows<float>);
template void RunTiles(const Panels&, Rows<const double>, int64_t, int64_t,
                       Rows<const double>, Rows<double>);

}  // namespace cudnn_rnn_tf
