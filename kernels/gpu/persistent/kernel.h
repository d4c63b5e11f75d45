// The persistent kernels and the small ones around them, compiled.
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

// The persistent kernels ask for compute capability 9.0, since clusters and
// their memory came with it.
RnnStatus CheckDevice();

// These decide which persistent kernel runs.
struct KernelChoice {
  RnnMode rnn_mode;
  RnnDataType dtype;
  bool is_backward;
  bool is_training;
  int num_units;
  int num_dirs;
  int batch_size;
  int num_layers;  // 1, or those of a stack, which run at the same time.
};

// One direction of a pass through a layer, in both directions of the layer, or
// through a stack of layers.
class Kernel {
 public:
  // The ways to divide the layer on the current context's device; an error
  // where there is none. Compiles nothing.
  static RnnStatus Divide(const KernelChoice& choice,
                          std::vector<Division>* divisions);
  // About how many cycles a step of the whole batch, and stack, takes, or why
  // the kernel cannot be had. Compiles nothing.
  static RnnStatus Plan(const KernelChoice& choice, double* cycles);
  // Compiles, unless that was done before. A failure is remembered.
  static RnnStatus Get(const KernelChoice& choice, Kernel* kernel);
  // The same for two kernels, at the same time, of which `kernel` becomes the
  // first.
  static RnnStatus GetBoth(const KernelChoice& choice,
                           const KernelChoice& other, Kernel* kernel);
  // The same for a shape that need not be the one to be chosen.
  static RnnStatus Compile(const KernelChoice& choice, const Shape& shape,
                           Kernel* kernel);

  const Shape& shape() const { return shape_; }
  // The memory that its teams need to exchange in. `num_dirs` is the number of
  // stages where it runs a stack.
  size_t ring_bytes(int teams, int num_dirs) const;
  // `arguments` are ForwardArguments or BackwardArguments, as the kernel's; it
  // sets their part.
  template <typename Arguments>
  RnnStatus Enqueue(CUstream stream, int teams, int num_dirs, void* ring,
                    Arguments* arguments) const {
    return EnqueueParts(stream, teams, num_dirs, ring, &arguments->part,
                        arguments);
  }

 private:
  struct Grid {
    int teams, dirs;
  };
  // One launch may run all teams, unless they wait for each other elsewhere
  // than in a cluster: then it may run no more than the GPU runs at the same
  // time.
  Grid MostAtOnce(int teams, int num_dirs) const;
  size_t RingBytes(const Grid& grid) const;
  CUlaunchConfig Config(const Grid& grid, CUstream stream,
                        CUlaunchAttribute* attribute) const;
  // `part` belongs to the arguments.
  RnnStatus EnqueueParts(CUstream stream, int teams, int num_dirs, void* ring,
                         Part* part, void* arguments) const;

  CUkernel kernel_ = nullptr;
  Shape shape_ = {};
  bool is_backward_ = false;
  int teams_at_once_ = 0;
};

// See auxiliary.cu for what they do. Counts are numbers, not bytes.
class Auxiliary {
 public:
  static RnnStatus Get(RnnDataType dtype, Auxiliary* kernels);

  RnnStatus StoreLengths(CUstream stream, const int32_t* lengths, int count,
                         int64_t* to) const;
  // `to` is the device's memory, as the seed that dropout is given.
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
  RnnStatus SumBiases(CUstream stream, const float* sums, int rows, int units,
                      int gates, int slots, int recurrent_slot,
                      void* input_bias, void* recurrent_bias) const;

 private:
  CUkernel lengths_, seed_, order_, dropout_, spread_, gather_, copy_, biases_;
};

// [batch] lengths from a mask, bool [batch, steps] or, time-major, [steps,
// batch]; -1 for a sequence whose true values are not all at its beginning.
RnnStatus EnqueueLengthsOfMask(CUstream stream, const void* mask, int batch,
                               int steps, bool time_major, int64_t* lengths);

// A line for each persistent kernel that this process has used.
std::string KernelsText();

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_
