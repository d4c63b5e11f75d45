#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_PREDICTOR_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_PREDICTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/predictor_threads.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Runs inference with the CPU kernels, without TensorFlow. Weights are packed
// once, and working memory is kept between calls. Any number of threads may
// call Forward at the same time.
class CpuPredictor {
 public:
  struct Options {
    bool time_major = false;
    // Reads each sequence from its end to its beginning. The outputs are in the
    // order in which the steps are read.
    bool go_backwards = false;
    // The number of threads that run one call, including the calling thread.
    int64_t num_threads = 1;
  };

  // Copies `params`.
  CpuPredictor(const RnnSpec& spec, RnnDataType dtype, const void* params,
               const Options& options);

  const RnnSpec& spec() const { return spec_; }
  const Options& options() const { return options_; }

  // Reads and writes the same buffers as an op: inputs, initial states,
  // sequence lengths, resets, outputs and final states. The final states may be
  // written over the initial ones.
  void Forward(int64_t max_time, int64_t batch_size, RnnForwardBuffers buffers);

 private:
  // Memory that one call uses at a time and later calls use again.
  struct Workspace {
    std::shared_ptr<const RnnPlan> plan;  // `memory` suffices for it.
    ArenaMemory memory;
    std::vector<char> reversed, reversed_resets;
  };
  // Counts a call in num_calls_ while it runs.
  class Call;
  // Returns a workspace with a plan of the problem, and memory for that.
  std::unique_ptr<Workspace> TakeWorkspace(const RnnProblem& problem);
  void GiveBack(std::unique_ptr<Workspace> workspace);
  // Puts rows of `row_bytes` bytes, one for each step, into the order of
  // reading, after `delay` rows of zeros in each sequence.
  static const void* Reversed(const RnnProblem& problem,
                              const RnnLengths& lengths, const void* rows,
                              size_t row_bytes, int64_t delay,
                              std::vector<char>* reversed);

  const RnnSpec spec_;
  const RnnDataType dtype_;
  const Options options_;
  PredictorThreads pool_;
  CpuBackend backend_;
  std::atomic<size_t> num_calls_{0};
  std::mutex mutex_;
  // Workspaces that no call uses now. There are most_calls_ of them at most,
  // the most calls that have been seen to run at the same time.
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  size_t most_calls_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_PREDICTOR_H_
