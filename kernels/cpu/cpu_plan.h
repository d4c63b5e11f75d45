// What the calls of a problem have in common, and the weights of its network in
// the forms in which products read them.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// How a problem's products read their factors. None are rounded unless the data
// are of type bfloat16.
struct FactorForms {
  explicit FactorForms(const RnnProblem& problem);

  // Whether a forward pass multiplies its caller's weights where they are. With
  // so few rows, packing them takes longer than multiplying by them.
  bool in_place = false;
  // Whether both factors of products over many rows are rounded to bfloat16: if
  // the processor multiplies such numbers faster than floats.
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

// A plan holds what all calls of a problem have in common.
struct CpuPlan : RnnPlan {
  // There are `threads` at most, which forward passes may find at hand.
  CpuPlan(const RnnProblem& problem, int64_t threads, bool may_be_at_hand);

  ParamLayout layout;
  FactorForms forms;
  Core core;
  // Those of a forward pass whose threads must be woken, of one that finds them
  // at hand, and of a backward pass.
  Division woken, at_hand, backward;
};

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

// Takes memory for a pseudo-layer's weights from the arena and adds the work
// that packs them to the schedule; the weights serve calls of any shape once it
// has run, which it must not if the arena only counts. The arena's buffer must
// outlive them. Matrices in place need no memory, but `params` must outlive
// them.
template <typename T>
CpuForwardWeights<T> PackForward(const CpuPlan& plan, int64_t pseudo_layer,
                                 Stored<T> params, Arena* arena,
                                 Schedule* schedule);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_
