// Runs the backend on a fake GPU, with the caller's algorithm or the rule's,
// and lets engines fail. Checks, without a GPU, what runs, and that passes that
// differ in anything are told apart when they are replayed.
//
//   backend_on_fake_gpu SEEDS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/cudnn/description.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_plan.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/gpu/persistent/network.h"
#include "tests/programs/fake_gpu.h"
#include "tests/programs/without_masks.h"

namespace cudnn_rnn_tf {
namespace {

std::mt19937 generator;

int64_t Draw(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(generator() % (most - least + 1));
}

// This choice has no engine, or no memory for one.
std::optional<GpuChoice> missing;
bool lacks_memory = false;
GpuChoice last_run;
int num_passes, num_warnings;
// The key of the last pass that could be replayed, and whether it is captured
// instead of enqueued.
std::string last_key;
bool captures = false;
Graph::Addresses last_addresses;  // Those that the last pass was run over.
constexpr uintptr_t kCaptureStream = 1000;
std::map<cudnnHandle_t, CUstream> stream_of;  // Of each handle.

// Takes the place of all engines.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(const GpuChoice& choice) : choice_(choice) {}
  RnnBufferSizes sizes() const override { return {}; }
  bool is_replayable() const override { return true; }
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& all) const override {
    return Run(handles, all);
  }
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& all) const override {
    return Run(handles, all);
  }

 private:
  template <typename Buffers>
  RnnStatus Run(const Handles& handles, const Buffers& all) const {
    last_addresses.clear();
    VisitTensors(all, [](const void* tensor) {
      last_addresses.push_back(reinterpret_cast<CUdeviceptr>(tensor));
    });
    Check((reinterpret_cast<uintptr_t>(handles.stream) == kCaptureStream) ==
              captures,
          "a pass's stream");
    if (choice_.engine == GpuEngine::kCudnn) {
      Check(stream_of.at(handles.cudnn) == handles.stream, "a pass's handle");
    } else {
      Check(handles.blas != nullptr, "a pass's handle of cuBLAS");
    }
    last_run = choice_;
    ++num_passes;
    return {};
  }

  const GpuChoice choice_;
};

RnnStatus MakeFake(const GpuChoice& choice,
                   std::unique_ptr<const Engine>* engine) {
  if (missing && choice == *missing) {
    return {lacks_memory ? RnnStatus::Code::kResourceExhausted
                         : RnnStatus::Code::kUnimplemented,
            "no engine"};
  }
  *engine = std::make_unique<FakeEngine>(choice);
  return {};
}

}  // namespace

RnnStatus LoadCudaDriver() { return {}; }
RnnStatus LoadGpuLibraries() { return {}; }

RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}
RnnStatus CreateCudnnNetwork(const RnnProblem&, CudnnAlgorithm algorithm, bool,
                             cudnnHandle_t cudnn,
                             std::unique_ptr<const Engine>* network) {
  Check(stream_of.count(cudnn) == 1, "a handle that describes");
  return MakeFake({GpuEngine::kCudnn, algorithm}, network);
}

// These take the place of recording.cc and graph_cache.cc.
RnnStatus Recording::Make(CUstream stream,
                          const std::function<RnnStatus()>& enqueue,
                          Recording*) {
  Check(stream == reinterpret_cast<CUstream>(kCaptureStream),
        "the stream of a capture");
  return enqueue();
}
bool GraphCache::Replay(const ReplayablePass& pass) {
  last_key = pass.key;
  if (!captures) return false;
  Graph::Addresses moved = pass.addresses;
  for (CUdeviceptr& address : moved) address += Graph::kMoveUnit;
  Check(pass.record(moved, nullptr).ok(), "a recording");
  Check(last_addresses == moved, "the addresses of a recording");
  return true;
}

// The persistent kernels take few cycles or many; they run no problem, or fail
// when they are compiled, for ever or once, or turn out to take many cycles.
enum class Kernels { kFew, kMany, kNone, kFail, kFailOnce, kSlower };
Kernels kernels = Kernels::kNone;
bool has_steps = false;
int num_kernels, num_of_steps;  // Counts of networks.

