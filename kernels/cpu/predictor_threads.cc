#include "kernels/cpu/predictor_threads.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <thread>
#include <vector>

#include "kernels/cpu/pause.h"

namespace cudnn_rnn_tf {
namespace {

// Waking a thread takes tens of microseconds, about as long as a small call, so
// a helper stays awake for this time in case another call follows. It is no
// longer because others may want the processor.
constexpr std::chrono::microseconds kAwake(200);
// A helper looks for a job this often before it looks at the clock.
constexpr int kLooks = 64;

// Returns an address that identifies the calling thread.
const void* ThisThread() {
  static thread_local const char thread = 0;
  return &thread;
}

}  // namespace

class PredictorThreads::Helpers {
 public:
  explicit Helpers(int64_t count) : helpers_(count) {
    for (int64_t i = 0; i < count; ++i) {
      try {
        helpers_[i].thread = std::thread([this, i] { Work(i + 1); });
      } catch (const std::exception&) {
        return;  // There is no thread or memory left; fewer threads will do.
      }
    }
  }
  ~Helpers() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    for (Helper& helper : helpers_) {
      helper.wake.notify_one();
      if (helper.thread.joinable()) helper.thread.join();
    }
  }

  bool are_in_this_process() const { return process_ == getpid(); }

  void Run(int64_t members, const std::function<void(int64_t)>& body) {
    members_.store(members, std::memory_order_relaxed);
    body_ = &body;
    state_.store((state_.load(std::memory_order_relaxed) & ~kOpen) + kNextJob +
                 kOpen);
    for (int64_t member = 1; member < members; ++member) {
      Helper& helper = helpers_[member - 1];
      if (!helper.is_asleep.load()) continue;
      // The helper holds the lock from before it looks at the state until it
      // sleeps. Once this thread has had the lock, the helper either sleeps,
      // and is woken, or will see the new state.
      {
        const std::lock_guard<std::mutex> lock(mutex_);
      }
      helper.wake.notify_one();
    }
    body(0);
    state_.fetch_sub(kOpen);
    Waiting waiting;
    while (state_.load(std::memory_order_acquire) & kInside) waiting.Turn();
  }

 private:
  struct alignas(64) Helper {
    std::atomic<bool> is_asleep{false};
    std::condition_variable wake;
    std::thread thread;
  };

  // The parts of state_: the number of helpers inside the job, whether the job
  // is open for others, and the number of the job.
  static constexpr uint64_t kInside = 0xffff;
  static constexpr uint64_t kOpen = kInside + 1;
  static constexpr uint64_t kNextJob = 2 * kOpen;

  // Returns whether a job is open that has work for the member and is not its
  // last one. Members without work ignore the job and fall asleep after a
  // while.
  bool IsFor(int64_t member, uint64_t state, uint64_t last_job) const {
    return (state & kOpen) && state / kNextJob != last_job &&
           member < members_.load(std::memory_order_relaxed);
  }

  // Waits for a job. Returns false if the pool is being destroyed.
  bool Await(int64_t member, uint64_t last_job) {
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kLooks; ++i) {
        if (IsFor(member, state_.load(std::memory_order_acquire), last_job)) {
          return true;
        }
        Pause();
      }
    } while (!stop_.load(std::memory_order_relaxed) &&
             std::chrono::steady_clock::now() - start < kAwake);
    Helper& self = helpers_[member - 1];
    std::unique_lock<std::mutex> lock(mutex_);
    self.is_asleep.store(true);
    self.wake.wait(
        lock, [&] { return stop_ || IsFor(member, state_.load(), last_job); });
    self.is_asleep.store(false);
    return !stop_;
  }

  void Work(int64_t member) {
    uint64_t last_job = 0;
    while (Await(member, last_job)) {
      uint64_t state = state_.load();
      while (IsFor(member, state, last_job)) {
        // If this fails, the job may have been closed, or another one opened.
        if (!state_.compare_exchange_weak(state, state + 1)) continue;
        last_job = state / kNextJob;
        (*body_)(member);
        state_.fetch_sub(1);
        break;
      }
    }
  }

  const pid_t process_ = getpid();
  std::atomic<int64_t> members_{0};
  const std::function<void(int64_t)>* body_ = nullptr;
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Helper> helpers_;
};

PredictorThreads::PredictorThreads(int64_t num_threads)
    : num_threads_(num_threads) {}

PredictorThreads::~PredictorThreads() { AbandonAfterFork(); }

void PredictorThreads::Run(int64_t members,
                           const std::function<void(int64_t)>& body) {
  const std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
  if (!lock || members == 1) return body(0);
  AbandonAfterFork();
  if (!helpers_) helpers_ = std::make_unique<Helpers>(num_threads_ - 1);
  helpers_->Run(members, body);
}

void PredictorThreads::NoteCall() {
  last_caller_.store(ThisThread(), std::memory_order_relaxed);
  last_call_.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                   std::memory_order_relaxed);
}

bool PredictorThreads::CallsFollow() const {
  const std::chrono::steady_clock::duration last_call(
      last_call_.load(std::memory_order_relaxed));
  return last_caller_.load(std::memory_order_relaxed) == ThisThread() &&
         std::chrono::steady_clock::now().time_since_epoch() - last_call <
             kAwake;
}

// After a fork, the child process has no helper threads to join, and their
// mutex and condition variables are in an unknown state. So it leaks the
// helpers' objects and does not destroy them.
void PredictorThreads::AbandonAfterFork() {
  if (helpers_ && !helpers_->are_in_this_process()) {
    static_cast<void>(helpers_.release());
  }
}

}  // namespace cudnn_rnn_tf
