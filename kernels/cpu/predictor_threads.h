// The threads of a CpuPredictor. Ops run on those of TensorFlow.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_PREDICTOR_THREADS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PREDICTOR_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace cudnn_rnn_tf {

// Threads that help a calling thread. They start when they are first needed.
// After a job, they stay awake for a moment in case another follows, and then
// sleep. A forked process starts its own; but if it was forked during another
// thread's job, it has no helping threads.
class PredictorThreads {
 public:
  // `num_threads` includes the calling thread.
  explicit PredictorThreads(int64_t num_threads);
  ~PredictorThreads();
  PredictorThreads(const PredictorThreads&) = delete;
  PredictorThreads& operator=(const PredictorThreads&) = delete;

  // Calls body(0) on the calling thread, and body(member) for every member in
  // [1, members) whose thread has joined before body(0) returns. Threads that
  // come later are not needed, because member 0 of a Schedule does all work
  // that is left. While another thread's job runs, only body(0) is called.
  // `members` is the number of threads at most.
  void Run(int64_t members, const std::function<void(int64_t)>& body);

  // Records that this thread has ended a call, even if no helper took part in
  // it.
  void NoteCall();
  // Returns whether this thread made the last call, and ended it within the
  // time that helpers stay awake after a job. Its calls are then likely to go
  // on, and no other thread's calls need the processors.
  bool CallsFollow() const;

 private:
  class Helpers;
  void AbandonAfterFork();

  const int64_t num_threads_;
  std::atomic<std::chrono::steady_clock::rep> last_call_{0};
  std::atomic<const void*> last_caller_{nullptr};
  std::mutex running_;
  std::unique_ptr<Helpers> helpers_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PREDICTOR_THREADS_H_
