// The masks of dropout, recurrent dropout and zoneout, from a counter-based
// generator.
//
// Element e of an array of masks uses word e % 4 of Philox4x32-10 (Salmon et
// al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with key seed[0]
// and the counter {e / 4 (48 bits), layer (16 bits), seed[1] (64 bits)}. The
// element is dropped if that word is below rate * 2^32. So masks are a pure
// function of the position, and do not depend on the data's layout or on the
// number of threads. The arrays are
//   for dropout, the time-major output [T, B, D * P] of each layer;
//   for recurrent dropout [L * D, num_gates, B, P], since there is a mask for
//     the states that each recurrent matrix reads, with
//     RnnSpec::kRecurrentDropoutLayer as their layer;
//   for zoneout [L * D, 2, T, B, H], of h and of c, with
//     RnnSpec::kZoneoutLayer.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_MASKS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_MASKS_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

class Masks {
 public:
  // The problem must outlive this object.
  Masks(const RnnProblem& problem, const PackedRows& rows,
        const uint64_t seed[2]);

  // Tells whether dropout acts on what a layer reads.
  bool DropsInput(int64_t layer) const {
    return layer > 0 && problem_.has_dropout_between_layers();
  }
  // Adds the work that multiplies such an input, [N, D * P], by its mask. `to`
  // may be `from`.
  template <typename T>
  void DropInput(int64_t layer, const T* from, T* to, Schedule* schedule) const;
  // Sets P numbers to what a sequence's states are multiplied by before a
  // gate's recurrent matrix reads them.
  template <typename T>
  void DrawRecurrent(int64_t pseudo_layer, int64_t gate, int64_t sequence,
                     T* mask) const;
  // Sets the shares of h, and H numbers on those of c, that stay in n units of
  // a row from `unit` on, if there is zoneout.
  template <typename T>
  void SetZones(int64_t pseudo_layer, int64_t row, int64_t unit, int64_t n,
                T* zones) const;

 private:
  const RnnProblem& problem_;
  const uint64_t seed_[2];
  // The index of each row's step in a time-major [T * B] sequence, if a mask
  // needs it.
  std::vector<int64_t> steps_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_MASKS_H_
