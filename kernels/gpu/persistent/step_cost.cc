// Models of what a step of a layer costs with each kind of team.
#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/division.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kMaxThreadRegisters = 255;
// The driver keeps this many bytes of each block's shared memory for itself.
constexpr int kReservedBytes = 1024;

// A request that a GPU runs in a shape, and what its cost depends on.
struct TeamStep {
  const KernelRequest& request;
  const DeviceLimits& gpu;
  const Shape& shape;

  const bool is_backward = request.is_backward;
  // A warp's share of the products, and a thread's cells.
  const int tiles = shape.warp_tiles(is_backward);
  const int pairs = shape.pairs(is_backward);
  const int rounds = shape.rounds();
  const int quarter = CeilDiv(shape.warps, 4);  // Of a block's warps.
};

// A multiprocessor has four parts, each with a quarter of the registers, and a
// block's warps are dealt to these in turn.
int RegistersOfThread(const DeviceLimits& gpu, int warps) {
  const int threads = CeilDiv(warps, 4) * 4 * 32;
  return std::min(kMaxThreadRegisters, gpu.registers / threads / 8 * 8);
}

// What was fitted to a kind of team, in a forward or a backward pass.
struct Constants {
  // Cycles of an exchange, and of each byte of it.
  struct {
    double wait, byte;
  } exchange;
  // What Products, Powers and SharedReads return is multiplied by these.
  struct {
    double products, powers, reads;
  } factors;
  // Of each round of a thread's cells, of the square of their number, of that
  // times ShareOfGates, of each round of each warp, of a step, of each warp of
  // a quarter, and of each part of the sums but the first.
  struct {
    double round, square, gate_square, cell, step, warp, split;
  } cycles;
  // Of a thread, besides those for weights and sums, about as compilers report
  // them: some, and more for each round and for each group of sequences.
  struct {
    int base, of_round, of_group;
  } registers;
};

// Each kind of team has a row for forward and one for backward passes:
// {{wait, byte}, {products, powers, reads},
//  {round, square, gate_square, cell, step, warp, split},
//  {base, of_round, of_group}}
constexpr Constants kCluster[] = {
    {{400, .1}, {1, 1, 1}, {200, 0, 0, 0, 0, 120, 100}, {44, 26, 0}},
    {{400, .1}, {1, 1, 1}, {200, 0, 0, 0, 0, 120, 100}, {48, 28, 0}}};
constexpr Constants kGrid[] = {
    {{2000, .04}, {1, 1, 1}, {200, 0, 0, 0, 0, 120, 100}, {44, 26, 0}},
    {{1850, .12}, {1, 1, 1}, {200, 0, 0, 0, 0, 120, 100}, {48, 28, 0}}};
constexpr Constants kBand[] = {
    {{2400, .1}, {2, 1, 1.2}, {650, 0, 0, 0, 0, 0, 0}, {32, 32, 0}},
    {{3000, .08}, {3.7, 1, 1.2}, {650, 0, 0, 0, 0, 0, 0}, {48, 28, 0}}};
// With warpgroups, grids and bands were fitted to 24 layers of 384 to 2048
// units, with a margin for others; threads of many cells lack registers. TF32
// is multiplied in float16.
constexpr Constants kWideGrid[] = {
    {{2000, .04}, {1, 1, 0}, {0, 205, 0, 0, 1000, 0, 0}, {95, 8, 0}},
    {{1850, .12}, {1.2, 1, 0}, {100, 0, 0, 0, 0, 0, 0}, {100, 20, 8}}};
constexpr Constants kWideGridTf32[] = {
    {{2000, .04}, {1, 1, 0}, {0, 205, 0, 0, 1000, 0, 0}, {95, 8, 0}},
    {{1850, .12}, {1.2, 1, 0}, {100, 0, 0, 0, 500, 0, 0}, {100, 20, 8}}};
