// Runs the backend on a fake GPU, with the caller's algorithm or the rule's,
// and with graphs, and lets it fail. Checks, without a GPU, what runs.
//
//   backend_on_fake_gpu SEEDS
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/cudnn/cudnn_backend.h"
#include "kernels/gpu/gpu_backend.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"
#include "tests/programs/fake_graph.h"

namespace cudnn_rnn_tf {
namespace {

// A node that fills memory. A pass has two.
struct FakeNode {
  size_t index = 0;
};
using Graph = FakeGraph<FakeNode>;
using Exec = FakeExec<FakeNode>;

// This algorithm has no plans, or no memory for them.
RnnAlgorithm missing = RnnAlgorithm::kAuto;
bool lacks_plan_memory = false;
size_t last_run;  // An algorithm's number.
bool has_memory = true, refuses_graphs = false;
int fills_to_come = 0;  // This many succeed before one fails.
// Counts of passes that were launched call by call and as graphs, of
// allocations, and of instantiations.
int num_direct, num_launched, num_allocated, num_instantiated;

}  // namespace

RnnStatus LoadCudaDriver() { return {}; }
RnnStatus LoadGpuLibraries() { return {}; }

// The functions from here on take the place of plan.cc and enqueue_pass.cc. The
// workspace size of a plan is its algorithm's number.

std::string Describe(const RnnProblem& problem) {
  return std::to_string(problem.batch_size) + " sequences";
}

RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}

RnnStatus CudnnPlan::Create(cudnnHandle_t, const RnnProblem& problem,
                            RnnAlgorithm algorithm, const GpuOptions&,
                            std::unique_ptr<CudnnPlan>* plan) {
  if (algorithm == missing) {
    return {lacks_plan_memory ? RnnStatus::Code::kResourceExhausted
                              : RnnStatus::Code::kUnimplemented,
            "no plan"};
  }
  plan->reset(new CudnnPlan(problem));
  (*plan)->workspace_size_ = static_cast<size_t>(algorithm);
  return {};
}

RnnStatus CudnnPlan::SetSequenceLengths(const int32_t*) { return {}; }
RnnStatus CudnnPlan::SeedDropout(cudnnHandle_t, void*, uint64_t) { return {}; }

std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass) {
  std::array<size_t, kNumCallBuffers> sizes = {};
  sizes[kWorkspace] = plan.workspace_size();
  return sizes;
}

RnnStatus EnqueuePass(Pass, const CudnnHandles&, CudnnPlan* plan,
                      const CallAddresses&) {
  if (Graph::capturing != nullptr) {
    for (size_t i = 0; i < 2; ++i) {
      Graph::capturing->nodes.push_back(
          std::make_unique<FakeNode>(FakeNode{i}));
    }
    Graph::capturing->edges.emplace_back(0, 1);
    return {};
  }
  ++num_direct;
  last_run = plan->workspace_size();
  return {};
}

// This takes the place of persistent/. The kernels take few cycles or many;
// they run no problem, or fail when they are compiled.
enum class Kernels { kFew, kMany, kNone, kFail };
Kernels kernels = Kernels::kNone;
bool has_steps = false;
int num_kernels, num_of_steps;  // Counts of networks.

namespace persistent {

RnnStatus Network::EstimateCycles(const RnnProblem& problem, bool,
                                  double* cycles) {
  *cycles = kernels == Kernels::kMany ? 1e9 : 0.0;
  if (kernels != Kernels::kNone && !problem.has_recurrent_dropout() &&
      problem.spec.num_proj == 0) {
    return {};
  }
  return {RnnStatus::Code::kUnimplemented, "no kernels"};
}
RnnStatus Network::Create(const RnnProblem&, bool, bool, Network*) {
  if (kernels == Kernels::kFail) {
    return {RnnStatus::Code::kUnimplemented, "the kernels fail"};
  }
  ++num_kernels;
  return {};
}
RnnStatus Network::CreateOfSteps(const RnnProblem&, bool, Network*) {
  if (!has_steps) return {RnnStatus::Code::kUnimplemented, "no steps"};
  ++num_of_steps;
  return {};
}
size_t Network::reserve_size() const { return 0; }
size_t Network::forward_workspace_size() const { return 0; }
size_t Network::backward_workspace_size() const { return 0; }
RnnStatus Network::Prepare(CUstream, const RnnForwardBuffers&) const {
  return {};
}

RnnStatus Session::Open(CUstream) { return {}; }
Session::~Session() = default;
RnnStatus Session::Enqueue(const Network&, Pass, const CallAddresses&) {
  return {};
}
RnnStatus Session::EnqueueReplay(const Network&, Pass, const CallAddresses&,
                                 bool, std::string*) {
  return {};
}

}  // namespace persistent

