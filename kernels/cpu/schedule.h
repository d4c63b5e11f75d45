// Says what the threads of one call do, and when.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace cudnn_rnn_tf {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs body(member) for every member in [0, members), on as many threads as
// there are.
using RunMembers = std::function<void(
    int64_t members, const std::function<void(int64_t)>& body)>;

struct Threads {
  int64_t count = 1;
  RunMembers run;
  // Whether those that help are awake, or are worth waking for what comes next.
  // Null where that is not known.
  std::function<bool()> are_at_hand = nullptr;
};

// Phases that follow each other, each of chunks that may run at the same time.
// All of a call's work is one schedule, so that threads come together once: a
// step of a small network takes microseconds, less than it takes to wake one.
//
// A chunk is run by whichever thread comes first, so a schedule ends even where
// only the calling thread runs; undisturbed, a thread runs the same chunks of
// every phase, whose data stay in its cache. Each chunk writes to its own
// place, and computes the same numbers however the work was divided into
// chunks, so results do not depend on the number of threads.
class Schedule {
 public:
  using Body = std::function<void(int64_t repeat, int64_t chunk)>;

  explicit Schedule(int64_t num_threads) : num_threads_(num_threads) {}
  // One that runs what is added at once, on the calling thread.
  static Schedule Immediate() {
    Schedule schedule(1);
    schedule.immediate_ = true;
    return schedule;
  }

  int64_t num_threads() const { return num_threads_; }

  // Adds `repeats` phases. The body must be callable until Run returns.
  void Add(int64_t repeats, int64_t chunks, Body body);
  // Adds a phase of body(first, last) over ranges that cover [0, size).
  void AddRanges(int64_t size, int64_t range,
                 std::function<void(int64_t first, int64_t last)> body);
  // Adds schedules that need nothing of each other. The threads are dealt out
  // among them and meet at their ends, not after their phases.
  void AddLanes(std::vector<Schedule> lanes);
  // Makes a single phase of the phases that add() adds here.
  void AddTogether(const std::function<void()>& add);
  void Run(const Threads& threads);

 private:
  class Execution;
  struct Entry {
    int64_t repeats, chunks;
    Body body;
    std::vector<Schedule> lanes;  // In place of chunks, where there are any.
  };

  int64_t num_threads_;
  bool immediate_ = false;
  std::vector<Entry> entries_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SCHEDULE_H_
