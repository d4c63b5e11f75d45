// Matrix products on a CPU. The left factor is read row by row where it is, and
// the right one is packed into panels first.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
#define CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/schedule.h"

namespace cudnn_rnn_tf {

// Both fetch n numbers into the L2 cache. Code that reads a few neighbouring
// numbers of each of many rows needs them, since the hardware does not foresee
// such reads. The asm is there because GCC takes a function that only
// prefetches for one without effect, and removes calls of it.
template <typename T>
void Prefetch(const T* from, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(from + i, 0, 2);
  asm volatile("");
}
template <typename T>
void PrefetchToWrite(T* to, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(to + i, 1, 2);
  asm volatile("");
}

// Returns how many of the `rows` rows that are left go into the next tile.
// Seven or eight are halved, so that no tile is left with only one or two rows:
// so few sums are slow, since each addition waits for the one before it.
inline int64_t TileHeight(int64_t rows) {
  return rows == 7 || rows == 8 ? 4 : std::min<int64_t>(6, rows);
}

// Products may read bfloat16 numbers up to this many rows, and this depth of
// each row.
int64_t PaddedRows(int64_t rows);
int64_t PaddedDepth(int64_t depth);

// The rows of a matrix, in memory that the caller owns. If there is an index,
// row i is at index[i] strides from `data`, otherwise at i strides. Strides are
// in elements; with a stride of 0 all rows are the same.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  const int64_t* index = nullptr;

  T* operator[](int64_t row) const {
    return data + (index == nullptr ? row : index[row]) * stride;
  }
  Rows From(int64_t row, int64_t col = 0) const {
    return index == nullptr ? Rows{data + row * stride + col, stride, nullptr}
                            : Rows{data + col, stride, index + row};
  }
  operator Rows<const T>() const { return {data, stride, index}; }
};

// Numbers in memory that the caller owns. They are of type T if `convert` is
// null; otherwise `convert` converts them to T when they are read.
template <typename T>
struct Stored {
  const void* data = nullptr;
  // Converts numbers [first, first + n) of `data` and writes them to `to`.
  void (*convert)(const void* data, int64_t first, int64_t n, T* to) = nullptr;
  int64_t offset = 0;

  Stored From(int64_t first) const { return {data, convert, offset + first}; }
  bool in_place() const { return convert == nullptr; }
  const T* InPlace() const { return static_cast<const T*>(data) + offset; }
  void PrefetchFirst(int64_t n) const {
    if (in_place()) return Prefetch(InPlace(), n);
    // Numbers that are converted are of a half type.
    Prefetch(static_cast<const uint16_t*>(data) + offset, n);
  }
  void Copy(int64_t n, T* to) const {
    if (in_place()) {
      std::copy_n(InPlace(), n, to);
    } else {
      convert(data, offset, n, to);
    }
  }
};

// The right-hand side B [depth, cols] of a product. Products read it in the
// order of their inner loops: B is divided into blocks along its depth, a block
// into panels of columns, and a panel is stored row by row. The last panel has
// only as many whole vectors of columns as it needs.
template <typename T>
class RightMatrix {
 public:
  // B in memory that the caller owns, stored as [depth, cols] or, if it is
  // transposed, as [cols, depth].
  struct Source {
    Stored<T> numbers;
    bool transposed = false;
  };

  RightMatrix() = default;
  // Takes memory for the panels from the arena. With `bfloat16`, elements are
  // rounded to bfloat16. If the processor multiplies such numbers, products
  // round their other factor to bfloat16 as well.
  RightMatrix(int64_t depth, int64_t cols, bool bfloat16, Arena* arena);
  // Has each product pack the panels that it reads, a few at a time. This is
  // faster if only one or two products read them, and the results are the same.
  RightMatrix(int64_t depth, int64_t cols, bool bfloat16, Source source)
      : depth_(depth), cols_(cols), bfloat16_(bfloat16), source_(source) {}
  // Has products read B where it is stored, as [cols, depth] numbers of type T.
  // Each row of a product takes longer then, but nothing is packed.
  static RightMatrix InPlace(int64_t depth, int64_t cols,
                             Stored<T> b_transposed) {
    RightMatrix matrix(depth, cols, /*bfloat16=*/false, {b_transposed, true});
    matrix.in_place_ = true;
    return matrix;
  }

  int64_t depth() const { return depth_; }
  int64_t panels() const;

  // Add the work that fills the panels to the schedule. The source must live
  // until the schedule has run.
  void Pack(Rows<const T> b, Schedule* schedule) const;
  void Pack(Source source, Schedule* schedule) const;

  // Returns the number of columns of a panel; the last panel may have fewer.
  static int64_t PanelCols();

