#ifndef CUDNN_RNN_TF_KERNELS_CPU_TRANSPOSED_PRODUCTS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_TRANSPOSED_PRODUCTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"

namespace cudnn_rnn_tf {

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

  // With `rounds_both`, both factors are rounded to bfloat16.
  TransposedProducts(int64_t depth, bool rounds_both)
      : depth_(depth), rounds_both_(rounds_both) {}

  int64_t AddB(StoredRows<T> b, int64_t cols) {
    rights_.push_back({b, cols});
    return static_cast<int64_t>(rights_.size()) - 1;
  }
  // Adds the products of A with the B of every term. Also writes the sums of
  // A's columns to each array in `sums`, [rows].
  void AddA(StoredRows<T> a, int64_t rows, std::vector<Term> terms,
            std::vector<Destination<T>> sums) {
    lefts_.push_back({a, rows, std::move(terms), std::move(sums)});
  }
  // Adds all products to the schedule, with memory from the arena.
  void AddTo(Arena* arena, Schedule* schedule) const;

 private:
  struct Right {
    StoredRows<T> rows;
    int64_t cols;
  };
  struct Left {
    StoredRows<T> a;  // In place.
    int64_t rows;
    std::vector<Term> terms;
    std::vector<Destination<T>> sums;
  };
  int64_t NumPanels(const Left& left) const;
  // Panels are counted through the B of all terms, one after the other.
  static void Run(const Left& left, const std::vector<RightMatrix<T>>& packed,
                  int64_t first_depth, const TaskGrid::Task& task);

  const int64_t depth_;
  const bool rounds_both_;
  std::vector<Right> rights_;
  std::vector<Left> lefts_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_TRANSPOSED_PRODUCTS_H_
