#include "kernels/gpu/persistent/division.h"

#include <algorithm>
#include <initializer_list>

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kRegisters = 65536, kMaxThreadRegisters = 255;
// The driver keeps so much shared memory of each block for itself.
constexpr int kReservedBytes = 1024;
// A larger cluster must promise this much more than a smaller one, so that
// batches of nearly all sizes have the same shape, which is compiled once.
constexpr double kGain = 1.15;

int DivideUp(int a, int b) { return (a + b - 1) / b; }

int RegistersOfThread(int warps) {
  return std::min(kMaxThreadRegisters, kRegisters / (warps * 32) / 8 * 8);
}

// Clusters that run at the same time: from four blocks on, they leave some
// multiprocessors of each group of the chip idle.
int ClustersAtOnce(const GpuLimits& gpu, int cluster) {
  const int usable = cluster < 4    ? gpu.multiprocessors
                     : cluster < 16 ? gpu.multiprocessors * 10 / 11
                                    : gpu.multiprocessors * 17 / 20;
  return std::max(1, usable / cluster);
}

// A shape has these properties in a pass.
struct Pass {
  int tiles, pairs;  // Of a warp.
  int useful_warps;  // More would have no tiles.
  int registers;     // Of a thread, besides weights, about as compilers report.
  int step_bytes;    // That a block gets from its peers in a step.
};

int Rounds(const Shape& shape) {
  return DivideUp(shape.block_units * shape.rows(), 32 * shape.warps);
}

Pass ForwardPass(const Shape& shape) {
  const int tiles = shape.forward_warp_tiles();
  return {tiles, shape.forward_warp_pairs(),
          DivideUp(shape.forward_tiles(), tiles) * shape.splits,
          44 + 8 * tiles * (shape.row_tiles + 1) + 26 * Rounds(shape),
          shape.forward_step_bytes()};
}

Pass BackwardPass(const Shape& shape) {
  const int tiles = shape.backward_warp_tiles();
  return {tiles, shape.backward_pairs(),
          DivideUp(shape.backward_groups(), shape.backward_warp_groups()),
          48 + 8 * tiles * shape.row_tiles + 28 * Rounds(shape),
          shape.backward_step_bytes()};
}

// Cycles of a step of the whole batch.
double Cycles(const Layer& layer, const GpuLimits& gpu, const Shape& shape,
              const Pass& pass, int shared_bytes) {
  const double products = DivideUp(shape.warps, 4) * 2.0 * pass.pairs *
                          pass.tiles * shape.row_tiles;
  const double shared_reads =
      4.0 * shape.warps *
      (pass.pairs * shape.row_tiles +
       (pass.pairs - shape.resident_pairs) * pass.tiles * 2);
  // Blocks that share a multiprocessor wait at the same time, but not work.
  const double wait = 400.0 + 0.1 * pass.step_bytes;
  const double work = 200.0 * Rounds(shape) + 100.0 * (shape.splits - 1) +
                      120.0 * DivideUp(shape.warps, 4) + 8.0 * products +
                      shared_reads;
  const int registers =
      DivideUp(pass.registers + 8 * pass.tiles * shape.resident_pairs, 8) * 8;
  const int room = std::min(kRegisters / (32 * shape.warps * registers),
                            gpu.shared_bytes / (shared_bytes + kReservedBytes));
  const int clusters =
      DivideUp(layer.batch_size, shape.rows()) * layer.num_dirs;
  const int turns = DivideUp(clusters, ClustersAtOnce(gpu, shape.cluster));
  const int together = std::clamp(room, 1, turns);
  return DivideUp(turns, together) * (wait + together * work);
}

std::vector<Division> Divisions(const Layer& layer, const GpuLimits& gpu,
                                bool is_backward) {
  std::vector<Division> divisions;
  for (const int cluster : {1, 2, 4, 8, 16}) {
    for (const int row_tiles : {1, 2, 4}) {
      for (const int warps : {2, 3, 4, 5, 6, 8, 10, 12, 16}) {
        for (const int splits : {1, 2}) {
          Shape shape = {layer.num_units, layer.items, cluster,   0,
                         warps,           splits,      row_tiles, 0};
          shape.block_units =
              DivideUp(DivideUp(shape.units, cluster), shape.chunk_units()) *
              shape.chunk_units();
          const Pass pass =
              is_backward ? BackwardPass(shape) : ForwardPass(shape);
          const int room = RegistersOfThread(warps) - pass.registers;
          if (room < 0 || pass.useful_warps < warps || warps % splits != 0 ||
              (is_backward && splits > 1)) {
            continue;
          }
          shape.resident_pairs = std::min(room / (8 * pass.tiles), pass.pairs);
          const int shared_bytes = is_backward ? shape.backward_shared_bytes()
                                               : shape.forward_shared_bytes();
          if (shared_bytes > gpu.shared_bytes) continue;
          divisions.push_back(
              {shape, Cycles(layer, gpu, shape, pass, shared_bytes)});
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

bool ChooseDivision(const std::vector<Division>& divisions, Shape* shape) {
  const Division* best = nullptr;
  for (const Division& division : divisions) {
    const bool is_larger =
        best != nullptr && division.shape.cluster > best->shape.cluster;
    if (best == nullptr ||
        division.cycles * (is_larger ? kGain : 1.0) < best->cycles) {
      best = &division;
    }
  }
  if (best == nullptr) return false;
  *shape = best->shape;
  return true;
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