namespace persistent {

Estimate Network::EstimateCycles(const RnnProblem& problem, bool,
                                 const DeviceLimits&) {
  Estimate estimate;
  estimate.cycles = kernels == Kernels::kMany ? 1e9 : 0.0;
  if (kernels == Kernels::kNone || problem.has_recurrent_dropout() ||
      problem.spec.num_proj > 0) {
    estimate.status = {RnnStatus::Code::kUnimplemented, "no kernels"};
  }
  return estimate;
}
RnnStatus Network::Create(const RnnProblem&, bool, const DeviceLimits&,
                          Estimate* estimate,
                          std::unique_ptr<const Engine>* network,
                          const LeastSizes&) {
  if (kernels == Kernels::kFail || kernels == Kernels::kFailOnce) {
    const bool is_final = kernels == Kernels::kFail;
    if (!is_final) kernels = Kernels::kFew;
    return {
        is_final ? RnnStatus::Code::kUnimplemented : RnnStatus::Code::kInternal,
        "the kernels fail"};
  }
  if (kernels == Kernels::kSlower) estimate->cycles = 1e9;
  ++num_kernels;
  return MakeFake({GpuEngine::kKernels}, network);
}
RnnStatus Network::CreateOfSteps(const RnnProblem&, bool,
                                 std::unique_ptr<const Engine>* network,
                                 const LeastSizes&) {
  if (!has_steps) return {RnnStatus::Code::kUnimplemented, "no steps"};
  ++num_of_steps;
  return MakeFake({GpuEngine::kSteps}, network);
}

}  // namespace persistent

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  Give<kCaptureStream>(&libraries.cuda.cuStreamCreate);
  Give<uintptr_t{1}>(&libraries.cublas.cublasCreate_v2);
  CudnnLibrary& cudnn = libraries.cudnn;
  cudnn.cudnnCreate = [](cudnnHandle_t* handle) {
    *handle = reinterpret_cast<cudnnHandle_t>(1 + stream_of.size());
    return CUDNN_STATUS_SUCCESS;
  };
  Succeed(&cudnn.cudnnDestroy);
  cudnn.cudnnSetStream = [](cudnnHandle_t handle, cudaStream_t stream) {
    stream_of[handle] = stream;
    return CUDNN_STATUS_SUCCESS;
  };
  return libraries;
}

