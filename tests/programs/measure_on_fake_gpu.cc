// Measures random choices on a GPU that is none: its clock is set forward by
// what a launch is said to take. Tells, without a GPU, what is chosen.
//
//   measure_on_fake_gpu SEEDS
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/cudnn/measure.h"
#include "tests/programs/fake_gpu.h"
#include "tests/programs/fake_graph.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kNodes = 60;
// A graph has one node that none waits for among so many: many beside the
// chain, a few, too many, or no chain at all.
constexpr size_t kManyBeside = 6, kFewBeside = 15, kTooManyBeside = 3,
                 kNoChain = 0;

// A pass takes so many milliseconds, and some ways do not work.
struct FakePass {
  float calls, graph, chain;
  bool graph_fails, chain_fails;
  size_t beside;
};
struct FakeAlgorithm {
  bool is_there;
  FakePass passes[2];
};
std::array<FakeAlgorithm, kNumCudnnAlgorithms> algorithms;
double now = 0;

struct FakeNode {
  size_t index;  // Its place in its graph.
  const FakePass* pass;
};
using Graph = FakeGraph<FakeNode>;
using Exec = FakeExec<FakeNode>;

bool IsChain(const Exec& exec) { return exec.edges == ChainOf(kNodes); }

}  // namespace

// In place of plan.cc and calls.cc: an algorithm's number is its plans'
// workspace, and a pass is nodes that do nothing.

std::string Describe(const RnnProblem&) { return "a problem"; }

RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}

RnnStatus CudnnPlan::Create(cudnnHandle_t, const RnnProblem& problem,
                            const CudnnOptions& options,
                            std::unique_ptr<CudnnPlan>* plan) {
  if (!algorithms[static_cast<int>(options.algorithm)].is_there) {
    return {RnnStatus::Code::kUnimplemented, "no such algorithm"};
  }
  plan->reset(new CudnnPlan(problem));
  (*plan)->workspace_size_ = static_cast<size_t>(options.algorithm);
  return {};
}

RnnStatus CudnnPlan::SeedDropout(cudnnHandle_t, void*, uint64_t) { return {}; }

std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan&, Pass) {
  std::array<size_t, kNumCallBuffers> sizes = {};
  sizes[kInput] = sizes[kOutput] = sizes[kWorkspace] = 1000;
  return sizes;
}

RnnStatus EnqueuePass(Pass pass, const CudnnHandles&, CudnnPlan* plan,
                      const CallAddresses&) {
  const FakePass& fake =
      algorithms[plan->workspace_size()].passes[static_cast<int>(pass)];
  Graph* const graph = Graph::capturing;
  if (graph == nullptr) {
    now += fake.calls;
    return {};
  }
  for (size_t i = 0; i < kNodes; ++i) {
    graph->nodes.push_back(std::make_unique<FakeNode>(FakeNode{i, &fake}));
    if (i == 0) continue;
    // All wait for the first, or each for the one before, but for those for
    // which none waits.
    size_t before = 0;
    if (fake.beside != kNoChain) {
      before = i > 1 && (i - 1) % fake.beside == 0 ? i - 2 : i - 1;
    }
    graph->edges.emplace_back(before, i);
  }
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuStreamCreate = [](CUstream*, unsigned) { return CUDA_SUCCESS; };
  cuda.cuMemsetD8Async = [](CUdeviceptr, unsigned char, size_t, CUstream) {
    return CUDA_SUCCESS;
  };
  cuda.cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(new double(0));
    return CUDA_SUCCESS;
  };
  cuda.cuEventDestroy = [](CUevent event) {
    delete reinterpret_cast<double*>(event);
    return CUDA_SUCCESS;
  };
  cuda.cuEventRecord = [](CUevent event, CUstream) {
    *reinterpret_cast<double*>(event) = now;
    return CUDA_SUCCESS;
  };
  cuda.cuEventSynchronize = [](CUevent) { return CUDA_SUCCESS; };
  cuda.cuEventElapsedTime = [](float* milliseconds, CUevent begin,
                               CUevent end) {
    *milliseconds =
        *reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin);
    return CUDA_SUCCESS;
  };
  Graph::AddTo(&cuda);
  cuda.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) {
    *type = CU_GRAPH_NODE_TYPE_EMPTY;
    return CUDA_SUCCESS;
  };
  cuda.cuGraphInstantiate = [](CUgraphExec* exec, CUgraph graph,
                               unsigned long long) {
    auto made = std::make_unique<Exec>(*Graph::Of(graph));
    const FakePass& pass = *made->nodes[0].pass;
    if (IsChain(*made) ? pass.chain_fails : pass.graph_fails) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *exec = reinterpret_cast<CUgraphExec>(made.release());
    return CUDA_SUCCESS;
  };
  cuda.cuGraphExecDestroy = Exec::Destroy;
  cuda.cuGraphLaunch = [](CUgraphExec exec, CUstream) {
    const Exec& launched = *Exec::Of(exec);
    const FakePass& pass = *launched.nodes[0].pass;
    now += IsChain(launched) ? pass.chain : pass.graph;
    return CUDA_SUCCESS;
  };
  return libraries;
}

