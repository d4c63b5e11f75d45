// The weights of a network, in the forms in which products read them.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/cpu/cpu_plan.h"
#include "kernels/cpu/right_matrix.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"

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

#endif  // CUDNN_RNN_TF_KERNELS_CPU_WEIGHTS_H_
