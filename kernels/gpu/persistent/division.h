// How a layer is divided among teams of blocks: which shape of a kernel runs
// it.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_

#include <string>
#include <vector>

#include "kernels/gpu/persistent/arguments.h"

namespace cudnn_rnn_tf {
namespace persistent {

// A division depends on these properties of a layer.
struct Layer {
  int num_units;
  int items;  // Numbers in a word of 32 bits: 1 of float32, 2 of a half type.
  int num_dirs;
  int batch_size;
  // So many layers run at the same time, each above the one before; forward.
  int num_layers = 1;
};

// A GPU's multiprocessors, and the shared memory that a block may have.
struct GpuLimits {
  int multiprocessors;
  int shared_bytes;
};

// A way to run a layer or a stack, and what a model of its time, which was
// fitted to an H200, says a step of the whole batch takes in cycles.
struct Division {
  Shape shape;
  double cycles;
};

// All that fit. None where the weights fit no team.
std::vector<Division> ForwardDivisions(const Layer& layer,
                                       const GpuLimits& gpu);
std::vector<Division> BackwardDivisions(const Layer& layer,
                                        const GpuLimits& gpu);

// The one to run; false where there is none.
bool ChooseDivision(const std::vector<Division>& divisions, Division* chosen);

// These are defined, besides the layer's mode and type, to compile a kernel.
std::vector<std::string> ShapeMacros(const Shape& shape);

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_DIVISION_H_
