#include "kernels/gpu/persistent/division.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/ceil_div.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kMaxThreadRegisters = 255;
// The driver keeps this many bytes of each block's shared memory for itself.
constexpr int kReservedBytes = 1024;
// A larger team must promise to be this many times as fast as a smaller one.
// Batches of nearly all sizes then have the same shape, which is compiled once.
constexpr double kGain = 1.05;
// Where there are clusters, smaller teams gain nothing unless they are such.
constexpr int kLeastTeam = 8;
// A thread of a stack has at most this many loads from the layer below under
// way.
constexpr int kMostChunks = 4;
// Warpgroups were not measured with fewer units, in clusters and in other
// teams.
constexpr int kFewestInClusters = 65, kFewestInGrids = 384;

// This is what the model knows of an architecture.
struct Architecture {
  int number;  // As DeviceLimits has it.
  // The cycles that a quarter of a multiprocessor takes for one MultiplyAdd,
  // and for the same number of fused multiply-adds.
  double product_cycles, fused_cycles;
  // True if the registers of teams that are no clusters, and multiply directly,
  // were fitted to the fastest kernels that were measured. Others have a
  // margin, so that the compiler moves at most a few words to memory.
  bool is_measured;
};

// Returns the newest known architecture that is not newer than the GPU's. The
// cycles of a product for 9.0 were measured on an H200, and the others follow
// from it by the throughput of tensor cores with float32 sums in NVIDIA's data
// sheets. Of 8.6 and 8.9, data centers' GPUs have the cycles that stand here,
// and GeForce GPUs twice as many. Those of fused multiply-adds follow from the
// throughput of arithmetic instructions in the CUDA Programming Guide: 64 in a
// cycle of a multiprocessor for 7.5 and 8.0, and 128 for the others.
const Architecture& ArchitectureOf(const DeviceLimits& gpu) {
  static constexpr Architecture kKnown[] = {
      {75, 16.0, 64.0, false}, {80, 8.0, 64.0, false},  {86, 16.0, 32.0, false},
      {89, 16.0, 32.0, false}, {90, 8.0, 32.0, true},   {100, 8.0, 32.0, false},
      {103, 8.0, 32.0, false}, {120, 16.0, 32.0, false}};
  const Architecture* found = kKnown;
  for (const Architecture& known : kKnown) {
    if (known.number <= gpu.architecture) found = &known;
  }
  return *found;
}

// Split floats take three products of the tensor cores, and splitting them
// takes as long again: where an H100 ran the code of 8.0, a layer's steps took
// about as many cycles.
constexpr double kSplitProducts = 6.0;

// The ways to multiply.
std::vector<int> WaysToMultiply(const KernelRequest& request,
                                const DeviceLimits& gpu) {
  if (!request.is_float()) return {Shape::kDirect};
  if (!HasTf32(gpu.architecture)) return {Shape::kFused};
  if (request.allow_tf32) {
    // The h of ReLU networks and their like has no bound. In the backward
    // passes of small layers, finding the largest gradients takes longer than
    // it saves.
    if (!request.problem.spec.bounds_h()) return {Shape::kDirect};
    if (!request.is_backward) return {Shape::kHalves};
    return {Shape::kHalves, Shape::kDirect};
  }
  return {Shape::kSplit, Shape::kFused};
}

bool HasClusters(const DeviceLimits& gpu) {
  return LargestCluster(gpu.architecture) > 1;
}

// A multiprocessor has four parts, each with a quarter of the registers, and a
// block's warps are dealt to these in turn.
int RegistersOfThread(const DeviceLimits& gpu, int warps) {
  const int threads = CeilDiv(warps, 4) * 4 * 32;
  return std::min(kMaxThreadRegisters, gpu.registers / threads / 8 * 8);
}