 private:
  // Returns a function that copies a part of B; see PackSpan.
  auto FillFrom(Source source) const;
  // Panels are packed in spans, so that more neighbouring numbers are read at a
  // time. Returns the end of the span that begins at `panel`: a tile of few
  // rows spans as many panels.
  int64_t SpanEnd(int64_t panel) const;
  // Writes the part of a span that is in the block that begins at row `start`.
  template <typename Fill>
  void PackSpan(int64_t start, int64_t first, int64_t last, const Fill& fill,
                void* to) const;
  template <typename Fill>
  void PackSpans(const Fill& fill, Schedule* schedule) const;
  // Calls run(first, last, data) for panels [first_panel, last_panel) of the
  // block that begins at row `start`, all at once or a few at a time. `data` is
  // where panels [first, last) are stored.
  template <typename Run>
  void ForPanels(int64_t start, int64_t first_panel, int64_t last_panel,
                 const Run& run) const;
  template <typename Run>
  void ForPanelsOfSource(int64_t start, int64_t first_panel, int64_t last_panel,
                         const Run& run) const;
  // Returns where a panel's part of the block that begins at row `start` is
  // stored, if panels are packed.
  void* Panel(int64_t start, int64_t panel) const {
    return static_cast<char*>(data_) + start * PaddedCols() * element_bytes() +
           panel * PanelBytes(start);
  }
  // Returns the bytes of a panel's part of such a block.
  int64_t PanelBytes(int64_t start) const {
    const int64_t block = Block(start);
    return (bfloat16_ ? PaddedDepth(block) : block) * PanelCols() *
           element_bytes();
  }
  int64_t element_bytes() const {
    return bfloat16_ ? sizeof(uint16_t) : sizeof(T);
  }
  int64_t PaddedCols() const;
  // Returns the depth of all blocks but the last, which is nearly as deep and
  // the only one that may need padding. Blocks decide the order of additions,
  // so they are the same with and without bfloat16.
  int64_t BlockDepth() const;
  // Returns the depth of the block that begins at row `start`.
  int64_t Block(int64_t start) const {
    return std::min(BlockDepth(), depth_ - start);
  }
  int64_t TileRows() const;

  int64_t depth_ = 0;
  int64_t cols_ = 0;
  bool bfloat16_ = false;
  void* data_ = nullptr;  // The panels; null if products pack them.
  Source source_;
  bool in_place_ = false;

  template <typename U>
  friend struct Product;
  template <typename U>
  friend class TransposedProducts;
};

// Computes C[rows, cols] = init + A[rows, depth] B. `init` may be C itself, or
// null for zeros. Each row of C is the same to the bit, whichever rows and
// panels are computed together with it.
template <typename T>
struct Product {
  int64_t rows = 0;
  Rows<const T> a;
  // A as bfloat16 numbers, if the caller has it so. It is read in place of `a`
  // if B holds bfloat16 and the processor multiplies these. The depth must be
  // even if there is an index. Without one, rows and depth are padded: the
  // memory has PaddedRows(rows) rows with PaddedDepth(depth) numbers. Padding
  // behind a row must be finite, since it is multiplied by zero.
  Rows<const uint16_t> rounded_a;
  RightMatrix<T> b;
  Rows<const T> init;
  Rows<T> c;

  void AddTo(Schedule* schedule) const;
  // Computes the columns of panels [first, last) of B at once, on the calling
  // thread.
  void RunPanels(int64_t first, int64_t last) const;

 private:
  void RunRows(int64_t first_row, int64_t last_row, int64_t first_panel,
               int64_t last_panel) const;
  // Computes the panel's columns of these rows, for one block of the depth, if
  // B is not packed.
  void RunDots(int64_t first_row, int64_t last_row, int64_t start,
               int64_t block, int64_t panel) const;
  // Computes all tiles of these rows and panels, for one block of the depth.
  // `panels` holds the panels. a_row(row) returns where the block's part of a
  // row of A begins, whose elements, of type T or BfloatPair, are a_stride
  // apart.
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
    int64_t b;  // The number that AddB returned for it.
    Rows<T> c;
  };

  // With `bfloat16`, both factors are rounded to bfloat16.
  TransposedProducts(int64_t depth, bool bfloat16)
      : depth_(depth), bfloat16_(bfloat16) {}

  int64_t AddB(Rows<const T> b, int64_t cols);
  // Adds the products of A with the B of every term. Also writes the sums of
  // A's columns to each array in `sums`, [rows].
  void AddA(Rows<const T> a, int64_t rows, std::vector<Term> terms,
            std::vector<T*> sums);
  // Adds all products to the schedule, with memory from the arena. If the arena
  // only counts, nothing is added.
  void AddTo(Arena* arena, Schedule* schedule) const;

 private:
  struct Right {
    Rows<const T> rows;
    int64_t cols;
  };
  struct Left {
    Rows<const T> a;
    int64_t rows;
    std::vector<Term> terms;
    std::vector<T*> sums;
  };
  // A part of the products with one A that is computed on its own. Panels are
  // counted through the B of all terms, one after the other.
  struct Task {
    int64_t first_row, last_row, first_panel, last_panel;
  };
  int64_t NumPanels(const Left& left) const;
  static void Run(const Left& left, const std::vector<RightMatrix<T>>& packed,
                  int64_t first_depth, const Task& task);

  const int64_t depth_;
  const bool bfloat16_;
  std::vector<Right> rights_;
  std::vector<Left> lefts_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