// These take the place of masked_steps.cc.
RnnStatus EnqueueReadMask(CUstream, const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus EnqueueMoveSteps(CUstream, const StepMove&) { return {}; }
RnnStatus ReadMaskOnHost(CUstream, const RnnMask&, const MaskedSteps&) {
  return {};
}
RnnStatus MoveStepsOnHost(CUstream, const StepMove&) { return {}; }

// These take the place of keras_tensors.cc.
RnnStatus EnqueueKerasTensors(CUstream, const KerasLayout&, size_t, bool,
                              const std::vector<void*>&, void*) {
  return {};
}
RnnStatus MoveKerasTensorsOnHost(CUstream, const KerasLayout&, size_t, bool,
                                 const std::vector<void*>&, void*) {
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) {
    return CUDA_SUCCESS;
  };
  cuda.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  cuda.cuStreamCreate = [](CUstream*, unsigned) { return CUDA_SUCCESS; };
  cuda.cuStreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
  Graph::AddTo(&cuda);
  cuda.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) {
    *type = CU_GRAPH_NODE_TYPE_MEMSET;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphMemsetNodeGetParams = [](CUgraphNode,
                                       CUDA_MEMSET_NODE_PARAMS* params) {
    *params = {};
    params->elementSize = params->width = 1;
    params->height = 2;  // Our own kernel does not fill this.
    return CUDA_SUCCESS;
  };
  cuda.cuMemsetD2D8Async = [](CUdeviceptr, size_t, unsigned char, size_t,
                              size_t, CUstream) {
    return fills_to_come-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  };
  cuda.cuGraphInstantiate = [](CUgraphExec* exec, CUgraph graph,
                               unsigned long long) {
    ++num_instantiated;
    if (refuses_graphs) return CUDA_ERROR_OUT_OF_MEMORY;
    *exec = reinterpret_cast<CUgraphExec>(new Exec(*Graph::Of(graph)));
    return CUDA_SUCCESS;
  };
  cuda.cuGraphExecDestroy = Exec::Destroy;
  cuda.cuGraphLaunch = [](CUgraphExec, CUstream) {
    ++num_launched;
    return CUDA_SUCCESS;
  };
  return libraries;
}

