#include "kernels/cpu/schedule.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <iterator>
#include <memory>

#include "kernels/cpu/pause.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

// While such an object lives, its thread's matrix registers, if the processor
// has any, are ready for products.
class MatrixRegisters {
 public:
  MatrixRegisters() {
    if (Simd().multiplies_matrices()) Simd().matrices.configure();
  }
  ~MatrixRegisters() {
    if (Simd().multiplies_matrices()) Simd().matrices.release();
  }
  MatrixRegisters(const MatrixRegisters&) = delete;
  MatrixRegisters& operator=(const MatrixRegisters&) = delete;
};

// The progress of all chunks with one number, which follow each other phase
// after phase. Each object has a cache line of its own. Threads read these side
// by side, whereas a single counter that all threads increase would move from
// one thread's cache to the next.
class alignas(64) ChunkState {
 public:
  // Takes the chunk for the calling thread; returns false if another thread has
  // taken it. Phases are counted from 1.
  bool Take(int64_t phase) {
    int64_t state = state_.load(std::memory_order_relaxed);
    return state < 2 * phase &&
           state_.compare_exchange_strong(state, 2 * phase,
                                          std::memory_order_relaxed);
  }
  void Done(int64_t phase) {
    state_.store(2 * phase + 1, std::memory_order_release);
  }
  bool is_taken(int64_t phase) const {
    return state_.load(std::memory_order_relaxed) >= 2 * phase;
  }
  bool is_done(int64_t phase) const {
    return state_.load(std::memory_order_acquire) > 2 * phase;
  }

 private:
  std::atomic<int64_t> state_{0};
};

// Keeps the first exception of a schedule's threads. It must not leave a thread
// of the pool, which would end the process, nor the calling thread while others
// still work.
class FirstException {
 public:
  bool is_set() const { return is_set_.load(std::memory_order_relaxed); }
  void Set(std::exception_ptr exception) {
    if (!is_set_.exchange(true)) exception_ = std::move(exception);
  }
  // To be called when no other thread works any more.
  void Rethrow() const {
    if (is_set()) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> is_set_{false};
  std::exception_ptr exception_;
};

}  // namespace

// The state that a schedule's threads share while it runs.
class Schedule::Execution {
 public:
  Execution(const Schedule& schedule, FirstException* exception)
      : schedule_(schedule), exception_(exception) {
    size_t chunks = 0;
    for (const Entry& entry : schedule.entries_) {
      chunks = std::max(chunks, static_cast<size_t>(entry.chunks));
      for (const Schedule& lane : entry.lanes) {
        lanes_.push_back(std::make_unique<Execution>(lane, exception));
      }
    }
    chunks_ = std::vector<ChunkState>(chunks);
  }

  // Returns when all work is done, by this member or by others.
  void Work(int64_t member, int64_t members) {
    int64_t phase = 0, chunks_before = 0;
    size_t first_lane = 0;
    for (const Entry& entry : schedule_.entries_) {
      // If there are more members than chunks, those without a chunk of their
      // own come last. If two began with the same chunk, one of them would take
      // its neighbour's, and the chunks' data would move from cache to cache in
      // every phase.
      const int64_t first = member * entry.chunks / members;
      const bool has_own =
          member == 0 || first > (member - 1) * entry.chunks / members;
      for (int64_t repeat = 0; repeat < entry.repeats; ++repeat) {
        Await(phase, chunks_before);
        ++phase;
        if (!has_own) LetOthersTake(phase, entry.chunks);
        for (int64_t i = 0; i < entry.chunks; ++i) {
          const int64_t chunk = (first + i) % entry.chunks;
          if (!chunks_[chunk].Take(phase)) continue;
          Call(entry.body, repeat, chunk);
          chunks_[chunk].Done(phase);
        }
        chunks_before = entry.chunks;
      }
      if (entry.lanes.empty()) continue;
      Await(phase, chunks_before);
      chunks_before = 0;
      WorkOnLanes(first_lane, entry.lanes.size(), member, members);
      first_lane += entry.lanes.size();
    }
    Await(phase, chunks_before);
  }

