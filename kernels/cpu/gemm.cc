#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/cpu/scratch_array.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int64_t kMaxPairs = kMaxBlockDepth / 2;
// The most rows and columns of a task, which one thread computes. Tasks are
// smaller if there are many threads. A block of these rows, which transposed
// products copy, fits into the L2 cache beside a panel; the more rows there
// are, the less often panels are read.
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTaskCols = 256;
// The factors of transposed products are packed in parts of this depth, which
// stay in the L3 cache.
constexpr int64_t kPackedDepth = 768;
// So many columns of a task are converted together, if results are not of the
// type that they are computed in.
constexpr int64_t kConvertedCols = 256;
constexpr int64_t kTileRows = SimdKernels<float>::kTileRows;
// This many rows of a block of A stay in the L2 cache beside a panel.
constexpr int64_t kCachedRows = 192;
static_assert(kCachedRows >= kTaskRows, "");
static_assert(kTaskRows <= kMaxRoundedCols, "");
// A matrix register reads 16 rows at a time from arrays of these sizes.
static_assert(kCachedRows % 16 == 0 && kTaskRows % 16 == 0, "");

// The times that a task takes to bring one number of its rows, or of its
// columns, into a near cache, in multiplications. They are longer if the task
// copies or packs these.
constexpr int64_t kCostOfRow = 13;
constexpr int64_t kCostOfCopiedRow = 30;
constexpr int64_t kCostOfCol = 13;
constexpr int64_t kCostOfPackedCol = 60;

// A division of a matrix of sums into tasks. Its rows are divided into
// row_parts, in whole tiles, and its columns into panel_parts, in whole panels.
// Each row part with each panel part is a task.
struct Grid {
  int64_t row_parts, panel_parts;
};
struct GridLimits {
  int64_t task_rows, task_panels;
};

// Returns the grid for tiles of so many rows with which, by an estimate, the
// slowest thread is done first.
Grid Divide(int64_t tiles, int64_t tile_rows, int64_t panels,
            int64_t panel_cols, const GridLimits& limits, int64_t cost_of_row,
            int64_t cost_of_col, int64_t threads) {
  const int64_t few_rows = CeilDiv(tiles * tile_rows, limits.task_rows);
  const int64_t few_panels = CeilDiv(panels, limits.task_panels);
  Grid best = {few_rows, few_panels};
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto try_grid = [&](int64_t row_parts, int64_t panel_parts) {
    row_parts = std::clamp(row_parts, few_rows, tiles);
    const int64_t rows = CeilDiv(tiles, row_parts) * tile_rows;
    const int64_t cols = CeilDiv(panels, panel_parts) * panel_cols;
    const int64_t cost =
        CeilDiv(row_parts * panel_parts, threads) *
        (rows * cols + rows * cost_of_row + cols * cost_of_col);
    if (cost >= least) return;
    least = cost;
    best = {row_parts, panel_parts};
  };
  for (int64_t parts = few_panels; parts <= panels; parts *= 2) {
    // In each round, every thread computes one task. The rows are divided such
    // that the last round is full, or nearly.
    const int64_t rounds = CeilDiv(few_rows * parts, threads);
    try_grid(rounds * threads / parts, parts);
    try_grid((rounds + 1) * threads / parts, parts);
  }
  return best;
}

// Does what TileHeight does, for a tall tile and at least seven rows. If rows
// are left, there are at least four, for the same reason.
int64_t TallTileHeight(int64_t rows) {
  constexpr int64_t kMost = SimdKernels<float>::kMaxTileRows;
  return rows <= kMost ? rows : std::min(kMost, rows - 4);
}

