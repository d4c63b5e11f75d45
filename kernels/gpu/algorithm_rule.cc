#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {

bool IsForCudnn(const RnnProblem& problem, double cycles) {
  const bool is_float = problem.dtype == RnnDataType::kFloat32;
  const int passes = problem.is_training ? 2 : 1;
  if (problem.has_sequence_lengths) return cycles > passes * 50e3;
  if (!problem.is_training && problem.batch_size <= 2 && cycles > 3e3) {
    return true;
  }
  return cycles > passes * (is_float ? 30e3 : 18e3);
}

// The algorithm that is fastest for many networks comes first, so that
// measuring gives up slower ones early.
std::vector<RnnAlgorithm> CudnnAlgorithmsFor(const RnnProblem& problem,
                                             bool allow_tf32) {
  std::vector<RnnAlgorithm> algorithms;
  if (!problem.is_training && problem.algorithm == RnnAlgorithm::kAuto) {
    algorithms.push_back(RnnAlgorithm::kResident);
  }
  algorithms.push_back(RnnAlgorithm::kStandard);
  // In float32, cuDNN's persistent kernels compute sigmoid and tanh to about
  // 1e-5 only. That is more exact than TF32, but less than was asked for
  // without it.
  if (problem.dtype != RnnDataType::kFloat32 || allow_tf32) {
    algorithms.push_back(RnnAlgorithm::kPersistStatic);
    algorithms.push_back(RnnAlgorithm::kPersistStaticSmallH);
  }
  return algorithms;
}

}  // namespace cudnn_rnn_tf