namespace {

GpuResources ResourcesOf(int stream) {
  GpuResources resources;
  resources.stream = reinterpret_cast<void*>(uintptr_t{1} + stream);
  resources.is_profiled = [] { return false; };
  resources.memory_limit = [] { return size_t{0}; };
  resources.log = resources.warn = [](const std::string&) {};
  resources.allocate = [](size_t) {
    ++num_allocated;
    return has_memory ? std::make_shared<int>() : nullptr;
  };
  return resources;
}

RnnStatus Run(const RnnProblem& problem, int stream, bool replay = false) {
  GpuOptions options;
  options.replay = replay;
  CudnnBackend backend(ResourcesOf(stream), options);
  RnnBufferSizes sizes;
  CRNN_RETURN_IF_ERROR(backend.ForwardBufferSizes(problem, &sizes));
  if (problem.is_training && Draw(0, 1) == 1) {
    const size_t reserve_space = sizes.reserve_space;
    CRNN_RETURN_IF_ERROR(
        backend.BackwardBufferSizes(problem, reserve_space, &sizes));
    return backend.Backward(problem, RnnBackwardBuffers());
  }
  return backend.Forward(problem, RnnForwardBuffers());
}

// The caller's algorithm runs, or the rule's; a plan that cannot be made is
// replaced by standard only if it was the rule's.
void CheckAlgorithms(unsigned seed) {
  generator.seed(seed);
  RnnProblem problem;
  problem.batch_size = 1 + seed;  // Makes a configuration of its own.
  problem.is_training = Draw(0, 1) == 1;
  // The algorithm resident does not train.
  const int most = kNumPlannedAlgorithms - (problem.is_training ? 2 : 1);
  problem.algorithm = static_cast<RnnAlgorithm>(Draw(0, most));
  problem.is_aligned = Draw(0, 3) > 0;
  const bool is_pinned = problem.algorithm != RnnAlgorithm::kAuto;
  const RnnAlgorithm chosen = CudnnAlgorithmFor(problem);
  Check(!is_pinned || chosen == problem.algorithm, "the caller's algorithm");
  missing = Draw(0, 1) == 1 ? chosen : RnnAlgorithm::kAuto;
  lacks_plan_memory = Draw(0, 1) == 1;
  if (missing == RnnAlgorithm::kStandard) missing = RnnAlgorithm::kAuto;
  const bool is_refused = is_pinned && missing == chosen;
  const bool is_replaced =
      !is_pinned && (missing == chosen || (chosen == RnnAlgorithm::kResident &&
                                           !problem.is_aligned));
  for (int use = 0; use < 3; ++use) {
    Check(Run(problem, Draw(0, 2)).ok() == !is_refused, "a use");
    if (is_refused) continue;
    Check(last_run == static_cast<size_t>(is_replaced ? RnnAlgorithm::kStandard
                                                      : chosen),
          "the algorithm");
  }
  missing = RnnAlgorithm::kAuto;
  // When there is memory again, the rule's algorithm runs.
  if (!lacks_plan_memory || is_refused) return;
  Check(Run(problem, 0).ok(), "a use with memory");
  const bool is_left =
      chosen == RnnAlgorithm::kResident && !is_pinned && !problem.is_aligned;
  Check(last_run ==
            static_cast<size_t>(is_left ? RnnAlgorithm::kStandard : chosen),
        "the algorithm after a lack of memory");
}

// Which engine runs a problem, or why none does.
struct Outcome {
  enum class Engine { kCudnn, kKernels, kSteps, kNone } engine;
  std::string error;  // A part of the message.
};
using Engine = Outcome::Engine;

// What may be run step by step, and what is not.
enum class Feature { kNone, kRecurrentDropout, kLengths, kEqualProjection };

Outcome Expected(const RnnProblem& problem, Feature feature) {
  const bool is_pinned = problem.algorithm == RnnAlgorithm::kPersistent;
  const bool drops =
      feature == Feature::kRecurrentDropout && problem.is_training;
  if (problem.algorithm != RnnAlgorithm::kAuto && !is_pinned) {
    if (!drops) return {Engine::kCudnn, ""};
    return {Engine::kNone, "cannot run recurrent_dropout in training"};
  }
  const bool may_be_steps = drops || feature == Feature::kLengths ||
                            feature == Feature::kEqualProjection;
  if (!drops && feature != Feature::kEqualProjection &&
      (kernels == Kernels::kFew ||
       (kernels == Kernels::kMany && is_pinned && !may_be_steps))) {
    return {Engine::kKernels, ""};
  }
  if (has_steps && (may_be_steps || is_pinned)) return {Engine::kSteps, ""};
  if (!is_pinned && !drops) return {Engine::kCudnn, ""};
  return {Engine::kNone, drops ? "recurrent_dropout" : "no steps"};
}

void CheckEngines() {
  RnnProblem problem;
  problem.batch_size = 3000000;  // Makes a configuration of its own.
  problem.spec.num_units = 5;
  for (const Feature feature : {Feature::kNone, Feature::kRecurrentDropout,
                                Feature::kLengths, Feature::kEqualProjection}) {
    problem.spec.recurrent_dropout =
        feature == Feature::kRecurrentDropout ? 0.5f : 0.0f;
    problem.has_sequence_lengths = feature == Feature::kLengths;
    problem.spec.num_proj =
        feature == Feature::kEqualProjection ? problem.spec.num_units : 0;
    for (int i = 0; i < 16 * kNumRnnAlgorithms; ++i) {
      problem.algorithm = static_cast<RnnAlgorithm>(i / 16);
      problem.is_training = i / 8 % 2 == 1;
      has_steps = i / 4 % 2 == 1;
      kernels = static_cast<Kernels>(i % 4);
      being_checked = "engine " + std::to_string(i) + " with feature " +
                      std::to_string(static_cast<int>(feature));
      const Outcome expected = Expected(problem, feature);
      const auto check = [&](const RnnStatus& status) {
        Check(status.ok() == (expected.engine != Engine::kNone),
              status.message);
        Check(status.message.find(expected.error) != std::string::npos,
              status.message);
        Check(num_kernels == (expected.engine == Engine::kKernels), "kernels");
        Check(num_of_steps == (expected.engine == Engine::kSteps), "steps");
      };
      num_kernels = num_of_steps = 0;
      RnnBufferSizes sizes;
      check(GpuBackend(ResourcesOf(0), GpuOptions())
                .ForwardBufferSizes(problem, &sizes));
      if (!problem.is_training || expected.engine == Engine::kNone) continue;
      // The rest of the reserve space's size is the number of the algorithm. A
      // backward pass takes it from there, and is not told otherwise.
      const size_t reserve_space = sizes.reserve_space;
      const bool is_ours = expected.engine != Engine::kCudnn;
      Check((reserve_space == static_cast<size_t>(RnnAlgorithm::kPersistent)) ==
                is_ours,
            "the algorithm's number");
      if (!is_ours) continue;
      num_kernels = num_of_steps = 0;
      problem.algorithm = RnnAlgorithm::kAuto;
      sizes = {};
      check(GpuBackend(ResourcesOf(0), GpuOptions())
                .BackwardBufferSizes(problem, reserve_space, &sizes));
      Check(sizes.reserve_space == reserve_space, "the reserve space");
    }
  }
  kernels = Kernels::kNone;
}

// If no replay can be made, only kFewAttempts of kManyUses uses may try it.
constexpr int kManyUses = 1000, kFewAttempts = 5;

void CheckReplays(unsigned seed) {
  RnnProblem problem;
  problem.batch_size = 1000000 + seed;  // Makes a configuration of its own.
  problem.algorithm = RnnAlgorithm::kStandard;
  problem.is_training = false;
  const auto run = [&](int uses) {
    num_direct = num_launched = num_allocated = num_instantiated = 0;
    for (int use = 0; use < uses; ++use) {
      Check(Run(problem, 0, /*replay=*/true).ok(), "a use");
    }
  };
  // A first use launches the nodes of its capture.
  fills_to_come = static_cast<int>(seed % 3);
  num_direct = 0;
  const bool is_done = Run(problem, 0, /*replay=*/true).ok();
  // A pass is not begun again once a part of it was enqueued.
  Check(is_done == (seed % 3 != 1), "a launch of nodes");
  Check(num_direct == (seed % 3 == 0), "the pass instead of its nodes");

  has_memory = false;
  run(kManyUses);
  has_memory = true;
  Check(num_direct == kManyUses && num_launched == 0, "uses without memory");
  Check(num_allocated > 0 && num_allocated <= kFewAttempts, "attempts");

  refuses_graphs = true;
  run(2 * kManyUses);
  refuses_graphs = false;
  Check(num_direct == 2 * kManyUses && num_launched == 0, "refused graphs");
  Check(num_instantiated > 0 && num_instantiated <= kFewAttempts, "graphs");

  run(8 * kManyUses);
  Check(num_launched > kManyUses, "graphs when there is memory again");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckAlgorithms(seed);
    cudnn_rnn_tf::CheckReplays(seed);
    cudnn_rnn_tf::CheckEngines();
  });
}