// The sizes of teams, and whether each is a cluster. A device may grant smaller
// clusters than its architecture allows; that shows once a kernel is compiled.
std::vector<std::pair<int, bool>> Teams(const DeviceLimits& gpu) {
  std::vector<std::pair<int, bool>> teams;
  const int largest_cluster = LargestCluster(gpu.architecture);
  for (int team = 1; team <= largest_cluster; team *= 2) {
    teams.emplace_back(team, true);
  }
  // Teams that are no clusters have one of some small sizes, or as many blocks
  // as a few teams can have at the same time.
  if (largest_cluster == 1) {
    for (const int team : {2, 3, 4, 6}) teams.emplace_back(team, false);
  }
  for (const int team : {8, 12, 16}) teams.emplace_back(team, false);
  for (int at_once = largest_cluster == 1 ? 10 : 6; at_once >= 1; --at_once) {
    teams.emplace_back(gpu.multiprocessors / at_once, false);
  }
  return teams;
}

// The number of teams that run at the same time. Clusters of four blocks and
// more leave some multiprocessors of each group of the chip idle.
int TeamsAtOnce(const DeviceLimits& gpu, const Shape& shape) {
  const bool uses_all = !shape.is_cluster || shape.team < 4;
  const int usable = uses_all          ? gpu.multiprocessors
                     : shape.team < 16 ? gpu.multiprocessors * 10 / 11
                                       : gpu.multiprocessors * 17 / 20;
  return std::max(1, usable / shape.team);
}

// Holds what a pass of a shape costs.
struct PassCost {
  int tiles, pairs;  // A warp's share.
  int useful_warps;  // The warps that have tiles.
  // The registers of a thread besides those for weights, about as compilers
  // report them.
  int registers;
  double wait;  // Cycles until a block has what its peers send in a step.
};

// The cycles that a warpgroup's products take.
double WideProducts(const Shape& shape, const PassCost& cost) {
  const double resident = shape.resident_pairs;
  const double in_shared = cost.pairs - resident;
  const double of_column = shape.rows() / 4.0;
  return CeilDiv(shape.warps, 4) * 2.0 * cost.tiles *
         (resident * 2.0 * of_column + in_shared * (16.0 + of_column));
}

int Rounds(const Shape& shape) {
  return CeilDiv(shape.block_units * shape.rows(), 32 * shape.warps);
}

// The registers for a thread's sums and, unless numbers are multiplied
// directly, for what they are split into or for those of all sequences.
int Sums(const Shape& shape, int tiles) {
  const int of_tiles = 4 * tiles * shape.row_tiles;
  if (shape.products == Shape::kFused) {
    return 4 * of_tiles + 40 * shape.row_tiles;
  }
  const int sums = shape.Chains(tiles) * of_tiles;
  return shape.products == Shape::kSplit
             ? sums + 36 + (8 * tiles + 4) * (shape.row_tiles - 1)
             : sums;
}

double ClusterWait(const DeviceLimits& gpu, const Shape& shape,
                   int step_bytes) {
  // Without clusters, such a block exchanges with itself alone. No wait hides
  // that its threads load and store for many cells; this was measured where an
  // H200 imitates an A100.
  if (!HasClusters(gpu)) return 2.0 * shape.block_units * shape.rows();
  return 400.0 + 0.1 * step_bytes;
}

// The registers in which a thread receives parts of gradients, at most eight at
// a time: 16 bytes and an address each, and their sums.
int ReceivingRegisters(const Shape& shape) {
  const int senders = CeilDiv(shape.bands(), shape.backward_adders());
  return 7 * std::min(senders, 8) + shape.data_chunk_units();
}

bool HasMargin(const DeviceLimits& gpu, const Shape& shape) {
  return !shape.is_cluster &&
         (shape.is_exact() || !ArchitectureOf(gpu).is_measured);
}

// The registers that a thread takes for the norms of its cells: forward, theirs
// and what is normalised; backward, also those of the next step, the gradients
// and, of its units, the sums of the vectors' gradients. In teams that are no
// clusters, it also has what it waits for.
int RegistersOfNorms(const Shape& shape, bool is_backward) {
  if (shape.norms == 0) return 0;
  const int rounds = Rounds(shape);
  const int units = 32 * shape.warps % shape.block_units == 0 ? 1 : rounds;
  return (shape.is_cluster ? 0 : 12) +
         shape.norms * (is_backward
                            ? 4 * units + 7 * rounds
                            : (shape.is_exact() ? 6 : 2) * units + 4 * rounds);
}

