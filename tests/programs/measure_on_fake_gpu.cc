// Measures random choices on a fake GPU, whose clock a launch sets forward by
// the time that it is to take. Checks, without a GPU, what is chosen.
//
//   measure_on_fake_gpu SEEDS
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gpu/cudnn/measure.h"
#include "tests/programs/fake_gpu.h"
#include "tests/programs/fake_graph.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kNodes = 60;
// One node among this many is beside the chain, for which no other waits. The
// graphs have many of these, a few, or too many; kNoChain is no chain at all.
constexpr size_t kManyBeside = 6, kFewBeside = 15, kTooManyBeside = 3,
                 kNoChain = 0;

constexpr int kNever = -1;
double now = 0;  // The fake GPU's clock.

// The milliseconds that a pass takes in each way to run it, the ways that do
// not work, and the run from which on no way works.
struct FakePass {
  float calls, graph, chain;
  bool graph_fails, chain_fails;
  size_t beside;
  int fails_from = kNever;
  int runs = 0;

  // Returns whether the run works.
  bool Run(float milliseconds) {
    if (runs == fails_from) return false;
    // A pass that fails later takes so long at first that the warm-up is over.
    if (runs == 0 && fails_from != kNever) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ++runs;
    now += milliseconds;
    return true;
  }
};
struct FakeAlgorithm {
  bool is_there;
  FakePass passes[2];
};
std::array<FakeAlgorithm, kNumMeasuredAlgorithms> algorithms;

struct FakeNode {
  size_t index;  // Its place in its graph.
  FakePass* pass;
};
using Graph = FakeGraph<FakeNode>;
using Exec = FakeExec<FakeNode>;

bool IsChain(const Exec& exec) { return exec.edges == ChainOf(kNodes); }

}  // namespace

// The functions from here on take the place of plan.cc and enqueue_pass.cc. The
// workspace size of a plan is its algorithm's number, and the nodes of a pass
// do nothing.

std::string Describe(const RnnProblem&) { return "a problem"; }

RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}

RnnStatus CudnnPlan::Create(cudnnHandle_t, const RnnProblem& problem,
                            RnnAlgorithm algorithm, const GpuOptions&,
                            std::unique_ptr<CudnnPlan>* plan) {
  if (!algorithms[static_cast<int>(algorithm)].is_there) {
    return {RnnStatus::Code::kUnimplemented, "no such algorithm"};
  }
  plan->reset(new CudnnPlan(problem));
  (*plan)->workspace_size_ = static_cast<size_t>(algorithm);
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
  FakePass& fake =
      algorithms[plan->workspace_size()].passes[static_cast<int>(pass)];
  Graph* const graph = Graph::capturing;
  if (graph == nullptr) {
    return fake.Run(fake.calls) ? RnnStatus()
                                : CudaStatus(CUDA_ERROR_UNKNOWN, "run a pass");
  }
  for (size_t i = 0; i < kNodes; ++i) {
    graph->nodes.push_back(std::make_unique<FakeNode>(FakeNode{i, &fake}));
    if (i == 0) continue;
    // Without a chain, all nodes wait for the first. Otherwise each waits for
    // the one before it, or for the one before that if the former is beside the
    // chain.
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
    FakePass& pass = *launched.nodes[0].pass;
    return pass.Run(IsChain(launched) ? pass.chain : pass.graph)
               ? CUDA_SUCCESS
               : CUDA_ERROR_UNKNOWN;
  };
  return libraries;
}

namespace {

// A choice may be at most this many times as slow as another.
constexpr float kTolerated = 1.1f;

struct Drawn {
  RnnProblem problem;
  GpuOptions options;
  std::vector<RnnAlgorithm> asked;

