// The types here hold what a caller tells the GPU backends besides the problem.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_GPU_OPTIONS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GPU_OPTIONS_H_

#include <functional>
#include <string>

namespace cudnn_rnn_tf {

struct GpuOptions {
  bool allow_tf32 = true;
  // Passes may be replayed as CUDA graphs.
  bool replay = true;
  // For tests: parameters are copied as if cuDNN's layout were another one.
  bool force_repack = false;
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

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GPU_OPTIONS_H_
