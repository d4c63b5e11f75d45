#include "kernels/gpu/algorithm_rule.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace cudnn_rnn_tf {
namespace {

// The number of a choice is its place here, from 1 on.
constexpr GpuChoice kChoices[] = {
    {GpuEngine::kCudnn, CudnnAlgorithm::kStandard},
    {GpuEngine::kCudnn, CudnnAlgorithm::kPersistStatic},
    {GpuEngine::kCudnn, CudnnAlgorithm::kPersistStaticSmallH},
    {GpuEngine::kResident},
    {GpuEngine::kKernels},
    {GpuEngine::kKernels, CudnnAlgorithm::kStandard, /*is_stack=*/true},
    {GpuEngine::kSteps}};

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
      CudnnAlgorithmFor(problem, allow_tf32) == CudnnAlgorithm::kPersistStatic;
  return cycles > passes * (is_static ? 10e3 : 18e3);
}

// The limits come from 320 networks on an H200, as replayed graphs. With up to
// 128 units, small_h was 1.1 to 7.6 times as fast as standard in all of them.
// persist_static was 1.2 to 4.5 times as fast with one sequence and, for LSTMs
// in float16, 0.9 to 3.3 times with up to 32; with more, it was mostly slower.
CudnnAlgorithm CudnnAlgorithmFor(const RnnProblem& problem, bool allow_tf32) {
  const bool is_half = problem.dtype == RnnDataType::kFloat16;
  const bool is_tf32 = problem.dtype == RnnDataType::kFloat32 && allow_tf32;
  if (problem.has_sequence_lengths || (!is_half && !is_tf32)) {
    return CudnnAlgorithm::kStandard;
  }
  if (problem.spec.num_units <= 128)
    return CudnnAlgorithm::kPersistStaticSmallH;
  const int64_t most_sequences = is_half && problem.spec.is_lstm() ? 32 : 2;
  const bool is_for_persist_static =
      problem.spec.num_units <= 1024 && problem.batch_size <= most_sequences;
  return is_for_persist_static || IsLargeForPersistStatic(problem)
             ? CudnnAlgorithm::kPersistStatic
             : CudnnAlgorithm::kStandard;
}

RnnStatus Choices(const RnnProblem& problem, bool allow_tf32,
                  const DeviceLimits& gpu, const KernelEstimate& kernels,
                  std::vector<GpuChoice>* choices) {
  const RnnAlgorithm wish = problem.algorithm;
  // With recurrent dropout, each gate's recurrent matrix reads h through a mask
  // of its own, and with the reset gate before the product, the candidate's
  // reads r * h. cuDNN multiplies all gates' matrices by the same h.
  const bool drops = problem.has_recurrent_dropout();
  const bool is_ours = drops || problem.spec.resets_before();
  const bool may_be_ours =
      wish == RnnAlgorithm::kAuto || wish == RnnAlgorithm::kPersistent;
  if (is_ours && !may_be_ours) {
    return {RnnStatus::Code::kUnimplemented,
            std::string("the algorithm ") + NameOf(wish) +
                (drops ? " cannot run recurrent_dropout in training"
                       : " cannot run rnn_mode gru_reset_before") +
                "; auto and persistent can"};
  }
  const bool must_be_ours = is_ours || wish == RnnAlgorithm::kPersistent;
  if (may_be_ours) {
    const GpuChoice persistent = {GpuEngine::kKernels,
                                  CudnnAlgorithm::kStandard, kernels.is_stack};
    const bool may_be_steps = MayBeSteps(problem);
    const bool is_fast =
        kernels.runs &&
        ((must_be_ours && !may_be_steps) ||
         !IsForWholeBatches(problem, allow_tf32, gpu, kernels.cycles));
    if (is_fast) choices->push_back(persistent);
    if (must_be_ours || may_be_steps) choices->push_back({GpuEngine::kSteps});
    // Slower kernels are better than none.
    if (must_be_ours && kernels.runs && !is_fast) {
      choices->push_back(persistent);
    }
  }
  if (must_be_ours) return {};
  const auto add_cudnn = [&](CudnnAlgorithm algorithm) {
    choices->push_back({GpuEngine::kCudnn, algorithm});
  };
  switch (wish) {
    case RnnAlgorithm::kResident:
      choices->push_back({GpuEngine::kResident});
      return {};
    case RnnAlgorithm::kStandard:
      add_cudnn(CudnnAlgorithm::kStandard);
      return {};
    case RnnAlgorithm::kPersistStatic:
      add_cudnn(CudnnAlgorithm::kPersistStatic);
      return {};
    case RnnAlgorithm::kPersistStaticSmallH:
      add_cudnn(CudnnAlgorithm::kPersistStaticSmallH);
      return {};
    case RnnAlgorithm::kAuto:
      if (problem.is_training || problem.has_sequence_lengths ||
          problem.batch_size > kMostOfResident) {
        break;
      }
      if (!problem.is_aligned) {
        add_cudnn(CudnnAlgorithm::kStandard);
        return {};
      }
      choices->push_back({GpuEngine::kResident});
      break;
    case RnnAlgorithm::kPersistent:
    case RnnAlgorithm::kCudnn:
      break;
  }
  const CudnnAlgorithm likely = CudnnAlgorithmFor(problem, allow_tf32);
  add_cudnn(likely);
  if (likely != CudnnAlgorithm::kStandard) add_cudnn(CudnnAlgorithm::kStandard);
  return {};
}

int NumberOf(const GpuChoice& choice) {
  return static_cast<int>(
             std::find(std::begin(kChoices), std::end(kChoices), choice) -
             std::begin(kChoices)) +
         1;
}

bool ChoiceOf(int number, GpuChoice* choice) {
  if (number < 1 || number > static_cast<int>(std::size(kChoices))) {
    return false;
  }
  *choice = kChoices[number - 1];
  return true;
}

}  // namespace cudnn_rnn_tf
