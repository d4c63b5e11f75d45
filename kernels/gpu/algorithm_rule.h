// The rule that says what runs a problem on a GPU.
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

// The rule depends on nothing else.
struct GpuProblem {
  const RnnProblem& problem;
  bool allow_tf32;
  const DeviceLimits& gpu;

  bool is_tf32() const {
    return problem.dtype == RnnDataType::kFloat32 && allow_tf32 &&
           gpu.known().has_tf32;
  }
};

// This says how the persistent kernels would run a problem.
struct KernelEstimate {
  // kUnimplemented says why they do not run the problem.
  RnnStatus status;
  // What a step of a layer takes in all directions, in training forward and
  // backward together.
  double cycles = 0.0;
  // The forward pass is to run all layers at the same time.
  bool is_stack = false;
};

// Lists what can run a problem, that with the least estimate first. What comes
// later runs where something before it turns out not to fit, or cannot be had.
// The caller's wish says what is asked:
//   algorithm            is asked
//   auto, resident       the persistent kernels, single steps and cuDNN
//   persistent           the persistent kernels and single steps
//   all others           cuDNN
// If lengths differ, cuDNN comes last: it reads lengths in host memory, for
// which the host waits in each call. A wish for cuDNN is an error if cuDNN
// lacks something of the problem, as recurrent dropout in training.
RnnStatus Choices(const GpuProblem& all, const KernelEstimate& kernels,
                  std::vector<GpuChoice>* choices);

// These estimate what single steps, and cuDNN, take where KernelEstimate says
// so of the persistent kernels, if all sequences have full length: cycles of an
// H200 which, for the part that fills the chip, are more where there are fewer
// multiprocessors. The clock of another GPU slows all alike.
double CyclesOfSteps(const GpuProblem& all);
double CyclesOfCudnn(const GpuProblem& all);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_
