#include "kernels/cpu/division.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

// Bytes per cycle that a core reads from its own L2 cache, and from the cache
// that all cores share.
constexpr int64_t kOwnBytes = 32, kSharedBytes = 8;
// Cycles in which matrix registers multiply their rows by one row of a panel.
// It takes them 1 to 2 if nothing disturbs them, but 5 to 7 in a slow state
// that docs/internals/cpu.md describes. With up to 4 sequences, vectors do so;
// a number of their own did not improve the choices.
constexpr int64_t kMatrixCycles = 8;
// Cycles of a cell's arithmetic for one unit of one sequence.
constexpr int64_t kCell = 12;
// Cycles that threads spend to meet after a step.
constexpr int64_t kMeeting = 2000;
// Cycles until the others have the states that a thread has computed: for each
// sequence, and for each unit of it. Cache lines go from one core to another,
// which takes far longer than the arithmetic on them.
constexpr int64_t kExchange = 1500, kExchangeOfUnit = 9;
// The numbers of matrix registers, meetings and exchange were fitted to 528
// steps on 16 cores of an Intel Xeon. Those of meetings and exchange fit two
// cores of an AMD EPYC as well.

// Returns the cycles that a thread takes for its part of a strand's step. They
// do not count that tall tiles multiply while they wait for the shared cache.
int64_t StepCycles(int64_t sequences, int64_t depth, int64_t panels,
                   const Core& core) {
  int64_t per_row = 0;
  for (int64_t left = sequences; left > 0;) {
    const bool has_matrices = core.matrix_rows > 1;
    const int64_t height =
        has_matrices ? std::min(left, core.matrix_rows) : TileHeight(left);
    per_row += std::max((has_matrices ? 1 : height) * core.panel_row_cycles,
                        core.panel_row_bytes / kOwnBytes);
    left -= height;
  }
  // A quarter of the cache is left for data other than weights.
  const int64_t bytes = depth * panels * core.panel_row_bytes;
  if (bytes > core.cache_bytes / 4 * 3) {
    per_row += core.panel_row_bytes / kSharedBytes;
  }
  return depth * panels * per_row;
}

int64_t OwnCacheBytes() {
  constexpr int64_t kUsual = 1 << 20;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
#else
  return kUsual;
#endif
}

}  // namespace

int64_t WorthThreads(const RnnProblem& problem, bool is_backward, int64_t count,
                     bool at_hand) {
  const double worth_one = at_hand ? 3.75e5 : 2.5e6;
  const RnnSpec& spec = problem.spec;
  const double fan_ins =
      spec.layer_input_size(0) +
      static_cast<double>(spec.num_layers - 1) * spec.layer_output_size() +
      static_cast<double>(spec.num_layers) * spec.output_size();
  const double weights =
      spec.num_dirs() * spec.num_gates() * spec.num_units * fan_ins;
  // A backward pass also writes the gradient of each weight, which takes as
  // long as about three operations.
  const double work =
      2.0 * problem.max_time * problem.batch_size + (is_backward ? 3 : 0);
  return std::clamp<int64_t>(static_cast<int64_t>(work * weights / worth_one),
                             1, count);
}

Core ThisCore(RnnDataType dtype, bool rounds_both) {
  Core core = {};
  Dispatch(dtype, [&](auto number) {
    const auto& simd = Kernels<decltype(number)>();
    const int64_t cols = simd.panel_vectors * simd.vector_cols;
    const auto bytes = static_cast<int64_t>(sizeof(number));
    // A core is assumed to multiply and add two vectors per cycle.
    core = {OwnCacheBytes(), cols, cols * bytes,
            CeilDiv(simd.panel_vectors, 2)};
  });
  if (rounds_both && Simd().multiplies_matrices()) {
    core.panel_row_bytes = core.panel_cols * 2;
    core.panel_row_cycles = kMatrixCycles;
    core.matrix_rows = Simd().bfloat16_rows;
  }
  return core;
}

int64_t Division::ThreadsInSteps(const RnnProblem& problem) const {
  return problem.spec.num_dirs() * PackedRows::NumBlocks(problem.batch_size) *
         strands * parts;
}

Division DivideGroups(const RnnProblem& problem, const Core& core,
                      int64_t num_threads) {
  const RnnSpec& spec = problem.spec;
  const int64_t block = PackedRows::MaxBlockSize(problem.batch_size);
  const int64_t panels = CeilDiv(spec.num_units, core.panel_cols);
  const int64_t depth = spec.num_gates() * spec.output_size();
  Division best = {num_threads};
  if (num_threads == 1) return best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t strands = 1; strands <= block; ++strands) {
    const int64_t lanes = Division{1, strands}.ThreadsInSteps(problem);
    const int64_t sharing = std::min(num_threads / lanes, panels);
    for (int64_t parts = 1; parts <= std::max<int64_t>(1, sharing); ++parts) {
      const int64_t sequences = CeilDiv(block, strands);
      const int64_t own_panels = CeilDiv(panels, parts);
      const int64_t units =
          std::min(own_panels * core.panel_cols, spec.num_units);
      int64_t cycles = CeilDiv(lanes * parts, num_threads) *
                       (StepCycles(sequences, depth, own_panels, core) +
                        sequences * units * kCell);
      if (parts > 1) {
        cycles += kMeeting + sequences * (kExchange + units * kExchangeOfUnit);
      }
      if (cycles >= least) continue;
      least = cycles;
      best = {num_threads, strands, parts, cycles};
    }
  }
  return best;
}

Division DivideForward(const RnnProblem& problem, const Core& core,
                       int64_t num_threads) {
  Division division = DivideGroups(problem, core, num_threads);
  const int64_t in_steps =
      std::min(num_threads, division.ThreadsInSteps(problem));
  division.threads = in_steps;
  const RnnSpec& spec = problem.spec;
  if (!spec.has_input_weights(0)) return division;
  const int64_t panels =
      CeilDiv(spec.num_gates() * spec.num_units, core.panel_cols);
  // These products are of the rows of several steps together.
  const int64_t steps = std::min(problem.max_time, core.matrix_rows);
  const int64_t tiles = CeilDiv(problem.batch_size * steps, core.matrix_rows);
  const int64_t input_cycles = tiles * spec.num_dirs() * panels *
                               spec.input_size * core.panel_row_cycles / steps;
  if (num_threads >= 2 * in_steps &&
      input_cycles / in_steps > division.cycles) {
    division.threads = num_threads;
  }
  return division;
}

}  // namespace cudnn_rnn_tf
