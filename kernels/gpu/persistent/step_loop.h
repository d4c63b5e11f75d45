// Runs the steps of a layer one after the other, each in kernels of its own,
// for networks that no persistent kernel runs.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_

#include <cstdint>
#include <optional>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/gpu/persistent/halves.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Takes the place of the persistent kernel. A step is a product of cuBLAS for
// all gates of both directions, and one kernel of steps.cu or, if a layer
// normalises its sums, of norm_steps.cu; docs/internals/gpu_kernels.md says
// what else some networks take. The kernels read and write what the persistent
// kernel does, but take the sequences in their own order, also in `bias_sums`.
class StepLoop {
 public:
  // Gets the kernels, which are compiled unless that was done before. The
  // status says why if the problem cannot run.
  static RnnStatus Get(const RnnProblem& problem, bool allow_tf32,
                       StepLoop* loop);

  // Matrices of the same size, [rows, columns], that follow one another; those
  // of a direction, and then those of the other one. In float16, which they are
  // in if they have powers, zeros follow up to [all_rows, pitch]: cuBLAS is
  // fast if sizes are multiples of eight.
  struct Matrices {
    void* weights;
    int64_t count, rows, columns, all_rows, pitch;
    float* row_powers = nullptr;
    void* operands = nullptr;  // What they are multiplied by.
  };
  // The memory that a pass uses for one layer after the other.
  struct Memory {
    Memory(const StepLoop& loop, bool is_backward, Arena* arena);

    StepBuffers buffers = {};
    // Copies of matrices, which the buffer of parameters may have in unaligned
    // places, and unevenly apart. Candidates have their own if they read
    // something else than h, and so has each gate with recurrent dropout.
    Matrices recurrent, candidate = {}, projection = {};
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
  // Copies a layer's matrices and draws its masks.
  template <typename Arguments>
  RnnStatus Begin(const Handles& handles, const Memory& memory, int64_t layer,
                  const uint64_t* seed, const Arguments& arguments) const;
  // The numbers from one row of operands or products to the next.
  int64_t PitchOf(int64_t width) const {
    return halves_ ? Halves::Pitch(width) : width;
  }
  // Multiplies the operands, [count, B, columns], by the transposed matrices
  // or, with `is_backward`, [count, B, rows] by the matrices. The products are
  // of the type `to_type`. With `adds`, they are added to what is there.
  RnnStatus MultiplyAll(const Handles& handles, const Matrices& matrices,
                        bool is_backward, bool adds, void* to,
                        RnnDataType to_type) const;
  // Blocks that take a sequence in one direction each, or some of its units.
  Grid GridOfSequences() const;
  Grid GridOfUnits() const;
  // The numbers of [D, B, H].
  int64_t NumStates() const {
    return problem_.spec.num_dirs() * problem_.batch_size *
           problem_.spec.num_units;
  }

  RnnProblem problem_;
  bool allows_tf32_ = false;
  // Where products are in float16: all but the backward pass's of projections.
  std::optional<Halves> halves_;
  SmallKernels kernels_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_LOOP_H_
