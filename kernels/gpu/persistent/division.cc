#include "kernels/gpu/persistent/division.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/ceil_div.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kRegisters = 65536, kMaxThreadRegisters = 255;
// The driver keeps this many bytes of each block's shared memory for itself.
constexpr int kReservedBytes = 1024;
// A larger team must promise to be this many times as fast as a smaller one.
// Batches of nearly all sizes then have the same shape, which is compiled once.
constexpr double kGain = 1.05;
// Teams smaller than this gain nothing unless they are clusters.
constexpr int kLeastTeam = 8;
// A thread of a stack has at most this many loads from the layer below under
// way.
constexpr int kMostChunks = 4;

int RegistersOfThread(int warps) {
  return std::min(kMaxThreadRegisters, kRegisters / (warps * 32) / 8 * 8);
}

// The number of teams that run at the same time. Clusters of four blocks and
// more leave some multiprocessors of each group of the chip idle.
int TeamsAtOnce(const GpuLimits& gpu, const Shape& shape) {
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

int Rounds(const Shape& shape) {
  return CeilDiv(shape.block_units * shape.rows(), 32 * shape.warps);
}

// The number of a thread's sums, each of which takes a register.
int Sums(const Shape& shape, int tiles) {
  return 4 * shape.Chains(tiles) * tiles * shape.row_tiles;
}

double ClusterWait(int step_bytes) { return 400.0 + 0.1 * step_bytes; }

PassCost ForwardCost(const Shape& shape) {
  const int tiles = shape.forward_warp_tiles();
  const int of_below = shape.is_stack ? 9 * shape.forward_thread_chunks() : 0;
  return {tiles, shape.forward_warp_pairs(),
          CeilDiv(shape.forward_tiles(), tiles) * shape.splits,
          44 + 8 * tiles + Sums(shape, tiles) + 26 * Rounds(shape) + of_below,
          shape.is_cluster ? ClusterWait(shape.forward_step_bytes())
                           : 2000.0 + 0.04 * shape.forward_step_bytes()};
}

PassCost BackwardCost(const Shape& shape) {
  const int tiles = shape.backward_warp_tiles();
  return {tiles, shape.backward_pairs(),
          CeilDiv(shape.backward_groups(), shape.backward_warp_groups()),
          48 + Sums(shape, tiles) + 28 * Rounds(shape),
          shape.is_cluster ? ClusterWait(shape.backward_step_bytes())
                           : 1850.0 + 0.12 * shape.backward_step_bytes()};
}

// Estimates the cycles of a step of the whole batch.
double Cycles(const Layer& layer, const GpuLimits& gpu, const Shape& shape,
              const PassCost& cost, int shared_bytes) {
  const double products =
      CeilDiv(shape.warps, 4) * 2.0 * cost.pairs * cost.tiles * shape.row_tiles;
  const double shared_reads =
      4.0 * shape.warps *
      (cost.pairs * shape.row_tiles +
       (cost.pairs - shape.resident_pairs) * cost.tiles * 2);
  // The stages of a stack check whether each number of their inputs is there.
  const double looks = shape.is_stack ? 300.0 * Rounds(shape) - 150.0 : 0.0;
  // Blocks that share a multiprocessor wait at the same time, but work one
  // after the other.
  const double work = 200.0 * Rounds(shape) + 100.0 * (shape.splits - 1) +
                      120.0 * CeilDiv(shape.warps, 4) + 8.0 * products +
                      shared_reads + looks;
  const int registers =
      CeilDiv(cost.registers + 8 * cost.tiles * shape.resident_pairs, 8) * 8;
  const int room = std::min(kRegisters / (32 * shape.warps * registers),
                            gpu.shared_bytes / (shared_bytes + kReservedBytes));
  const int teams = CeilDiv(layer.batch_size, shape.rows()) * layer.num_dirs *
                    shape.Stages(layer.num_layers);
  const int turns = CeilDiv(teams, TeamsAtOnce(gpu, shape));
  const int together = std::clamp(room, 1, turns);
  return CeilDiv(turns, together) * (cost.wait + together * work);
}

std::vector<Division> Divisions(const Layer& layer, const GpuLimits& gpu,
                                bool is_backward) {
  std::vector<Division> divisions;
  for (const auto& [team, is_cluster] : {std::pair(1, true),
                                         {2, true},
                                         {4, true},
                                         {8, true},
                                         {16, true},
                                         {8, false},
                                         {12, false},
                                         {16, false},
                                         {22, false},
                                         {26, false},
                                         {33, false},
                                         {44, false},
                                         {66, false},
                                         {132, false}}) {
    for (const int row_tiles : {1, 2, 4}) {
      for (const int warps : {2, 3, 4, 5, 6, 8, 10, 12, 16}) {
        for (const int splits : {1, 2}) {
          Shape shape = {};
          shape.units = layer.num_units;
          shape.items = layer.items;
          shape.team = team;
          shape.is_cluster = is_cluster;
          shape.warps = warps;
          shape.splits = splits;
          shape.row_tiles = row_tiles;
          shape.is_stack = layer.num_layers > 1;
          const int chunk_units = shape.chunk_units();
          shape.block_units =
              CeilDiv(CeilDiv(shape.units, team), chunk_units) * chunk_units;
          if (!is_cluster) {
            // The team has no blocks that would be without units.
            shape.team = CeilDiv(shape.units, shape.block_units);
            if (shape.team < kLeastTeam || shape.team > gpu.multiprocessors) {
              continue;
            }
          }
          if (shape.is_stack &&
              (!is_cluster || shape.units % chunk_units != 0 ||
               shape.forward_thread_chunks() > kMostChunks ||
               CeilDiv(layer.batch_size, shape.rows()) *
                       shape.Stages(layer.num_layers) >
                   TeamsAtOnce(gpu, shape))) {
            continue;
          }
          const PassCost cost =
              is_backward ? BackwardCost(shape) : ForwardCost(shape);
          const int room = RegistersOfThread(warps) - cost.registers;
          if (room < 0 || cost.useful_warps < warps || warps % splits != 0 ||
              (is_backward && splits > 1)) {
            continue;
          }
          shape.resident_pairs = std::min(room / (8 * cost.tiles), cost.pairs);
          const int shared_bytes = is_backward ? shape.backward_shared_bytes()
                                               : shape.forward_shared_bytes();
          if (shared_bytes > gpu.shared_bytes) continue;
          divisions.push_back(
              {shape, Cycles(layer, gpu, shape, cost, shared_bytes)});
        }
      }
    }
  }
  return divisions;
}

}  // namespace