constexpr Constants kWideBand[] = {
    {{2400, .1}, {2, 1, 0}, {450, 0, 0, 0, 0, 0, 0}, {127, 8, 0}},
    {{3000, .08}, {2, 1, 0}, {450, 0, 0, 0, 0, 0, 0}, {100, 20, 8}}};
// Clusters with warpgroups were fitted to 40 runs of 128 to 512 units with 200
// to 2048 sequences. They are large where a forward lane has cells of two units
// or a backward warp more than two tiles; the latter was not measured.
constexpr Constants kWideCluster[] = {
    {{400, .1}, {1, 1, 0}, {0, 12, 0, 48, 300, 0, 0}, {64, 0, 32}},
    {{400, .1}, {1, 0, 0}, {0, 0, 0, 24, 500, 0, 0}, {155, 10, 0}}};
constexpr Constants kWideClusterTf32[] = {
    {{400, .1}, {1, 1, 0}, {0, 12, 0, 48, 300, 0, 0}, {64, 0, 32}},
    {{400, .1}, {1, 0, 0}, {0, 0, 0, 60, 0, 0, 0}, {155, 10, 0}}};
constexpr Constants kLargeWideCluster[] = {
    {{400, .1}, {1, 2.4, 0}, {0, 0, 27, 0, 300, 0, 0}, {60, 0, 38}},
    {{400, .1}, {1, 0, 0}, {0, 0, 0, 100, 0, 0, 0}, {155, 10, 0}}};
constexpr Constants kLargeWideClusterTf32[] = {
    {{400, .1}, {1, 2.4, 0}, {0, 0, 27, 0, 300, 0, 0}, {58, 0, 50}},
    {{400, .1}, {1, 0, 0}, {0, 0, 0, 100, 0, 0, 0}, {155, 10, 0}}};

const Constants& ConstantsOf(const TeamStep& step) {
  const Shape& shape = step.shape;
  const auto kind = [&]() -> const Constants* {
    const bool is_tf32 = shape.products == Shape::kHalves;
    if (!shape.has_warpgroups) {
      return shape.is_cluster ? kCluster : shape.has_bands() ? kBand : kGrid;
    }
    if (shape.has_bands()) return kWideBand;
    if (!shape.is_cluster) return is_tf32 ? kWideGridTf32 : kWideGrid;
    const bool is_large =
        step.is_backward ? step.tiles > 2 : shape.forward_has_tile_of_slot();
    if (is_large) return is_tf32 ? kLargeWideClusterTf32 : kLargeWideCluster;
    return is_tf32 ? kWideClusterTf32 : kWideCluster;
  };
  return kind()[step.is_backward];
}

// The registers for a thread's sums and, unless numbers are multiplied
// directly, for what they are split into or for those of all sequences.
int RegistersOfSums(const TeamStep& step) {
  const Shape& shape = step.shape;
  const int of_tiles = 4 * step.tiles * shape.row_tiles;
  if (shape.products == Shape::kFused) {
    return 4 * of_tiles + 40 * shape.row_tiles;
  }
  const int sums = shape.Chains(step.tiles) * of_tiles;
  return shape.products == Shape::kSplit
             ? sums + 36 + (8 * step.tiles + 4) * (shape.row_tiles - 1)
             : sums;
}

// The registers in which a thread receives parts of gradients, at most eight at
// a time: 16 bytes and an address each, and their sums.
int ReceivingRegisters(const Shape& shape) {
  const int senders = CeilDiv(shape.bands(), shape.backward_adders());
  return 7 * std::min(senders, 8) + shape.data_chunk_units();
}

// The registers that a thread takes for the norms of its cells: forward, theirs
// and what is normalised; backward, also those of the next step, the gradients
// and, of its units, the sums of the vectors' gradients. In teams that are no
// clusters, it also has what it waits for.
int RegistersOfNorms(const TeamStep& step) {
  const Shape& shape = step.shape;
  if (shape.norms == 0) return 0;
  const int units = shape.has_whole_rows(step.is_backward) ? 1 : step.rounds;
  return (shape.is_cluster ? 0 : 12) +
         shape.norms * (step.is_backward ? 4 * units + 7 * step.rounds
                                         : (shape.is_exact() ? 6 : 2) * units +
                                               4 * step.rounds);
}