PassCost ForwardCost(const DeviceLimits& gpu, const Shape& shape, int batch) {
  const int rows = std::min(batch, shape.rows());
  const int tiles = shape.forward_warp_tiles();
  const int of_below = shape.is_stack ? 9 * shape.forward_thread_chunks() : 0;
  const double wait =
      shape.is_cluster ? ClusterWait(gpu, shape, shape.forward_step_bytes())
      : shape.has_bands()
          ? 2400.0 + 0.1 * shape.forward_sums_step_bytes()
          : 2000.0 + 0.04 * rows * shape.forward_step_bytes() / shape.rows();
  const int useful = CeilDiv(shape.forward_tiles(), tiles) * shape.splits;
  if (shape.forward_holds_cells()) {
    const int neighbours = shape.forward_neighbours();
    const bool has_room = shape.block_units <= 8 * neighbours * shape.warps;
    return {tiles, shape.forward_warp_pairs(),
            has_room ? CeilDiv(shape.block_units, 32 * neighbours) * 4 : 0,
            neighbours == 1           ? 64 + 32 * shape.row_tiles
            : shape.data_bytes() == 2 ? 60 + 38 * shape.row_tiles
                                      : 58 + 50 * shape.row_tiles,
            wait};
  }
  if (shape.has_warpgroups) {
    return {tiles, shape.forward_warp_pairs(), useful,
            95 + 8 * Rounds(shape) + Sums(shape, tiles), wait};
  }
  return {tiles, shape.forward_warp_pairs(), useful,
          8 * tiles + Sums(shape, tiles) + of_below +
              (shape.has_bands() ? 32 + 32 * Rounds(shape)
                                 : 44 + 26 * Rounds(shape)) +
              (HasMargin(gpu, shape) ? 16 : 0) +
              RegistersOfNorms(shape, /*is_backward=*/false),
          wait};
}

PassCost BackwardCost(const DeviceLimits& gpu, const Shape& shape) {
  const int tiles = shape.backward_warp_tiles();
  const int sums = Sums(shape, tiles);
  // There are fewer floats in a byte to add.
  const bool is_tf32 = shape.data_bytes() == 4 && !shape.is_exact();
  const double of_byte = is_tf32 ? 0.09 : 0.12;
  const int more = shape.has_bands() ? 32
                   : shape.products == Shape::kHalves
                       ? 12 * (shape.row_tiles - 1)
                       : 0;
  const double wait =
      shape.is_cluster    ? ClusterWait(gpu, shape, shape.backward_step_bytes())
      : shape.has_bands() ? 3000.0 + 0.08 * shape.backward_step_bytes()
                          : 1850.0 + of_byte * shape.backward_step_bytes();
  const int useful =
      CeilDiv(shape.backward_groups(), shape.backward_warp_groups());
  if (shape.has_warpgroups && shape.is_cluster) {
    const int rounds = Rounds(shape);
    const bool has_one_unit = 32 * shape.warps % shape.block_units == 0;
    return {tiles, shape.backward_pairs(),
            2 * useful < shape.warps ? 0 : shape.warps,
            shape.row_tiles == 2 && rounds <= 4
                ? 128
                : 155 + (has_one_unit ? 10 : 12) * rounds,
            wait};
  }
  if (shape.has_warpgroups) {
    // A warpgroup is slow if some of its warps have fewer tiles than others.
    const bool is_even = shape.backward_groups() % shape.warps == 0;
    return {tiles, shape.backward_pairs(), is_even ? shape.warps : 0,
            100 + 20 * Rounds(shape) + 8 * shape.row_tiles, wait};
  }
  return {
      tiles, shape.backward_pairs(), useful,
      (HasMargin(gpu, shape)
           ? 48 + std::max(sums, ReceivingRegisters(shape)) +
                 36 * Rounds(shape) + 4 * tiles + 4 * (shape.row_tiles - 1) +
                 (!shape.has_bands()       ? 0
                  : gpu.architecture < 100 ? 16
                                           : 48)
           : 48 + sums + 28 * Rounds(shape) + more) +
          RegistersOfNorms(shape, /*is_backward=*/true),
      wait};
}

