#include "kernels/gpu/algorithm_rule.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace cudnn_rnn_tf {
namespace {

// The number of a choice is its place here, from 1 on, and the wish asks for
// it.
struct Numbered {
  RnnAlgorithm wish;
  GpuChoice choice;
};
constexpr Numbered kChoices[] = {
    {RnnAlgorithm::kStandard, {GpuEngine::kCudnn, CudnnAlgorithm::kStandard}},
    {RnnAlgorithm::kPersistStatic,
     {GpuEngine::kCudnn, CudnnAlgorithm::kPersistStatic}},
    {RnnAlgorithm::kPersistStaticSmallH,
     {GpuEngine::kCudnn, CudnnAlgorithm::kPersistStaticSmallH}},
    {RnnAlgorithm::kPersistent, {GpuEngine::kKernels}},
    {RnnAlgorithm::kPersistent,
     {GpuEngine::kKernels, CudnnAlgorithm::kStandard, /*is_stack=*/true}},
    {RnnAlgorithm::kPersistent, {GpuEngine::kSteps}}};

// cuDNN's persist_static_small_h trains small LSTMs in TF32 faster than the
// kernels of GPUs without clusters. As an A100, an H200 took 1.2 to 1.5 times
// as long as small_h with one to three layers of 32 to 96 units and 16 or 64
// sequences. With 256 sequences, as GRUs and in inference, it took 0.7 to 1.07
// times as long.
bool IsForSmallH(const RnnProblem& problem, bool allow_tf32,
                 const DeviceLimits& gpu) {
  const RnnSpec& spec = problem.spec;
  return gpu.largest_cluster == 1 && HasTf32(gpu.architecture) && allow_tf32 &&
         problem.dtype == RnnDataType::kFloat32 && problem.is_training &&
         problem.is_in_cudnn() && !problem.has_sequence_lengths &&
         spec.has_c() && spec.num_dirs() == 1 &&
         spec.input_mode == InputMode::kLinear && spec.num_units <= 96 &&
         problem.batch_size <= 128;
}

// What cuDNN's passes take for a step of a layer in one direction, as replayed
// graphs, besides the products over all steps: thousands of cycles of an H200.
// They were fitted to 24 LSTMs and GRUs of 64 to 2048 units and 32 to 4096
// sequences, whose passes were timed one by one, and to the networks of
// benchmarks/results/gpu_rule.jsonl. In half types, cuDNN hides products over
// all steps behind its own of large layers, and costs that much less here.
struct PassCost {
  double start;
  double weights;   // For a million numbers of the recurrent matrices.
  double products;  // For 10^9 products of a number and a state.
  double gates;     // For a million gates, which memory has to hold.
};
struct TypeCost {
  PassCost forward, backward;
  double more_of_gru;  // A GRU's backward pass takes that much more for gates.
  double most_rows;    // From so many sequences on, products cost no more.
  // Weights, and products, cost so many times as much if the number of units is
  // no multiple of eight.
  double of_odd_units;
};
constexpr double kAllRows = 1e9;
constexpr TypeCost kHalf = {
    {5.0, 0.53, 6.0, 8.7}, {6.9, 0.61, 0.0, 21.3}, 11.3, 256.0, 3.0};
constexpr TypeCost kTf32 = {
    {10.0, 1.58, 11.5, 7.5}, {1.8, 5.5, 0.0, 25.4}, 72.0, kAllRows, 3.0};
constexpr TypeCost kFloat = {
    {13.7, 3.5, 70.0, 8.8}, {13.7, 3.5, 70.0, 22.8}, 77.0, kAllRows, 1.0};

const TypeCost& CostsOf(const RnnProblem& problem, bool allow_tf32,
                        const DeviceLimits& gpu) {
  return problem.dtype != RnnDataType::kFloat32    ? kHalf
         : allow_tf32 && HasTf32(gpu.architecture) ? kTf32
                                                   : kFloat;
}

}  // namespace

