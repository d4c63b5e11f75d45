// The configuration of a recurrent network.
//
// Everything here is plain C++: the TensorFlow ops, the backends and the Python
// helper module share it.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_
#define CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cudnn_rnn_tf {

enum class RnnDataType { kFloat64, kFloat32, kFloat16, kBfloat16 };
// The size of one number in bytes.
inline size_t SizeOf(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat64   ? 8
         : dtype == RnnDataType::kFloat32 ? 4
                                          : 2;
}

// kGruResetBefore is the GRU whose reset gate multiplies h before the recurrent
// matrix does; that of kGru multiplies the product.
enum class RnnMode { kLstm, kGru, kRnnTanh, kRnnRelu, kGruResetBefore };
enum class InputMode { kLinear, kSkip };
enum class Direction { kUnidirectional, kBidirectional };
enum class BiasMode { kNone, kSingleInput, kSingleRecurrent, kDouble };

// Each returns false if `name` is not the name of a value. The names are those
// of the ops' attributes.
bool ParseRnnMode(std::string_view name, RnnMode* mode);
bool ParseInputMode(std::string_view name, InputMode* mode);
bool ParseDirection(std::string_view name, Direction* direction);
bool ParseBiasMode(std::string_view name, BiasMode* mode);
const char* RnnModeName(RnnMode mode);

inline bool IsGru(RnnMode mode) {
  return mode == RnnMode::kGru || mode == RnnMode::kGruResetBefore;
}
inline int64_t NumGates(RnnMode mode) {
  return mode == RnnMode::kLstm ? 4 : IsGru(mode) ? 3 : 1;
}

// Returns the number below which a random word of 32 bits drops an element. All
// backends draw a mask in this way, so that they draw the same one.
inline uint32_t DropoutThreshold(float rate) {
  return static_cast<uint32_t>(static_cast<double>(rate) * 4294967296.0);
}

struct RnnSpec {
  RnnMode rnn_mode = RnnMode::kLstm;
  int64_t num_layers = 1;
  int64_t num_units = 0;
  int64_t num_proj = 0;  // 0: no recurrent projection.
  int64_t input_size = 0;
  InputMode input_mode = InputMode::kLinear;
  Direction direction = Direction::kUnidirectional;
  BiasMode bias_mode = BiasMode::kDouble;
  float dropout = 0.0f;
  float cell_clip = 0.0f;  // 0: the cell state is not clipped.
  float recurrent_dropout = 0.0f;

  bool is_lstm() const { return rnn_mode == RnnMode::kLstm; }
  bool is_gru() const { return IsGru(rnn_mode); }
  bool resets_before() const { return rnn_mode == RnnMode::kGruResetBefore; }
  int64_t num_gates() const { return NumGates(rnn_mode); }
  int64_t num_dirs() const {
    return direction == Direction::kBidirectional ? 2 : 1;
  }
  int64_t num_pseudo_layers() const { return num_layers * num_dirs(); }
  // The numbers that one pseudo-layer emits per time step.
  int64_t output_size() const { return num_proj > 0 ? num_proj : num_units; }
  // The numbers that one layer emits per time step, in all its directions
  // together.
  int64_t layer_output_size() const { return num_dirs() * output_size(); }
  int64_t layer_input_size(int64_t layer) const {
    return layer == 0 ? input_size : layer_output_size();
  }
  bool has_input_weights(int64_t layer) const {
    return layer > 0 || input_mode == InputMode::kLinear;
  }
  bool has_input_bias() const {
    return bias_mode == BiasMode::kSingleInput ||
           bias_mode == BiasMode::kDouble;
  }
  bool has_recurrent_bias() const {
    return bias_mode == BiasMode::kSingleRecurrent ||
           bias_mode == BiasMode::kDouble;
  }

  // Returns what is wrong with the configuration, including `input_size`, or an
  // empty string. In a valid configuration, no product of one layer's sizes
  // overflows, and a ParamLayout fits into the memory of any machine.
  std::string Error() const;

  // The random counter of a dropout mask has 16 bits for the layer. The masks
  // of recurrent dropout have the last number, which no mask of outputs has,
  // however many layers a network has.
  static constexpr int64_t kMaxLayers = int64_t{1} << 16;
  static constexpr int64_t kRecurrentDropoutLayer = kMaxLayers - 1;
  // This bounds every other size, since libraries such as cuDNN take 32-bit
  // sizes.
  static constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;
};

// Returns what is wrong with a clipping bound, or an empty string. Callers
// check a bound before they round it to `RnnSpec::cell_clip`.
std::string CellClipError(double cell_clip);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_
