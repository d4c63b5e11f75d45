#include "kernels/cpu/cpu_predictor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace cudnn_rnn_tf {

namespace {

// While such an object lives, its thread treats denormal numbers as zeros, as
// TensorFlow's threads do, because arithmetic on denormal numbers is a hundred
// times slower. It has no effect on processors other than x86-64.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(__builtin_ia32_stmxcsr()) {
    constexpr unsigned kFlushToZero = 1 << 15, kDenormalsAreZeros = 1 << 6;
    __builtin_ia32_ldmxcsr(before_ | kFlushToZero | kDenormalsAreZeros);
  }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before_); }
#else
  FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

#if defined(__x86_64__)
 private:
  const unsigned before_;
#endif
};

// Tells whether a plan is for such a call. The other fields are the same in all
// calls of a predictor.
bool IsFor(const RnnPlan& plan, const RnnProblem& problem) {
  return plan.problem.max_time == problem.max_time &&
         plan.problem.batch_size == problem.batch_size &&
         plan.problem.has_sequence_lengths == problem.has_sequence_lengths &&
         plan.problem.has_resets == problem.has_resets;
}

}  // namespace

class CpuPredictor::Call {
 public:
  explicit Call(std::atomic<size_t>* num_calls) : num_calls_(num_calls) {
    ++*num_calls_;
  }
  ~Call() { --*num_calls_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  std::atomic<size_t>* const num_calls_;
};

CpuPredictor::CpuPredictor(const RnnSpec& spec, RnnDataType dtype,
                           const void* params, const Options& options)
    : spec_(spec),
      dtype_(dtype),
      options_(options),
      pool_(options.num_threads),
      backend_(
          {options.num_threads,
           [this](int64_t members, const std::function<void(int64_t)>& body) {
             pool_.Run(members, [&body](int64_t member) {
               const FlushDenormals flush;
               body(member);
             });
           },
           [this] { return pool_.CallsFollow(); }},
          std::make_shared<const CpuPackedParams>(spec, dtype, params)) {}

void CpuPredictor::Forward(int64_t max_time, int64_t batch_size,
                           RnnForwardBuffers buffers) {
  const Call call(&num_calls_);
  const FlushDenormals flush;
  const int64_t states = spec_.num_pseudo_layers() * batch_size;
  const int32_t* const lengths = buffers.sequence_lengths.on_host;
  if (lengths != nullptr &&
      std::all_of(lengths, lengths + batch_size,
                  [&](int32_t length) { return length == max_time; })) {
    buffers.sequence_lengths = {};
  }
  if (max_time == 0 || batch_size == 0) {
    // No step runs, so the final states are the initial ones.
    const auto copy = [&](const void* from, void* to, int64_t size) {
      static_cast<void>(
          backend_.Copy(from, to, states * size * SizeOf(dtype_)));
    };
    copy(buffers.input_h, buffers.output_h, spec_.output_size());
    if (spec_.has_c()) copy(buffers.input_c, buffers.output_c, spec_.num_units);
  } else {
    RnnProblem problem;
    problem.spec = spec_;
    problem.dtype = dtype_;
    problem.max_time = max_time;
    problem.batch_size = batch_size;
    problem.time_major = options_.time_major;
    problem.has_sequence_lengths = buffers.sequence_lengths.on_host != nullptr;
    problem.has_resets = buffers.resets != nullptr;
    problem.is_training = false;
    std::unique_ptr<Workspace> workspace = TakeWorkspace(problem);
    if (options_.go_backwards) {
      const RnnLengths& all = buffers.sequence_lengths;
      buffers.input =
          Reversed(problem, all, buffers.input,
                   spec_.input_size * SizeOf(dtype_), 0, &workspace->reversed);
      if (problem.has_resets) {
        // Read from its end, a segment begins after the step that has a reset.
        buffers.resets = Reversed(problem, all, buffers.resets, sizeof(bool), 1,
                                  &workspace->reversed_resets);
      }
    }
    buffers.workspace = workspace->memory.data();
    backend_.Prepare(
        buffers.output,
        max_time * batch_size * spec_.layer_output_size() * SizeOf(dtype_));
    // A CPU runs every plan that it has made.
    static_cast<void>(backend_.Forward(*workspace->plan, buffers));
    pool_.NoteCall();
    GiveBack(std::move(workspace));
  }
}

// A call never waits for the lock, because a forked process may inherit it
// locked for ever. If another thread has the lock, the call gets a new
// workspace.
std::unique_ptr<CpuPredictor::Workspace> CpuPredictor::TakeWorkspace(
    const RnnProblem& problem) {
  std::unique_ptr<Workspace> workspace;
  {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock && !workspaces_.empty()) {
      auto chosen = std::find_if(
          workspaces_.begin(), workspaces_.end(),
          [&](const auto& one) { return IsFor(*one->plan, problem); });
      const bool fits = chosen != workspaces_.end();
      if (!fits) --chosen;
      workspace = std::move(*chosen);
      workspaces_.erase(chosen);
      if (fits) return workspace;
    }
  }
  if (workspace == nullptr) workspace = std::make_unique<Workspace>();
  workspace->plan = backend_.MakePlan(problem);
  workspace->memory.Grow(workspace->plan->sizes.forward_workspace);
  backend_.Prepare(workspace->memory.data(), workspace->memory.size());
  return workspace;
}

void CpuPredictor::GiveBack(std::unique_ptr<Workspace> workspace) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return;
  most_calls_ = std::max(most_calls_, num_calls_.load());
  // The list can be full, since a call that did not get the lock has made a new
  // workspace. The oldest is dropped then.
  if (workspaces_.size() == most_calls_) workspaces_.erase(workspaces_.begin());
  workspaces_.push_back(std::move(workspace));
}

const void* CpuPredictor::Reversed(const RnnProblem& problem,
                                   const RnnLengths& lengths, const void* rows,
                                   size_t row_bytes, int64_t delay,
                                   std::vector<char>* reversed) {
  const int64_t time = problem.max_time, batch = problem.batch_size;
  reversed->resize(time * batch * row_bytes);
  const char* const from = static_cast<const char*>(rows);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length =
        lengths.on_host == nullptr ? time : lengths.on_host[b];
    const auto offset = [&](int64_t t) {
      return (problem.time_major ? t * batch + b : b * time + t) * row_bytes;
    };
    for (int64_t t = 0; t < length; ++t) {
      char* const to = reversed->data() + offset(t);
      if (t < delay) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, from + offset(length - 1 - t + delay), row_bytes);
      }
    }
  }
  return reversed->data();
}

}  // namespace cudnn_rnn_tf
