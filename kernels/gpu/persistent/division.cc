#include "kernels/gpu/persistent/division.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/ceil_div.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// A larger team must promise to be this many times as fast as a smaller one.
// Batches of nearly all sizes then have the same shape, which is compiled once.
constexpr double kGain = 1.05;
// Where there are clusters, smaller teams gain nothing unless they are such.
constexpr int kLeastTeam = 8;
// A thread of a stack has at most this many loads from the layer below under
// way.
constexpr int kMostChunks = 4;
// Warpgroups were not measured with fewer units, in clusters and in other
// teams. In forward passes of bands, they were slower with 1024 units.
constexpr int kFewestInClusters = 65, kFewestInGrids = 384;
constexpr int kFewestInBands = 1280;

// The ways to multiply.
std::vector<int> WaysToMultiply(const KernelRequest& request,
                                const DeviceLimits& gpu) {
  if (!request.is_float()) return {Shape::kDirect};
  if (!gpu.known().has_tf32) return {Shape::kFused};
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

// The sizes of teams, and whether each is a cluster. A device may grant smaller
// clusters than its architecture allows; that shows once a kernel is compiled.
std::vector<std::pair<int, bool>> Teams(const DeviceLimits& gpu) {
  std::vector<std::pair<int, bool>> teams;
  const int largest_cluster = gpu.known().largest_cluster;
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
    teams.emplace_back(std::max(1, gpu.multiprocessors / at_once), false);
  }
  return teams;
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
    // Warpgroups multiply operands in 16 bits.
    if (!gpu.known().has_warpgroups || request.is_stack() ||
        (products != Shape::kHalves && request.is_float()) ||
        request.units() < kFewestInClusters) {
      continue;
    }
    for (const int slices : {1, 2, 4}) {
      if (slices > 1 && !request.is_backward &&
          request.units() < kFewestInBands) {
        continue;
      }
      add(products, 1, slices, true);
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
  if (shape.warps == 1 && gpu.has_clusters()) return false;
  if (shape.has_warpgroups) {
    const bool is_known =
        shape.is_cluster
            ? shape.warps >= 8 && shape.warps % 4 == 0 && shape.slices == 1
            : (shape.warps == 8 || shape.warps == 12) && shape.row_tiles < 5 &&
                  request.units() >= kFewestInGrids;
    if (shape.row_tiles == 1 || !is_known) return false;
  } else if (shape.row_tiles == 5 ||
             (shape.row_tiles == 3 && gpu.has_clusters())) {
    return false;
  }
  shape.units = request.units();
  shape.word_operands =
      request.is_float() && shape.products != Shape::kHalves ? 1 : 2;
  shape.is_stack = request.is_stack();
  shape.norms = static_cast<int>(kind.num_norms);
  if (shape.norms > 0 && shape.is_stack) return false;
  if ((shape.norms > 0 || request.problem.spec.has_zoneout()) &&
      (shape.has_bands() || shape.has_warpgroups)) {
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
    const int least_team = gpu.has_clusters() ? kLeastTeam : 2;
    shape.team =
        CeilDiv(shape.units, shape.block_units * shape.slices) * shape.slices;
    if (shape.team < least_team || shape.team > gpu.multiprocessors) {
      return false;
    }
  }
  // Blocks of a band send whole tiles to each other, of operands in 16 bits.
  if (shape.has_bands() &&
      (shape.is_cluster || shape.word_operands == 1 || shape.bands() == 1 ||
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
