// CpuBackend reads masks and moves masked steps here.
#include "kernels/masked_steps.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/schedule.h"

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

// Writes the sum of the rows that unpacking made of the row at `place` to row
// `to`, by way of `sums` and `converted`.
template <typename T>
void AddRows(const StepMove& move, int64_t b, int64_t place, int64_t to,
             T* sums, T* converted) {
  const int64_t* const steps = move.steps + b * move.max_time;
  const bool is_last = place + 1 == move.max_time || steps[place + 1] < 0;
  const int64_t end =
      is_last ? move.max_time : std::min(steps[place + 1], move.max_time);
  const HalfType* const half_type = HalfTypeOf(move.dtype);
  const StoredRows<T> rows({move.from, half_type}, move.width);
  std::fill_n(sums, move.width, T(0));
  for (int64_t time = steps[place]; time < end; ++time) {
    const T* const terms =
        rows[move.RowOfStep(b, time)].Read(move.width, converted);
    for (int64_t i = 0; i < move.width; ++i) sums[i] += terms[i];
  }
  const DestinationRows<T> all({move.to, half_type}, move.width);
  all[to].Write(move.width, sums);
}

// Moves the rows of the sequences in [first, last), whose sums are of type T.
template <typename T>
void Move(const StepMove& move, int64_t first, int64_t last) {
  const auto row_bytes = static_cast<int64_t>(move.width * SizeOf(move.dtype));
  const char* const from = static_cast<const char*>(move.from);
  const bool adds = move.packs && move.repeats;
  std::vector<T> sums(adds ? 2 * move.width : 0);
  for (int64_t b = first; b < last; ++b) {
    for (int64_t at = 0; at < move.max_time; ++at) {
      const int64_t source = SourceOf(move, b, at);
      const int64_t to_row =
          move.packs ? move.RowAt(b, at) : move.RowOfStep(b, at);
      char* const to = static_cast<char*>(move.to) + to_row * row_bytes;
      if (source < 0) {
        std::fill_n(to, row_bytes, char{0});
      } else if (adds) {
        AddRows(move, b, at, to_row, sums.data(), sums.data() + move.width);
      } else {
        const int64_t row =
            move.packs ? move.RowOfStep(b, source) : move.RowAt(b, source);
        // Rows that stay where they are may be in one tensor.
        if (from + row * row_bytes == to) continue;
        std::copy_n(from + row * row_bytes, row_bytes, to);
      }
    }
  }
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
    Dispatch(move.dtype,
             [&](auto number) { Move<decltype(number)>(move, first, last); });
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