namespace {

GpuResources Resources(int stream) {
  GpuResources resources = ResourcesOf(uintptr_t{1} + stream);
  resources.warn = [](const std::string&) { ++num_warnings; };
  return resources;
}

RnnStatus Run(const RnnProblem& problem, int stream, bool is_backward,
              const RnnForwardBuffers& forward = {},
              const RnnBackwardBuffers& backward = {},
              const GpuOptions& options = {}) {
  std::shared_ptr<const RnnPlan> plan;
  GpuBackend backend(Resources(stream), options);
  CRNN_RETURN_IF_ERROR(backend.Plan(problem, /*choice=*/0, nullptr, &plan));
  if (!is_backward) return backend.Forward(*plan, forward);
  const RnnPlan* const before = plan.get();
  RnnProblem same = problem;
  same.algorithm = RnnAlgorithm::kAuto;  // A backward pass is not told.
  CRNN_RETURN_IF_ERROR(
      GpuBackend(Resources(stream), options)
          .Plan(same, ChoiceIn(plan->sizes.reserve_space), nullptr, &plan));
  Check(plan.get() == before, "both passes have one plan");
  return backend.Backward(*plan, backward);
}

RnnStatus Run(const RnnProblem& problem, int stream) {
  num_passes = 0;
  captures = Draw(0, 1) == 1;
  const RnnStatus status =
      Run(problem, stream, problem.is_training && Draw(0, 1) == 1);
  Check(num_passes == (status.ok() ? 1 : 0), "a pass is run once");
  return status;
}

RnnStatus PlanOf(const RnnProblem& problem, int choice,
                 std::shared_ptr<const RnnPlan>* plan) {
  return GpuBackend(Resources(0), GpuOptions())
      .Plan(problem, choice, /*lengths=*/nullptr, plan);
}

// The first of the rule's choices that can be had runs.
void CheckChoices(unsigned seed) {
  generator.seed(seed);
  RnnProblem problem;
  problem.max_time = 1 + seed;  // Makes a configuration of its own.
  problem.batch_size = Draw(1, 16);
  problem.spec.num_units = 5;
  problem.is_training = Draw(0, 1) == 1;
  problem.algorithm = static_cast<RnnAlgorithm>(Draw(0, 1) * Draw(1, 4));
  std::vector<GpuChoice> choices;
  const KernelEstimate none = {{RnnStatus::Code::kUnimplemented, "none"}};
  Check(Choices({problem, /*allow_tf32=*/true, device_limits}, none, &choices)
            .ok(),
        "choices");
  if (Draw(0, 1) == 1) missing = choices[0];
  lacks_memory = Draw(0, 1) == 1;
  const bool is_refused = missing && choices.size() == 1;
  for (int use = 0; use < 3; ++use) {
    Check(Run(problem, Draw(0, 2)).ok() == !is_refused, "a use");
    if (is_refused) continue;
    Check(last_run == choices[missing ? 1 : 0], "the choice");
  }
  missing.reset();
  if (problem.is_training) {
    // A backward pass may be given sizes that no forward pass leaves.
    std::shared_ptr<const RnnPlan> plan;
    Check(PlanOf(problem, Draw(0, 1) == 1 ? 77 : 8, &plan).ok(),
          "a backward pass");
    Check(plan->sizes.reserve_space < 8, "the plan of no choice");
  }
  // When there is memory again, the rule's choice runs before long.
  if (!lacks_memory) return;
  for (int use = 0; use < 8; ++use) (void)Run(problem, 0);
  Check(Run(problem, 0).ok(), "a use with memory");
  Check(last_run == choices[0], "the choice after a lack of memory");
}

// The first of the rule's choices whose engine can be made runs a problem.
// Users are told once if the persistent kernels would have run it, or if cuDNN
// takes the place of single steps.
void CheckEngines() {
  static int64_t batch_size = 3000000;  // Makes configurations of their own.
  RnnProblem problem;
  problem.spec.num_units = 5;
  problem.batch_size = ++batch_size;
  problem.algorithm =
      static_cast<RnnAlgorithm>(Draw(0, kNames<RnnAlgorithm>.size() - 1));
  problem.is_training = Draw(0, 1) == 1;
  problem.has_sequence_lengths = Draw(0, 1) == 1;
  problem.has_resets = Draw(0, 3) == 0;
  problem.has_cell_sequences = Draw(0, 3) == 0;
  problem.spec.recurrent_dropout = Draw(0, 3) == 0 ? 0.5f : 0.0f;
  problem.spec.num_proj = Draw(0, 3) == 0 ? problem.spec.num_units : 0;
  has_steps = Draw(0, 1) == 1;
  kernels = static_cast<Kernels>(Draw(0, 3));
  const persistent::Estimate estimate =
      persistent::Network::EstimateCycles(problem, true, device_limits);
  std::vector<GpuChoice> choices;
  const RnnStatus listed = Choices(
      {problem, /*allow_tf32=*/true, device_limits}, estimate, &choices);
  const auto fails = [&](const GpuChoice& choice) {
    return choice.engine == GpuEngine::kKernels
               ? kernels == Kernels::kFail || !estimate.status.ok()
               : choice.engine == GpuEngine::kSteps && !has_steps;
  };
  const auto runs = std::find_if_not(choices.begin(), choices.end(), fails);
  const bool is_run = listed.ok() && runs != choices.end();
  const bool warns = is_run && runs != choices.begin() &&
                     (choices[0].engine == GpuEngine::kKernels ||
                      runs->engine == GpuEngine::kCudnn);
  num_kernels = num_of_steps = num_warnings = 0;
  std::shared_ptr<const RnnPlan> plan;
  for (int use = 0; use < 2; ++use) {
    const RnnStatus status = PlanOf(problem, 0, &plan);
    Check(status.ok() == is_run, status.message);
    Check(is_run || !problem.has_recurrent_dropout() ||
              status.message.find("recurrent_dropout") != std::string::npos,
          status.message);
    // It is made once, and so is the failure.
    const auto is_made = [&](GpuEngine engine) {
      return is_run && runs->engine == engine ? 1 : 0;
    };
    Check(num_kernels == is_made(GpuEngine::kKernels), "kernels");
    Check(num_of_steps == is_made(GpuEngine::kSteps), "steps");
    Check(num_warnings == (warns ? 1 : 0), "a warning");
  }
  if (plan != nullptr) {
    const auto& ours = static_cast<const GpuPlan&>(*plan);
    Check(ours.is_ours() == (runs->engine != GpuEngine::kCudnn),
          "whose kernels");
    // A plan of the same choice is the same one, also if it was forgotten.
    std::shared_ptr<const RnnPlan> other;
    Check(PlanOf(problem, plan->choice, &other).ok() && other == plan,
          "a plan by its choice");
    problem.batch_size = ++batch_size;
    Check(PlanOf(problem, plan->choice, &other).ok() &&
              other->choice == plan->choice,
          "a new plan by its choice");
  }
  kernels = Kernels::kNone;
  has_steps = false;
}

// A failure that may pass does not decide for ever, and kernels that turn out
// to be slow are not taken.
void CheckSecondThoughts() {
  being_checked = "second thoughts";
  RnnProblem problem;
  static int64_t batch_size = 2000000;
  problem.batch_size = ++batch_size;
  problem.spec.num_units = 5;
  problem.has_sequence_lengths = true;
  has_steps = true;
  std::shared_ptr<const RnnPlan> plan;
  const auto engine = [&] {
    Check(PlanOf(problem, 0, &plan).ok(), "a plan");
    return static_cast<const GpuPlan&>(*plan).chosen.engine;
  };
  kernels = Kernels::kFailOnce;
  Check(engine() == GpuEngine::kSteps, "steps, this time");
  Check(engine() == GpuEngine::kKernels, "kernels, the next time");
  problem.batch_size = ++batch_size;
  kernels = Kernels::kSlower;
  Check(engine() == GpuEngine::kSteps, "steps, since kernels are slow");
  // Single steps read what the kernels have left, also if these fail later.
  problem.batch_size = ++batch_size;
  kernels = Kernels::kFail;
  const int of_kernels = NumberOf({GpuEngine::kKernels});
  Check(PlanOf(problem, of_kernels, &plan).ok() &&
            ChoiceIn(plan->sizes.reserve_space) == of_kernels,
        "a plan that reads the reserve space");
  has_steps = false;
  kernels = Kernels::kNone;
}

// Owners of GPUs older than Turing are told which cuDNN has code for them.
void CheckAdvice() {
  const std::string advice = AdviceForArchitecture(61, 92800);
  Check(advice.find("cuDNN 9.28 has no code for this GPU of compute capability "
                    "6.1; cuDNN 9.10 has: pip install "
                    "'nvidia-cudnn-cu12<9.11'") != std::string::npos,
        advice);
  Check(!AdviceForArchitecture(70, 91100).empty() &&
            AdviceForArchitecture(70, 91002).empty() &&
            AdviceForArchitecture(75, 92800).empty(),
        "advice");
}

// If the device cannot imitate what the process asks for, that is an error,
// whatever would run the problem.
void CheckWrongVariable() {
  const int architecture = std::exchange(device_limits.architecture, 80);
  ++current_device;
  RnnProblem problem;
  problem.spec.num_units = 5;
  static int64_t batch_size = 1000000;
  for (size_t i = 0; i < 4 * kNames<RnnAlgorithm>.size(); ++i) {
    problem.batch_size = ++batch_size;
    problem.algorithm = static_cast<RnnAlgorithm>(i / 4);
    kernels = i % 2 == 1 ? Kernels::kFew : Kernels::kNone;
    being_checked = "a wrong variable, " + std::to_string(i);
    std::shared_ptr<const RnnPlan> plan;
    const RnnStatus status = PlanOf(problem, i / 2 % 2 == 1 ? 1 : 0, &plan);
    Check(status.code == RnnStatus::Code::kInvalidArgument &&
              status.message.find("CUDNN_RNN_TF_IMITATE_GPU") !=
                  std::string::npos,
          "an error that names the variable: " + status.message);
  }
  device_limits.architecture = architecture;
  ++current_device;
  kernels = Kernels::kNone;
}

// Passes have the same key only if they are the same problem's, in the same
// stream, with the same settings, and over buffers that may be moved to each
// other: those that both have, by a multiple of 256 bytes.
void CheckKeys() {
  being_checked = "keys";
  captures = false;
  std::set<std::string> keys;
  RnnProblem problem;
  problem.algorithm = RnnAlgorithm::kStandard;
  problem.batch_size = problem.max_time = problem.spec.num_units = 4;
  problem.spec.input_size = 1;
  RnnForwardBuffers forward;
  RnnBackwardBuffers backward;
  int stream = 0;
  GpuOptions options;
  bool is_backward = false;
  const auto run = [&] {
    Check(Run(problem, stream, is_backward, forward, backward, options).ok(),
          "a pass");
    return last_key;
  };
  const auto check = [&](const char* what) {
    const std::string key = run();
    Check(keys.insert(key).second, std::string("two passes differ in ") + what);
    Check(run() == key, "the same pass has another key");
    for (const void** const buffer : {&forward.input, &backward.input}) {
      const void* const before = *buffer;
      if (before == nullptr) continue;
      *buffer = static_cast<const char*>(before) + 256;
      Check(run() == key, "a buffer that moves changes the key");
      *buffer = before;
    }
  };
  char memory[400];
  int place = 0;
  const auto check_tensors = [&](auto* buffers, size_t others) {
    const int first = place;
    VisitTensors(*buffers, [&](auto& tensor) {
      tensor = &memory[place++];
      check("tensors");
    });
    Check((place - first) * sizeof(void*) + others == sizeof(*buffers),
          "all tensors are visited");
  };
  constexpr size_t kLengthsAndSeed = sizeof(RnnLengths) + 2 * sizeof(uint64_t);
  check_tensors(&forward, kLengthsAndSeed + sizeof(forward.device_seed));
  // The seed is in none of these buffers, so it is stored outside of graphs.
  forward.seed[0] = 1;
  Check(keys.count(run()) == 1, "the key follows the seed");
  stream = 1;
  check("streams");
  options.allow_tf32 = false;
  check("TF32");
  for (int64_t* const number :
       {&problem.batch_size, &problem.max_time, &problem.spec.num_units,
        &problem.spec.input_size, &problem.spec.num_layers}) {
    ++*number;
    check("sizes");
  }
  problem.dtype = RnnDataType::kFloat16;
  check("types");
  problem.algorithm = RnnAlgorithm::kPersistStatic;
  check("algorithms");
  is_backward = true;
  check("passes");
  check_tensors(&backward, kLengthsAndSeed);
  last_key.clear();
  options.replay = false;
  run();
  Check(last_key.empty(), "a replay although it is off");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  setenv("CUDNN_RNN_TF_IMITATE_GPU", "H100", 1);
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckChoices(seed);
    cudnn_rnn_tf::CheckKeys();
    cudnn_rnn_tf::CheckAdvice();
    for (int i = 0; i < 50; ++i) cudnn_rnn_tf::CheckEngines();
    cudnn_rnn_tf::CheckSecondThoughts();
    cudnn_rnn_tf::CheckWrongVariable();
  });
}
