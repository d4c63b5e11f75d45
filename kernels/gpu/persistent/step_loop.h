// Runs the steps of a layer one after the other, each in kernels of its own,
// for networks with recurrent dropout.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/gpu/persistent/launch.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Takes the place of the persistent kernel, which multiplies the matrices of
// all gates by the same h. With recurrent dropout, each gate's matrix reads h
// through a mask of its own. So a step is one product of cuBLAS, batched over
// the gates of both directions, and one kernel of steps.cu. These read and
// write what the persistent kernel does, but take the sequences in their own
// order, also in `bias_sums`.
class StepLoop {
 public:
  // Says why the problem's numbers cannot be counted, or returns no error.
  static RnnStatus Check(const RnnProblem& problem);
  // Gets the kernels, which are compiled unless that was done before.
  static RnnStatus Get(const RnnProblem& problem, bool allow_tf32,
                       StepLoop* loop);

  // The memory that a pass uses for one layer after the other.
  class Memory {
   public:
    Memory(const RnnProblem& problem, Arena* arena);

   private:
    friend class StepLoop;

    StepBuffers buffers_ = {};
    float* products_;
    // [D, G * H, H], copies of the recurrent matrices. In the buffer of
    // parameters, they may not be aligned, and those of the two directions are
    // not evenly apart.
    void* weights_;
  };

  // Enqueue all steps of a layer. `seed` is in device memory.
  RnnStatus Forward(const Handles& handles, const Memory& memory, int64_t layer,
                    const uint64_t* seed, ForwardArguments arguments) const;
  RnnStatus Backward(const Handles& handles, const Memory& memory,
                     int64_t layer, const uint64_t* seed,
                     BackwardArguments arguments) const;
  // Enqueues the masking of the states before each step, [rows, H], as a gate's
  // recurrent matrix has read them. The masks are those of the layer that ran
  // last with this memory.
  RnnStatus MaskStates(CUstream stream, const Memory& memory,
                       const Sequences& sequences, int64_t direction,
                       int64_t gate, const void* previous_h, void* to) const;

 private:
  struct Kernels {
    CUkernel weights, masks, forward, backward, states;
  };

  // Copies the recurrent matrices and draws the masks of a layer.
  template <typename Arguments>
  RnnStatus Begin(const Handles& handles, const Memory& memory, int64_t layer,
                  const uint64_t* seed, const Arguments& arguments) const;
  // Multiplies the operands of each gate by its matrix, or by the transposed
  // one.
  RnnStatus Multiply(const Handles& handles, const Memory& memory,
                     bool transposes_weights) const;
  // Enqueues a kernel that computes the cells of a step.
  template <typename Arguments>
  RnnStatus EnqueueCells(CUkernel kernel, CUstream stream, const Memory& memory,
                         const Arguments& arguments, int64_t step) const;

  RnnProblem problem_;
  bool allows_tf32_ = false;
  Kernels kernels_ = {};
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
