#include "kernels/cpu/schedule.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace cudnn_rnn_tf {
namespace {

// How often a thread that waits for the others looks before it gives its
// processor away.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct alignas(64) Counter {
  std::atomic<int64_t> value{0};
};

// The chunks of all phases that are done, and, for every chunk of a phase, the
// last phase, counted from 1, in which it was taken.
class Progress {
 public:
  explicit Progress(int64_t most_chunks) : taken_(most_chunks) {}

  // Waits until all chunks before a phase are done. False where the phase is
  // done as well.
  bool Await(int64_t chunks_before, int64_t chunks) const {
    int64_t done = done_.value.load(std::memory_order_acquire);
    for (int spins = 0; done < chunks_before; ++spins) {
      if (spins < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
      done = done_.value.load(std::memory_order_acquire);
    }
    return done < chunks_before + chunks;
  }
  bool Take(int64_t phase, int64_t chunk) {
    std::atomic<int64_t>& taken = taken_[chunk].value;
    int64_t last = taken.load(std::memory_order_relaxed);
    return last < phase && taken.compare_exchange_strong(
                               last, phase, std::memory_order_relaxed);
  }
  void Done() { done_.value.fetch_add(1, std::memory_order_acq_rel); }

 private:
  Counter done_;
  std::vector<Counter> taken_;
};

}  // namespace

void Schedule::Add(int64_t repeats, int64_t chunks, Body body) {
  if (!immediate_) {
    entries_.push_back({repeats, chunks, std::move(body)});
    return;
  }
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) body(repeat, chunk);
  }
}

void Schedule::AddRanges(int64_t size, int64_t range,
                         std::function<void(int64_t, int64_t)> body) {
  Add(1, CeilDiv(size, range),
      [size, range, body = std::move(body)](int64_t, int64_t task) {
        body(task * range, std::min((task + 1) * range, size));
      });
}

void Schedule::Run(const Threads& threads) {
  int64_t most_chunks = 1;
  for (const Entry& entry : entries_) {
    most_chunks = std::max(most_chunks, entry.chunks);
  }
  const int64_t members = std::min(num_threads_, most_chunks);
  Progress progress(most_chunks);
  const auto work = [&](int64_t member) {
    int64_t phase = 0, chunks_before = 0;
    for (const Entry& entry : entries_) {
      const int64_t first = member * entry.chunks / members;
      for (int64_t repeat = 0; repeat < entry.repeats; ++repeat) {
        ++phase;
        if (progress.Await(chunks_before, entry.chunks)) {
          for (int64_t i = 0; i < entry.chunks; ++i) {
            const int64_t chunk = (first + i) % entry.chunks;
            if (!progress.Take(phase, chunk)) continue;
            entry.body(repeat, chunk);
            progress.Done();
          }
        }
        chunks_before += entry.chunks;
      }
    }
  };
  if (members == 1) {
    work(0);
  } else {
    threads.run(members, work);
  }
}

}  // namespace cudnn_rnn_tf
