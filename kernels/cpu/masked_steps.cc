// CpuBackend reads masks and moves masked steps here.
#include "kernels/masked_steps.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/storage.h"

namespace cudnn_rnn_tf {
namespace {

// Returns the place or the time of the step whose row goes to `at`, in sequence
// `b`; -1 if there is none.
int64_t SourceOf(const StepMove& move, int64_t b, int64_t at) {
  const int64_t i = b * move.max_time + at;
  int64_t source = move.packs ? move.steps[i] : move.places[i];
  // This is the place of the step that was read last.
  if (source < 0 && move.repeats && !move.packs) source = -2 - source;
  return source < move.max_time ? source : -1;
}

// Adds up the rows that unpacking made of the row at `place`.
template <typename Storage, typename Compute>
void AddRows(const StepMove& move, int64_t b, int64_t place, Compute* sums,
             Compute* numbers) {
  const int64_t* const steps = move.steps + b * move.max_time;
  const bool is_last = place + 1 == move.max_time || steps[place + 1] < 0;
  const int64_t end =
      is_last ? move.max_time : std::min(steps[place + 1], move.max_time);
  std::fill_n(sums, move.width, Compute());
  for (int64_t time = steps[place]; time < end; ++time) {
    Convert(static_cast<const Storage*>(move.from) +
                move.RowOfStep(b, time) * move.width,
            numbers, move.width);
    for (int64_t i = 0; i < move.width; ++i) sums[i] += numbers[i];
  }
}

// Moves the rows of the sequences in [first, last).
void Move(const StepMove& move, int64_t first, int64_t last) {
  Dispatch(move.dtype, [&](auto storage, auto compute) {
    using Storage = decltype(storage);
    using Compute = decltype(compute);
    const bool adds = move.packs && move.repeats;
    std::vector<Compute> sums(adds ? 2 * move.width : 0);
    const Storage* const from = static_cast<const Storage*>(move.from);
    for (int64_t b = first; b < last; ++b) {
      for (int64_t at = 0; at < move.max_time; ++at) {
        const int64_t source = SourceOf(move, b, at);
        Storage* const to =
            static_cast<Storage*>(move.to) +
            (move.packs ? move.RowAt(b, at) : move.RowOfStep(b, at)) *
                move.width;
        if (source < 0) {
          std::fill_n(to, move.width, Storage());
        } else if (adds) {
          AddRows<Storage>(move, b, at, sums.data(), sums.data() + move.width);
          Convert(static_cast<const Compute*>(sums.data()), to, move.width);
        } else {
          const int64_t row =
              move.packs ? move.RowOfStep(b, source) : move.RowAt(b, source);
          // Rows that stay where they are may be in one tensor.
          if (from + row * move.width == to) continue;
          std::copy_n(from + row * move.width, move.width, to);
        }
      }
    }
  });
}

}  // namespace

RnnStatus CpuBackend::ReadMask(const RnnMask& mask, const MaskedSteps& found) {
  for (int64_t b = 0; b < mask.batch_size; ++b) {
    const int64_t first = b * mask.max_time;
    int64_t count = 0;
    for (int64_t time = 0; time < mask.max_time; ++time) {
      const bool is_read = mask.at(b, time);
      found.places[first + time] = is_read ? count : -1 - count;
      if (is_read) found.steps[first + count++] = time;
    }
    std::fill_n(found.steps + first + count, mask.max_time - count, -1);
    found.lengths[b] = count;
  }
  return {};
}

RnnStatus CpuBackend::MoveSteps(const StepMove& move) {
  // Waking threads takes as long as copying about this many bytes.
  constexpr int64_t kWorthThreads = 1 << 18;
  const int64_t bytes_of_sequence =
      move.max_time * move.width * static_cast<int64_t>(SizeOf(move.dtype));
  const int64_t range = std::max<int64_t>(
      1, kWorthThreads / std::max<int64_t>(1, bytes_of_sequence));
  Schedule schedule(CeilDiv(move.batch_size, range) > 1 ? threads_.count : 1);
  schedule.AddRanges(move.batch_size, range, [&](int64_t first, int64_t last) {
    Move(move, first, last);
  });
  schedule.Run(threads_);
  return {};
}

bool KeepsPlaces(const StepMove& move) {
  if (move.repeats || move.is_reversed) return false;
  for (int64_t b = 0; b < move.batch_size; ++b) {
    const int64_t* const steps = move.steps + b * move.max_time;
    for (int64_t place = 0; place < move.max_time; ++place) {
      if (steps[place] >= 0 && steps[place] != place) return false;
    }
  }
  return true;
}

}  // namespace cudnn_rnn_tf