// Estimates the cycles of a step of the whole batch.
double Cycles(const KernelRequest& request, const DeviceLimits& gpu,
              const Shape& shape, const PassCost& cost, int shared_bytes) {
  const double products =
      CeilDiv(shape.warps, 4) * 2.0 * cost.pairs * cost.tiles * shape.row_tiles;
  // With fused multiply-adds, lanes read all sequences of a group, and then add
  // the sums of each quad.
  const bool is_fused = shape.products == Shape::kFused;
  const double shared_reads =
      4.0 * shape.warps *
      (cost.pairs * shape.row_tiles * (is_fused ? 4 : 1) +
       (cost.pairs - shape.resident_pairs) * cost.tiles * 2);
  const double quad_sums =
      is_fused ? 60.0 * CeilDiv(shape.warps, 4) * cost.tiles * shape.row_tiles
               : 0.0;
  const Architecture& architecture = ArchitectureOf(gpu);
  const double product_cycles =
      is_fused ? architecture.fused_cycles
               : architecture.product_cycles *
                     (shape.products == Shape::kSplit ? kSplitProducts : 1.0);
  // The stages of a stack check whether each number of their inputs is there.
  const double looks = shape.is_stack ? 300.0 * Rounds(shape) - 150.0 : 0.0;
  // Products in float16 take powers of two. A backward pass finds the largest
  // gradient of each sequence, for which all warps meet unless one of them has
  // all cells of the sequence in the block.
  const bool is_in_warp =
      shape.block_units <= 32 && 32 % shape.block_units == 0;
  const double powers =
      shape.products != Shape::kHalves ? 0.0
      : !request.is_backward           ? 100.0 * Rounds(shape)
      : is_in_warp ? 100.0 + 40.0 * Rounds(shape) +
                         40.0 * std::max(0, shape.team - 8) * shape.is_cluster
                   : 400.0 + 200.0 * Rounds(shape);
  double work = 200.0 * Rounds(shape) + 100.0 * (shape.splits - 1) +
                120.0 * CeilDiv(shape.warps, 4) + product_cycles * products +
                shared_reads + quad_sums + looks + powers;
  if (shape.has_bands()) {
    // The registers are full, so a warp's products wait for its loads, while
    // those of other warps go on.
    const double of_warp = products / CeilDiv(shape.warps, 4);
    work = 650.0 * Rounds(shape) + 1.2 * shared_reads + powers +
           product_cycles * of_warp * (request.is_backward ? 3.7 : 2.0);
  }
  // Blocks that share a multiprocessor wait at the same time, but work one
  // after the other, or partly so if each has few warps that wait for memory.
  double of_others = 1.0;
  if (shape.has_warpgroups) {
    const int rounds = Rounds(shape);
    const double wide = WideProducts(shape, cost);
    if (shape.is_cluster) {
      // Fitted to 20 runs of 128 and 256 units with 640 and 2048 sequences.
      // More than two tiles backward were not measured.
      const double cells = shape.warps * rounds, squares = rounds * rounds;
      const double of_gates =
          (KindOf(request.problem.spec.rnn_mode).num_gates + 1) / 5.0;
      const double of_gradients = cost.tiles > 2                     ? 100.0
                                  : shape.products == Shape::kHalves ? 60.0
                                                                     : 40.0;
      work = wide +
             (request.is_backward ? of_gradients * cells
              : shape.forward_neighbours() == 1
                  ? 300.0 + powers + 12.0 * squares +
                        (shape.products == Shape::kHalves ? 48.0 : 30.0) * cells
                  : 300.0 + of_gates * (2.4 * powers + 27.0 * squares));
      of_others = 0.75;
    } else {
      // Fitted to 24 layers of 384 to 2048 units, with a margin for others.
      // Threads of many cells lack registers.
      const double margin = shape.products == Shape::kHalves ? 500.0 : 0.0;
      work = powers +
             (!request.is_backward ? wide + 1000.0 + 205.0 * rounds * rounds
              : shape.has_bands()  ? 2.0 * wide + 450.0 * rounds
                                   : 1.2 * wide + 100.0 * rounds + margin);
    }
  }
  // A cell that normalises adds sums over lanes, and two exchanges.
  work += 20.0 * shape.norms * shape.warps * Rounds(shape);
  // In other teams than clusters, lanes fetch one part after the other, and
  // take longer if some of them have none. This was fitted to 60 divisions of
  // 384 to 1024 units.
  const int parts = shape.norm_parts(), lanes = shape.row_lanes();
  const double of_exchange =
      shape.norms == 0 ? 0.0
      : shape.is_cluster
          ? ClusterWait(gpu, shape, shape.norm_bytes() / 2)
          : 1500.0 * CeilDiv(parts, lanes) + 0.04 * shape.norm_bytes() +
                (parts >= lanes        ? 0.0
                 : request.is_backward ? 600.0 * Rounds(shape)
                                       : 2500.0 * Rounds(shape));
  const double wait = cost.wait + 2.0 * of_exchange;
  const int registers =
      CeilDiv(cost.registers + 8 * cost.tiles * shape.resident_pairs, 8) * 8;
  const int room = std::min(gpu.registers / (32 * shape.warps * registers),
                            BlocksWithMemory(gpu, shared_bytes));
  const int teams = CeilDiv(request.batch_size(), shape.rows()) *
                    static_cast<int>(request.problem.spec.num_dirs()) *
                    shape.Stages(request.num_layers);
  const int turns = CeilDiv(teams, TeamsAtOnce(gpu, shape));
  const int together = std::clamp(room, 1, turns);
  return CeilDiv(turns, together) *
         (wait + (1.0 + of_others * (together - 1)) * work);
}

