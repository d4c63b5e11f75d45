#include "kernels/gpu/algorithm_rule.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace cudnn_rnn_tf {
namespace {

// The number of a choice is its place here, from 1 on, which reserve spaces and
// XLA's compiled calls hold, so new ones come last. The wish asks for it.
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

// What an engine's passes take for a step of a layer in one direction, as
// replayed graphs, besides the products over all steps: thousands of cycles of
// an H200, and more for each of the following.
struct PassCost {
  double start;
  double weights;         // A million numbers of the recurrent matrices.
  double products;        // 10^9 products of a number and a state.
  double gates;           // A million gates, which memory has to hold.
  double of_gru = 0.0;    // A million gates of a GRU, besides.
  double operands = 0.0;  // Weights again, once in a pass.
};
struct EngineCost {
  double most_rows;  // From so many sequences on, products cost no more.
  // What a second direction adds: shares of the start, and of all else.
  double more_starts, more_work;
  PassCost forward, backward;
};
constexpr double kAll = 1e9;
// cuDNN's were fitted to 24 LSTMs and GRUs of 64 to 2048 units and 32 to 4096
// sequences, whose passes were timed one by one, and to the networks of
// benchmarks/results/gpu_rule.jsonl. In half types, cuDNN hides products over
// all steps behind its own of large layers, and costs that much less here. Its
// directions hardly run at the same time.
constexpr EngineCost kCudnnHalf = {
    256.0, 0.7, 0.7, {5.0, 0.53, 6.0, 8.7}, {6.9, 0.61, 0.0, 21.3, 11.3}};
constexpr EngineCost kCudnnTf32 = {
    kAll, 0.7, 0.7, {10.0, 1.58, 11.5, 7.5}, {1.8, 5.5, 0.0, 25.4, 72.0}};
constexpr EngineCost kCudnnFloat = {
    kAll, 0.7, 0.7, {13.7, 3.5, 70, 8.8}, {13.7, 3.5, 70, 22.8, 77.0}};
// Those of single steps with products in 16 bits, of all directions at once,
// were fitted to 23 networks of 64 to 1536 units and 32 to 2048 sequences and,
// with large matrices in TF32, to others of 768 to 4096 units and 16 to 1024
// sequences.
constexpr EngineCost kSteps = {
    kAll, 0.0, 1.0, {8.4, 0.52, 6.6, 12.7}, {10.0, 0.93, 9.6, 12.9}};
constexpr EngineCost kLargeSteps = {
    kAll, 0.0, 1.0, {5, 0.85, 5.6, 10.5, 3.5, 6}, {6, 1, 5.6, 14, 4.67, 15}};

// The recurrent matrices have `outputs` columns, and cost `of_odd_units` times
// as much if the number of units is no multiple of eight.
double Cycles(const EngineCost& of, const GpuProblem& all, int64_t outputs,
              double of_odd_units) {
  const RnnProblem& problem = all.problem;
  const RnnSpec& spec = problem.spec;
  const auto steps =
      static_cast<double>(std::max<int64_t>(problem.max_time, 1));
  const auto batch = static_cast<double>(problem.batch_size);
  const double units =
      1e-6 * static_cast<double>(spec.num_gates() * spec.num_units);
  const double weights = units * static_cast<double>(outputs) *
                         (spec.num_units % 8 == 0 ? 1.0 : of_odd_units);
  const double products = 1e-3 * weights * std::min(batch, of.most_rows);
  double starts = 0.0, work = 0.0;
  for (const PassCost* pass : {&of.forward, &of.backward}) {
    if (pass == &of.backward && !problem.is_training) break;
    const double of_gru = spec.num_gates() == 3 ? pass->of_gru : 0.0;
    starts += pass->start;
    work += weights * (pass->weights + pass->operands / steps) +
            products * pass->products + units * batch * (pass->gates + of_gru);
  }
  if (spec.num_dirs() == 2) {
    starts *= 1.0 + of.more_starts;
    work *= 1.0 + of.more_work;
  }
  return 1e3 * (starts + 132.0 / all.gpu.multiprocessors * work);
}

// cuDNN's persist_static_small_h trains small LSTMs in TF32 faster than the
// kernels of GPUs without clusters. As an A100, an H200 took 1.2 to 1.5 times
// as long as small_h with one to three layers of 32 to 96 units and 16 or 64
// sequences. With 256 sequences, as GRUs and in inference, it took 0.7 to 1.07
// times as long.
bool IsForSmallH(const GpuProblem& all) {
  const RnnProblem& problem = all.problem;
  const RnnSpec& spec = problem.spec;
  return !all.gpu.has_clusters() && all.is_tf32() && problem.is_training &&
         spec.has_c() && spec.num_dirs() == 1 &&
         spec.input_mode == InputMode::kLinear && spec.num_units <= 96 &&
         problem.batch_size <= 128;
}

// Tells whether single steps multiply large matrices in float16 in the place of
// TF32.
bool HasLargeSteps(const GpuProblem& all) {
  constexpr int64_t kFewestWeights = int64_t{1} << 21;
  const RnnSpec& spec = all.problem.spec;
  return all.is_tf32() && all.problem.has_bounded_floats() &&
         spec.num_gates() * spec.num_units * spec.output_size() >=
             kFewestWeights;
}

// Returns the algorithms of cuDNN that a problem asks for, if cuDNN can run it.
// Unless one is named, that comes first which is likely to be the fastest. The
// limits come from 320 networks on an H200, as replayed graphs. With up to 128
// units, small_h was 1.1 to 7.6 times as fast as standard in all of them.
// persist_static was 1.2 to 4.5 times as fast with one sequence and, for LSTMs
// in float16, 0.9 to 3.3 times with up to 32; with more, it was mostly slower.
// Both are exact to about 1e-5 only, so they are for float16 and for float32
// with TF32 allowed.
std::vector<CudnnAlgorithm> CudnnAlgorithms(const GpuProblem& all) {
  const RnnProblem& problem = all.problem;
  if (!problem.is_in_cudnn()) return {};
  for (const auto& [wish, choice] : kChoices) {
    if (wish != problem.algorithm) continue;
    if (choice.engine != GpuEngine::kCudnn) return {};
    return {choice.algorithm};
  }
  const bool is_half = problem.dtype == RnnDataType::kFloat16;
  const bool is_tf32 = problem.dtype == RnnDataType::kFloat32 && all.allow_tf32;
  const int64_t units = problem.spec.num_units;
  const int64_t most_sequences = is_half && problem.spec.has_c() ? 32 : 2;
  std::vector<CudnnAlgorithm> algorithms = {CudnnAlgorithm::kStandard};
  if (problem.has_sequence_lengths || (!is_half && !is_tf32)) return algorithms;
  if (units <= 128) {
    algorithms.insert(algorithms.begin(), CudnnAlgorithm::kPersistStaticSmallH);
  } else if (units <= 1024 && problem.batch_size <= most_sequences) {
    algorithms.insert(algorithms.begin(), CudnnAlgorithm::kPersistStatic);
  }
  return algorithms;
}

}  // namespace

