#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {
namespace {

// `resident` multiplies its weights by so many sequences at most.
constexpr int64_t kMostOfResident = 8;

// cuDNN's persist_static is faster than its standard, and than the persistent
// kernels, in inference of some LSTMs in float16. On H100s and H200s, a step of
// 1280 or 1536 units and 32 or 64 sequences took 0.75 to 0.93 of standard's
// time.
bool IsLargeForPersistStatic(const RnnProblem& problem) {
  return !problem.is_training && !problem.has_sequence_lengths &&
         problem.spec.is_lstm() && problem.dtype == RnnDataType::kFloat16 &&
         problem.spec.num_units >= 1280 && problem.spec.num_units <= 1536 &&
         problem.batch_size >= 32 && problem.batch_size <= 64;
}

// cuDNN's persist_static_small_h trains small LSTMs in TF32 faster than the
// kernels of GPUs without clusters. As an A100, an H200 took 1.2 to 1.5 times
// as long as small_h with one to three layers of 32 to 96 units and 16 or 64
// sequences. With 256 sequences, as GRUs and in inference, it took 0.7 to 1.07
// times as long.
bool IsForSmallH(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  return spec.is_lstm() && spec.num_dirs() == 1 &&
         spec.input_mode == InputMode::kLinear && spec.num_units <= 96 &&
         problem.batch_size <= 128;
}

}  // namespace

bool MayBeSteps(const RnnProblem& problem) {
  return problem.has_recurrent_dropout() || problem.has_sequence_lengths ||
         problem.spec.resets_before() ||
         problem.spec.num_proj == problem.spec.num_units;
}

bool IsForWholeBatches(const RnnProblem& problem, bool allow_tf32,
                       const DeviceLimits& gpu, double cycles) {
  const bool is_float = problem.dtype == RnnDataType::kFloat32;
  const int passes = problem.is_training ? 2 : 1;
  if (IsLargeForPersistStatic(problem)) return true;
  if (problem.has_sequence_lengths) return cycles > passes * 50e3;
  if (!problem.is_training && problem.batch_size <= 2 && cycles > 3e3) {
    return true;
  }
  if (is_float) {
    return cycles > passes * 30e3 ||
           (problem.is_training && allow_tf32 && HasTf32(gpu.architecture) &&
            gpu.largest_cluster == 1 && IsForSmallH(problem));
  }
  // As an A100 and as an RTX 4090, an H200 trained an LSTM of 1024 units and 32
  // sequences in 0.79 and 0.46 ms a step, where the model says 24e3 and 16e3
  // cycles. cuDNN's persist_static took 0.61 to 0.65 ms.
  const bool is_static =
      problem.is_training && problem.spec.num_dirs() == 1 &&
      CudnnAlgorithmFor(problem, allow_tf32) == RnnAlgorithm::kPersistStatic;
  return cycles > passes * (is_static ? 10e3 : 18e3);
}

// The limits come from 320 networks on an H200, as replayed graphs. With up to
// 128 units, small_h was 1.1 to 7.6 times as fast as standard in all of them.
// persist_static was 1.2 to 4.5 times as fast with one sequence and, for LSTMs
// in float16, 0.9 to 3.3 times with up to 32; with more, it was mostly slower.
RnnAlgorithm CudnnAlgorithmFor(const RnnProblem& problem, bool allow_tf32) {
  const bool is_half = problem.dtype == RnnDataType::kFloat16;
  const bool is_tf32 = problem.dtype == RnnDataType::kFloat32 && allow_tf32;
  if (problem.has_sequence_lengths || (!is_half && !is_tf32)) {
    return RnnAlgorithm::kStandard;
  }
  if (problem.spec.num_units <= 128) return RnnAlgorithm::kPersistStaticSmallH;
  const int64_t most_sequences = is_half && problem.spec.is_lstm() ? 32 : 2;
  const bool is_for_persist_static =
      problem.spec.num_units <= 1024 && problem.batch_size <= most_sequences;
  return is_for_persist_static || IsLargeForPersistStatic(problem)
             ? RnnAlgorithm::kPersistStatic
             : RnnAlgorithm::kStandard;
}

RnnAlgorithm OtherAlgorithmFor(const RnnProblem& problem, bool allow_tf32) {
  if (problem.algorithm != RnnAlgorithm::kAuto &&
      problem.algorithm != RnnAlgorithm::kCudnn) {
    return problem.algorithm;
  }
  if (!problem.is_training && !problem.has_sequence_lengths &&
      problem.algorithm == RnnAlgorithm::kAuto &&
      problem.batch_size <= kMostOfResident) {
    return RnnAlgorithm::kResident;
  }
  return CudnnAlgorithmFor(problem, allow_tf32);
}

}  // namespace cudnn_rnn_tf