std::vector<Division> ForwardDivisions(const Layer& layer,
                                       const GpuLimits& gpu) {
  return Divisions(layer, gpu, /*is_backward=*/false);
}

std::vector<Division> BackwardDivisions(const Layer& layer,
                                        const GpuLimits& gpu) {
  return Divisions(layer, gpu, /*is_backward=*/true);
}

bool ChooseDivision(const std::vector<Division>& divisions, Division* chosen) {
  const Division* best = nullptr;
  for (const Division& division : divisions) {
    const bool is_larger =
        best != nullptr && division.shape.team > best->shape.team;
    if (best == nullptr ||
        division.cycles * (is_larger ? kGain : 1.0) < best->cycles) {
      best = &division;
    }
  }
  if (best == nullptr) return false;
  *chosen = *best;
  return true;
}

std::vector<std::string> ShapeMacros(const Shape& shape) {
  std::vector<std::string> macros;
  for (const auto& [name, value] : {std::pair("NUM_UNITS", shape.units),
                                    {"TEAM", shape.team},
                                    {"IS_CLUSTER", shape.is_cluster},
                                    {"BLOCK_UNITS", shape.block_units},
                                    {"WARPS", shape.warps},
                                    {"SPLITS", shape.splits},
                                    {"ROW_TILES", shape.row_tiles},
                                    {"RESIDENT_PAIRS", shape.resident_pairs},
                                    {"IS_STACK", shape.is_stack}}) {
    macros.push_back(std::string(name) + '=' + std::to_string(value));
  }
  return macros;
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
