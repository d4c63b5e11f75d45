// The persistent kernels as functions that Python calls. This is a library for
// one shape, which the kernels' macros give, and for one kernel, whose file the
// macro KERNEL names.
#include "tests/programs/fake_device.h"

#include KERNEL

#if IS_BACKWARD
using Arguments = BackwardArguments;
constexpr auto kKernel = backward;
#else
using Arguments = ForwardArguments;
constexpr auto kKernel = forward;
#endif
constexpr int kSharedBytes = kShape.shared_bytes(kIsBackward);
constexpr int kTeamBytes = kShape.team_memory_bytes(kIsBackward);

// Runs both directions at the same time, as the kernel of a GPU with enough
// room does, with as many clusters as the batch needs, or with up to three
// other teams, which take the batch in shares. If the shape is a stack, its
// layers take the place of directions.
extern "C" void run(const Arguments* given, int directions, unsigned int seed) {
  const int teams = (given->sequences.batch + kRows - 1) / kRows;
  const int at_once =
      IS_CLUSTER ? teams : std::min(teams, 1 + static_cast<int>(seed % 3));
  const size_t memory_bytes = IS_STACK     ? sizeof(Chunk)
                              : IS_CLUSTER ? 0
                                           : kTeamBytes * at_once * directions;
  std::vector<Chunk> memory(memory_bytes / sizeof(Chunk));
  std::memset(static_cast<void*>(memory.data()), 0xFF, memory_bytes);
  Arguments arguments = *given;
  arguments.team_memory = memory_bytes == 0 ? nullptr : memory.data();
  const int stages = IS_STACK ? kShape.Stages(directions) : directions;
  FakeTeam all(
      TEAM, kThreads, kSharedBytes, seed,
      {static_cast<unsigned int>(at_once), static_cast<unsigned int>(stages)});
  all.Run([&arguments] { kKernel(arguments); });
}
