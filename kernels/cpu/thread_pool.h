#ifndef CUDNN_RNN_TF_KERNELS_CPU_THREAD_POOL_H_
#define CUDNN_RNN_TF_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace cudnn_rnn_tf {

// Threads that help a calling one. They start when they are first needed, look
// for the next job for a moment after one, and sleep then. A process that was
// forked starts its own.
class ThreadPool {
 public:
  // Counts the calling thread.
  explicit ThreadPool(int64_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(0) on the calling thread, and body(member) for every member in
  // [1, members) whose thread is there before that has returned. Of the members
  // of a Schedule the first does what is left to do, so the rest would find
  // nothing. In particular, while another thread's job is being run, body(0) is
  // all. `members` is at most the number of threads.
  void Run(int64_t members, const std::function<void(int64_t)>& body);

  // Notes that this thread has ended a call, whoever ran it.
  void NoteCall();
  // Whether the last call was this thread's, and ended so lately that helpers
  // still look for the next, or would if they had helped: its calls follow each
  // other, are likely to go on, and no other thread's need the processors.
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

#endif  // CUDNN_RNN_TF_KERNELS_CPU_THREAD_POOL_H_