// Returns shapes that differ in how their sums are made. The fields that the
// loops of Divisions and Complete set are zero.
std::vector<Shape> WaysToSum(const KernelRequest& request,
                             const DeviceLimits& gpu) {
  std::vector<Shape> ways;
  const auto add = [&](int products, int splits, int slices,
                       bool has_warpgroups) {
    Shape& shape = ways.emplace_back(Shape{});
    shape.products = products;
    shape.splits = splits;
    shape.slices = slices;
    shape.has_warpgroups = has_warpgroups;
  };
  for (const int products : WaysToMultiply(request, gpu)) {
    for (const int splits : {1, 2}) {
      if (request.is_backward && splits > 1) continue;
      for (const int slices : {1, 2, 4, 8}) {
        add(products, splits, slices, false);
      }
    }
    // Only Hopper has such products, of operands in 16 bits.
    if (gpu.architecture != 90 || request.is_stack() ||
        (products != Shape::kHalves && request.is_float()) ||
        request.units() < kFewestInClusters) {
      continue;
    }
    for (const int slices : {1, 2, 4}) {
      if (slices == 1 || request.is_backward) add(products, 1, slices, true);
    }
  }
  return ways;
}

// Sets the fields that follow from the others. Returns false if no kernel has
// such a shape, or it was never fast.
bool Complete(const KernelRequest& request, const DeviceLimits& gpu,
              Shape* of_kernel) {
  Shape& shape = *of_kernel;
  const CellKind& kind = request.problem.spec.kind();
  // Small clusters of more warps are faster than a block of one.
  if (shape.warps == 1 && HasClusters(gpu)) return false;
  if (shape.has_warpgroups) {
    const bool is_known =
        shape.is_cluster
            ? shape.warps >= 8 && shape.warps % 4 == 0 && shape.slices == 1
            : (shape.warps == 8 || shape.warps == 12) && shape.row_tiles < 5 &&
                  request.units() >= kFewestInGrids;
    if (shape.row_tiles == 1 || !is_known) return false;
  } else if (shape.row_tiles == 3 || shape.row_tiles == 5) {
    return false;
  }
  shape.units = request.units();
  shape.items = request.is_float() && shape.products != Shape::kHalves ? 1 : 2;
  shape.is_stack = request.is_stack();
  shape.norms = static_cast<int>(kind.num_norms);
  if (shape.norms > 0 &&
      (shape.has_bands() || shape.has_warpgroups || shape.is_stack)) {
    return false;
  }
  shape.slots = shape.has_bands() && !shape.has_warpgroups
                    ? static_cast<int>(kind.num_gates)
                    : 4;
  shape.block_units =
      CeilDiv(CeilDiv(shape.units, shape.team), shape.chunk_units()) *
      shape.chunk_units();
  // With 16 units a block, an LSTM of 128 units and 256 sequences took 1.2
  // times as long in training as without warpgroups.
  constexpr int kFewestOfWideBlock = 48;
  if (request.is_backward && shape.is_cluster && shape.has_warpgroups &&
      shape.block_units < kFewestOfWideBlock) {
    return false;
  }
  if (!shape.is_cluster) {
    // The team has no blocks that would be without units, or as few as fill a
    // band.
    const int least_team = HasClusters(gpu) ? kLeastTeam : 2;
    shape.team =
        CeilDiv(shape.units, shape.block_units * shape.slices) * shape.slices;
    if (shape.team < least_team || shape.team > gpu.multiprocessors) {
      return false;
    }
  }
  // Blocks of a band send whole tiles to each other, of operands in 16 bits.
  if (shape.has_bands() &&
      (shape.is_cluster || shape.items == 1 || shape.bands() == 1 ||
       shape.block_units * shape.slots % 16 != 0)) {
    return false;
  }
  return !shape.is_stack ||
         (shape.is_cluster && shape.units % shape.data_chunk_units() == 0 &&
          shape.forward_thread_chunks() <= kMostChunks &&
          CeilDiv(request.batch_size(), shape.rows()) *
                  shape.Stages(request.num_layers) <=
              TeamsAtOnce(gpu, shape));
}

