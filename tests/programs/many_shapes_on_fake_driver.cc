// Uses many shapes in one session, on a fake driver whose graphs have only
// empty nodes. Checks, without a GPU, which shapes are captured, and how often.
//
//   many_shapes_on_fake_driver SEEDS
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "kernels/gpu/cudnn/session.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

// A replay takes 6.4 MB, so 80 of them fit.
constexpr size_t kNodes = 400;
constexpr size_t kFit = 80;

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  AddEmptyGraphs<kNodes>(&libraries.cuda);
  return libraries;
}

namespace {

struct Session {
  CudnnSession session;
  int64_t captures = 0, replays = 0;

  Session() {
    Check(session.Open(nullptr, [] { return size_t{0}; }).ok(), "a session");
  }

  // Uses a shape as the backend does from its second use on.
  void Use(int64_t time) {
    RnnProblem problem;
    problem.max_time = time;
    CudnnConfiguration* const configuration =
        session.Configuration(problem, GpuOptions());
    std::unique_ptr<PlannedPasses>& runs = configuration->passes[1];
    if (runs == nullptr) runs = std::make_unique<PlannedPasses>();
    std::unique_ptr<Replay>& replay = runs->forward.replay;
    if (replay == nullptr) {
      if (!session.MakeRoomForReplay()) return;
      const RnnStatus status = Replay::Capture(
          nullptr, 0, {}, [](const CallAddresses&) { return RnnStatus(); },
          &replay);
      Check(status.ok(), status.message);
      ++captures;
    }
    Check(replay->Launch(nullptr, {}).ok(), "a launch");
    ++replays;
    Check(Replay::TotalBytes() < size_t{600} << 20, "too many replays");
  }
};

// Shapes that come again are not captured in turn if there are more than fit.
void CheckCycle(unsigned seed) {
  std::mt19937 random(seed);
  Session session;
  const int shapes = 100 + random() % 400;
  const int uses = 100 * shapes;
  for (int i = 0; i < uses; ++i) session.Use(1 + random() % shapes);
  Check(session.captures < 3 * static_cast<int64_t>(kFit), "captured in turn");
  Check(session.replays > 0.9 * uses * kFit / shapes, "too few are replayed");

  Session other;
  for (int i = 0; i < 100; ++i) other.Use(1);
  Check(other.captures == 1, "a second session has no room");
}

// Shapes that replace others for good are captured soon, however long the
// session has run before. No two sets of shapes fit at the same time.
void CheckChange(unsigned seed) {
  std::mt19937 random(seed);
  Session session;
  const int shapes = 41 + random() % 39;
  for (int i = 0; i < 20000; ++i) session.Use(5000);
  for (int i = 0; i < 5 * shapes; ++i) session.Use(3001 + i % shapes);
  for (int first : {0, 1000, 2000}) {
    for (int i = 0; i < 100 * shapes; ++i) {
      session.Use(1 + first + random() % shapes);
    }
    const int64_t before = session.replays;
    for (int i = 0; i < 10 * shapes; ++i) {
      session.Use(1 + first + random() % shapes);
    }
    Check(session.replays - before == 10 * shapes, "some are not replayed");
  }
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckCycle(seed);
    cudnn_rnn_tf::CheckChange(seed);
  });
}
