// Estimates what a step of a layer costs with teams of a shape.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_COST_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_COST_H_

#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/persistent/division.h"
#include "kernels/gpu/persistent/shape.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Who runs a step of what.
struct TeamStep {
  const KernelRequest& request;
  const DeviceLimits& gpu;
  const Shape& shape;

  const bool is_backward = request.is_backward;
  // A warp's share of the products, and a thread's cells.
  const int tiles = shape.warp_tiles(is_backward);
  const int pairs = shape.pairs(is_backward);
  const int rounds = shape.rounds();
};

// What a step costs however many of the weights are in registers.
struct StepCost {
  // False if some warps have nothing to multiply, or too little.
  bool fills_warps;
  // The registers of a thread besides those for weights, about as compilers
  // report them.
  int registers;
  double wait;  // Cycles until a block has what its peers send in a step.
};
StepCost CostOf(const TeamStep& step);

// The number of teams that run at the same time.
int TeamsAtOnce(const DeviceLimits& gpu, const Shape& shape);

// Returns the cycles of a step of the whole batch.
double Cycles(const TeamStep& step, const StepCost& cost);

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STEP_COST_H_
