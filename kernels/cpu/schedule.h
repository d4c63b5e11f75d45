// Says what the threads of one call do, and when.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"

namespace cudnn_rnn_tf {

// Runs body(member) for the members in [0, members), at the same time if there
// are threads for them. It must call body(0) and may leave out others, because
// any one member of a schedule does all work that is left.
using RunMembers = std::function<void(
    int64_t members, const std::function<void(int64_t)>& body)>;

struct Threads {
  int64_t count = 1;
  RunMembers run;
  // Returns whether the helping threads are awake, or are worth waking because
  // more calls will probably follow. Null if that is not known.
  std::function<bool()> are_at_hand = nullptr;
};

// A sequence of phases. A phase begins when the one before it is done, and
// consists of chunks that may run at the same time. All of a call's work is in
// one schedule, so that threads are woken only once: a step of a small network
// takes microseconds, less than waking a thread does.
//
// A chunk is run by whichever thread takes it first, so a schedule ends even if
// only the calling thread runs. If nothing delays the threads, each runs the
// same chunks of every phase, whose data stay in its cache. Each chunk writes
// to its own place, and computes the same numbers however the work was divided
// into chunks, so results do not depend on the number of threads.
class Schedule {
 public:
  using Body = std::function<void(int64_t repeat, int64_t chunk)>;

  explicit Schedule(int64_t num_threads) : num_threads_(num_threads) {}
  // Returns a schedule that runs work as soon as it is added, on the calling
  // thread.
  static Schedule Immediate() {
    Schedule schedule(1);
    schedule.immediate_ = true;
    return schedule;
  }

  int64_t num_threads() const { return num_threads_; }

  // Adds `repeats` phases of `chunks` chunks each. The body, a `Body`, must be
  // callable until Run returns.
  template <typename AnyBody>
  void Add(int64_t repeats, int64_t chunks, AnyBody body) {
    if (!immediate_) {
      entries_.push_back({repeats, chunks, std::move(body), {}});
      return;
    }
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) body(repeat, chunk);
    }
  }
  // Adds a phase that calls body(first, last) for ranges that cover [0, size),
  // each of `range` numbers but the last.
  template <typename AnyBody>
  void AddRanges(int64_t size, int64_t range, AnyBody body) {
    Add(1, CeilDiv(size, range),
        [size, range, body = std::move(body)](int64_t, int64_t task) {
          body(task * range, std::min((task + 1) * range, size));
        });
  }
  // Adds schedules that are independent of each other. The threads are divided
  // among these lanes. Threads in different lanes wait for each other only when
  // all lanes end, and not after each phase.
  void AddLanes(std::vector<Schedule> lanes);
  // Calls add(), which adds phases to this schedule, and makes a single phase
  // of all their chunks. The phases must be independent of each other, without
  // repeats or lanes.
  void AddTogether(const std::function<void()>& add);
  // If the work throws in any thread, throws the first such exception, after
  // all threads have ended.
  void Run(const Threads& threads);

 private:
  class Execution;
  struct Entry {
    int64_t repeats, chunks;
    Body body;
    std::vector<Schedule> lanes;  // If not empty, they replace the chunks.
  };

  // Does all work on the calling thread.
  void RunAlone() const;

  int64_t num_threads_;
  bool immediate_ = false;
  std::vector<Entry> entries_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_