bool HasHalvedSteps(const RnnProblem& problem, bool allow_tf32,
                    const DeviceLimits& gpu) {
  const RnnSpec& spec = problem.spec;
  // The estimate is too low for smaller matrices.
  constexpr int64_t kFewestWeights = int64_t{1} << 21;
  return problem.has_bounded_floats() && allow_tf32 &&
         HasTf32(gpu.architecture) &&
         spec.num_gates() * spec.num_units * spec.output_size() >=
             kFewestWeights;
}

bool MayBeSteps(const RnnProblem& problem, bool allow_tf32,
                const DeviceLimits& gpu) {
  if (problem.has_sequence_lengths || !problem.is_in_cudnn() ||
      problem.spec.num_proj == problem.spec.num_units) {
    return true;
  }
  return HasHalvedSteps(problem, allow_tf32, gpu) &&
         CyclesOfSteps(problem, gpu) < CyclesOfCudnn(problem, allow_tf32, gpu);
}

// Constants were fitted to nets of 768 to 4096 units and 16 to 1024 sequences,
// whose passes were timed one by one on an H200. Operands are made once in a
// pass.
double CyclesOfSteps(const RnnProblem& problem, const DeviceLimits& gpu) {
  constexpr PassCost kForward = {5.0, 0.85, 5.6, 10.5};
  constexpr PassCost kBackward = {6.0, 1.0, 5.6, 14.0};
  constexpr double kOfOperands = 6.0, kOfOperandsInTraining = 21.0;
  const RnnSpec& spec = problem.spec;
  const double batch = static_cast<double>(problem.batch_size);
  const double units =
      1e-6 * static_cast<double>(spec.num_dirs() * spec.num_units);
  const double weights =
      units * static_cast<double>(spec.num_gates() * spec.output_size());
  const double gates =
      units * batch * static_cast<double>(spec.kind().num_slots);
  double cycles = 0.0, fixed = 0.0;
  for (const PassCost* pass : {&kForward, &kBackward}) {
    if (pass == &kBackward && !problem.is_training) break;
    fixed += pass->start;
    cycles += weights * (pass->weights + 1e-3 * batch * pass->products) +
              gates * pass->gates;
  }
  cycles += (problem.is_training ? kOfOperandsInTraining : kOfOperands) *
            weights / static_cast<double>(problem.max_time);
  return 1e3 * (fixed + 132.0 / gpu.multiprocessors * cycles);
}

double CyclesOfCudnn(const RnnProblem& problem, bool allow_tf32,
                     const DeviceLimits& gpu) {
  const RnnSpec& spec = problem.spec;
  const double units = static_cast<double>(spec.num_units);
  const double batch = static_cast<double>(problem.batch_size);
  const TypeCost& costs = CostsOf(problem, allow_tf32, gpu);
  const double weights = 1e-6 * spec.num_gates() * units * units *
                         (spec.num_units % 8 == 0 ? 1.0 : costs.of_odd_units);
  const double gates = 1e-6 * spec.num_gates() * units * batch;
  const double products = 1e-3 * weights * std::min(batch, costs.most_rows);
  const double fewer = 132.0 / gpu.multiprocessors;
  double cycles = 0.0;
  for (const PassCost* pass : {&costs.forward, &costs.backward}) {
    const bool is_backward = pass == &costs.backward;
    if (is_backward && !problem.is_training) break;
    const double of_gates =
        pass->gates + (is_backward && spec.rnn_mode == RnnMode::kGru
                           ? costs.more_of_gru
                           : 0.0);
    cycles +=
        pass->start + fewer * (weights * pass->weights +
                               products * pass->products + gates * of_gates);
  }
  // The directions hardly run at the same time.
  return 1e3 * cycles * (spec.num_dirs() == 2 ? 1.7 : 1.0);
}

