// Matrix products on one CPU: rows of any matrix times packed panels.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
#define CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/schedule.h"

namespace cudnn_rnn_tf {

// Fetch into the L2 cache; a few neighbours of each of many rows are more
// than the hardware foresees. GCC takes a function that does nothing else for
// one without effect, and leaves out calls of it; an asm is an effect.
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

// How many of the rows that are left a tile takes: so many that none is left
// with one or two, which would wait for their own sums.
inline int64_t TileHeight(int64_t rows) {
  return rows == 7 || rows == 8 ? 4 : std::min<int64_t>(6, rows);
}

// The rows of a matrix in memory that the caller owns; row i is number index[i]
// where there is an index. Strides in elements; 0 repeats one row.
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

// Numbers in memory that the caller owns, of a type that is converted to T as
// they are read, or of T where there is no `convert`.
template <typename T>
struct Stored {
  const void* data = nullptr;
  // Writes numbers [first, first + n) to `to`.
  void (*convert)(const void* data, int64_t first, int64_t n, T* to) = nullptr;
  int64_t offset = 0;

  Stored From(int64_t first) const { return {data, convert, offset + first}; }
  bool in_place() const { return convert == nullptr; }
  const T* InPlace() const { return static_cast<const T*>(data) + offset; }
  void Copy(int64_t n, T* to) const {
    if (in_place()) {
      std::copy_n(InPlace(), n, to);
    } else {
      convert(data, offset, n, to);
    }
  }
};

// The right-hand side B [depth, cols] of a product, copied into the order in
// which the inner loops read it: blocks of depth; in each, panels of columns;
// in each, row by row. The last panel is as wide as it has to be.
template <typename T>
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Takes its memory from the arena. With `bfloat16`, elements are rounded to
  // bfloat16 numbers and so, where the processor multiplies such numbers, are
  // those that products multiply them with.
  PackedMatrix(int64_t depth, int64_t cols, bool bfloat16, Arena* arena);

  int64_t depth() const { return depth_; }
  int64_t cols() const { return cols_; }
  int64_t panels() const;

  // B = these rows, what is stored as [depth, cols], or as [cols, depth], once
  // the schedule has run.
  void Pack(Rows<const T> b, Schedule* schedule) const;
  void Pack(Stored<T> b, Schedule* schedule) const;
  void PackTransposed(Stored<T> b_transposed, Schedule* schedule) const;

  // Columns of every panel but the last.
  static int64_t PanelCols();

 private:
  // The panel's part in the block of depth that begins at `start`.
  const void* Panel(int64_t start, int64_t panel) const;
  template <typename Fill>
  void PackPanel(int64_t task, const Fill& fill) const;
  template <typename Fill>
  void PackPanels(const Fill& fill, Schedule* schedule) const;
  int64_t NumTasks() const;
  int64_t PaddedCols() const;
  // Blocks are as deep as each other, or nearly; pairs are in one block.
  int64_t BlockDepth() const;

  int64_t depth_ = 0;
  int64_t cols_ = 0;
  bool bfloat16_ = false;
  void* data_ = nullptr;

  template <typename U>
  friend struct Product;
  template <typename U>
  friend class TransposedProducts;
};

// C[rows, cols] = init + A[rows, depth] B. `init` may be null (zeros) or C.
// Each row of C is the same, to the bit, whichever rows are computed with it
// and whatever panels.
template <typename T>
struct Product {
  int64_t rows = 0;
  Rows<const T> a;
  // A in bfloat16 where the caller has it, for a B that is; it is read in place
  // of `a`, to an even depth, with anything finite behind an odd one.
  Rows<const uint16_t> rounded_a;
  PackedMatrix<T> b;
  Rows<const T> init;
  Rows<T> c;

  void AddTo(Schedule* schedule) const;
  // Computes at once, and panels [first, last) of B only.
  void RunPanels(int64_t first, int64_t last) const;

 private:
  void RunRows(int64_t first_row, int64_t last_row, int64_t first_panel,
               int64_t last_panel) const;
  // A's factors are T, or pairs of bfloat16 numbers.
  template <typename Factor>
  void RunTile(int64_t row, int64_t height, int64_t start, int64_t block,
               int64_t panel, const Factor* const* a_rows,
               int64_t a_stride) const;

  template <typename U>
  friend class TransposedProducts;
};

// Products C[rows, cols] = A^T B of matrices A[depth, rows] and B[depth, cols]
// with a great depth in common: gradients of weights, which are sums over all
// steps. Every B is packed once, and a part of it at a time; what is copied of
// an A serves all of its products, and the sums of its columns: gradients of
// biases.
template <typename T>
class TransposedProducts {
 public:
  struct Term {
    int64_t b;  // The number that AddB gave it.
    Rows<T> c;
  };

  // With `bfloat16`, factors are rounded to bfloat16 numbers.
  TransposedProducts(int64_t depth, bool bfloat16)
      : depth_(depth), bfloat16_(bfloat16) {}

  int64_t AddB(Rows<const T> b, int64_t cols);
  // The sums of A's columns go to all of `sums`, [rows] each.
  void AddA(Rows<const T> a, int64_t rows, std::vector<Term> terms,
            std::vector<T*> sums);
  // Takes memory from the arena; where that only counts, nothing is added.
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
  // The rows of a task, and the panels of all terms in turn.
  struct Task {
    int64_t first_row, last_row, first_panel, last_panel;
  };
  int64_t NumPanels(const Left& left) const;
  static void Run(const Left& left, const std::vector<PackedMatrix<T>>& packed,
                  int64_t first_depth, const Task& task);

  const int64_t depth_;
  const bool bfloat16_;
  std::vector<Right> rights_;
  std::vector<Left> lefts_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_GEMM_H_
