// Divides a layer among teams of blocks, which chooses the shape of the kernel
// that runs it.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_

#include <string>
#include <vector>

#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/persistent/shape.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// This says what a kernel is made for: a pass, forward or backward, through all
// directions of a layer or, forward only, through a stack of layers.
struct KernelRequest {
  RnnProblem problem;
  bool allow_tf32;  // Of no meaning to half types.
  bool is_backward;
  int num_layers = 1;  // Of a stack, which run at once.

  int units() const { return static_cast<int>(problem.spec.num_units); }
  int batch_size() const { return static_cast<int>(problem.batch_size); }
  bool is_float() const { return problem.dtype == RnnDataType::kFloat32; }
  bool is_stack() const { return num_layers > 1; }
};

// A way to run a layer or a stack, and an estimate of the cycles that a step of
// the whole batch takes. The estimate comes from a model that was fitted to an
// H200, of which some constants depend on the architecture.
struct Division {
  Shape shape;
  double cycles;
  double load_cycles;  // Those of a pass between its steps.
};

// Returns all divisions that fit the GPU. There are none if no team has room
// for the weights.
std::vector<Division> Divisions(const KernelRequest& request,
                                const DeviceLimits& gpu);

// The number of teams that run at the same time.
int TeamsAtOnce(const DeviceLimits& gpu, const Shape& shape);

// Adds the division of a shape, which gets its resident pairs, if a block has
// room for it. The cycles are those of the models in step_cost.cc.
void AddDivision(const KernelRequest& request, const DeviceLimits& gpu,
                 Shape shape, std::vector<Division>* divisions);

// The number of blocks with so much shared memory that a multiprocessor has
// room for.
int BlocksWithMemory(const DeviceLimits& gpu, int shared_bytes);

// Returns the division to run, or null if there are none.
const Division* ChooseDivision(const std::vector<Division>& divisions);

// Returns the macros that a kernel is compiled with, besides those of the
// layer's mode and type.
std::vector<std::string> ShapeMacros(const Shape& shape);

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_