  int num_passes() const { return problem.is_training ? 2 : 1; }
};

Drawn Draw(std::mt19937* random) {
  const auto chance = [&](int of) { return (*random)() % of == 0; };
  // In half of the draws, the times are close to each other.
  const unsigned most = chance(2) ? 300 : 4000;
  const auto time = [&] {
    return 1 + static_cast<float>((*random)() % most) / 1000;
  };
  Drawn drawn;
  drawn.problem.is_training = chance(2);
  drawn.options.replay = !chance(4);
  // Some of the other algorithms are added, in any order.
  drawn.asked = {RnnAlgorithm::kStandard};
  for (int i = 2; i < kNumMeasuredAlgorithms; ++i) {
    if (!chance(3)) drawn.asked.push_back(static_cast<RnnAlgorithm>(i));
  }
  if (chance(3)) drawn.asked.resize(1);
  std::shuffle(drawn.asked.begin(), drawn.asked.end(), *random);
  for (FakeAlgorithm& algorithm : algorithms) {
    algorithm.is_there = !chance(4);
    for (FakePass& pass : algorithm.passes) {
      pass = {time(), time(), time(), chance(10), chance(4), kManyBeside};
      if (chance(3)) {
        pass.beside = std::array<size_t, 3>{kFewBeside, kTooManyBeside,
                                            kNoChain}[(*random)() % 3];
      }
    }
  }
  return drawn;
}

// The algorithms that can be timed, and the times of all their passes together.
std::map<RnnAlgorithm, float> TimesOf(const Drawn& drawn) {
  std::map<RnnAlgorithm, float> times;
  for (const RnnAlgorithm algorithm : drawn.asked) {
    const FakeAlgorithm& fake = algorithms[static_cast<int>(algorithm)];
    bool works = fake.is_there;
    float sum = 0;
    for (int pass = 0; pass < drawn.num_passes(); ++pass) {
      const FakePass& one = fake.passes[pass];
      works = works && !(drawn.options.replay && one.graph_fails);
      sum += drawn.options.replay ? one.graph : one.calls;
    }
    if (works) times[algorithm] = sum;
  }
  return times;
}

// The chosen algorithm must work and, in inference, be the fastest. In training
// it is standard unless another is faster by more than a little, since the
// others take more memory.
void CheckAlgorithm(const Drawn& drawn, RnnAlgorithm chosen) {
  const std::map<RnnAlgorithm, float> times = TimesOf(drawn);
  Check(times.count(chosen) == 1, "an algorithm that does not work");
  const float own = times.at(chosen);
  const bool may_be_slower =
      drawn.problem.is_training && chosen == RnnAlgorithm::kStandard;
  for (const auto& [algorithm, sum] : times) {
    Check(own <= (may_be_slower ? kTolerated : 1.0f) * sum,
          "an algorithm that is not the fastest");
    Check(!drawn.problem.is_training || algorithm != RnnAlgorithm::kStandard ||
              chosen == algorithm || sum > 1.01f * own,
          "little is gained for the memory");
  }
}

// A pass is a chain only if its graph is nearly one, and only if the chain
// works and is faster.
void CheckChain(const FakePass& pass, bool is_chain) {
  const bool may_be_chain = pass.beside == kManyBeside && !pass.chain_fails;
  if (is_chain) {
    Check(may_be_chain, "a chain that does not work, or gains nothing");
    Check(pass.chain < pass.graph, "a chain that is slower");
  } else if (may_be_chain) {
    Check(pass.graph <= kTolerated * pass.chain, "a graph that is slower");
  }
}

Choice Measure(const Drawn& drawn, CudnnSession* session,
               CudnnConfiguration* configuration) {
  return MeasureChoice(session, configuration, drawn.asked, [](size_t bytes) {
    return std::shared_ptr<void>(new char[bytes], [](void* memory) {
      delete[] static_cast<char*>(memory);
    });
  });
}

// The samples of an algorithm that fails after some of them do not count, be it
// ever so fast.
void CheckFailureAfterSamples(unsigned seed) {
  std::mt19937 random(seed);
  Drawn drawn = Draw(&random);
  drawn.asked = {RnnAlgorithm::kStandard, RnnAlgorithm::kPersistStatic};
  std::shuffle(drawn.asked.begin(), drawn.asked.end(), random);
  const RnnAlgorithm works = drawn.asked[0], fails = drawn.asked[1];
  std::shuffle(drawn.asked.begin(), drawn.asked.end(), random);
  for (FakeAlgorithm& algorithm : algorithms) {
    algorithm.is_there = true;
    for (FakePass& pass : algorithm.passes) {
      pass = {1, 1, 1, false, false, kManyBeside};
    }
  }
  // The first run is the warm-up, and four samples follow.
  FakePass* const passes = algorithms[static_cast<int>(fails)].passes;
  const int failing = random() % drawn.num_passes();
  passes[failing].fails_from = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < 2; ++i) passes[i].calls = passes[i].graph = 0.6f;

