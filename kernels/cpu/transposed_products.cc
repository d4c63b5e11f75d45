#include "kernels/cpu/transposed_products.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/scratch_array.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

constexpr int64_t kMaxPairs = kMaxBlockDepth / 2;
// The most rows of a task. A block of these rows, which it copies, fits into
// the L2 cache beside a panel; the more rows there are, the less often panels
// are read.
constexpr int64_t kTaskRows = 96;
static_assert(kTaskRows <= kMaxRoundedCols && kTaskRows <= kCachedRows, "");
// A matrix register reads 16 rows at a time from an array of this size.
static_assert(kTaskRows % 16 == 0, "");
constexpr int64_t kCostOfCopiedRow = 30;
constexpr int64_t kCostOfCol = 13;
// The factors are packed in parts of this depth, which stay in the L3 cache.
constexpr int64_t kPackedDepth = 768;

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

}  // namespace

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
                                int64_t first_depth,
                                const TaskGrid::Task& task) {
  const ScratchArray<T> copied_rows(kTaskRows * kMaxBlockDepth);
  T* const copied = copied_rows.data();
  // Factors of type double are never rounded.
  constexpr bool kMayRound = std::is_same_v<T, float>;
  const ScratchArray<BfloatPair> rounded(kMayRound ? kTaskRows * kMaxPairs : 0);
  BfloatPair* const pairs = rounded.data();
  const int64_t panel_cols = RightMatrix<T>::PanelCols();
  const int64_t depth = packed[0].depth();
  const int64_t block_depth = packed[0].BlockDepth();
  const bool bfloat16 = packed[0].bfloat16();
  const int64_t rows = task.last_row - task.first_row;
  for (int64_t start = 0; start < depth; start += block_depth) {
    const int64_t block = packed[0].Block(start);
    const bool is_first = first_depth + start == 0;
    CopyRows(left.a.From(first_depth + start, task.first_row).InPlace(), block,
             rows, copied, kTaskRows);
    if (task.first_panel == 0) {
      for (const Destination<T>& sums : left.sums) {
        T* const sum = sums.InPlace() + task.first_row;
        if (is_first) std::fill_n(sum, rows, T(0));
        Kernels<T>().add_column_sums(block, rows, copied, kTaskRows, sum);
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
      const Panels columns = b.PanelsOf(start, first, last);
      T* const to = term.c.InPlace() + task.first_row * b.cols();
      const Rows<T> c = {to + first * panel_cols, b.cols()};
      const Rows<const T> init = is_first ? Rows<const T>() : c;
      if (!bfloat16) {
        RunTiles<T, T>(columns, {copied, 1}, kTaskRows, rows, init, c);
      } else if constexpr (kMayRound) {
        RunTiles<T, BfloatPair>(columns, {pairs, kMaxPairs}, 1, rows, init, c);
      }
    }
  }
}

template <typename T>
void TransposedProducts<T>::AddTo(Arena* arena, Schedule* schedule) const {
  const Arena::Scope sums_scope(arena);
  // Sums of another type than T are in the arena until they are complete.
  struct Conversion {
    const T* from;
    int64_t n;
    Destination<T> to;
  };
  std::vector<Conversion> conversions;
  const auto sum_in_arena = [&](int64_t n, Destination<T>* to) {
    if (to->in_place()) return;
    T* const sums = arena->Take<T>(n);
    conversions.push_back({sums, n, *to});
    *to = {sums};
  };
  std::vector<Left> lefts = lefts_;
  for (Left& left : lefts) {
    for (Term& term : left.terms) {
      sum_in_arena(left.rows * rights_[term.b].cols, &term.c);
    }
    for (Destination<T>& sums : left.sums) sum_in_arena(left.rows, &sums);
  }
  for (int64_t first = 0; first < depth_; first += kPackedDepth) {
    // The scope gives the memory back, so the next part is packed in the same
    // place.
    const Arena::Scope scope(arena);
    std::vector<RightMatrix<T>> packed;
    schedule->AddTogether([&] {
      for (const Right& right : rights_) {
        const typename RightMatrix<T>::Source source = {right.rows.From(first)};
        packed.emplace_back(std::min(kPackedDepth, depth_ - first), right.cols,
                            rounds_both_, source, arena, schedule);
      }
    });
    schedule->AddTogether([&] {
      for (const Left& left : lefts) {
        // If there are no products, the tasks only compute sums of columns.
        const int64_t panels = std::max<int64_t>(1, NumPanels(left));
        const TaskGrid grid(left.rows, packed[0].TileRows(), panels,
                            RightMatrix<T>::PanelCols(),
                            {kTaskRows, panels, kCostOfCopiedRow, kCostOfCol},
                            schedule->num_threads());
        schedule->Add(1, grid.num_tasks(), [=](int64_t, int64_t task) {
          Run(left, packed, first,
              grid.At(task / grid.panel_parts, task % grid.panel_parts));
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

template class TransposedProducts<float>;
template class TransposedProducts<double>;

}  // namespace cudnn_rnn_tf
