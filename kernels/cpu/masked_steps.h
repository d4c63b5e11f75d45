// Masks and moves of steps on the host.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_MASKED_STEPS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_MASKED_STEPS_H_

#include <cstdint>

#include "kernels/masked_steps.h"

namespace cudnn_rnn_tf::cpu {

void ReadMask(const RnnMask& mask, const MaskedSteps& found);

// Moves the rows of the sequences in [first, last).
void MoveSteps(const StepMove& move, int64_t first, int64_t last);

// Tells whether a move leaves every step that is not masked where it is.
bool KeepsPlaces(const StepMove& move);

}  // namespace cudnn_rnn_tf::cpu

#endif  // CUDNN_RNN_TF_KERNELS_CPU_MASKED_STEPS_H_
