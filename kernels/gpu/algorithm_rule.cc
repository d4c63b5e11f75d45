#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {
namespace {

// `resident` multiplies its weights by so many sequences at most.
constexpr int64_t kMostOfResident = 8;

// cuDNN's persist_static is faster than its standard, and than the persistent
// kernels, in inference of some LSTMs in float16. On H100s and H200s, a step of
// 1280 or 1536 units and 32 or 64 sequences took 0.75 to 0.93 of standard's
// time.
bool IsForPersistStatic(const RnnProblem& problem) {
  return !problem.is_training && !problem.has_sequence_lengths &&
         problem.spec.is_lstm() && problem.dtype == RnnDataType::kFloat16 &&
         problem.spec.num_units >= 1280 && problem.spec.num_units <= 1536 &&
         problem.batch_size >= 32 && problem.batch_size <= 64;
}

}  // namespace

bool MayBeSteps(const RnnProblem& problem) {
  return problem.has_recurrent_dropout() || problem.has_sequence_lengths ||
         problem.spec.resets_before() ||
         problem.spec.num_proj == problem.spec.num_units;
}

bool IsForWholeBatches(const RnnProblem& problem, double cycles) {
  const bool is_float = problem.dtype == RnnDataType::kFloat32;
  const int passes = problem.is_training ? 2 : 1;
  if (IsForPersistStatic(problem)) return true;
  if (problem.has_sequence_lengths) return cycles > passes * 50e3;
  if (!problem.is_training && problem.batch_size <= 2 && cycles > 3e3) {
    return true;
  }
  return cycles > passes * (is_float ? 30e3 : 18e3);
}

RnnAlgorithm OtherAlgorithmFor(const RnnProblem& problem) {
  if (problem.algorithm != RnnAlgorithm::kAuto &&
      problem.algorithm != RnnAlgorithm::kCudnn) {
    return problem.algorithm;
  }
  if (!problem.is_training && !problem.has_sequence_lengths &&
      problem.algorithm == RnnAlgorithm::kAuto &&
      problem.batch_size <= kMostOfResident) {
    return RnnAlgorithm::kResident;
  }
  return IsForPersistStatic(problem) ? RnnAlgorithm::kPersistStatic
                                     : RnnAlgorithm::kStandard;
}

}  // namespace cudnn_rnn_tf
