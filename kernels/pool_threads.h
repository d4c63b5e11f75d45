// Runs the ops' work on TensorFlow's threads. A CpuPredictor has its own.
#ifndef CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_
#define CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "kernels/cpu/pause.h"

namespace cudnn_rnn_tf {

// Work that threads may join while it is open. Tasks of the pool that come
// later find it closed, and so it must outlive the call.
template <typename Pool>
class PoolJob : public std::enable_shared_from_this<PoolJob<Pool>> {
 public:
  PoolJob(Pool* pool, const std::function<void(int64_t)>& body)
      : pool_(pool), body_(body) {}

  // Calls body(first), and offers members (first, last) to other threads. A
  // thread that joins offers half of its members to the next one before it
  // begins, so waking many threads takes little longer than waking a few.
  void Run(int64_t first, int64_t last) {
    while (last - first > 1) {
      const int64_t middle = first + (last - first + 1) / 2;
      try {
        pool_->Schedule([job = this->shared_from_this(), middle, last] {
          if (!job->Join()) return;
          job->Run(middle, last);
          job->state_.fetch_sub(1);
        });
      } catch (const std::exception&) {
        // There is no memory left; fewer threads will do.
      }
      last = middle;
    }
    body_(first);
  }

  // Keeps threads from joining, and waits for those that have.
  void Close() {
    state_.fetch_add(kClosed);
    Waiting waiting;
    while (state_.load() != kClosed) waiting.Turn();
  }

 private:
  static constexpr int64_t kClosed = int64_t{1} << 32;

  bool Join() {
    int64_t state = state_.load();
    while (state < kClosed) {
      if (state_.compare_exchange_weak(state, state + 1)) return true;
    }
    return false;
  }

  Pool* const pool_;
  const std::function<void(int64_t)>& body_;
  // The number of threads that have joined and not left, plus kClosed after
  // Close.
  std::atomic<int64_t> state_{0};
};

// Calls body(0) on the calling thread, and body(member) for every member in
// [1, members) for which a thread of the pool is free before body(0) returns.
// Any one member must do all work that is left, and the body must not throw.
// The ParallelFor of TensorFlow's pool would wait for a thread for each member,
// and so for other calls' work on the same threads.
template <typename Pool>
void RunInPool(Pool* pool, int64_t members,
               const std::function<void(int64_t)>& body) {
  const auto job = std::make_shared<PoolJob<Pool>>(pool, body);
  job->Run(0, members);
  job->Close();
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_POOL_THREADS_H_
