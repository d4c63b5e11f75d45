// Dropout masks from a counter-based generator.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_DROPOUT_H_
#define CUDNN_RNN_TF_KERNELS_CPU_DROPOUT_H_

#include <cstdint>

#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// The mask of one layer's output. Element e of the time-major [T, B, D * P]
// sequence uses word e % 4 of Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", 2011) with key seed[0] and the counter {e / 4
// (48 bits), layer (16 bits), seed[1] (64 bits)}. The element is dropped if
// that word is below rate * 2^32. The mask is a pure function of the position,
// so it does not depend on the data's layout or on the number of threads.
//
// Recurrent dropout has a mask for the states that each recurrent matrix reads.
// These masks are those of a [L * D, num_gates, B, P] array, with
// RnnSpec::kRecurrentDropoutLayer as their layer. Zoneout has those of a [L *
// D, 2, T, B, H] array, of h and of c, with RnnSpec::kZoneoutLayer.
struct DropoutMask {
  uint64_t seed[2];
  int64_t layer;
  float rate;
  int64_t width;  // D * P for outputs, P for states.
};

// Writes to = from * mask / (1 - rate) for row `step` of the array, seen as
// rows of `width` elements. `from` may be `to`.
template <typename T>
void ApplyDropout(const DropoutMask& mask, int64_t step, const T* from, T* to);
// Sets n numbers to 1 where the mask drops, from element `first` on, and else
// to 0.
template <typename T>
void DrawDropped(const DropoutMask& mask, int64_t first, int64_t n, T* to);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_DROPOUT_H_
