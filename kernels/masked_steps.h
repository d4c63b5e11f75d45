// Moves the steps of sequences that a mask selects to the front, and back.
//
// A layer that skips masked steps computes the same as one without a mask on
// the packed sequences: those in which the steps to be read come first, in
// their order.
#ifndef CUDNN_RNN_TF_KERNELS_MASKED_STEPS_H_
#define CUDNN_RNN_TF_KERNELS_MASKED_STEPS_H_

#include <cstdint>

#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// A mask of the steps to be read: bool [B, T], or [T, B] if it is time-major.
struct RnnMask {
  const bool* values = nullptr;
  int64_t max_time = 0;
  int64_t batch_size = 0;
  bool time_major = false;
  // Whether the layer reads from the end. Times are then counted from there.
  bool is_reversed = false;
  // Whether there is a single row, [T], for all sequences.
  bool is_shared = false;

  bool at(int64_t b, int64_t time) const {
    if (is_reversed) time = max_time - 1 - time;
    if (is_shared) return values[time];
    return values[time_major ? time * batch_size + b : b * max_time + time];
  }
};

// This is what ReadMask finds.
struct MaskedSteps {
  int64_t* lengths = nullptr;  // [B], the number of steps to be read.
  // [B, T]: where a step's place is among the packed ones. If the step is
  // masked and n of the sequence's steps before it are not, -1 - n.
  int64_t* places = nullptr;
  // [B, T]: the time of the step at a place; -1 if there is none.
  int64_t* steps = nullptr;
};

// A movement of rows of `width` numbers between sequences [B, T, width] ([T, B,
// width] if they are time-major) and packed sequences of the same layout.
struct StepMove {
  // Whether the rows go to the packed sequences, or come from there.
  bool packs = true;
  // When rows come from there, masked steps get zeros or, if this is set, the
  // row of the last step before them that is not masked. If it is set, packing
  // is the gradient of that: it adds up the rows that have been the same.
  bool repeats = false;
  bool time_major = false;
  bool is_reversed = false;  // As in the mask.
  RnnDataType dtype = RnnDataType::kFloat32;
  int64_t max_time = 0;
  int64_t batch_size = 0;
  int64_t width = 0;
  const int64_t* places = nullptr;  // As in MaskedSteps.
  const int64_t* steps = nullptr;
  const void* from = nullptr;
  // Places without a step get zeros. On CPUs, if every step keeps its place,
  // this may be `from`, and what is masked stays.
  void* to = nullptr;

  int64_t RowAt(int64_t b, int64_t time) const {
    return time_major ? time * batch_size + b : b * max_time + time;
  }
  // The row of a step that is not packed.
  int64_t RowOfStep(int64_t b, int64_t time) const {
    return RowAt(b, is_reversed ? max_time - 1 - time : time);
  }
};

// Tells whether a move, whose places are in host memory, leaves every step that
// is not masked where it is.
bool KeepsPlaces(const StepMove& move);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_MASKED_STEPS_H_
