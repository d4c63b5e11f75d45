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
#include "kernels/cpu/thread_pool.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Inference with the CPU kernels without TensorFlow: what its ops do in every
// call, pack weights and find memory, is done once. Any number of threads may
// call at the same time.
class CpuPredictor {
 public:
  struct Options {
    bool time_major = false;
    // Each sequence is read from its end; outputs come in the order of reading.
    bool go_backwards = false;
    // Threads that run one call, the calling thread included.
    int64_t num_threads = 1;
  };

  // Copies `params`.
  CpuPredictor(const RnnSpec& spec, RnnDataType dtype, const void* params,
               const Options& options);

  const RnnSpec& spec() const { return spec_; }
  const Options& options() const { return options_; }

  // Reads and writes the buffers that a caller of an op has: inputs, states
  // (the final ones may replace the initial ones), sequence lengths and
  // outputs. The final cell state is within the clip.
  void Forward(int64_t max_time, int64_t batch_size, RnnForwardBuffers buffers);

 private:
  // Memory of one call, for the next ones.
  struct Workspace {
    int64_t max_time = -1, batch_size = -1;  // It is large enough for these.
    ArenaMemory memory;
    std::vector<char> reversed;
  };
  // Counts the calls that are being run.
  class Call;
  std::unique_ptr<Workspace> TakeWorkspace(int64_t max_time,
                                           int64_t batch_size);
  void GiveBack(std::unique_ptr<Workspace> workspace);
  const void* Reversed(const RnnProblem& problem,
                       const RnnForwardBuffers& buffers,
                       std::vector<char>* reversed) const;
  void ClipCellState(void* c, int64_t n) const;

  const RnnSpec spec_;
  const RnnDataType dtype_;
  const Options options_;
  const CpuPackedParams packed_;
  ThreadPool pool_;
  CpuBackend backend_;
  std::atomic<size_t> num_calls_{0};
  std::mutex mutex_;
  // Idle ones. There are no more than calls have been run at the same time.
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  size_t most_calls_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_PREDICTOR_H_
