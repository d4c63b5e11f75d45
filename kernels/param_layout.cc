#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
std::vector<int64_t> ParamBlock::Shape() const {
  if (is_bias || is_vector()) return {rows};
  return {rows, cols};
}

std::string ParamBlock::Name() const {
  std::string name = "layer_" + std::to_string(layer) +
                     (dir == 0 ? "_forward_" : "_backward_");
  const CellKind& kind = KindOf(rnn_mode);
  const int64_t gates = kind.num_gates;
  if (linear_layer_id == 2 * gates) return name + "projection_kernel";
  if (is_vector()) return name + kind.vectors[linear_layer_id - 2 * gates - 1];
  name += kind.gates[linear_layer_id % gates];
  if (linear_layer_id >= gates) name += "recurrent_";
  return name + (is_bias ? "bias" : "kernel");
}

ParamLayout::ParamLayout(const RnnSpec& spec)
    : pseudo_layers_(spec.num_pseudo_layers()) {
  const int64_t gates = spec.num_gates();
  tensors_.reserve(spec.num_pseudo_layers() *
                   (4 * gates + 1 + spec.kind().num_vectors));
  bool is_bias = false;
  const auto add = [&](int64_t layer, int64_t dir, int64_t id, int64_t rows,
                       int64_t cols) {
    tensors_.push_back(
        {layer, dir, id, size_, rows, cols, is_bias, spec.rnn_mode});
    size_ += rows * cols;
  };
  // Returns the offset of one side's gates.
  const auto add_gates = [&](int64_t layer, int64_t dir, int64_t first_id,
                             int64_t cols) {
    const int64_t offset = size_;
    for (int64_t gate = 0; gate < gates; ++gate) {
      add(layer, dir, first_id + gate, spec.num_units, cols);
    }
    return offset;
  };
  // Calls body(layer, dir, offsets) for each pseudo-layer.
  const auto for_each = [&](const auto& body) {
    for (int64_t i = 0; i < spec.num_pseudo_layers(); ++i) {
      body(i / spec.num_dirs(), i % spec.num_dirs(), pseudo_layers_[i]);
    }
  };
  for_each([&](int64_t layer, int64_t dir, PseudoLayer& offsets) {
    if (spec.has_input_weights(layer)) {
      offsets.input_weights =
          add_gates(layer, dir, 0, spec.layer_input_size(layer));
    }
    offsets.recurrent_weights =
        add_gates(layer, dir, gates, spec.output_size());
    if (spec.num_proj > 0) {
      offsets.projection = size_;
      add(layer, dir, 2 * gates, spec.num_proj, spec.num_units);
    }
    const int64_t vectors = spec.kind().num_vectors;
    if (vectors > 0) offsets.vectors = size_;
    for (int64_t i = 1; i <= vectors; ++i) {
      add(layer, dir, 2 * gates + i, spec.num_units, 1);
    }
  });
  num_weights_ = tensors_.size();
  is_bias = true;
  for_each([&](int64_t layer, int64_t dir, PseudoLayer& offsets) {
    if (spec.has_input_bias()) {
      offsets.input_bias = add_gates(layer, dir, 0, 1);
    }
    if (spec.has_recurrent_bias()) {
      offsets.recurrent_bias = add_gates(layer, dir, gates, 1);
    }
  });
}

}  // namespace cudnn_rnn_tf