bool OthersAreFaster(const RnnProblem& problem, bool allow_tf32,
                     const DeviceLimits& gpu, double cycles) {
  if (IsForSmallH(problem, allow_tf32, gpu)) return true;
  double of_others = CyclesOfCudnn(problem, allow_tf32, gpu);
  if (HasHalvedSteps(problem, allow_tf32, gpu)) {
    of_others = std::min(of_others, CyclesOfSteps(problem, gpu));
  }
  // Single steps took at least that much longer with layer normalization.
  if (problem.spec.normalizes()) of_others *= 2.5;
  // Single steps run all of the padding, persistent kernels only some of it.
  // Of 22 networks on an H200, with lengths from a quarter of the steps on,
  // those were equally fast, to 5 %, that lay from 1.2 to 2.5.
  constexpr double kMarginOfLengths = 1.6;
  return cycles >
         (problem.has_sequence_lengths ? kMarginOfLengths : 1.0) * of_others;
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
  const int64_t most_sequences = is_half && problem.spec.has_c() ? 32 : 2;
  return problem.spec.num_units <= 1024 && problem.batch_size <= most_sequences
             ? CudnnAlgorithm::kPersistStatic
             : CudnnAlgorithm::kStandard;
}

RnnStatus Choices(const RnnProblem& problem, bool allow_tf32,
                  const DeviceLimits& gpu, const KernelEstimate& kernels,
                  std::vector<GpuChoice>* choices) {
  const RnnAlgorithm wish = problem.algorithm == RnnAlgorithm::kResident
                                ? RnnAlgorithm::kAuto
                                : problem.algorithm;
  // With recurrent dropout, each gate's recurrent matrix reads h through a mask
  // of its own, but cuDNN multiplies all gates' matrices by the same h.
  const bool is_ours = !problem.is_in_cudnn();
  const bool may_be_ours =
      wish == RnnAlgorithm::kAuto || wish == RnnAlgorithm::kPersistent;
  if (is_ours && !may_be_ours) {
    return {RnnStatus::Code::kUnimplemented,
            std::string("the algorithm ") + NameOf(wish) + " cannot run " +
                problem.LackOfCudnn() + "; auto and persistent can"};
  }
  const bool must_be_ours = is_ours || wish == RnnAlgorithm::kPersistent;
  if (may_be_ours) {
    const GpuChoice persistent = {GpuEngine::kKernels,
                                  CudnnAlgorithm::kStandard, kernels.is_stack};
    const bool may_be_steps = MayBeSteps(problem, allow_tf32, gpu);
    const bool is_fast =
        kernels.status.ok() &&
        ((must_be_ours && !may_be_steps) ||
         !OthersAreFaster(problem, allow_tf32, gpu, kernels.cycles));
    if (is_fast) choices->push_back(persistent);
    if (must_be_ours || may_be_steps) choices->push_back({GpuEngine::kSteps});
    // Slower kernels are better than none.
    if (must_be_ours && kernels.status.ok() && !is_fast) {
      choices->push_back(persistent);
    }
  }
  if (must_be_ours) return {};
  for (const auto& [its_wish, choice] : kChoices) {
    if (its_wish != wish) continue;
    choices->push_back(choice);
    return {};
  }
  const CudnnAlgorithm likely = CudnnAlgorithmFor(problem, allow_tf32);
  choices->push_back({GpuEngine::kCudnn, likely});
  if (likely != CudnnAlgorithm::kStandard) choices->emplace_back();
  return {};
}

RnnAlgorithm WishOf(const GpuChoice& choice) {
  return kChoices[NumberOf(choice) - 1].wish;
}

int NumberOf(const GpuChoice& choice) {
  int number = 0;
  for (const Numbered& each : kChoices) {
    ++number;
    if (each.choice == choice) return number;
  }
  throw std::logic_error("a GPU's choice that has no number");
}

bool ChoiceOf(int number, GpuChoice* choice) {
  if (number < 1 || number > static_cast<int>(std::size(kChoices))) {
    return false;
  }
  *choice = kChoices[number - 1].choice;
  return true;
}

}  // namespace cudnn_rnn_tf
