// The tensors of a pass's caller, whose numbers the pass reads and writes where
// they are, row by row.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CALLER_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CALLER_TENSORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

class CallerTensors {
 public:
  // Both must outlive this object.
  CallerTensors(const RnnProblem& problem, const PackedRows& rows)
      : problem_(problem),
        rows_(rows),
        row_indices_(rows.CallerRows(problem.time_major)) {
    const int64_t layers = problem.spec.num_pseudo_layers();
    const int64_t batch = problem.batch_size;
    for (int64_t i = 0; i < layers * batch; ++i) {
      state_indices_.push_back(
          problem.time_major ? i : i % batch * layers + i / batch);
    }
  }

  // Return views: of a tensor of any shape; of sequences, whose rows have n
  // numbers, by packed row (padding has none); and of states, by the state's
  // number in [L * D, B], which has those of all pseudo-layers.
  template <typename T, typename Data>
  auto Numbers(Data* tensor) const {
    using Number = std::conditional_t<std::is_const_v<Data>, const T, T>;
    return StoredNumbers<Number>{tensor, HalfTypeOf(problem_.dtype)};
  }
  template <typename T, typename Data>
  auto Sequences(Data* tensor, int64_t n) const {
    return NumberRows(Numbers<T>(tensor), n, row_indices_.data());
  }
  template <typename T, typename Data>
  auto States(Data* tensor, int64_t n) const {
    return NumberRows(Numbers<T>(tensor), n, state_indices_.data());
  }

  // Adds the work that fills the padding of sequences with zeros.
  void FillPadding(void* sequences, int64_t n, Schedule* schedule) const {
    const int64_t max_time = problem_.max_time, batch = problem_.batch_size;
    if (rows_.num_rows() == max_time * batch) return;
    const auto row_bytes = static_cast<int64_t>(n * SizeOf(problem_.dtype));
    char* const to = static_cast<char*>(sequences);
    schedule->AddRanges(batch, 1, [=](int64_t position, int64_t) {
      for (int64_t t = rows_.length(position); t < max_time; ++t) {
        const int64_t row = rows_.CallerRow(position, t, problem_.time_major);
        std::fill_n(to + row * row_bytes, row_bytes, char{0});
      }
    });
  }

 private:
  const RnnProblem& problem_;
  const PackedRows& rows_;
  const std::vector<int64_t> row_indices_;
  std::vector<int64_t> state_indices_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CALLER_TENSORS_H_
