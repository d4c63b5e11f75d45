// The weights of a network, in the forms in which products read them.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_

#include <cstdint>

#include "kernels/arena.h"
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

// Which factors of a problem's products are rounded to bfloat16. None are
// unless the data are of that type.
struct Precision {
  explicit Precision(const RnnProblem& problem);

  // Both factors of products over many rows: if the processor multiplies
  // bfloat16 faster than floats.
  bool rounds_both = false;
  // The weights of the steps. With few sequences, a step reads each panel only
  // once and takes as long as reading the weights, so fewer bytes pay on any
  // processor if there are steps enough.
  bool rounds_step_weights = false;
  // Both factors of the steps' products. Matrix registers take as long for a
  // few sequences as for 16, so vectors are mostly faster then. They multiply
  // the weights by states that are not rounded.
  bool rounds_steps = false;
};

// Returns whether a forward pass multiplies its caller's weights in place. With
// so few rows, packing them takes longer than multiplying by them.
bool MultipliesInPlace(const RnnProblem& problem);

class CpuWeights {
 public:
  // The problem must outlive this object.
  explicit CpuWeights(const RnnProblem& problem)
      : problem_(problem), precision_(problem), layout_(problem.spec) {}

  const ParamLayout& layout() const { return layout_; }
  const Precision& precision() const { return precision_; }
  // Takes memory for a pseudo-layer's weights from the arena and adds the work
  // that packs them to the schedule; the weights serve calls of any shape once
  // it has run, which it must not if the arena only counts. The arena's buffer
  // must outlive them. Matrices in place need no memory, but `params` must
  // outlive them.
  template <typename T>
  CpuForwardWeights<T> PackForward(int64_t pseudo_layer, Stored<T> params,
                                   bool in_place, Arena* arena,
                                   Schedule* schedule) const;

 private:
  const RnnProblem& problem_;
  const Precision precision_;
  const ParamLayout layout_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
