// The sequences of a batch as kernels meet them: which one is in a row of a
// team, how long it is, and where its steps lie in the buffers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_

#include "arguments.h"
#include "items.cuh"

using cudnn_rnn_tf::persistent::Sequences;

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

// Returns where the state before the step in a row is: among `states`, those
// after each step, whose rows are `pitch` numbers apart, or among the first
// states, `stride` apart. It is null where a sequence starts anew, and past its
// end.
[[maybe_unused]] static const Item* StateBefore(
    const Sequences& all, long long row, bool is_reversed, const void* states,
    long long pitch, const void* first, long long stride) {
  const Step at = StepOfRow(all, static_cast<int>(row));
  const Sequence sequence(all, at.b);
  const int step = is_reversed ? sequence.length - 1 - at.time : at.time;
  if (at.time >= sequence.length || StartsAnew(all, step, row, is_reversed)) {
    return nullptr;
  }
  return step == 0 ? static_cast<const Item*>(first) + at.b * stride
                   : static_cast<const Item*>(states) +
                         sequence.RowAt(all, step - 1, is_reversed) * pitch;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SEQUENCES_CUH_
