// Decides how many threads run a pass, and how they share the steps of the
// recurrence.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_
#define CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_

#include <cstdint>

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Returns how many threads, `count` at most, a pass has enough work for. Each
// thread needs a certain amount of work to be worth its cost, and more of it if
// the threads are not at hand but must be woken.
int64_t WorthThreads(const RnnProblem& problem, bool is_backward, int64_t count,
                     bool at_hand);

// How each block of sequences is split among threads. Strands are subsets of
// its sequences. They are independent of each other, but each of them reads all
// recurrent weights. Parts are subsets of a strand's units. Each of them reads
// only its share of the weights, but they wait for each other in every step.
struct Division {
  int64_t threads = 1;  // Those that run the pass.
  int64_t strands = 1;  // The number per block.
  int64_t parts = 1;    // The number per strand, in whole panels.
  int64_t cycles = 0;   // An estimate of those that a step takes.

  // Returns how many threads can work on the steps at the same time.
  int64_t ThreadsInSteps(const RnnProblem& problem) const;
};

// The properties of a processor's core that decide how long a step takes.
struct Core {
  int64_t cache_bytes;       // Size of its own L2 cache.
  int64_t panel_cols;        // Columns of a panel of weights.
  int64_t panel_row_bytes;   // Bytes of a panel's row.
  int64_t panel_row_cycles;  // To multiply the row and add it to sums.
  // The sequences that a matrix register multiplies in the time of one. With 1,
  // tiles are taken to be those of TileHeight, whose time grows with their
  // number of sequences.
  int64_t matrix_rows = 1;
};

// Returns the properties of this machine's cores, for data of a type whose
// products may round both factors to bfloat16.
Core ThisCore(RnnDataType dtype, bool rounds_both);

// Returns the division with which, by an estimate, the slowest thread takes the
// fewest cycles for a step.
Division DivideGroups(const RnnProblem& problem, const Core& core,
                      int64_t num_threads);

// Returns that of a forward pass, which has `num_threads` threads at most:
// those that can work on the steps at the same time, since more would only
// wait, and slow those that share a core with them. But if the products with
// the inputs of the first layer would take these threads longer than its steps,
// as with few sequences of many features, and there are twice as many threads,
// all of them share these products.
Division DivideForward(const RnnProblem& problem, const Core& core,
                       int64_t num_threads);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_DIVISION_H_
