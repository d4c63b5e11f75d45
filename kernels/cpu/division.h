// How many threads share a step of the recurrence, and in which way.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_
#define CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_

#include <cstdint>

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// A block of sequences can be split in two ways. Strands of it need nothing of
// each other, but each reads all of the recurrent weights. Parts of a strand's
// units read their share of the weights, but wait for each other in every step.
struct Division {
  int64_t strands = 1;  // Of a block.
  int64_t parts = 1;    // Of a strand's units, in whole panels.
};

// The properties of a processor's core that decide how long a step takes.
struct Core {
  int64_t cache_bytes;       // Of its own, second-level.
  int64_t panel_cols;        // Columns of a panel.
  int64_t panel_row_bytes;   // Bytes of a row of these.
  int64_t panel_row_cycles;  // For multiplying it by a number and adding.
};

// The division with which the slowest of the threads takes the fewest cycles
// for a step, by an estimate.
Division DivideGroups(const RnnProblem& problem, const Core& core,
                      int64_t num_threads);
// The same for the cores of this machine.
template <typename T>
Division DivideGroups(const RnnProblem& problem, int64_t num_threads);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_
