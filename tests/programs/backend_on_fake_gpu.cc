// Runs the backend on a fake GPU, with a chosen or pinned algorithm or with
// graphs, and lets it fail. Checks, without a GPU, what runs from then on.
//
//   backend_on_fake_gpu SEEDS
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

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

RnnAlgorithm measured, broken;
size_t last_run;  // An algorithm's number.
// Earlier work in the stream has failed; somebody is capturing the stream.
bool has_failed = false, is_captured = false;
bool has_memory = true, refuses_graphs = false, has_plan = false;
bool measuring_throws = false;
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
  if (last_run == static_cast<size_t>(broken)) {
    return {RnnStatus::Code::kInternal, "the fake GPU failed"};
  }
  return {};
}

// This takes the place of measure.cc.
Choice MeasureChoice(CudnnSession*, CudnnConfiguration*,
                     const std::vector<RnnAlgorithm>&, const AllocateMemory&) {
  if (measuring_throws) throw std::bad_alloc();
  Choice choice;
  choice.algorithm = measured;
  choice.source = "measured";
  return choice;
}

// This takes the place of persistent/, with kernels that run no problem unless
// `has_plan` is true.
namespace persistent {

RnnStatus Network::EstimateCycles(const RnnProblem&, bool, double* cycles) {
  *cycles = 0.0;
  if (has_plan) return {};
  return {RnnStatus::Code::kUnimplemented, "no plan"};
}
RnnStatus Network::Create(const RnnProblem&, bool, bool, Network*) {
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
    *status = is_captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                          : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  cuda.cuStreamQuery = [](CUstream) {
    return has_failed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_NOT_READY;
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
  resources.log = [](const std::string&) {};
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

void CheckFailures(unsigned seed) {
  generator.seed(seed);
  RnnProblem problem;
  problem.batch_size = 1 + seed;  // Makes a configuration of its own.
  problem.is_training = Draw(0, 1) == 1;
  // The algorithm resident does not train, so training draws among the others.
  const int most = kNumMeasuredAlgorithms - (problem.is_training ? 2 : 1);
  const bool is_pinned = Draw(0, 2) == 0;
  measured = static_cast<RnnAlgorithm>(Draw(1, most));
  if (is_pinned) problem.algorithm = measured;
  const int stream = Draw(0, 2);
  // The first use is only counted, and runs standard unless pinned; the second
  // measures.
  broken = RnnAlgorithm::kStandard;
  const RnnAlgorithm first = is_pinned ? measured : broken;
  Check(Run(problem, stream).ok() == (first != broken), "the first use");
  broken = RnnAlgorithm::kAuto;  // No algorithm is broken.
  // All these configurations and sessions share the choice, and each takes it
  // over.
  const auto run_all = [&](const std::string& what, RnnAlgorithm expected) {
    for (const int64_t max_time : {0, 1}) {
      for (const int any : {stream, stream + 1}) {
        RnnProblem one = problem;
        one.max_time = max_time;
        Check(Run(one, any).ok(), what);
        Check(last_run == static_cast<size_t>(expected),
              what + ": the algorithm");
      }
    }
  };
  if (!is_pinned) {
    measuring_throws = true;
    bool has_thrown = false;
    try {
      Run(problem, stream);
    } catch (const std::bad_alloc&) {
      has_thrown = true;
    }
    measuring_throws = false;
    Check(has_thrown, "a use that fails to measure");
  }
  Check(Run(problem, stream).ok(), "the use that measures");
  run_all("what was chosen", measured);
  if (measured == RnnAlgorithm::kResident && !is_pinned) {
    RnnProblem unaligned = problem;
    unaligned.is_aligned = false;
    broken = RnnAlgorithm::kStandard;
    Check(!Run(unaligned, stream).ok(), "a failure of another algorithm");
    Check(Run(problem, stream).ok(), "a choice that did not fail");
    Check(last_run == static_cast<size_t>(measured), "it runs no longer");
  }

  broken = measured;
  for (bool* const other : {&has_failed, &is_captured}) {
    *other = true;
    Check(!Run(problem, stream).ok(), "a failure of others");
    *other = false;
  }
  broken = RnnAlgorithm::kAuto;
  run_all("after a failure of others", measured);
  broken = measured;
  Check(!Run(problem, stream).ok(), "a failure that is hidden");
  const bool is_given_up = !is_pinned && measured != RnnAlgorithm::kStandard;
  Check(Run(problem, stream).ok() == is_given_up, "the call after a failure");
  if (!is_given_up) broken = RnnAlgorithm::kAuto;
  run_all("after a failure", is_given_up ? RnnAlgorithm::kStandard : measured);
}

// In training with recurrent dropout, the persistent kernels run or there is an
// error that says so.
void CheckRecurrentDropout() {
  broken = RnnAlgorithm::kAuto;
  for (int i = 0; i < 4 * kNumRnnAlgorithms; ++i) {
    RnnProblem problem;
    problem.batch_size = 3000000;  // Makes a configuration of its own.
    problem.spec.recurrent_dropout = 0.5f;
    problem.algorithm = static_cast<RnnAlgorithm>(i / 4);
    problem.is_training = i / 2 % 2 == 1;
    has_plan = i % 2 == 1;
    const bool is_pinned = problem.algorithm == RnnAlgorithm::kPersistent;
    const bool may_be_ours =
        is_pinned || problem.algorithm == RnnAlgorithm::kAuto;
    const bool is_refused = problem.is_training ? !has_plan || !may_be_ours
                                                : !has_plan && is_pinned;
    RnnBufferSizes sizes;
    RnnStatus status = GpuBackend(ResourcesOf(0), GpuOptions())
                           .ForwardBufferSizes(problem, &sizes);
    Check(status.ok() != is_refused, "a forward pass");
    if (!problem.is_training) continue;
    // The number of the algorithm is the rest of the reserve space's size.
    const auto expected = static_cast<size_t>(RnnAlgorithm::kPersistent);
    const auto check = [&] {
      Check(is_refused ? status.code == RnnStatus::Code::kUnimplemented &&
                             status.message.find("recurrent_dropout") !=
                                 std::string::npos
                       : sizes.reserve_space == expected,
            "the refusal or the size");
    };
    check();
    // A reserve space that another algorithm left is found to be wrong.
    for (const size_t reserve_space : {size_t{256}, expected}) {
      sizes = {};
      status = GpuBackend(ResourcesOf(0), GpuOptions())
                   .BackwardBufferSizes(problem, reserve_space, &sizes);
      check();
    }
  }
  has_plan = false;
}

// If no replay can be made, only kFewAttempts of kManyUses uses may try it.
constexpr int kManyUses = 1000, kFewAttempts = 5;

void CheckReplays(unsigned seed) {
  RnnProblem problem;
  problem.batch_size = 1000000 + seed;  // Makes a configuration of its own.
  problem.algorithm = RnnAlgorithm::kStandard;
  problem.is_training = false;
  broken = RnnAlgorithm::kAuto;
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
    cudnn_rnn_tf::CheckFailures(seed);
    cudnn_rnn_tf::CheckReplays(seed);
    cudnn_rnn_tf::CheckRecurrentDropout();
  });
}
