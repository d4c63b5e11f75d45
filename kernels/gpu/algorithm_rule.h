// The rule that says what runs a problem on a GPU. It is a function of the
// problem, the device and the setting of TF32 alone.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_

#include <vector>

#include "kernels/gpu/device_limits.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// What can run a network: the persistent kernels and kernels of single steps,
// which are this package's, and cuDNN.
enum class GpuEngine { kKernels, kSteps, kCudnn };
enum class CudnnAlgorithm { kStandard, kPersistStatic, kPersistStaticSmallH };

struct GpuChoice {
  GpuEngine engine = GpuEngine::kCudnn;
  CudnnAlgorithm algorithm = CudnnAlgorithm::kStandard;  // Of cuDNN.
  // Whether the persistent kernels' forward pass runs all layers at once.
  bool is_stack = false;

  bool operator==(const GpuChoice& other) const {
    return engine == other.engine && algorithm == other.algorithm &&
           is_stack == other.is_stack;
  }
};
// The number of a choice, as RnnPlan has it. ChoiceOf returns false if no
// choice has the number.
int NumberOf(const GpuChoice& choice);
// Returns the wish that asks for what a choice is.
RnnAlgorithm WishOf(const GpuChoice& choice);
bool ChoiceOf(int number, GpuChoice* choice);

// This says how the persistent kernels would run a problem.
struct KernelEstimate {
  // kUnimplemented says why they do not run the problem.
  RnnStatus status;
  // What a step of a layer takes, in training forward and backward together.
  double cycles = 0.0;
  // The forward pass is to run all layers at the same time.
  bool is_stack = false;
};

// Lists what may run a problem, the best first. What comes later runs where
// something before it turns out not to fit, or cannot be had. The caller's wish
// decides:
//   algorithm            runs
//   persistent           the persistent kernels; if they cannot, or lengths
//                        differ or TF32 is allowed and they are faster,
//                        kernels of single steps
//   auto                 the same, unless cuDNN is likely to be faster. It runs
//                        sequences of full length that the persistent kernels
//                        cannot run, and large layers of large batches of them
//   all others           cuDNN
// If lengths differ, cuDNN runs only where it is named or where our own kernels
// cannot be had: it reads lengths in host memory, for which the host waits in
// each call. For what cuDNN lacks, as recurrent dropout in training, `auto`
// runs what `persistent` does, and all others are an error.
RnnStatus Choices(const RnnProblem& problem, bool allow_tf32,
                  const DeviceLimits& gpu, const KernelEstimate& kernels,
                  std::vector<GpuChoice>* choices);

// Tells whether a network whose steps are enqueued one by one goes before
// cuDNN. It does with different lengths, since cuDNN would have to be told them
// in host memory, where cuDNN has no algorithm, and where float16's products
// make it faster.
bool MayBeSteps(const RnnProblem& problem, bool allow_tf32,
                const DeviceLimits& gpu);
// Tells whether single steps multiply large matrices in float16 in the place of
// TF32, and estimates the cycles that they then take for a step of a layer in
// both directions, as CyclesOfCudnn does.
bool HasHalvedSteps(const RnnProblem& problem, bool allow_tf32,
                    const DeviceLimits& gpu);
double CyclesOfSteps(const RnnProblem& problem, const DeviceLimits& gpu);

// Estimates the cycles that cuDNN takes for a step of a layer in both
// directions, in training forward and backward, if all sequences have full
// length: those of an H200 which, for the part that fills the chip, are more
// where there are fewer multiprocessors.
double CyclesOfCudnn(const RnnProblem& problem, bool allow_tf32,
                     const DeviceLimits& gpu);

// Tells whether products of whole batches are likely to be faster than the
// persistent kernels, which take about `cycles` for a step of a layer. cuDNN
// computes such products or, with sequence lengths, a network that enqueues its
// steps one by one. The clock of another GPU slows both sides alike.
bool OthersAreFaster(const RnnProblem& problem, bool allow_tf32,
                     const DeviceLimits& gpu, double cycles);

// Returns that algorithm of cuDNN's which is likely to be the fastest. Its
// persistent algorithms are exact to about 1e-5 only, so they are for float16
// and for float32 with TF32 allowed.
CudnnAlgorithm CudnnAlgorithmFor(const RnnProblem& problem, bool allow_tf32);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_
