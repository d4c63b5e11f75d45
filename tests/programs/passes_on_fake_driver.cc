// Enqueues passes of many shapes in one session of the persistent kernels, on a
// fake driver whose graphs have only empty nodes. Checks, without a GPU, which
// passes are captured, how often, and what happens after failures.
//
//   passes_on_fake_driver SEEDS
#include <random>
#include <set>

#include "kernels/gpu/persistent/session.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

constexpr size_t kNodes = 20;
CUstream const kStream = reinterpret_cast<CUstream>(1);
int64_t num_direct, num_captures, num_launches;
bool captures_fail, launches_fail;

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  AddEmptyGraphs<kNodes>(&cuda);
  libraries.cublas.cublasCreate_v2 = [](cublasHandle_t*) {
    return CUBLAS_STATUS_SUCCESS;
  };
  cuda.cuStreamCreate = [](CUstream* stream, unsigned) {
    *stream = reinterpret_cast<CUstream>(2);
    return CUDA_SUCCESS;
  };
  cuda.cuStreamDestroy = [](CUstream) { return CUDA_SUCCESS; };
  cuda.cuStreamBeginCapture = [](CUstream, CUstreamCaptureMode) {
    return captures_fail ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  };
  cuda.cuGraphLaunch = [](CUgraphExec, CUstream) {
    ++num_launches;
    return launches_fail ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  };
  return libraries;
}

// This takes the place of kernels/gpu/persistent/network.cc.
namespace persistent {

RnnStatus Network::Create(const RnnProblem& problem, bool allow_tf32, bool,
                          Network* network) {
  network->problem_ = problem;
  network->allows_tf32_ = allow_tf32;
  return {};
}

RnnStatus Network::CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 Network* network) {
  network->loop_.emplace();
  return Create(problem, allow_tf32, false, network);
}

RnnStatus Network::Enqueue(Pass, const Handles& handles,
                           const CallAddresses&) const {
  ++(handles.stream == kStream ? num_direct : num_captures);
  return {};
}

}  // namespace persistent

namespace {

struct Passes {
  persistent::Session session;

  Passes() {
    Check(session.Open(kStream).ok(), "a session");
    num_direct = num_captures = num_launches = 0;
    captures_fail = launches_fail = false;
  }

  // Enqueues a pass once. To make a graph, the pass is captured twice.
  void Use(int64_t time, Pass pass = Pass::kForward, bool may_make = true) {
    RnnProblem problem;
    problem.max_time = time;
    Use(problem, pass, may_make, /*allow_tf32=*/true);
  }
  void Use(const RnnProblem& problem, Pass pass, bool may_make, bool allow_tf32,
           bool has_steps = false) {
    persistent::Network network;
    if (has_steps) {
      persistent::Network::CreateOfSteps(problem, allow_tf32, &network);
    } else {
      persistent::Network::Create(problem, allow_tf32, pass == Pass::kBackward,
                                  &network);
    }
    std::string why;
    const bool fails = captures_fail || launches_fail;
    const int64_t before = num_direct + (fails ? 0 : num_launches);
    Check(session.EnqueueReplay(network, pass, {}, may_make, &why).ok(),
          "a pass: " + why);
    const int64_t after = num_direct + (fails ? 0 : num_launches);
    Check(after == before + 1, "a pass is enqueued once");
  }
};

void CheckFirstUses() {
  Passes passes;
  passes.Use(1);
  Check(num_direct == 1 && num_captures == 0, "a first use is direct");
  passes.Use(1, Pass::kBackward);
  passes.Use(1, Pass::kForward, /*may_make=*/false);
  Check(num_direct == 3 && num_captures == 0, "passes are kept apart");
  for (int i = 0; i < 5; ++i) passes.Use(1);
  Check(num_direct == 3 && num_captures == 2 && num_launches == 5,
        "later uses are replays");
  passes.Use(1, Pass::kForward, /*may_make=*/false);
  Check(num_launches == 6, "what was launched needs no graph to be made");
}

void CheckFailures(bool in_capture) {
  Passes passes;
  (in_capture ? captures_fail : launches_fail) = true;
  for (int i = 0; i < 20; ++i) passes.Use(1);
  Check(num_direct == 20, "a failure falls back");
  captures_fail = launches_fail = false;
  const int64_t launches = num_launches;
  for (int i = 0; i < 1000; ++i) passes.Use(1);
  Check(num_launches - launches > 800, "a failure passes");
}

// A pass that enqueues its steps one by one has several kernels for each step,
// and a graph of many steps would take much memory.
void CheckSteps() {
  Passes passes;
  RnnProblem problem;
  problem.spec.num_layers = 2;
  const auto use = [&](int64_t time, bool allow_tf32, bool has_steps = true) {
    problem.max_time = time;
    for (int i = 0; i < 5; ++i) {
      passes.Use(problem, Pass::kForward, /*may_make=*/true, allow_tf32,
                 has_steps);
    }
  };
  use(10000, true);
  Check(num_direct == 5 && num_captures == 0, "a long pass is direct");
  use(100, true);
  Check(num_direct == 6 && num_captures == 2, "a short pass is replayed");
  // The same problem without TF32 is another pass, and so it is with kernels
  // that run all steps.
  use(100, false);
  Check(num_direct == 7 && num_captures == 4, "TF32 may be switched off");
  use(100, true, /*has_steps=*/false);
  Check(num_direct == 8 && num_captures == 6, "kernels may run all steps");
}

// Passes that push each other out are not captured in turn.
void CheckManyShapes(unsigned seed) {
  std::mt19937 random(seed);
  Passes passes;
  const int shapes = 1100 + random() % 3000;
  const int uses = 20 * shapes;
  for (int i = 0; i < uses; ++i) {
    passes.Use(seed % 2 == 0 ? i % shapes : random() % shapes);
  }
  Check(num_captures < 2 * 1100 + uses / 10, "captured in turn");
  // A pass that is used often after that is captured, though there is little
  // room.
  const int64_t launches = num_launches;
  for (int i = 0; i < 100; ++i) passes.Use(-1);
  Check(num_launches - launches > 80, "never captured");
  Check(Replay::TotalBytes() < size_t{600} << 20, "too much memory");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckFirstUses();
    cudnn_rnn_tf::CheckSteps();
    cudnn_rnn_tf::CheckFailures(seed % 2 == 0);
    cudnn_rnn_tf::CheckManyShapes(seed);
  });
}
