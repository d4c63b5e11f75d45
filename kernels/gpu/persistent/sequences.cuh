// The sequences of a batch as kernels meet them: which one is in a row of a
// team, how long it is, and where its steps lie in the buffers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_

#include "arguments.h"
#include "items.cuh"

using cudnn_rnn_tf::persistent::Sequences;
using cudnn_rnn_tf::persistent::StepRows;

// Returns the row of a step in the buffers.
static long long RowOfTime(const Sequences& all, long long time, long long b) {
  return time * all.time_stride + b * all.batch_stride;
}

// Returns the step that is in a row of the buffers.
struct Step {
  int time, b;
};
static Step StepOfRow(const Sequences& all, int row) {
  return all.batch_stride == 1 ? Step{row / all.batch, row % all.batch}
                               : Step{row % all.steps, row / all.steps};
}

// Tells whether a direction starts anew at a step that a sequence has, which is
// in this row, by a number that is not 0 if so. A reversed one does at a
// segment's last step.
[[maybe_unused]] static char StartsAnew(const Sequences& all, int step,
                                        long long row, bool is_reversed) {
  if (all.resets == nullptr || (is_reversed && step == 0)) return 0;
  return all.resets[is_reversed ? row + all.time_stride : row];
}

// The value of everything that is computed of a sequence whose length is out of
// range.
static float InvalidValue() { return __uint_as_float(0x7FC00000); }

static int Within(int value, int most, int least = 0) {
  return value < least ? least : value > most ? most : value;
}

// The sequence in a row of a team, and the places of its steps.
struct Sequence {
  int b = -1;  // -1 if there is none.
  int length = 0;
  bool is_invalid = false;

  Sequence(const Sequences& all, int row) {
    if (row >= all.batch) return;
    // A backward pass has both from its caller, who may have changed them.
    b = all.order == nullptr ? row : Within(all.order[row], all.batch - 1);
    length = all.lengths == nullptr ? all.steps
                                    : Within(all.lengths[b], all.steps, -1);
    if (length < 0) {
      length = 0;
      is_invalid = true;
    }
  }
  // Makes this a row without a sequence.
  void Clear() {
    b = -1;
    length = 0;
  }
  // The time of a step, and its row in the buffers. Steps are counted in the
  // order of reading.
  int TimeOf(int step, bool is_reversed) const {
    return is_reversed ? length - 1 - step : step;
  }
  int RowAt(const Sequences& all, int step, bool is_reversed) const {
    return static_cast<int>(RowOfTime(all, TimeOf(step, is_reversed), b));
  }
};

// Returns where a step's numbers are, or null if they are zeros.
[[maybe_unused]] static const Item* RowOf(const StepRows& rows, long long row) {
  const Sequences& all = rows.sequences;
  const auto numbers = static_cast<const Item*>(rows.numbers);
  if (all.lengths == nullptr && !rows.are_before) {
    return numbers + row * rows.pitch;
  }
  const Step at = StepOfRow(all, static_cast<int>(row));
  const Sequence sequence(all, at.b);
  const int step = sequence.TimeOf(at.time, rows.is_reversed);
  if (at.time >= sequence.length) return nullptr;
  if (!rows.are_before) return numbers + row * rows.pitch;
  if (StartsAnew(all, step, row, rows.is_reversed)) return nullptr;
  return step == 0
             ? static_cast<const Item*>(rows.first) + at.b * rows.first_pitch
             : numbers +
                   sequence.RowAt(all, step - 1, rows.is_reversed) * rows.pitch;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_
