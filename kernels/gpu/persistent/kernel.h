// Compiles and launches the persistent kernels and the small ones around them.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/gpu/persistent/division.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Says why if the device cannot run the persistent kernels. They need compute
// capability 9.0, which introduced clusters and their memory, and a driver that
// has all functions for graphs.
RnnStatus CheckDevice();

// These properties decide which persistent kernel runs.
struct KernelChoice {
  RnnMode rnn_mode;
  RnnDataType dtype;
  bool is_backward;
  bool is_training;
  int num_units;
  int num_dirs;
  int batch_size;
  int num_layers;  // 1, or the layers of a stack, which run at once.
};

// A kernel that runs a pass, forward or backward, through all directions of a
// layer or, forward only, through a stack of layers.
class Kernel {
 public:
  // Finds the ways to divide the layer on the current context's device. It is
  // an error if there is none. Compiles nothing.
  static RnnStatus Divide(const KernelChoice& choice,
                          std::vector<Division>* divisions);
  // Estimates the cycles that a step takes, for the whole batch and in a stack
  // for all layers. The status says why if the kernel cannot be had. Compiles
  // nothing.
  static RnnStatus Plan(const KernelChoice& choice, double* cycles);
  // Gets the kernel, and compiles it unless that was done before. A failure is
  // remembered.
  static RnnStatus Get(const KernelChoice& choice, Kernel* kernel);
  // Gets the kernels of both choices, which are compiled at the same time, and
  // sets `kernel` to that of `choice`. Fails if either fails.
  static RnnStatus GetBoth(const KernelChoice& choice,
                           const KernelChoice& other, Kernel* kernel);
  // Compiles a kernel for a shape that need not be the one that Get chooses.
  static RnnStatus Compile(const KernelChoice& choice, const Shape& shape,
                           Kernel* kernel);

  const Shape& shape() const { return shape_; }
  // The bytes of the memory through which the kernel's teams exchange. `shares`
  // is the number of teams that the batch would fill at once, `at_once` that of
  // the layer's directions or the stack's stages.
  size_t ring_bytes(int shares, int at_once) const;
  // Enqueues the kernel. `arguments` are ForwardArguments or BackwardArguments,
  // whichever the kernel takes; this sets their part.
  template <typename Arguments>
  RnnStatus Enqueue(CUstream stream, int shares, int at_once, void* ring,
                    Arguments* arguments) const {
    return EnqueueParts(stream, shares, at_once, ring, &arguments->part,
                        arguments);
  }

 private:
  struct Grid {
    int teams, dirs;
  };
  // The most teams and directions that one launch has. There is no limit for
  // clusters. Blocks of other teams wait for each other, so one launch has no
  // more of them than the GPU runs at the same time; the teams then run several
  // shares of the batch each, and several launches run the directions.
  Grid MostAtOnce(int shares, int at_once) const;
  size_t RingBytes(const Grid& grid) const;
  CUlaunchConfig Config(const Grid& grid, CUstream stream,
                        CUlaunchAttribute* attribute) const;
  // `part` is a member of `arguments`.
  RnnStatus EnqueueParts(CUstream stream, int shares, int at_once, void* ring,
                         Part* part, void* arguments) const;

  CUkernel kernel_ = nullptr;
  Shape shape_ = {};
  bool is_backward_ = false;
  int teams_at_once_ = 0;
};

// The small kernels, which auxiliary.cu describes. Counts are in numbers, not
// bytes.
class Auxiliary {
 public:
  static RnnStatus Get(RnnDataType dtype, Auxiliary* kernels);

  RnnStatus StoreLengths(CUstream stream, const int32_t* lengths, int count,
                         int64_t* to) const;
  // `to` is in device memory, as is the seed that ApplyDropout takes.
  RnnStatus StoreSeed(CUstream stream, const uint64_t seed[2],
                      uint64_t* to) const;
  RnnStatus OrderSequences(CUstream stream, const int64_t* given, int batch,
                           int steps, int* lengths, int* order) const;
  RnnStatus ApplyDropout(CUstream stream, const Sequences& sequences,
                         int64_t count, int width, int layer,
                         const uint64_t* seed, float rate, void* values) const;
  RnnStatus SpreadInputs(CUstream stream, int64_t count, int units, int gates,
                         int slots, const void* inputs, void* to) const;
  RnnStatus GatherInputs(CUstream stream, int64_t count, int units, int gates,
                         int slots, const void* of_forward,
                         const void* of_backward, void* to) const;
  RnnStatus CopyWithoutPadding(CUstream stream, const Sequences& sequences,
                               int64_t count, int width, const void* from,
                               void* to) const;
  RnnStatus TransposeSteps(CUstream stream, const Sequences& sequences,
                           int64_t rows, int width, int64_t pitch,
                           const void* from, void* to) const;
  RnnStatus SumBiases(CUstream stream, const float* sums, int rows, int units,
                      int gates, int slots, int recurrent_slot,
                      void* input_bias, void* recurrent_bias) const;
  RnnStatus AddParts(CUstream stream, int64_t count, int num_parts,
                     const float* parts, void* to) const;

 private:
  CUkernel lengths_, seed_, order_, dropout_, spread_, gather_, copy_,
      transpose_, biases_, parts_;
};

// Enqueues the computation of lengths, [batch], from a mask, bool [batch,
// steps] or, time-major, [steps, batch]. The length is -1 for a sequence whose
// true values are not all at its beginning.
RnnStatus EnqueueLengthsOfMask(CUstream stream, const void* mask, int batch,
                               int steps, bool time_major, int64_t* lengths);

// Returns a line for each persistent kernel that this process has used.
std::string KernelsText();

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_
