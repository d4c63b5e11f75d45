#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {
namespace {

// `resident` multiplies its weights by so many sequences at most.
constexpr int64_t kMostOfResident = 8;

}  // namespace

bool IsForCudnn(const RnnProblem& problem, double cycles) {
  const bool is_float = problem.dtype == RnnDataType::kFloat32;
  const int passes = problem.is_training ? 2 : 1;
  if (problem.has_sequence_lengths) return cycles > passes * 50e3;
  if (!problem.is_training && problem.batch_size <= 2 && cycles > 3e3) {
    return true;
  }
  return cycles > passes * (is_float ? 30e3 : 18e3);
}

RnnAlgorithm CudnnAlgorithmFor(const RnnProblem& problem) {
  if (problem.algorithm != RnnAlgorithm::kAuto &&
      problem.algorithm != RnnAlgorithm::kCudnn) {
    return problem.algorithm;
  }
  if (problem.has_sequence_lengths) return RnnAlgorithm::kStandard;
  if (!problem.is_training && problem.algorithm == RnnAlgorithm::kAuto &&
      problem.batch_size <= kMostOfResident) {
    return RnnAlgorithm::kResident;
  }
  return RnnAlgorithm::kStandard;
}

}  // namespace cudnn_rnn_tf