// Adds the division of a shape, which gets its resident pairs, if a block has
// room for it.
void AddDivision(const KernelRequest& request, const DeviceLimits& gpu,
                 Shape shape, std::vector<Division>* divisions) {
  const PassCost cost = request.is_backward
                            ? BackwardCost(gpu, shape)
                            : ForwardCost(gpu, shape, request.batch_size());
  const int room = RegistersOfThread(gpu, shape.warps) - cost.registers;
  if (room < 0 || cost.useful_warps < shape.warps ||
      shape.warps % shape.splits != 0) {
    return;
  }
  const auto bytes = [&] {
    return request.is_backward ? shape.backward_shared_bytes()
                               : shape.forward_shared_bytes();
  };
  // Registers hold as many of the weights as they can. Of wide products, some
  // gain a little unless two blocks have room together, and more gain nothing:
  // with 256 units and 2048 sequences, a step took 8.9 µs with three, 9.9 with
  // two.
  const int most = std::min(room / (8 * cost.tiles), cost.pairs);
  const int gaining = !request.is_backward && cost.tiles > 2   ? 3
                      : cost.tiles <= 2 && shape.row_tiles > 2 ? 2
                                                               : 0;
  shape.resident_pairs =
      shape.has_warpgroups && shape.is_cluster ? std::min(gaining, most) : most;
  while (bytes() > gpu.shared_bytes && shape.resident_pairs < most) {
    ++shape.resident_pairs;
  }
  if (bytes() > gpu.shared_bytes) return;
  divisions->push_back({shape, Cycles(request, gpu, shape, cost, bytes())});
}

}  // namespace

std::vector<Division> Divisions(const KernelRequest& request,
                                const DeviceLimits& gpu) {
  std::vector<Division> divisions;
  const std::vector<Shape> ways = WaysToSum(request, gpu);
  for (const auto& [team, is_cluster] : Teams(gpu)) {
    for (const int row_tiles : {1, 2, 3, 4, 5}) {
      for (const int warps : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16}) {
        for (Shape shape : ways) {
          shape.team = team;
          shape.is_cluster = is_cluster;
          shape.row_tiles = row_tiles;
          shape.warps = warps;
          if (!Complete(request, gpu, &shape)) continue;
          AddDivision(request, gpu, shape, &divisions);
        }
      }
    }
  }
  return divisions;
}

int BlocksWithMemory(const DeviceLimits& gpu, int shared_bytes) {
  return (gpu.shared_bytes + kReservedBytes) / (shared_bytes + kReservedBytes);
}

const Division* ChooseDivision(const std::vector<Division>& divisions) {
  const Division* best = nullptr;
  for (const Division& division : divisions) {
    const bool is_larger =
        best != nullptr && division.shape.team > best->shape.team;
    if (best == nullptr ||
        division.cycles * (is_larger ? kGain : 1.0) < best->cycles) {
      best = &division;
    }
  }
  return best;
}

std::vector<std::string> ShapeMacros(const Shape& shape) {
#define CRNN_MACRO(name, macro) #macro "=" + std::to_string(shape.name),
  return {CRNN_SHAPE_FIELDS(CRNN_MACRO)};
#undef CRNN_MACRO
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
