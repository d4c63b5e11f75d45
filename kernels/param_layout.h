// The positions of a network's tensors in the opaque buffer of its parameters,
// and the tensors' names in checkpoints.
#ifndef CUDNN_RNN_TF_KERNELS_PARAM_LAYOUT_H_
#define CUDNN_RNN_TF_KERNELS_PARAM_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// One matrix or bias vector in the opaque buffer.
struct ParamBlock {
  int64_t layer = 0;
  int64_t dir = 0;
  // cuDNN's number for the matrix or bias. The input side has 0 to num_gates -
  // 1, the recurrent side num_gates to 2 * num_gates - 1, and the projection 2
  // * num_gates. The numbers that follow are those of a cell's vectors.
  int64_t linear_layer_id = 0;
  int64_t offset = 0;  // In elements.
  int64_t rows = 0;
  int64_t cols = 0;  // 1 for a bias or a vector.
  bool is_bias = false;
  RnnMode rnn_mode = RnnMode::kLstm;

  int64_t size() const { return rows * cols; }
  bool is_vector() const {
    return linear_layer_id > 2 * KindOf(rnn_mode).num_gates;
  }
  std::vector<int64_t> Shape() const;
  // The canonical tensor's name in checkpoints, such as
  // "layer_0_forward_input_gate_kernel". It has no dots or slashes, since
  // checkpoints would escape them.
  std::string Name() const;
};

// Lists every canonical tensor with its position in the opaque buffer. All
// matrices come first, ordered by pseudo-layer and then by linear-layer id,
// each row-major: [num_units, fan_in], [num_proj, num_units] for a projection,
// or [num_units] for a vector. All biases follow in the same order.
//
// Requires spec.Error() to be empty.
class ParamLayout {
 public:
  explicit ParamLayout(const RnnSpec& spec);

  const std::vector<ParamBlock>& tensors() const { return tensors_; }
  // How many tensors come before the biases.
  size_t num_weights() const { return num_weights_; }
  // Number of elements in the opaque buffer.
  int64_t size() const { return size_; }

  // Offsets of a pseudo-layer's parameters, in elements. The gates of one side
  // are adjacent, so together they form one [num_gates * num_units, fan_in]
  // matrix and one [num_gates * num_units] bias. An offset is -1 if the
  // configuration lacks that parameter.
  struct PseudoLayer {
    int64_t input_weights = -1;
    int64_t recurrent_weights = -1;
    int64_t projection = -1;
    int64_t vectors = -1;  // [num_vectors, num_units]
    int64_t input_bias = -1;
    int64_t recurrent_bias = -1;
  };
  const PseudoLayer& pseudo_layer(int64_t index) const {
    return pseudo_layers_[index];
  }

 private:
  std::vector<ParamBlock> tensors_;
  size_t num_weights_ = 0;
  std::vector<PseudoLayer> pseudo_layers_;
  int64_t size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_PARAM_LAYOUT_H_