// The fewest registers of a thread, besides those for weights; for shapes that
// were not tried, more than a thread can have. This was fitted to what NVRTC
// makes of LSTMs of 256 units for 8.0 and 8.9, of whose threads it moves at
// most 40 bytes to memory. Threads of more cells were slow.
int FewestRegisters(const TeamStep& step) {
  constexpr int kMostRounds = 6;
  const Shape& shape = step.shape;
  if (shape.is_cluster || shape.has_bands() || shape.is_exact() ||
      step.gpu.has_clusters() || step.rounds > kMostRounds) {
    return kMaxThreadRegisters + 1;
  }
  const int sums = RegistersOfSums(step);
  return RegistersOfNorms(step) +
         (step.is_backward ? 40 + 18 * step.rounds +
                                 std::max(sums, ReceivingRegisters(shape)) +
                                 4 * (step.tiles + shape.row_tiles - 1)
                           : 36 + 14 * step.rounds + 8 * step.tiles + sums +
                                 (shape.products == Shape::kHalves ? 8 : 0));
}

// The registers of a thread whose warp multiplies alone.
int RegistersOfWarps(const TeamStep& step) {
  const Shape& shape = step.shape;
  const Constants& of = ConstantsOf(step);
  const int sums = RegistersOfSums(step);
  const int others = of.registers.base + RegistersOfNorms(step);
  const bool has_margin =
      !shape.is_cluster && (shape.is_exact() || !step.gpu.known().is_measured);
  if (!step.is_backward) {
    return others + of.registers.of_round * step.rounds + 8 * step.tiles +
           sums + (shape.is_stack ? 9 * shape.forward_thread_chunks() : 0) +
           (has_margin ? 16 : 0);
  }
  const int more_rows = shape.row_tiles - 1;
  const int of_bands = shape.has_bands() ? step.gpu.known().band_registers : 0;
  if (has_margin) {
    constexpr int kMoreOfCell = 8;
    return others + of_bands + std::max(sums, ReceivingRegisters(shape)) +
           (of.registers.of_round + kMoreOfCell) * step.rounds +
           4 * (step.tiles + more_rows);
  }
  const bool finds_powers =
      shape.products == Shape::kHalves && !shape.has_bands();
  // Of kernels whose threads have cells of several units, the compiler moved 44
  // to 164 bytes of a thread to memory, and they took 1.1 to 1.7 times as long.
  const bool has_many_units =
      shape.is_exact() && !shape.has_whole_rows(step.is_backward);
  return others + of_bands + sums + of.registers.of_round * step.rounds +
         (finds_powers ? 12 * more_rows : 0) +
         (has_many_units ? 12 * (step.rounds + step.tiles) : 0);
}

// Returns the cycles until a block has so many bytes from its peers.
double Exchange(const TeamStep& step, double bytes) {
  const Shape& shape = step.shape;
  // Without clusters, such a block exchanges with itself alone. No wait hides
  // that its threads load and store for many cells; this was measured where an
  // H200 imitates an A100.
  if (shape.is_cluster && !step.gpu.has_clusters()) {
    return 2.0 * shape.block_units * shape.rows();
  }
  const Constants& of = ConstantsOf(step);
  return of.exchange.wait + of.exchange.byte * bytes;
}

