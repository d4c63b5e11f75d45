// Runs the steps of a layer one after the other, each in kernels of its own,
// for networks that no persistent kernel runs.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_

#include <cstdint>

#include "kernels/arena.h"
#include "kernels/gpu/handles.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Takes the place of the persistent kernel. A step is a product of cuBLAS for
// all gates of both directions, and one kernel of steps.cu. With projections,
// there is a product for them as well. If a GRU's reset gate acts before the
// product, the candidate has a product of its own, and the reset gate a kernel.
// With recurrent dropout, each gate's matrix reads h through a mask of its own,
// so the product is batched over the gates. The kernels read and write what the
// persistent kernel does, but take the sequences in their own order, also in
// `bias_sums`.
class StepLoop {
 public:
  // Says why the problem cannot run, or returns no error.
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
    // [D, G * H, P] and [D, P, H], copies of the recurrent matrices and of the
    // projections. In the buffer of parameters, they may not be aligned, and
    // those of the two directions are not evenly apart. [D, H, P] of these
    // gates' matrices are apart if a GRU's candidate reads something else than
    // h.
    void* weights_;
    void* candidate_weights_ = nullptr;
    void* projections_ = nullptr;
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
  // Only of a GRU whose reset gate acts before the product.
  struct ResetKernels {
    CUkernel forward, backward;
  };
  // Matrices of the same size, [rows, columns], that follow one another.
  struct Matrices {
    const void* weights;
    int64_t count, rows, columns;
  };

  // The matrices that a step multiplies by.
  Matrices Recurrent(const Memory& memory) const;
  Matrices Candidate(const Memory& memory) const;
  Matrices Projection(const Memory& memory) const;
  // Copies a layer's matrices and draws its masks.
  template <typename Arguments>
  RnnStatus Begin(const Handles& handles, const Memory& memory, int64_t layer,
                  const uint64_t* seed, const Arguments& arguments) const;
  RnnStatus CopyMatrix(CUstream stream, int64_t direction, const void* from,
                       const Matrices& matrices, void* to) const;
  // Multiplies `operands`, [count, B, columns], by the transposed matrices or,
  // with `is_backward`, [count, B, rows] by the matrices. The products are of
  // the type `to_type`. With `adds`, they are added to what is there.
  RnnStatus Multiply(const Handles& handles, const Matrices& matrices,
                     bool is_backward, const void* operands, bool adds,
                     void* to, RnnDataType to_type) const;
  // Enqueues a kernel that computes the cells of a step.
  template <typename Arguments>
  RnnStatus EnqueueCells(CUkernel kernel, CUstream stream, const Memory& memory,
                         const Arguments& arguments, int64_t step) const;

  RnnProblem problem_;
  bool allows_tf32_ = false;
  Kernels kernels_ = {};
  ResetKernels reset_kernels_ = {};
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