namespace {

// A candidate that takes twice as long as another may not be timed to the end,
// so all take between 1 and 1.9 ms.
float RandomTime(std::mt19937* random) {
  return 1 + static_cast<float>((*random)() % 900) / 1000;
}

void CheckChoice(unsigned seed) {
  std::mt19937 random(seed);
  const auto chance = [&](int of) { return random() % of == 0; };
  now = 0;
  RnnProblem problem;
  problem.is_training = chance(2);
  CudnnOptions options;
  options.replay = !chance(4);
  // Some of the others follow, in any order.
  std::vector<RnnAlgorithm> asked = {RnnAlgorithm::kStandard};
  for (int i = 2; i < kNumCudnnAlgorithms; ++i) {
    if (!chance(3)) asked.push_back(static_cast<RnnAlgorithm>(i));
  }
  if (chance(3)) asked.resize(1);
  std::shuffle(asked.begin(), asked.end(), random);
  for (FakeAlgorithm& algorithm : algorithms) {
    algorithm.is_there = !chance(4);
    for (FakePass& pass : algorithm.passes) {
      do {
        pass = {RandomTime(&random), RandomTime(&random), RandomTime(&random),
                chance(10),          chance(4),           kManyBeside};
        if (chance(3)) {
          pass.beside = std::array<size_t, 3>{kFewBeside, kTooManyBeside,
                                              kNoChain}[random() % 3];
        }
        // Half of the chains are taken, or left, by little.
        if (chance(2)) pass.chain = (chance(2) ? 0.98f : 0.995f) * pass.graph;
      } while (std::abs(pass.chain - pass.graph) < 1e-3f ||
               std::abs(pass.chain - 0.99f * pass.graph) < 1e-3f);
    }
  }
  const int num_passes = problem.is_training ? 2 : 1;
  // Half the time, standard is taken, or left, by little.
  const bool is_close = chance(2);
  const float factor = chance(2) ? 1.04f : 1.06f;
  const FakeAlgorithm& other = algorithms[2 + random() % 3];
  for (int pass = 0; is_close && pass < 2; ++pass) {
    const FakePass& like = other.passes[pass];
    FakePass& standard = algorithms[1].passes[pass];
    standard.calls = factor * like.calls;
    standard.chain *= factor * like.graph / standard.graph;
    standard.graph = factor * like.graph;
  }

  // This is the choice that is expected.
  int best = -1;
  float least = 0, of_standard = -1;
  int num_there = 0;
  for (const RnnAlgorithm algorithm : asked) {
    const int i = static_cast<int>(algorithm);
    if (!algorithms[i].is_there) continue;
    ++num_there;
    float sum = 0;
    bool fails = false;
    for (int pass = 0; pass < num_passes; ++pass) {
      const FakePass& fake = algorithms[i].passes[pass];
      sum += options.replay ? fake.graph : fake.calls;
      fails = fails || (options.replay && fake.graph_fails);
    }
    if (fails) continue;
    if (i == static_cast<int>(RnnAlgorithm::kStandard)) of_standard = sum;
    if (best >= 0 && sum >= least) continue;
    best = i;
    least = sum;
  }
  if (problem.is_training && of_standard >= 0 && of_standard < 1.05f * least) {
    best = static_cast<int>(RnnAlgorithm::kStandard);
  }
  // One alone is timed only to be compared with chains.
  if (num_there == 1 && best >= 0) {
    bool may_gain = false;
    for (int pass = 0; options.replay && pass < num_passes; ++pass) {
      const FakePass& fake = algorithms[best].passes[pass];
      may_gain = may_gain || fake.beside == kManyBeside;
    }
    if (!may_gain) best = -1;
  }
  bool is_chain[2] = {};
  for (int pass = 0; best >= 0 && options.replay && pass < num_passes; ++pass) {
    const FakePass& fake = algorithms[best].passes[pass];
    is_chain[pass] = fake.beside == kManyBeside && !fake.chain_fails &&
                     fake.chain < 0.99f * fake.graph;
  }

  {
    CudnnSession session;
    Check(session.Open(nullptr, /*memory_limit=*/0).ok(), "a session");
    CudnnConfiguration* const configuration =
        session.Configuration(problem, options);
    const Choice choice =
        MeasureChoice(&session, configuration, asked, [](size_t bytes) {
          return std::shared_ptr<void>(new char[bytes], [](void* memory) {
            delete[] static_cast<char*>(memory);
          });
        });
    Check(choice.source == (best < 0 ? "rule" : "measured"), "the source");
    Check(choice.timings.empty() == (best < 0), "timings");
    Check(static_cast<int>(choice.algorithm) == std::max(best, 1),
          "the algorithm");
    Check(choice.forward_is_chain == is_chain[0] &&
              choice.backward_is_chain == is_chain[1],
          "graphs and chains");
    for (int i = 0; best >= 0 && i < kNumCudnnAlgorithms; ++i) {
      Check((configuration->passes[i] != nullptr) == (i == best),
            "what is kept");
    }
    for (int pass = 0; best >= 0 && options.replay && pass < num_passes;
         ++pass) {
      const FakePass& fake = algorithms[best].passes[pass];
      Replay* const replay =
          configuration->passes[best]->of(static_cast<Pass>(pass)).replay.get();
      Check(replay != nullptr && replay->bytes() == 0, "a replay");
      const double before = now;
      Check(replay->Launch(nullptr, {}).ok(), "a launch");
      const float expected = is_chain[pass] ? fake.chain : fake.graph;
      Check(std::abs(now - before - expected) < 1e-4,
            "a replay of the other kind");
    }
  }
  Check(Exec::count == 0 && Graph::count == 0, "something is left");
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckChoice);
}
