// Checks the rules for dividing a call among threads. They must hold for any
// number of threads, so there are one, several, and fewer than were asked for.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/division.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/schedule.h"

namespace {

using cudnn_rnn_tf::Division;
using cudnn_rnn_tf::PackedRows;
using cudnn_rnn_tf::Schedule;

void Check(bool holds, const char* what, int64_t number) {
  if (holds) return;
  std::printf("failed: %s, %lld\n", what, static_cast<long long>(number));
  std::exit(1);
}

// Starts real threads, of which there may be fewer than members.
cudnn_rnn_tf::Threads StartThreads(int64_t count, int64_t started) {
  return {count, [=](int64_t members, const auto& body) {
            std::vector<std::thread> threads;
            for (int64_t i = 1; i < std::min(members, started); ++i) {
              threads.emplace_back([&body, i] { body(i); });
            }
            body(0);
            for (std::thread& thread : threads) thread.join();
          }};
}

// Checks that each chunk runs once, and after all chunks of the phases before
// it. Lanes are independent of each other; phases that follow lanes wait for
// all of them.
class Observer {
 public:
  explicit Observer(int64_t lanes) : phases_(lanes) {}

  Schedule::Body Phase(int64_t lane, int64_t chunks, int64_t repeats) {
    const int64_t first = phases_[lane].size();
    for (int64_t i = 0; i < repeats; ++i) {
      phases_[lane].push_back(std::make_unique<Counts>(chunks));
    }
    return [=](int64_t repeat, int64_t chunk) {
      Counts& counts = *phases_[lane][first + repeat];
      if (first + repeat > 0) {
        const Counts& before = *phases_[lane][first + repeat - 1];
        Check(before.ended == before.chunks, "a phase began too early", lane);
      }
      Check(++counts.begun[chunk] == 1, "a chunk ran again", chunk);
      std::this_thread::yield();
      ++counts.ended;
    };
  }
  void CheckAll() const {
    for (const auto& lane : phases_) {
      for (const auto& counts : lane) {
        Check(counts->ended == counts->chunks, "a chunk is missing",
              counts->ended);
      }
    }
  }

 private:
  struct Counts {
    explicit Counts(int64_t n) : chunks(n), begun(n) {}
    const int64_t chunks;
    std::vector<std::atomic<int>> begun;
    std::atomic<int64_t> ended{0};
  };
  std::vector<std::vector<std::unique_ptr<Counts>>> phases_;
};

void CheckSchedule(std::mt19937* random, int64_t threads, int64_t started) {
  const auto draw = [&](int64_t most) {
    return static_cast<int64_t>((*random)() % most) + 1;
  };
  const int64_t lanes = draw(7);
  Observer observer(lanes), around(1), together(2);
  Schedule schedule(threads);
  schedule.Add(2, 5, around.Phase(0, 5, 2));
  schedule.AddTogether([&] {
    schedule.Add(1, 3, together.Phase(0, 3, 1));
    schedule.Add(1, 4, together.Phase(1, 4, 1));
  });
  std::vector<Schedule> parts;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    parts.emplace_back(draw(4));
    for (int64_t i = draw(3); i > 0; --i) {
      const int64_t chunks = draw(6), repeats = draw(20);
      parts.back().Add(repeats, chunks, observer.Phase(lane, chunks, repeats));
    }
  }
  schedule.AddLanes(std::move(parts));
  schedule.Add(1, 1, [&](int64_t, int64_t) {
    observer.CheckAll();
    together.CheckAll();
  });
  schedule.Add(3, 9, around.Phase(0, 9, 3));
  schedule.Run(StartThreads(threads, started));
  around.CheckAll();
}

// Exceptions of any thread arrive at the caller, when no other thread works.
void CheckException(std::mt19937* random, int64_t threads, int64_t started) {
  const int64_t phases = 30, chunks = 1 + (*random)() % 8;
  const int64_t failing = (*random)() % phases,
                chunk_failing = (*random)() % chunks;
  std::atomic<int> working{0};
  std::atomic<int64_t> later{0};
  const auto body = [&](int64_t phase, int64_t chunk) {
    ++working;
    if (phase > failing) ++later;
    std::this_thread::yield();
    --working;
    if (phase == failing && chunk == chunk_failing) throw std::bad_alloc();
  };
  Schedule schedule(threads);
  std::vector<Schedule> lanes;
  for (int lane = 0; lane < 2; ++lane) {
    lanes.emplace_back(threads);
    if (lane == 0) lanes.back().Add(phases, chunks, body);
    lanes.back().Add(3, 2, [](int64_t, int64_t) {});
  }
  schedule.AddLanes(std::move(lanes));
  bool is_caught = false;
  try {
    schedule.Run(StartThreads(threads, started));
  } catch (const std::bad_alloc&) {
    is_caught = true;
  }
  Check(is_caught, "an exception is lost", failing);
  Check(working == 0, "a thread still works", working);
  Check(later == 0, "work after an exception", later);
}

