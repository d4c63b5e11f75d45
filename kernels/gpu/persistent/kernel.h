// Compiles and launches the persistent kernels.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/gpu/persistent/division.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// The status of what cannot be run.
inline RnnStatus Unsupported(const std::string& what) {
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm persistent cannot run " + what};
}

// Says why if the device cannot run kernels of this type.
RnnStatus CheckDevice(RnnDataType dtype, const DeviceLimits& limits);

// A kernel that runs a pass, forward or backward, through all directions of a
// layer or, forward only, through a stack of layers.
class Kernel {
 public:
  // Finds the best way to divide the layer. It is an error if there is none.
  // Compiles nothing.
  static RnnStatus Divide(const KernelRequest& request,
                          const DeviceLimits& limits, Division* division);
  // Gets the kernel of a division on the current context's device. If the
  // device does not grant the kernel's teams, gets that of the next best
  // division, which `division` is set to.
  static RnnStatus Get(const KernelRequest& request, const DeviceLimits& limits,
                       Division* division, Kernel* kernel);
  // Compiles a kernel for a shape that need not be the one that Get chooses. It
  // can run only if `fits` says that the device grants its teams.
  static RnnStatus Compile(const KernelRequest& request,
                           const DeviceLimits& limits, const Shape& shape,
                           Kernel* kernel);
  bool fits() const { return teams_at_once_ > 0; }

  const Shape& shape() const { return shape_; }
  // The rows of the teams that the batch would fill at once.
  int rows() const { return shares_ * shape_.rows(); }
  // The bytes of the memory through which the kernel's teams exchange.
  size_t team_memory_bytes() const;
  // Enqueues the kernel. `arguments` are ForwardArguments or BackwardArguments,
  // whichever the kernel takes; this sets their part.
  RnnStatus Enqueue(CUstream stream, void* team_memory,
                    PassArguments* arguments) const;

 private:
  struct Grid {
    int teams, dirs;
  };
  // The most teams and directions that one launch has. There is no limit for
  // clusters. Blocks of other teams wait for each other, so one launch has no
  // more of them than the GPU runs at the same time; the teams then run several
  // shares of the batch each, and several launches run the directions.
  Grid MostAtOnce() const;
  CUlaunchConfig Config(const Grid& grid, CUstream stream,
                        CUlaunchAttribute* attribute) const;

  CompiledKernel kernel_;
  Shape shape_ = {};
  // Teams that the batch would fill at once, and directions of a layer or
  // stages of a stack.
  int shares_ = 0, at_once_ = 0;
  bool is_backward_ = false, has_clusters_ = false;
  int teams_at_once_ = 0;
};

// Returns a line for each persistent kernel that this process has used.
std::string KernelsText();

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_KERNEL_H_
