#include "kernels/pool_threads.h"

#include <atomic>
#include <exception>
#include <memory>

#include "kernels/cpu/pause.h"

namespace cudnn_rnn_tf {
namespace {

// Work that threads may join while it is open. Tasks of the pool that come
// later find it closed, and so it must outlive the call.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(tensorflow::thread::ThreadPool* pool,
      const std::function<void(int64_t)>& body)
      : pool_(pool), body_(body) {}

  // Calls body(first), and offers members (first, last) to other threads. A
  // thread that joins offers half of its members to the next one before it
  // begins, so waking many threads takes little longer than waking a few.
  void Run(int64_t first, int64_t last) {
    while (last - first > 1) {
      const int64_t middle = first + (last - first + 1) / 2;
      try {
        pool_->Schedule([job = shared_from_this(), middle, last] {
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

  tensorflow::thread::ThreadPool* const pool_;
  const std::function<void(int64_t)>& body_;
  // The number of threads that have joined and not left, plus kClosed after
  // Close.
  std::atomic<int64_t> state_{0};
};

}  // namespace

void RunInPool(tensorflow::thread::ThreadPool* pool, int64_t members,
               const std::function<void(int64_t)>& body) {
  const auto job = std::make_shared<Job>(pool, body);
  job->Run(0, members);
  job->Close();
}

}  // namespace cudnn_rnn_tf