 private:
  // After an exception, the work that is left counts as done.
  void Call(const Body& body, int64_t repeat, int64_t chunk) {
    if (exception_->is_set()) return;
    try {
      body(repeat, chunk);
    } catch (...) {
      exception_->Set(std::current_exception());
    }
  }

  // Waits until other members have taken all chunks of a phase, but only for a
  // moment, since they may not have started.
  void LetOthersTake(int64_t phase, int64_t chunks) const {
    constexpr int kPauses = 100;
    int pauses = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      while (!chunks_[chunk].is_taken(phase) && pauses++ < kPauses) Pause();
    }
  }

  // Waits until all chunks of a phase are done. The phases before it are done
  // already, because no thread takes a chunk before they are.
  void Await(int64_t phase, int64_t chunks) const {
    Waiting waiting;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      while (!chunks_[chunk].is_done(phase)) waiting.Turn();
    }
  }

  // Each member begins with its own lane, which neighbouring members may share,
  // and then helps with what is left of the other lanes.
  void WorkOnLanes(size_t first_lane, int64_t lanes, int64_t member,
                   int64_t members) {
    const int64_t own = member * lanes / members;
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t lane = (own + i) % lanes;
      const int64_t first = CeilDiv(lane * members, lanes);
      const int64_t count =
          std::max<int64_t>(1, CeilDiv((lane + 1) * members, lanes) - first);
      lanes_[first_lane + lane]->Work(i == 0 ? member - first : count - 1,
                                      count);
    }
  }

  const Schedule& schedule_;
  FirstException* const exception_;
  std::vector<ChunkState> chunks_;
  std::vector<std::unique_ptr<Execution>> lanes_;  // Of all entries, in order.
};

void Schedule::AddLanes(std::vector<Schedule> lanes) {
  entries_.push_back({0, 0, nullptr, std::move(lanes)});
}

void Schedule::AddTogether(const std::function<void()>& add) {
  const auto first = static_cast<int64_t>(entries_.size());
  add();
  std::vector<Entry> phases(std::make_move_iterator(entries_.begin() + first),
                            std::make_move_iterator(entries_.end()));
  entries_.resize(first);
  int64_t chunks = 0;
  for (const Entry& phase : phases) {
    assert(phase.repeats == 1);  // Lanes have 0.
    chunks += phase.chunks;
  }
  if (chunks == 0) return;
  Add(1, chunks, [phases = std::move(phases)](int64_t repeat, int64_t chunk) {
    for (const Entry& phase : phases) {
      if (chunk < phase.chunks) return phase.body(repeat, chunk);
      chunk -= phase.chunks;
    }
  });
}

void Schedule::Run(const Threads& threads) {
  int64_t most_members = 1;
  for (const Entry& entry : entries_) {
    most_members = std::max(most_members,
                            entry.lanes.empty() ? entry.chunks : num_threads_);
  }
  const int64_t members = std::min(num_threads_, most_members);
  if (members == 1) {
    const MatrixRegisters registers;
    RunAlone();
    return;
  }
  FirstException exception;
  Execution execution(*this, &exception);
  threads.run(members, [&](int64_t member) {
    const MatrixRegisters registers;
    execution.Work(member, members);
  });
  exception.Rethrow();
}

void Schedule::RunAlone() const {
  for (const Entry& entry : entries_) {
    for (int64_t repeat = 0; repeat < entry.repeats; ++repeat) {
      for (int64_t chunk = 0; chunk < entry.chunks; ++chunk) {
        entry.body(repeat, chunk);
      }
    }
    for (const Schedule& lane : entry.lanes) lane.RunAlone();
  }
}

}  // namespace cudnn_rnn_tf