// Rounds A [depth, kTaskRows] and writes its first columns as rows of pairs,
// [cols, kMaxPairs], with zeros beyond the depth.
void RoundTransposed(const float* a, int64_t depth, int64_t cols,
                     BfloatPair* to) {
  constexpr int64_t kPart = 32;
  alignas(64) BfloatPair pairs[kPart / 2 * kTaskRows];
  for (int64_t start = 0; start < depth; start += kPart) {
    const int64_t part = std::min(kPart, depth - start);
    RoundRowPairs(a + start * kTaskRows, part, cols, kTaskRows, pairs);
    Simd().pairs.transpose(PaddedDepth(part) / 2, cols, pairs, kTaskRows,
                           to + start / 2, kMaxPairs);
  }
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

// Has write(row, to) write each row's block of A to an array of bfloat16
// numbers, pads the blocks with zeros, and calls run_tiles for the array.
template <typename Write, typename RunTiles>
void RunRounded(int64_t first_row, int64_t last_row, int64_t block,
                const Write& write, const RunTiles& run_tiles) {
  const ScratchArray<uint16_t> rounded(kCachedRows * kMaxBlockDepth);
  const auto at = [&](int64_t row) {
    return rounded.data() + (row - first_row) * kMaxBlockDepth;
  };
  for (int64_t row = first_row; row < last_row; ++row) {
    write(row, at(row));
    std::fill(at(row) + block, at(row) + PaddedDepth(block), uint16_t{0});
  }
  run_tiles([&](int64_t row) {
    return reinterpret_cast<const BfloatPair*>(at(row));
  });
}

}  // namespace

