// An engine runs a network on a GPU in one of several ways. The other types
// here hold what a caller tells the backend besides the problem.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct GpuOptions {
  bool allow_tf32 = true;
  // Passes may be replayed as CUDA graphs.
  bool replay = true;
  // For tests: the memory that a pass writes to is filled with NaN first.
  bool poison_scratch = false;
};

// The resources that a call uses of its device, whose context must be current.
struct GpuResources {
  int device = 0;
  void* stream = nullptr;
  // Tells whether a profiler is active. No graphs are made while it is: CUPTI
  // breaks them, and they may crash when it stops.
  std::function<bool()> is_profiled;
  // Writes a line to TensorFlow's log at verbosity 1.
  std::function<void(const std::string&)> log;
  // Writes a warning to it, each text once in the process.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// An engine runs the passes of a plan, over the buffers that a call was given,
// in the problem's layout. Any thread may use it.
class Engine {
 public:
  virtual ~Engine() = default;

  // The size of the reserve space is a multiple of Arena::kAlign. Only training
  // needs one, and a backward pass.
  virtual RnnBufferSizes sizes() const = 0;

  // Tells whether Forward and Backward enqueue the same work each time that
  // they get the same addresses.
  virtual bool is_replayable() const = 0;

  // Enqueues the beginning of a forward pass, which changes from call to call.
  virtual RnnStatus StoreLengthsAndSeed(
      const Handles& /*handles*/, const RnnForwardBuffers& /*buffers*/) const {
    return {};
  }
  virtual RnnStatus Forward(const Handles& handles,
                            const RnnForwardBuffers& buffers) const = 0;
  virtual RnnStatus Backward(const Handles& handles,
                             const RnnBackwardBuffers& buffers) const = 0;
};

// Makes the network that runs one of cuDNN's algorithms. `cudnn` is a handle,
// of which the network makes no use later.
RnnStatus CreateCudnnNetwork(const RnnProblem& problem,
                             CudnnAlgorithm algorithm, bool allow_tf32,
                             cudnnHandle_t cudnn,
                             std::unique_ptr<const Engine>* network);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
