// The persistent kernels as functions that Python calls. This is a library for
// one shape, which the kernels' macros give, and for one kernel, whose file the
// macro KERNEL names.
#include "tests/programs/fake_device.h"

#include KERNEL

#if defined(IS_FORWARD)
using Arguments = ForwardArguments;
constexpr auto kKernel = forward;
constexpr int kSharedBytes = kShape.forward_shared_bytes();
constexpr int kRingBytes = kShape.forward_ring_bytes();
#else
using Arguments = BackwardArguments;
constexpr auto kKernel = backward;
constexpr int kSharedBytes = kShape.backward_shared_bytes();
constexpr int kRingBytes = kShape.backward_ring_bytes();
#endif

// Runs the directions one after the other. All clusters of a direction run at
// the same time; of other teams, only two do, which take the batch in shares.
// If the shape is a stack, whose layers take the place of directions, all of it
// runs at the same time.
extern "C" void run(const Arguments* given, int directions, unsigned int seed) {
  const int teams = (given->sequences.batch + kRows - 1) / kRows;
#if IS_STACK
  Word counter = ~0u;
  Arguments arguments = *given;
  arguments.part = {0, &counter};
  FakeTeam all(TEAM, kThreads, kSharedBytes, seed,
               {static_cast<unsigned int>(teams),
                static_cast<unsigned int>(kShape.Stages(directions))});
  all.Run([&arguments] { kKernel(arguments); });
#else
  const int at_once = IS_CLUSTER ? teams : std::min(teams, 2);
  for (int direction = 0; direction < directions; ++direction) {
    std::vector<Chunk> ring(at_once * kRingBytes / sizeof(Chunk));
    std::memset(static_cast<void*>(ring.data()), 0xFF, at_once * kRingBytes);
    Arguments arguments = *given;
    arguments.part = {direction, IS_CLUSTER ? nullptr : ring.data()};
    FakeTeam all(TEAM, kThreads, kSharedBytes, seed,
                 {static_cast<unsigned int>(at_once), 1});
    all.Run([&arguments] { kKernel(arguments); });
  }
#endif
}