double CyclesOfSteps(const GpuProblem& all) {
  const RnnProblem& problem = all.problem;
  const RnnSpec& spec = problem.spec;
  if (HasLargeSteps(all)) {
    return Cycles(kLargeSteps, all, spec.output_size(), 1.0);
  }
  const bool is_padded = all.is_tf32() && problem.has_bounded_floats();
  // Other floats took 0.99 to 1.3 times as long in five networks.
  const double cycles =
      is_padded || problem.dtype != RnnDataType::kFloat32
          ? Cycles(kSteps, all, spec.num_units, is_padded ? 1.0 : 3.0)
          : 1.2 * CyclesOfCudnn(all);
  // Nine networks took 1.4 to 2.7 times as long with layer normalization.
  return spec.normalizes() ? 2.0 * cycles : cycles;
}

double CyclesOfCudnn(const GpuProblem& all) {
  const bool is_tf32 = all.is_tf32();
  const bool is_exact = all.problem.dtype == RnnDataType::kFloat32 && !is_tf32;
  return Cycles(is_exact  ? kCudnnFloat
                : is_tf32 ? kCudnnTf32
                          : kCudnnHalf,
                all, all.problem.spec.num_units, is_exact ? 1.0 : 3.0);
}

RnnStatus Choices(const GpuProblem& all, const KernelEstimate& kernels,
                  std::vector<GpuChoice>* choices) {
  // Single steps run all of the padding, persistent kernels only some of it.
  // Of 22 networks on an H200, with lengths from a quarter of the steps on,
  // those were equally fast, to 5 %, that lay from 1.2 to 2.5.
  constexpr double kMarginOfLengths = 1.6;
  const RnnProblem& problem = all.problem;
  const bool has_lengths = problem.has_sequence_lengths;
  const RnnAlgorithm wish = problem.algorithm;
  const bool may_be_ours = wish == RnnAlgorithm::kAuto ||
                           wish == RnnAlgorithm::kResident ||
                           wish == RnnAlgorithm::kPersistent;
  if (!may_be_ours && !problem.is_in_cudnn()) {
    return {RnnStatus::Code::kUnimplemented,
            std::string("the algorithm ") + NameOf(wish) + " cannot run " +
                problem.LackOfCudnn() + "; auto and persistent can"};
  }
  std::vector<std::pair<double, GpuChoice>> listed;
  if (may_be_ours && kernels.status.ok()) {
    listed.push_back(
        {kernels.cycles,
         {GpuEngine::kKernels, CudnnAlgorithm::kStandard, kernels.is_stack}});
  }
  const double of_cudnn = has_lengths ? std::numeric_limits<double>::infinity()
                                      : CyclesOfCudnn(all);
  const std::vector<CudnnAlgorithm> algorithms = CudnnAlgorithms(all);
  for (const CudnnAlgorithm each : algorithms) {
    const bool is_first =
        each == CudnnAlgorithm::kPersistStaticSmallH && IsForSmallH(all);
    listed.push_back({is_first ? 0.0 : of_cudnn, {GpuEngine::kCudnn, each}});
  }
  if (may_be_ours) {
    double cycles = CyclesOfSteps(all);
    if (has_lengths) {
      cycles *= kMarginOfLengths;
    } else if (!algorithms.empty() && !HasLargeSteps(all)) {
      // They were hardly measured beside cuDNN there.
      cycles = std::max(cycles, of_cudnn);
    }
    listed.push_back({cycles, {GpuEngine::kSteps}});
  }
  std::stable_sort(
      listed.begin(), listed.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [cycles, choice] : listed) choices->push_back(choice);
  return {};
}

RnnAlgorithm WishOf(const GpuChoice& choice) {
  return kChoices[NumberOf(choice) - 1].wish;
}

int NumberOf(const GpuChoice& choice) {
  for (size_t i = 0; i < std::size(kChoices); ++i) {
    if (kChoices[i].choice == choice) return static_cast<int>(i + 1);
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