// The bytes that a block receives in a step, as far as they cost.
double ReceivedBytes(const TeamStep& step) {
  const Shape& shape = step.shape;
  const double bytes = shape.step_bytes(step.is_backward);
  if (shape.is_cluster) return bytes;
  if (shape.has_bands()) {
    return step.is_backward ? bytes : shape.forward_sums_step_bytes();
  }
  if (!step.is_backward) {
    const int rows = std::min(step.request.batch_size(), shape.rows());
    return bytes * rows / shape.rows();
  }
  // There are fewer floats in a byte to add.
  const bool is_tf32 = shape.data_bytes() == 4 && !shape.is_exact();
  return is_tf32 ? 0.75 * bytes : bytes;
}

// The two exchanges of a cell that normalises. In other teams than clusters,
// lanes fetch one part after the other, and take longer if some of them have
// none. This was fitted to 60 divisions of 384 to 1024 units.
double WaitOfNorms(const TeamStep& step) {
  const Shape& shape = step.shape;
  if (shape.norms == 0) return 0.0;
  if (shape.is_cluster) return 2.0 * Exchange(step, shape.norm_bytes() / 2);
  const int parts = shape.norm_parts(), lanes = shape.row_lanes();
  return 2.0 * (1500.0 * CeilDiv(parts, lanes) + 0.04 * shape.norm_bytes() +
                (parts >= lanes     ? 0.0
                 : step.is_backward ? 600.0 * step.rounds
                                    : 2500.0 * step.rounds));
}

// The cycles of products: of warpgroups, or of a quarter of a block's warps. In
// bands, where registers are full, a warp's products wait for its loads while
// those of other warps go on, so only its own count.
double Products(const TeamStep& step) {
  // Split floats take three products of the tensor cores, and splitting them
  // takes as long again: where an H100 ran the code of 8.0, a layer's steps
  // took about as many cycles.
  constexpr double kSplitProducts = 6.0;
  const Shape& shape = step.shape;
  if (shape.has_warpgroups) {
    const double resident = shape.resident_pairs;
    const double of_column = shape.rows() / 4.0;
    return step.quarter * 2.0 * step.tiles *
           (resident * 2.0 * of_column +
            (step.pairs - resident) * (16.0 + of_column));
  }
  const double tiles = step.tiles * shape.row_tiles;
  const double of_warp = 2.0 * step.pairs * tiles;
  const Architecture& architecture = step.gpu.known();
  if (shape.products == Shape::kFused) {
    // Lanes add the sums of each quad.
    return step.quarter * (architecture.fused_cycles * of_warp + 60.0 * tiles);
  }
  return architecture.product_cycles * of_warp *
         (shape.has_bands() ? 1.0 : step.quarter) *
         (shape.products == Shape::kSplit ? kSplitProducts : 1.0);
}

// What all warps read of operands in shared memory. With fused multiply-adds,
// lanes read all sequences of a group.
double SharedReads(const TeamStep& step) {
  const Shape& shape = step.shape;
  const bool is_fused = shape.products == Shape::kFused;
  return 4.0 * shape.warps *
         (step.pairs * shape.row_tiles * (is_fused ? 4 : 1) +
          (step.pairs - shape.resident_pairs) * step.tiles * 2);
}

// Products in float16 take powers of two. A backward pass finds the largest
// gradient of each sequence, for which all warps meet unless one of them has
// all cells of the sequence in the block.
double Powers(const TeamStep& step) {
  const Shape& shape = step.shape;
  if (shape.products != Shape::kHalves) return 0.0;
  if (!step.is_backward) return 100.0 * step.rounds;
  if (!shape.backward_is_in_warp()) {
    return 400.0 + 200.0 * step.rounds;
  }
  return 100.0 + 40.0 * step.rounds +
         40.0 * std::max(0, shape.team - 8) * shape.is_cluster;
}

// Where lanes hold the sums of their cells, these cost less the fewer gates
// they have: this is a cell's share of what an LSTM's costs.
double ShareOfGates(const TeamStep& step) {
  const Shape& shape = step.shape;
  const RnnProblem& problem = step.request.problem;
  if (step.is_backward || !shape.forward_holds_cells()) return 1.0;
  const double of_gates = (problem.spec.num_gates() + 1) / 5.0;
  if (shape.forward_has_tile_of_slot()) return of_gates;
  if (shape.products == Shape::kHalves) return 1.0;
  constexpr double kLeast = 0.625;
  return problem.is_training ? std::max(kLeast, of_gates) : kLeast;
}

