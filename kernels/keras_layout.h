// The tensors in which Keras's layers hold a network's parameters, and their
// places in the opaque buffer.
#ifndef CUDNN_RNN_TF_KERNELS_KERAS_LAYOUT_H_
#define CUDNN_RNN_TF_KERNELS_KERAS_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// A kernel or recurrent kernel, [fan_in, gates * units], or a bias, [gates *
// units] or [2, gates * units] with both sides. In the buffer, a gate is a
// matrix [units, fan_in], and the sides' gates follow each other. A bias is
// like a kernel with a fan-in of 1.
struct KerasTensor {
  int64_t layer = 0;
  int64_t dir = 0;
  const char* kind = "";  // Such as "recurrent_kernel".
  bool is_bias = false;
  int64_t sides = 1;
  int64_t fan_in = 1;
  int64_t gates = 0;
  int64_t units = 0;
  bool swaps_gates = false;  // As CellKind has it.
  int64_t offset = 0;        // In the buffer, in elements.

  int64_t size() const { return sides * fan_in * gates * units; }
  std::vector<int64_t> Shape() const;
  std::string Name() const;  // Such as "layer_0_forward_recurrent_kernel".
  // The place in the buffer of the gate that is `gate` in Keras's order.
  int64_t OffsetOfGate(int64_t side, int64_t gate) const {
    const int64_t place = swaps_gates && gate < 2 ? 1 - gate : gate;
    return offset + (side * gates + place) * units * fan_in;
  }
  // The place in this tensor of a gate's first row.
  int64_t PlaceOfGate(int64_t side, int64_t gate) const {
    return (side * fan_in * gates + gate) * units;
  }
};

// Lists the tensors, in the order of the layers and of a layer's directions;
// the weights of a direction are its kernel and its recurrent kernel. What
// Keras's layers do not have, a projection, a cell's vectors or a first layer
// without a kernel, is listed in the same form.
//
// Requires spec.Error() to be empty.
class KerasLayout {
 public:
  explicit KerasLayout(const RnnSpec& spec);

  // The weights and then the biases.
  const std::vector<KerasTensor>& tensors() const { return tensors_; }
  size_t num_weights() const { return num_weights_; }
  // Number of elements in the opaque buffer.
  int64_t size() const { return size_; }

 private:
  std::vector<KerasTensor> tensors_;
  size_t num_weights_ = 0;
  int64_t size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_KERAS_LAYOUT_H_
