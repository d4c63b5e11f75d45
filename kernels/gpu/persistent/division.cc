#include "kernels/gpu/persistent/division.h"

#include <algorithm>
#include <initializer_list>

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kRegisters = 65536, kMaxThreadRegisters = 255, kMaxWarps = 16;
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

// What a step takes, in cycles.
struct StepModel {
  double fixed;
  double received;      // Bytes that a block gets from its peers.
  double products;      // Of tiles, by each quarter of a multiprocessor.
  double shared_reads;  // Of 128 bytes.

  double cycles() const {
    return fixed + 0.2 * received + 8.0 * products + shared_reads;
  }
};

void AddIfItFits(const Layer& layer, const GpuLimits& gpu, const Shape& shape,
                 int shared_bytes, const StepModel& step,
                 std::vector<Division>* divisions) {
  if (shared_bytes > gpu.shared_bytes) return;
  const int clusters =
      DivideUp(layer.batch_size, shape.rows()) * layer.num_dirs;
  const int waves = DivideUp(clusters, ClustersAtOnce(gpu, shape.cluster));
  divisions->push_back({shape, waves * step.cycles()});
}

// What a thread of the forward kernel has in registers besides weights, as the
// compiler reports it.
int ForwardRegisters(const Shape& shape) {
  if (shape.items == 1) {
    return shape.row_tiles == 1 ? 112 : shape.row_tiles == 2 ? 168 : 192;
  }
  return shape.row_tiles == 1 ? 108 : shape.row_tiles == 2 ? 190 : 232;
}

int BackwardRegisters(const Shape& shape) {
  const int rounds =
      DivideUp(shape.block_units * shape.rows(), 32 * shape.warps);
  return 28 + 8 * shape.backward_warp_tiles() * shape.row_tiles + 24 * rounds;
}

// Pairs of weights that fit a thread's free registers, `pair` registers each.
int ResidentPairs(const Shape& shape, int used, int pair, int pairs) {
  const int room = RegistersOfThread(shape.warps) - used;
  return std::clamp(room / pair, 0, pairs);
}

}  // namespace

std::vector<Division> ForwardDivisions(const Layer& layer,
                                       const GpuLimits& gpu) {
  std::vector<Division> divisions;
  for (const int cluster : {1, 2, 4, 8, 16}) {
    for (const int row_tiles : {1, 2, 4}) {
      Shape s = {layer.num_units, layer.items, cluster, 0, 0, row_tiles, 0};
      s.warps = DivideUp(DivideUp(s.units, cluster), s.warp_units());
      s.block_units = s.warps * s.warp_units();
      const int pairs = s.forward_pairs();
      if (s.warps > kMaxWarps ||
          RegistersOfThread(s.warps) < ForwardRegisters(s)) {
        continue;
      }
      s.resident_pairs =
          ResidentPairs(s, ForwardRegisters(s), 8 * s.items, pairs);
      // Of each of the four parts of a multiprocessor.
      const double products =
          DivideUp(s.warps, 4) * pairs * 2.0 * s.items * row_tiles;
      const double reads =
          4.0 * s.warps *
          (pairs * row_tiles + (pairs - s.resident_pairs) * s.items * 2);
      const double received = cluster == 1 ? 0 : s.forward_step_bytes();
      const double fixed = (cluster == 1 ? 400.0 : 600.0) + 300.0 * row_tiles;
      AddIfItFits(layer, gpu, s, s.forward_shared_bytes(),
                  {fixed, received, products, reads}, &divisions);
    }
  }
  return divisions;
}

std::vector<Division> BackwardDivisions(const Layer& layer,
                                        const GpuLimits& gpu) {
  std::vector<Division> divisions;
  for (const int cluster : {1, 2, 4, 8, 16}) {
    for (const int row_tiles : {1, 2, 4}) {
      for (const int warps : {2, 3, 4, 5, 6, 8, 10, 12, 16}) {
        Shape s = {layer.num_units, layer.items, cluster, 0,
                   warps,           row_tiles,   0};
        s.block_units = DivideUp(DivideUp(s.units, cluster), s.warp_units()) *
                        s.warp_units();
        const int tiles = s.backward_warp_tiles(), pairs = s.backward_pairs();
        if (RegistersOfThread(warps) < BackwardRegisters(s) ||
            DivideUp(s.backward_groups(), s.backward_warp_groups()) < warps) {
          continue;
        }
        s.resident_pairs =
            ResidentPairs(s, BackwardRegisters(s), 8 * tiles, pairs);
        const double products =
            DivideUp(warps, 4) * tiles * pairs * 2.0 * row_tiles;
        const double reads =
            4.0 * warps *
            (pairs * row_tiles + (pairs - s.resident_pairs) * tiles * 2);
        const double received = cluster == 1 ? 0 : s.backward_step_bytes();
        const double rounds = DivideUp(s.block_units * s.rows(), 32 * warps);
        const double fixed =
            (cluster == 1 ? 500.0 : 700.0) + 150.0 * rounds + 50.0 * row_tiles;
        AddIfItFits(layer, gpu, s, s.backward_shared_bytes(),
                    {fixed, received, products, reads}, &divisions);
      }
    }
  }
  return divisions;
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