// Returns the cycles of a block in a step that are no waits.
double Work(const TeamStep& step) {
  const Shape& shape = step.shape;
  const Constants& of = ConstantsOf(step);
  const double rounds = step.rounds, cells = shape.warps * rounds;
  const double of_gates = of.factors.powers * Powers(step) +
                          of.cycles.gate_square * rounds * rounds +
                          of.cycles.cell * cells;
  return of.factors.products * Products(step) +
         of.factors.reads * SharedReads(step) + ShareOfGates(step) * of_gates +
         of.cycles.round * rounds + of.cycles.square * rounds * rounds +
         of.cycles.step + of.cycles.warp * step.quarter +
         of.cycles.split * (shape.splits - 1) +
         // The stages of a stack check whether each number of their inputs is
         // there. A cell that normalises adds sums over lanes.
         (shape.is_stack ? 300.0 * rounds - 150.0 : 0.0) +
         20.0 * shape.norms * cells;
}

// Tells whether all warps, each with so many tiles or groups of them, have
// something to multiply, and enough of it.
bool FillsWarps(const TeamStep& step) {
  const Shape& shape = step.shape;
  const int groups = shape.backward_groups();
  const int used = CeilDiv(groups, shape.backward_warp_groups());
  if (step.is_backward) {
    // A warpgroup is slow if some of its warps have fewer tiles than others.
    return !shape.has_warpgroups ? used >= shape.warps
           : shape.is_cluster    ? 2 * used >= shape.warps
                                 : groups % shape.warps == 0;
  }
  if (!shape.forward_holds_cells()) {
    return CeilDiv(shape.forward_tiles(), step.tiles) * shape.splits >=
           shape.warps;
  }
  const int neighbours = shape.forward_neighbours();
  return shape.block_units <= 8 * neighbours * shape.warps &&
         CeilDiv(shape.block_units, 32 * neighbours) * 4 >= shape.warps;
}

// The registers of a thread, besides those for weights.
int Registers(const TeamStep& step) {
  const Shape& shape = step.shape;
  if (!shape.has_warpgroups) return RegistersOfWarps(step);
  if (step.is_backward && shape.backward_has_few_cells()) return 128;
  const Constants& of = ConstantsOf(step);
  const bool counts_sums = !shape.is_cluster && !step.is_backward;
  const bool counts_units = shape.is_cluster && step.is_backward &&
                            !shape.has_whole_rows(step.is_backward);
  return of.registers.base + of.registers.of_round * step.rounds +
         of.registers.of_group * shape.row_tiles +
         (counts_sums ? RegistersOfSums(step) : 0) +
         (counts_units ? 2 * step.rounds : 0);
}

// Returns how often a multiprocessor has a share of the batch.
int Turns(const TeamStep& step) {
  const int teams = CeilDiv(step.request.batch_size(), step.shape.rows()) *
                    static_cast<int>(step.request.problem.spec.num_dirs()) *
                    step.shape.Stages(step.request.num_layers);
  return CeilDiv(teams, TeamsAtOnce(step.gpu, step.shape));
}

// Returns the cycles of a step of the whole batch. Blocks that share a
// multiprocessor wait at the same time, but work one after the other, or partly
// so if each has few warps that wait for memory.
double Cycles(const TeamStep& step) {
  const Shape& shape = step.shape;
  const DeviceLimits& gpu = step.gpu;
  const int registers =
      CeilDiv(Registers(step) + 8 * step.tiles * shape.resident_pairs, 8) * 8;
  const int room =
      std::min(gpu.registers / (shape.threads() * registers),
               BlocksWithMemory(gpu, shape.shared_bytes(step.is_backward)));
  const int turns = Turns(step);
  const int together = std::clamp(room, 1, turns);
  const double of_others =
      shape.has_warpgroups && shape.is_cluster ? 0.75 : 1.0;
  return CeilDiv(turns, together) *
         (Exchange(step, ReceivedBytes(step)) + WaitOfNorms(step) +
          (1.0 + of_others * (together - 1)) * Work(step));
}

