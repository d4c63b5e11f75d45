// Asks the rule about random networks, and checks what must hold whatever its
// costs are: what it names can run the network, the least estimate is first,
// wishes are kept, and estimates grow with the work.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {
namespace {

std::mt19937 generator;

int64_t Draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(generator() % (most - least + 1));
}

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("failed: %s\n", what.c_str());
  std::exit(1);
}

RnnProblem DrawProblem() {
  RnnProblem problem;
  problem.spec.rnn_mode = Draw(0, 3) > 0 ? RnnMode::kLstm : RnnMode::kGru;
  problem.spec.num_units = 16 * Draw(1, 128) + Draw(0, 1);
  if (Draw(0, 3) == 0) problem.spec.direction = Direction::kBidirectional;
  problem.batch_size = Draw(0, 1) == 1 ? Draw(1, 12) : Draw(1, 600);
  problem.dtype = static_cast<RnnDataType>(Draw(0, 3));
  problem.is_training = Draw(0, 1) == 1;
  problem.has_sequence_lengths = Draw(0, 3) == 0;
  if (Draw(0, 7) == 0) problem.spec.recurrent_dropout = 0.5f;
  problem.has_cell_sequences = problem.spec.has_c() && Draw(0, 7) == 0;
  if (problem.spec.has_c() && Draw(0, 7) == 0) {
    problem.spec.num_proj = problem.spec.num_units;
  }
  problem.max_time = Draw(1, 100);
  return problem;
}

bool MayRun(const GpuChoice& choice, const RnnProblem& problem,
            bool allow_tf32) {
  if (choice.engine != GpuEngine::kCudnn) return true;
  const bool is_tensor = problem.dtype == RnnDataType::kFloat16 ||
                         (problem.dtype == RnnDataType::kFloat32 && allow_tf32);
  // The activations of cuDNN's persistent algorithms are inexact.
  return problem.is_in_cudnn() &&
         (choice.algorithm == CudnnAlgorithm::kStandard ||
          (is_tensor && !problem.has_sequence_lengths &&
           (choice.algorithm != CudnnAlgorithm::kPersistStaticSmallH ||
            problem.spec.num_units <= 128)));
}

void CheckRule(unsigned seed) {
  generator.seed(seed);
  RnnProblem problem = DrawProblem();
  const std::string what = "network " + std::to_string(seed);
  const bool allow_tf32 = Draw(0, 1) == 1;
  const DeviceLimits& gpu = kKnownGpus[seed % std::size(kKnownGpus)].limits;
  KernelEstimate kernels;
  const bool runs = Draw(0, 1) == 1;
  if (!runs) kernels.status.code = RnnStatus::Code::kUnimplemented;
  kernels.cycles = 1e3 * Draw(1, 200);

  std::vector<GpuChoice> choices;
  Check(Choices({problem, allow_tf32, gpu}, kernels, &choices).ok(), what);
  for (const GpuChoice& choice : choices) {
    Check(MayRun(choice, problem, allow_tf32), what + " cannot run so");
  }
  // What cuDNN lacks is not held to its time, nor are different lengths, for
  // which it would make the host wait. It has a case of its own for small
  // LSTMs.
  const bool by_cudnn = problem.is_in_cudnn() && !problem.has_sequence_lengths;
  const double of_steps = CyclesOfSteps({problem, allow_tf32, gpu}) *
                          (problem.has_sequence_lengths ? 1.6 : 1.0);
  const double of_cudnn = CyclesOfCudnn({problem, allow_tf32, gpu});
  const double least = by_cudnn ? std::min(of_steps, of_cudnn) : of_steps;
  const bool is_small =
      !gpu.has_clusters() && by_cudnn && problem.spec.num_units <= 96;
  Check(by_cudnn || choices[0].engine != GpuEngine::kCudnn, what + ": cuDNN");
  if (choices[0].engine == GpuEngine::kKernels) {
    Check(runs && kernels.cycles <= (by_cudnn ? of_cudnn : of_steps),
          what + ": slow kernels");
  } else {
    Check(!runs || kernels.cycles > least || is_small, what + ": its kernels");
  }

  // A wish has no substitute.
  for (const RnnAlgorithm wish :
       {RnnAlgorithm::kStandard, RnnAlgorithm::kPersistStatic,
        RnnAlgorithm::kPersistStaticSmallH}) {
    RnnProblem pinned = problem;
    pinned.algorithm = wish;
    choices.clear();
    const bool is_ok =
        Choices({pinned, allow_tf32, gpu}, kernels, &choices).ok();
    Check(is_ok == problem.is_in_cudnn(), what + ", a wish");
    Check(!is_ok || (choices.size() == 1 && WishOf(choices[0]) == wish),
          what + ", a substitute");
  }
  RnnProblem ours = problem;
  ours.algorithm = RnnAlgorithm::kPersistent;
  choices.clear();
  Check(Choices({ours, allow_tf32, gpu}, kernels, &choices).ok() &&
            choices.size() == (runs ? 2 : 1) &&
            choices[0].engine != GpuEngine::kCudnn,
        what + ", a wish for our kernels");

  RnnProblem more = problem;
  more.has_sequence_lengths = problem.has_sequence_lengths = true;  // standard
  switch (Draw(0, 2)) {
    case 0:
      more.spec.num_units *= 2;
      break;
    case 1:
      more.batch_size *= 64;
      break;
    default:
      more.is_training = true;
      problem.is_training = false;
  }
  // Single steps have other coefficients where matrices are large.
  Check(of_cudnn > 0.0 &&
            CyclesOfCudnn({more, allow_tf32, gpu}) >
                CyclesOfCudnn({problem, allow_tf32, gpu}) &&
            (more.spec.num_units > problem.spec.num_units ||
             CyclesOfSteps({more, allow_tf32, gpu}) >
                 CyclesOfSteps({problem, allow_tf32, gpu})),
        what + ": more work takes longer");
}

// A choice and its number belong together.
void CheckNumbers() {
  GpuChoice choice;
  Check(!ChoiceOf(0, &choice), "no choice");
  int count = 0;
  while (ChoiceOf(count + 1, &choice)) Check(NumberOf(choice) == ++count, "it");
  Check(count == 6, "six choices");
  bool is_known = true;
  try {
    NumberOf({GpuEngine::kSteps, CudnnAlgorithm::kStandard, /*is_stack=*/true});
  } catch (const std::logic_error&) {
    is_known = false;
  }
  Check(!is_known, "what has no number is an error");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() {
  cudnn_rnn_tf::CheckNumbers();
  for (unsigned seed = 0; seed < 20000; ++seed) cudnn_rnn_tf::CheckRule(seed);
  std::printf("well\n");
}
