#ifndef CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_LAYER_H_
#define CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_LAYER_H_

#include <vector>

#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/storage.h"

namespace cudnn_rnn_tf {

// Working memory of one layer's backward pass. Its arrays of two are indexed by
// direction, except rounded_dz.
template <typename T>
struct CpuNetwork<T>::BackwardLayer {
  // Rows [first, first + rows) of the recurrent weights, and the gradients [N,
  // rows] of the preactivations that they add to. There is more than one
  // segment in a GRU, whose candidate has a gradient of its own on the
  // recurrent side or reads other states, and with recurrent dropout, where
  // each gate reads other states.
  struct Segment {
    Rows<T> dz;
    int64_t first = 0;
    int64_t rows = 0;
    Rows<const T> h;         // The states that the rows read, [N, P].
    RightMatrix<T> weights;  // [rows, P]
  };
  struct Scratch {
    T* dh;     // [strand, h_stride]
    T* dc;     // [strand, H]
    T* zones;  // Of zoneout, [strand, 2, H].
    T* dy;     // [strand, H], of the unprojected output.
    // Only with recurrent dropout.
    T* masks;
    // Only where a gate does not read h itself, as with recurrent dropout: the
    // gradients of what one gate reads, [strand, h_stride].
    T* read_backprop;
    // Only if products read bfloat16: `dz` of all segments, [strand,
    // dz_stride]. A step writes rounded_dz[step % 2], and the next step reads
    // it.
    uint16_t* rounded_dz[2];
    T* norms;  // [parts, norms + 1, H], of a cell that normalises.
  };

  // A step's gradients of a segment, rounded.
  StoredRows<T> RoundedDz(const Scratch& scratch, int64_t step,
                          const Segment& segment) const {
    return {StoredBfloat16<T>(scratch.rounded_dz[step % 2] + segment.first),
            dz_stride};
  }

  int64_t index = 0;
  StoredRows<T> input;            // Dropout applied.
  StoredRows<T> output_backprop;  // [N, D * P]
  StoredRows<T> cell_sequences_backprop;
  Rows<T> input_backprop;  // [N, fan_in]
  T* output = nullptr;     // [N + B, D * P]
  typename CpuReserve<T>::PseudoLayer kept[2] = {};
  std::vector<Segment> segments[2];
  int64_t dz_stride = 0;
  // The masked states with recurrent dropout, [N, num_gates * P].
  T* masked[2] = {};
  T* vectors[2] = {};  // [num_vectors, H]
  // Each sequence's sums of the vectors' gradients, [B, num_vectors, H].
  T* vector_sums[2] = {};
  RightMatrix<T> projection[2];  // [P, H]
  // Only with a projection: the gradient of its result, [N, P], and what was
  // projected, [N, H].
  T* projected_backprop[2] = {};
  T* unprojected[2] = {};
  std::vector<Scratch> scratch;  // One for each group.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_LAYER_H_