// Returns the cycles in which clusters load the weights anew, for all shares of
// the batch but the first; what else may run a network has a beginning, too.
// This was fitted to 28 kernels at 40 and 160 steps, before forward kernels
// loaded several chunks at a time.
double LoadCycles(const TeamStep& step) {
  constexpr double kOfWeight = 0.7;
  const Shape& shape = step.shape;
  if (!shape.is_cluster) return 0.0;
  return kOfWeight * (Turns(step) - 1) * shape.block_units * shape.all_units() *
         static_cast<double>(step.request.problem.spec.num_gates());
}

}  // namespace

// Clusters of four blocks and more leave some multiprocessors of each group of
// the chip idle.
int TeamsAtOnce(const DeviceLimits& gpu, const Shape& shape) {
  const bool uses_all = !shape.is_cluster || shape.team < 4;
  const int usable = uses_all          ? gpu.multiprocessors
                     : shape.team < 16 ? gpu.multiprocessors * 10 / 11
                                       : gpu.multiprocessors * 17 / 20;
  return std::max(1, usable / shape.team);
}

int BlocksWithMemory(const DeviceLimits& gpu, int shared_bytes) {
  return (gpu.shared_bytes + kReservedBytes) / (shared_bytes + kReservedBytes);
}

void AddDivision(const KernelRequest& request, const DeviceLimits& gpu,
                 Shape shape, std::vector<Division>* divisions) {
  const TeamStep step = {request, gpu, shape};
  if (!FillsWarps(step) || shape.warps % shape.splits != 0) return;
  // With few registers, an H200 that imitated an A100 and an RTX 4090 took up
  // to 1.25 times as long as the model says.
  constexpr double kOfFewRegisters = 1.12;
  const int registers = RegistersOfThread(gpu, shape.warps);
  for (const bool has_few : {false, true}) {
    const int room =
        registers - (has_few ? FewestRegisters(step) : Registers(step));
    if (room < 0) continue;
    const auto fits = [&] {
      return shape.shared_bytes(request.is_backward) <= gpu.shared_bytes;
    };
    // Registers hold as many of the weights as they can. Of wide products, some
    // gain a little unless two blocks have room together, and more gain
    // nothing: with 256 units and 2048 sequences, a step took 8.9 µs with
    // three, 9.9 with two.
    const int most = std::min(room / (8 * step.tiles), step.pairs);
    const int gaining = !request.is_backward && step.tiles > 2   ? 3
                        : step.tiles <= 2 && shape.row_tiles > 2 ? 2
                                                                 : 0;
    shape.resident_pairs = shape.has_warpgroups && shape.is_cluster
                               ? std::min(gaining, most)
                               : most;
    while (!fits() && shape.resident_pairs < most) ++shape.resident_pairs;
    if (!fits()) continue;
    const double cycles = Cycles(step) * (has_few ? kOfFewRegisters : 1.0);
    // Registers that the model counts and compilers do not take hold more of
    // the weights. So LSTMs and GRUs of 256 units and 2048 sequences took 0.92
    // to 0.98 of the time as an A100. With few sequences, a step waits anyway.
    const int spare = (registers - FewestRegisters(step)) / (8 * step.tiles);
    if (shape.row_tiles > 1) {
      shape.resident_pairs =
          std::max(shape.resident_pairs, std::min(spare, step.pairs));
    }
    divisions->push_back({shape, cycles, LoadCycles(step)});
    return;
  }
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