// Every row must be in exactly one strand, at the place that the strand says.
void CheckStrands(std::mt19937* random) {
  const int64_t batch = (*random)() % 100 + 1, time = (*random)() % 9 + 1;
  std::vector<int32_t> lengths(batch);
  for (int32_t& length : lengths) length = (*random)() % (time + 1);
  const PackedRows rows(time, batch, lengths.data());
  const int64_t most = PackedRows::MaxBlockSize(batch);
  std::vector<int> seen(rows.num_rows()), positions(batch);
  for (const auto& strand : rows.Strands((*random)() % most + 1)) {
    Check(strand.longest == 0 || strand.Active(strand.longest - 1) > 0,
          "a step of no sequence", strand.longest);
    const std::vector<int64_t> strand_rows = strand.Rows();
    for (int64_t r = 0; r < strand.num_sequences; ++r) {
      const int64_t position = strand.Position(r);
      Check(++positions[position] == 1, "a sequence is in two strands", r);
      for (int64_t t = 0; t < time; ++t) {
        const bool has_step = t < lengths[rows.sequences()[position]];
        Check(has_step == (r < strand.Active(t)), "an active sequence", r);
        if (!has_step) continue;
        const int64_t row = strand.Row(t, r);
        Check(strand_rows[strand.first[t] + r] == row, "a strand's row", row);
        Check(++seen[row] == 1, "a row is in two strands", row);
      }
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) Check(seen[i] == 1, "a row", i);
}

// The first core has panels of 32 columns of 4 bytes, and multiplies two
// vectors of 16 in a cycle. The second has matrix registers for numbers of 2
// bytes.
constexpr cudnn_rnn_tf::Core kCores[] = {{int64_t{2} << 20, 32, 128, 1},
                                         {int64_t{2} << 20, 32, 64, 8, 16}};

void CheckDivision(int64_t batch, int64_t units, int64_t threads) {
  cudnn_rnn_tf::RnnProblem problem;
  problem.spec.num_units = units;
  problem.spec.input_size = units;
  problem.max_time = 10;
  problem.batch_size = batch;
  for (const cudnn_rnn_tf::Core& core : kCores) {
    const Division division = DivideGroups(problem, core, threads);
    const int64_t panels = (units + 31) / 32;
    const int64_t lanes = PackedRows::NumBlocks(batch) * division.strands;
    Check(division.strands >= 1 && division.strands <= batch, "strands", batch);
    Check(division.parts >= 1 && division.parts <= panels, "parts", units);
    // Threads that wait for each other must all run at the same time.
    Check(division.parts == 1 || lanes * division.parts <= threads,
          "more parts than threads", threads);
    if (threads == 1)
      Check(lanes == PackedRows::NumBlocks(batch), "one", batch);
    // If the work can be split evenly, no thread may be idle.
    if (batch % 4 == 0 && panels % 4 == 0 && threads <= 16 &&
        batch * panels >= 16 * threads && (threads & (threads - 1)) == 0) {
      Check(lanes * division.parts >= threads, "an idle thread", batch);
    }
    // The division is the same without the threads that have no work in it.
    const int64_t working = std::min(threads, division.ThreadsInSteps(problem));
    const Division without = DivideGroups(problem, core, working);
    Check(
        without.strands == division.strands && without.parts == division.parts,
        "another division", working);
  }
}

// With one sequence of so few units, one to four threads can work on the steps.
void CheckThreadsOfForward() {
  cudnn_rnn_tf::RnnProblem problem;
  problem.spec.num_units = 128;
  problem.max_time = 100;
  problem.batch_size = 1;
  for (const cudnn_rnn_tf::Core& core : kCores) {
    const bool has_matrices = core.matrix_rows > 1;
    for (int64_t threads : {1, 4, 64}) {
      const auto count = [&](int64_t input_size) {
        problem.spec.input_size = input_size;
        return DivideForward(problem, core, threads).threads;
      };
      Check(count(128) <= 4, "few features", threads);
      // A tile of matrix registers has the inputs of 16 steps.
      Check(!has_matrices || count(300) <= 4, "few for matrices", threads);
      Check(count(32768) == threads, "many features", threads);
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int64_t threads : {1, 2, 3, 7, 16}) {
    for (int64_t started : {int64_t{1}, int64_t{2}, threads}) {
      for (int i = 0; i < 20; ++i) {
        CheckSchedule(&random, threads, started);
        CheckException(&random, threads, started);
      }
    }
  }
  for (int i = 0; i < 300; ++i) CheckStrands(&random);
  for (int64_t threads : {1, 2, 3, 4, 8, 16, 64}) {
    for (int64_t batch : {1, 2, 5, 8, 16, 24, 32, 64, 100, 512}) {
      for (int64_t units : {1, 64, 100, 256, 512, 1024, 4096}) {
        CheckDivision(batch, units, threads);
      }
    }
  }
  CheckThreadsOfForward();
  std::printf("well\n");
  return 0;
}
