// The weights of a network, in the forms in which products read them.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// A pseudo-layer's weights in the form that a forward pass reads.
template <typename T>
struct CpuForwardWeights {
  RightMatrix<T> input;                  // [fan_in, num_gates * H]
  RightMatrix<T> recurrent[kMostGates];  // By gate, [P, H].
  RightMatrix<T> projection;             // [H, P]
  T* bias = nullptr;                     // [num_gates * H]
  // [H], of the last gate's recurrent side where that is apart; else zeros.
  T* candidate_bias = nullptr;
  T* vectors = nullptr;  // [num_vectors, H]
};

// With no more rows than these, packing or rounding weights takes longer than
// multiplying by them.
constexpr int64_t kFewRows = 16;

// How products read weights: in panels that are packed once for all products,
// in panels that each product packs for itself, or where the caller has them.
enum class WeightsForm { kPacked, kUnpacked, kInPlace };

class CpuWeights {
 public:
  // The weights of a problem, which must outlive this object, whose sequences
  // are in so many strands.
  CpuWeights(const RnnProblem& problem, int64_t num_strands)
      : problem_(problem), layout_(problem.spec), num_strands_(num_strands) {}

  const ParamLayout& layout() const { return layout_; }
  // Returns whether products other than those of the steps round both their
  // factors to bfloat16. They do if the data are bfloat16 and the processor
  // multiplies these faster than floats.
  bool MultipliesBfloat16() const {
    return problem_.dtype == RnnDataType::kBfloat16 &&
           Simd().multiplies_bfloat16();
  }
  bool HasFewSequences() const {
    return PackedRows::MaxBlockSize(problem_.batch_size) <= 4;
  }
  // Returns whether the weights of the steps are packed as bfloat16. With few
  // sequences, a step reads each panel only once and takes as long as reading
  // the weights, so fewer bytes pay on any processor if there are steps enough.
  bool StepsMultiplyBfloat16() const {
    return problem_.dtype == RnnDataType::kBfloat16 &&
           (MultipliesBfloat16() ||
            (HasFewSequences() && problem_.max_time > 2));
  }
  // Returns the form of weights that are not multiplied in place. Packing them
  // for all products does not pay if there are only two.
  WeightsForm PackedForm() const {
    const int64_t products = problem_.max_time * num_strands_;
    return products <= 2 ? WeightsForm::kUnpacked : WeightsForm::kPacked;
  }
  // Returns weights, [depth, cols] or, if they are transposed, [cols, depth],
  // in this form, and adds the work of packing to the schedule. Weights in
  // place must be transposed.
  template <typename T>
  RightMatrix<T> PackMatrix(int64_t depth, int64_t cols, bool bfloat16,
                            Stored<T> numbers, bool transposed,
                            WeightsForm form, Arena* arena,
                            Schedule* schedule) const;
  // Takes memory for a pseudo-layer's weights from the arena and adds the work
  // that packs them to the schedule; the weights serve calls of any shape once
  // it has run, which it must not if the arena only counts. The arena's buffer
  // must outlive them. Forms other than kPacked need memory only for biases,
  // but `params` must outlive them.
  template <typename T>
  CpuForwardWeights<T> PackForward(int64_t pseudo_layer, Stored<T> params,
                                   WeightsForm form, Arena* arena,
                                   Schedule* schedule) const;

 private:
  const RnnProblem& problem_;
  const ParamLayout layout_;
  const int64_t num_strands_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