template <typename T>
template <typename ARow>
void Product<T>::RunTiles(int64_t first_row, int64_t last_row, int64_t start,
                          int64_t block, int64_t first_panel,
                          int64_t last_panel, const void* panels,
                          const ARow& a_row, int64_t a_stride) const {
  using Factor = std::remove_cv_t<std::remove_pointer_t<decltype(a_row(0))>>;
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const int64_t panel_bytes = b.PanelBytes(start);
  const bool in_matrices =
      !std::is_same_v<Factor, T> && Simd().multiplies_matrices();
  const int64_t num_rows = last_row - first_row;
  const Rows<const T> before = start > 0 ? c : init;
  const Factor* a_rows[kCachedRows];
  const T* init_rows[kCachedRows];
  T* c_rows[kCachedRows];
  for (int64_t r = 0; r < num_rows; ++r) {
    a_rows[r] = a_row(first_row + r);
    c_rows[r] = c[first_row + r];
    if (before.data != nullptr) init_rows[r] = before[first_row + r];
  }
  const auto most_panels = [&](int64_t height) -> int64_t {
    if (in_matrices) return 1;
    return simd.tile_vectors[height] / simd.panel_vectors;
  };
  const auto next_height = [&](int64_t row, int64_t together) {
    const int64_t left = num_rows - row;
    if (in_matrices) return std::min(Simd().matrices.rows, left);
    const int64_t most = b.bfloat16_ ? simd.bfloat16_tile_rows : kTileRows;
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
  const int64_t most_at_a_time = most_panels(std::min(num_rows, kTileRows));
  const int64_t whole_panels = std::min(last_panel, b.cols_ / panel_cols);
  for (int64_t panel = first_panel, together; panel < last_panel;
       panel += together) {
    together = most_at_a_time;
    while (together > 1 && panel + together > whole_panels) together /= 2;
    for (int64_t row = 0, height; row < num_rows; row += height) {
      height = next_height(row, together);
      const int64_t tile_panels = std::min(together, most_panels(height));
      const Factor* const* const a = a_rows + row;
      const T* const* const inits =
          before.data == nullptr ? nullptr : init_rows + row;
      T* const* const sums = c_rows + row;
      for (int64_t first = panel; first < panel + together;
           first += tile_panels) {
        const int64_t col = first * panel_cols;
        const int64_t cols = std::min(tile_panels * panel_cols, b.cols_ - col);
        const int64_t vectors = CeilDiv(cols, simd.vector_cols);
        const void* const data = static_cast<const char*>(panels) +
                                 (first - first_panel) * panel_bytes;
        const auto run = [&](const auto& tiles, int64_t depth,
                             const auto* numbers) {
          tiles[height][vectors](depth, a, a_stride, numbers,
                                 panel_bytes / sizeof(*numbers), inits, sums,
                                 col, cols);
        };
        if constexpr (!std::is_same_v<Factor, T>) {
          const auto* const pairs = static_cast<const BfloatPair*>(data);
          const int64_t depth = PaddedDepth(block) / 2;
          if (in_matrices) {
            // With one row, the stride of 0 has that row read 16 times.
            const int64_t row_stride = height > 1 ? a[1] - a[0] : 0;
            Simd().matrices.tile[vectors](height, depth, a[0], row_stride,
                                          pairs, inits, sums, col, cols);
          } else {
            run(simd.bfloat16_pair_tile, depth, pairs);
          }
        } else if (b.bfloat16_) {
          run(simd.bfloat16_tile, block, static_cast<const BfloatPair*>(data));
        } else {
          run(simd.tile, block, static_cast<const T*>(data));
        }
      }
    }
  }
}

template <typename T>
void Product<T>::RunDots(int64_t first_row, int64_t last_row, int64_t start,
                         int64_t block, int64_t panel) const {
  const SimdKernels<T>& simd = Kernels<T>();
  const Rows<const T> before = start > 0 ? c : init, left = a.InPlace();
  const int64_t first = panel * RightMatrix<T>::PanelCols();
  const int64_t last = std::min(first + RightMatrix<T>::PanelCols(), b.cols_);
  for (int64_t col = first; col < last; col += simd.vector_cols) {
    const int64_t cols = std::min(simd.vector_cols, last - col);
    for (int64_t row = first_row; row < last_row; ++row) {
      simd.dots(block, left[row] + start, b.columns_ + col * b.depth_ + start,
                b.depth_, cols,
                before.data == nullptr ? nullptr : before[row] + col,
                c[row] + col);
    }
  }
}

template <typename T>
void Product<T>::RunRows(int64_t first_row, int64_t last_row,
                         int64_t first_panel, int64_t last_panel) const {
  // Matrix registers read rows that are equally far apart.
  const bool copies_a = a.index != nullptr && Simd().multiplies_matrices();
  const int64_t block_depth = b.BlockDepth();
  for (int64_t start = 0; start < b.depth_; start += block_depth) {
    const int64_t block = b.Block(start);
    if (b.columns_ != nullptr) {
      for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        RunDots(first_row, last_row, start, block, panel);
      }
      continue;
    }
    const auto run_tiles = [&](const auto& a_row) {
      b.ForPanels(start, first_panel, last_panel,
                  [&](int64_t first, int64_t last, const void* panels) {
                    RunTiles(first_row, last_row, start, block, first, last,
                             panels, a_row, 1);
                  });
    };
    const bool rounds = b.bfloat16_ && rounds_a && Simd().multiplies_bfloat16();
    if (a.in_place() && !rounds) {
      const Rows<const T> left = a.InPlace();
      run_tiles([&](int64_t row) { return left[row] + start; });
    } else if constexpr (std::is_same_v<T, float>) {
      const auto halves = [&](int64_t row) { return a[row].Halves() + start; };
      if (!a.in_place() && !copies_a) {
        run_tiles([&](int64_t row) {
          return reinterpret_cast<const BfloatPair*>(halves(row));
        });
        continue;
      }
      const auto write = [&](int64_t row, uint16_t* to) {
        if (a.in_place()) {
          Simd().bfloat16.round(block, a[row].InPlace() + start, to);
        } else {
          std::copy_n(halves(row), block, to);
        }
      };
      RunRounded(first_row, last_row, block, write, run_tiles);
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
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const int64_t tile_rows = b.TileRows();
  const int64_t tiles = CeilDiv(rows, tile_rows);
  // If each task packs B, all rows had better be in one task.
  const bool copies = b.data_ == nullptr && b.columns_ == nullptr;
  const Grid grid = Divide(
      tiles, tile_rows, panels, panel_cols,
      {copies ? kCachedRows : kTaskRows, kTaskCols / panel_cols}, kCostOfRow,
      copies ? kCostOfPackedCol : kCostOfCol, schedule->num_threads());
  // Neighbouring tasks share their panels, since one thread usually takes
  // several of them in turn.
  schedule->Add(1, grid.row_parts * grid.panel_parts,
                [=, product = *this](int64_t, int64_t task) {
                  const int64_t row_part = task % grid.row_parts;
                  const int64_t panel_part = task / grid.row_parts;
                  product.RunRows(row_part * tiles / grid.row_parts * tile_rows,
                                  std::min((row_part + 1) * tiles /
                                               grid.row_parts * tile_rows,
                                           product.rows),
                                  panel_part * panels / grid.panel_parts,
                                  (panel_part + 1) * panels / grid.panel_parts);
                });
}

template <typename T>
int64_t TransposedProducts<T>::AddB(StoredRows<T> b, int64_t cols) {
  rights_.push_back({b, cols});
  return static_cast<int64_t>(rights_.size()) - 1;
}

template <typename T>
void TransposedProducts<T>::AddA(Rows<const T> a, int64_t rows,
                                 std::vector<Term> terms,
                                 std::vector<Destination<T>> sums) {
  lefts_.push_back({a, rows, std::move(terms), std::move(sums)});
}

template <typename T>
int64_t TransposedProducts<T>::NumPanels(const Left& left) const {
  int64_t panels = 0;
  for (const Term& term : left.terms) {
    panels += CeilDiv(rights_[term.b].cols, RightMatrix<T>::PanelCols());
  }
  return panels;
}

template <typename T>
void TransposedProducts<T>::Run(const Left& left,
                                const std::vector<RightMatrix<T>>& packed,
                                int64_t first_depth, const Task& task) {
  const ScratchArray<T> copied_rows(kTaskRows * kMaxBlockDepth);
  T* const copied = copied_rows.data();
  // Factors and results of type double are never converted.
  constexpr bool kConverts = std::is_same_v<T, float>;
  const ScratchArray<BfloatPair> rounded(kConverts ? kTaskRows * kMaxPairs : 0);
  BfloatPair* const pairs = rounded.data();
  const ScratchArray<T> results(kConverts ? kTaskRows * kConvertedCols : 0);
  T* const converted = results.data();
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const int64_t depth = packed[0].depth();
  const int64_t block_depth = packed[0].BlockDepth();
  const bool bfloat16 = packed[0].bfloat16_;
  const int64_t rows = task.last_row - task.first_row;
  for (int64_t start = 0; start < depth; start += block_depth) {
    const int64_t block = packed[0].Block(start);
    const bool is_first = first_depth + start == 0;
    CopyRows(left.a.From(first_depth + start, task.first_row), block, rows,
             copied, kTaskRows);
    if (task.first_panel == 0) {
      for (const Destination<T>& sums : left.sums) {
        const Destination<T> to = sums.From(task.first_row);
        T* const sum = to.in_place() ? to.InPlace() : converted;
        if (is_first) std::fill_n(sum, rows, T(0));
        Kernels<T>().add_column_sums(block, rows, copied, kTaskRows, sum);
        if (!to.in_place()) to.Write(rows, sum);
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (bfloat16) RoundTransposed(copied, block, rows, pairs);
    }
    int64_t panels_before = 0;
    for (const Term& term : left.terms) {
      const RightMatrix<T>& b = packed[term.b];
      const int64_t panels = b.panels();
      const int64_t first =
          std::max<int64_t>(0, task.first_panel - panels_before);
      const int64_t last = std::min(panels, task.last_panel - panels_before);
      panels_before += panels;
      if (first >= last) continue;
      const int64_t together =
          term.c.in_place() ? last - first : kConvertedCols / panel_cols;
      for (int64_t panel = first; panel < last; panel += together) {
        const int64_t count = std::min(together, last - panel);
        const int64_t col = panel * panel_cols;
        const Destination<T> to = term.c.From(task.first_row * b.cols_ + col);
        Product<T> product;
        // The products are those with the columns of B from this panel on.
        product.b = b;
        product.b.cols_ -= col;
        if (to.in_place()) {
          product.c = {to.InPlace(), b.cols_};
          if (!is_first) product.init = product.c;
        } else {
          product.c = {converted, kConvertedCols};
        }
        const auto run = [&](const auto& a_row, int64_t a_stride) {
          product.RunTiles(0, rows, start, block, 0, count,
                           b.Panel(start, panel), a_row, a_stride);
        };
        if constexpr (kConverts) {
          if (bfloat16) {
            run([&](int64_t row) { return pairs + row * kMaxPairs; }, 1);
          }
        }
        if (!bfloat16) {
          run([&](int64_t row) { return copied + row; }, kTaskRows);
        }
        if (to.in_place()) continue;
        const int64_t cols = std::min(count * panel_cols, product.b.cols_);
        for (int64_t row = 0; row < rows; ++row) {
          to.From(row * b.cols_).Write(cols, converted + row * kConvertedCols);
        }
      }
    }
  }
}

template <typename T>
auto TransposedProducts<T>::SumInArena(Arena* arena,
                                       std::vector<Left>* lefts) const
    -> std::vector<Conversion> {
  std::vector<Conversion> conversions;
  const auto sum_in_arena = [&](int64_t n, Destination<T>* to) {
    if (to->in_place()) return;
    T* const sums = arena->Take<T>(n);
    conversions.push_back({sums, n, *to});
    *to = {sums};
  };
  for (Left& left : *lefts) {
    for (Term& term : left.terms) {
      sum_in_arena(left.rows * rights_[term.b].cols, &term.c);
    }
    for (Destination<T>& sums : left.sums) sum_in_arena(left.rows, &sums);
  }
  return conversions;
}

template <typename T>
void TransposedProducts<T>::AddTo(Arena* arena, Schedule* schedule) const {
  const Arena::Scope sums_scope(arena);
  std::vector<Left> lefts = lefts_;
  std::vector<Conversion> conversions;
  // Sums of a single block are converted by the task that computes them.
  if (depth_ > kMaxBlockDepth) conversions = SumInArena(arena, &lefts);
  for (int64_t first = 0; first < depth_; first += kPackedDepth) {
    // The scope gives the memory back, so the next part is packed in the same
    // place.
    const Arena::Scope scope(arena);
    std::vector<RightMatrix<T>> packed;
    for (const Right& right : rights_) {
      packed.emplace_back(std::min(kPackedDepth, depth_ - first), right.cols,
                          bfloat16_, arena);
    }
    schedule->AddTogether([&] {
      for (size_t i = 0; i < rights_.size(); ++i) {
        packed[i].Pack({rights_[i].rows.From(first)}, schedule);
      }
    });
    schedule->AddTogether([&] {
      for (const Left& left : lefts) {
        const int64_t tile_rows = packed[0].TileRows();
        const int64_t tiles = CeilDiv(left.rows, tile_rows);
        // If there are no products, the tasks only compute sums of columns.
        const int64_t panels = std::max<int64_t>(1, NumPanels(left));
        const Grid grid =
            Divide(tiles, tile_rows, panels, RightMatrix<T>::PanelCols(),
                   {kTaskRows, panels}, kCostOfCopiedRow, kCostOfCol,
                   schedule->num_threads());
        schedule->Add(
            1, grid.row_parts * grid.panel_parts, [=](int64_t, int64_t chunk) {
              const int64_t row_part = chunk / grid.panel_parts;
              const int64_t panel_part = chunk % grid.panel_parts;
              Run(left, packed, first,
                  {row_part * tiles / grid.row_parts * tile_rows,
                   std::min((row_part + 1) * tiles / grid.row_parts * tile_rows,
                            left.rows),
                   panel_part * panels / grid.panel_parts,
                   (panel_part + 1) * panels / grid.panel_parts});
            });
      }
    });
  }
  schedule->AddTogether([&] {
    constexpr int64_t kRange = 16384;
    for (const Conversion& conversion : conversions) {
      schedule->AddRanges(conversion.n, kRange,
                          [=](int64_t first, int64_t last) {
                            conversion.to.From(first).Write(
                                last - first, conversion.from + first);
                          });
    }
  });
}

template struct Product<float>;
template struct Product<double>;
template class TransposedProducts<float>;
template class TransposedProducts<double>;

}  // namespace cudnn_rnn_tf
