#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_

#include <cstdint>

#include "kernels/cpu/division.h"
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

// What all calls of a problem have in common.
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

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_PLAN_H_
