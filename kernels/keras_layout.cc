#include "kernels/keras_layout.h"

#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {

std::vector<int64_t> KerasTensor::Shape() const {
  if (!is_bias) return {fan_in, gates * units};
  if (sides == 1) return {gates * units};
  return {sides, gates * units};
}

std::string KerasTensor::Name() const {
  return "layer_" + std::to_string(layer) +
         (dir == 0 ? "_forward_" : "_backward_") + kind;
}

KerasLayout::KerasLayout(const RnnSpec& spec) {
  const ParamLayout layout(spec);
  size_ = layout.size();
  std::vector<KerasTensor> biases;
  for (int64_t index = 0; index < spec.num_pseudo_layers(); ++index) {
    const ParamLayout::PseudoLayer& offsets = layout.pseudo_layer(index);
    KerasTensor common;
    common.layer = index / spec.num_dirs();
    common.dir = index % spec.num_dirs();
    common.gates = spec.num_gates();
    common.units = spec.num_units;
    common.swaps_gates = spec.kind().swaps_gates;
    const auto weight = [&](const char* kind, int64_t fan_in, int64_t offset) {
      KerasTensor tensor = common;
      tensor.kind = kind;
      tensor.fan_in = fan_in;
      tensor.offset = offset;
      return tensor;
    };
    if (spec.has_input_weights(common.layer)) {
      tensors_.push_back(weight("kernel", spec.layer_input_size(common.layer),
                                offsets.input_weights));
    }
    tensors_.push_back(weight("recurrent_kernel", spec.output_size(),
                              offsets.recurrent_weights));
    if (spec.num_proj > 0) {
      KerasTensor projection =
          weight("projection", spec.num_units, offsets.projection);
      projection.gates = 1;
      projection.units = spec.num_proj;
      tensors_.push_back(projection);
    }
    for (int64_t i = 0; i < spec.kind().num_vectors; ++i) {
      KerasTensor vector = weight(spec.kind().vectors[i], /*fan_in=*/1,
                                  offsets.vectors + i * spec.num_units);
      vector.gates = 1;
      vector.is_bias = true;
      tensors_.push_back(vector);
    }
    if (spec.bias_mode == BiasMode::kNone) continue;
    KerasTensor bias = weight(
        "bias", /*fan_in=*/1,
        spec.has_input_bias() ? offsets.input_bias : offsets.recurrent_bias);
    bias.is_bias = true;
    bias.sides = spec.bias_mode == BiasMode::kDouble ? 2 : 1;
    biases.push_back(bias);
  }
  num_weights_ = tensors_.size();
  tensors_.insert(tensors_.end(), biases.begin(), biases.end());
}

}  // namespace cudnn_rnn_tf