  CudnnSession session;
  Check(session.Open(nullptr, [] { return size_t{0}; }).ok(), "a session");
  CudnnConfiguration* const configuration =
      session.Configuration(drawn.problem, drawn.options);
  const Choice choice = Measure(drawn, &session, configuration);
  Check(passes[failing].runs == passes[failing].fails_from,
        "no failure after samples");
  Check(choice.source == "measured" && choice.algorithm == works,
        "an algorithm that fails after samples");
  Check(choice.timings.find(kRnnAlgorithmNames[static_cast<int>(fails)]) ==
            std::string::npos,
        "times of an algorithm that fails after samples");
}

void CheckChoice(unsigned seed) {
  std::mt19937 random(seed);
  now = 0;
  const Drawn drawn = Draw(&random);
  {
    CudnnSession session;
    Check(session.Open(nullptr, [] { return size_t{0}; }).ok(), "a session");
    CudnnConfiguration* const configuration =
        session.Configuration(drawn.problem, drawn.options);
    const Choice choice = Measure(drawn, &session, configuration);
    const bool is_measured = choice.source == "measured";
    Check(is_measured == !choice.timings.empty(), "timings");
    const bool is_chain[] = {choice.forward_is_chain, choice.backward_is_chain};
    if (is_measured) {
      CheckAlgorithm(drawn, choice.algorithm);
    } else {
      Check(choice.source == "rule" &&
                choice.algorithm == RnnAlgorithm::kStandard,
            "the rule");
    }

    // A single algorithm is timed only to be compared with its chains.
    const auto is_there = [](RnnAlgorithm algorithm) {
      return algorithms[static_cast<int>(algorithm)].is_there;
    };
    const auto num_there =
        std::count_if(drawn.asked.begin(), drawn.asked.end(), is_there);
    const bool works = !TimesOf(drawn).empty();
    Check(works || !is_measured, "nothing works, but something was measured");
    if (num_there > 1) Check(is_measured == works, "some were not measured");
    if (num_there == 1 && works) {
      const auto alone =
          std::find_if(drawn.asked.begin(), drawn.asked.end(), is_there);
      const auto& passes = algorithms[static_cast<int>(*alone)].passes;
      const bool may_be_chain = std::any_of(
          passes, passes + drawn.num_passes(),
          [](const FakePass& pass) { return pass.beside == kManyBeside; });
      Check(is_measured == (drawn.options.replay && may_be_chain),
            "an algorithm without rivals");
      Check(is_measured == (now > 0), "it was timed for nothing");
    }

    // Only the chosen algorithm is kept, with replays of the chosen kind.
    const int chosen = static_cast<int>(choice.algorithm);
    for (int i = 0; is_measured && i < kNumMeasuredAlgorithms; ++i) {
      Check((configuration->passes[i] != nullptr) == (i == chosen),
            "other passes are kept");
    }
    const auto& kept = configuration->passes[chosen];
    Check(works || num_there == 1 || kept == nullptr ||
              (kept->forward.replay == nullptr &&
               kept->backward.replay == nullptr),
          "replays of what does not work");
    const int num_replayed =
        is_measured && drawn.options.replay ? drawn.num_passes() : 0;
    for (int pass = 0; pass < 2; ++pass) {
      if (pass >= num_replayed) {
        Check(!is_chain[pass], "a chain that was not timed");
        continue;
      }
      const FakePass& fake = algorithms[chosen].passes[pass];
      CheckChain(fake, is_chain[pass]);
      Replay* const replay = kept->of(static_cast<Pass>(pass)).replay.get();
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
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckChoice(seed);
    cudnn_rnn_tf::CheckFailureAfterSamples(seed);
  });
}
