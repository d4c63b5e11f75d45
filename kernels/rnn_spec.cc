#include "kernels/rnn_spec.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

namespace cudnn_rnn_tf {
namespace {

template <typename E>
struct Named {
  std::string_view name;
  E value;
};

constexpr Named<RnnMode> kRnnModes[] = {
    {"lstm", RnnMode::kLstm},
    {"gru", RnnMode::kGru},
    {"rnn_tanh", RnnMode::kRnnTanh},
    {"rnn_relu", RnnMode::kRnnRelu},
    {"gru_reset_before", RnnMode::kGruResetBefore}};
constexpr Named<InputMode> kInputModes[] = {
    {"linear_input", InputMode::kLinear}, {"skip_input", InputMode::kSkip}};
constexpr Named<Direction> kDirections[] = {
    {"unidirectional", Direction::kUnidirectional},
    {"bidirectional", Direction::kBidirectional}};
constexpr Named<BiasMode> kBiasModes[] = {
    {"none", BiasMode::kNone},
    {"single_input", BiasMode::kSingleInput},
    {"single_recurrent", BiasMode::kSingleRecurrent},
    {"double", BiasMode::kDouble}};

template <typename E, size_t n>
bool Parse(const Named<E> (&table)[n], std::string_view name, E* value) {
  for (const Named<E>& entry : table) {
    if (entry.name == name) {
      *value = entry.value;
      return true;
    }
  }
  return false;
}

std::string Text(double value) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", value);
  const std::string text = digits;
  return text.find_first_not_of("-0123456789") == std::string::npos
             ? text + ".0"
             : text;
}

// Returns the exact value even if the processor flushes denormal numbers, as
// TensorFlow makes it do. In that mode, comparisons and conversions of floats
// take denormal numbers for 0.
double Exact(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t fraction = bits & 0x7fffff;
  if ((bits & 0x7f800000) != 0 || fraction == 0) return value;
  const double size = std::ldexp(static_cast<double>(fraction), -149);
  return bits >> 31 ? -size : size;
}

std::string Received(const std::string& expectation, int64_t value) {
  return expectation + ", but received " + std::to_string(value);
}

}  // namespace

bool ParseRnnMode(std::string_view name, RnnMode* mode) {
  return Parse(kRnnModes, name, mode);
}
bool ParseInputMode(std::string_view name, InputMode* mode) {
  return Parse(kInputModes, name, mode);
}
bool ParseDirection(std::string_view name, Direction* direction) {
  return Parse(kDirections, name, direction);
}
bool ParseBiasMode(std::string_view name, BiasMode* mode) {
  return Parse(kBiasModes, name, mode);
}

const char* RnnModeName(RnnMode mode) {
  for (const auto& entry : kRnnModes) {
    if (entry.value == mode) return entry.name.data();
  }
  return "unknown";
}

std::string CellClipError(double cell_clip) {
  constexpr double kSmallest = std::numeric_limits<float>::min();
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (cell_clip == 0.0 || (cell_clip >= kSmallest && cell_clip <= kLargest)) {
    return "";
  }
  // A denormal bound is refused: on processors that flush denormal numbers, one
  // place would take it for 0, which means no clipping, and another for a
  // bound.
  return "cell_clip must be 0 (no clipping) or a positive finite number, at "
         "least " +
         Text(kSmallest) + ", the smallest normal float32, but received " +
         Text(cell_clip);
}

std::string RnnSpec::Error() const {
  if (num_layers < 1) {
    return Received("num_layers must be at least 1", num_layers);
  }
  if (num_layers > kMaxLayers) {
    return Received("num_layers must be at most " + std::to_string(kMaxLayers),
                    num_layers);
  }
  if (num_units < 1) {
    return Received("num_units must be at least 1", num_units);
  }
  if (input_size < 1) {
    return Received("input_size must be at least 1", input_size);
  }
  for (const auto& [name, size] : {std::pair("num_units", num_units),
                                   std::pair("input_size", input_size)}) {
    if (size > kMaxSize) {
      return Received(std::string(name) + " must fit 32 bits", size);
    }
  }
  if (num_proj < 0) {
    return Received("num_proj must be 0 (no projection) or positive", num_proj);
  }
  if (num_proj > 0 && !is_lstm()) {
    return std::string("num_proj is for rnn_mode 'lstm' only, but received ") +
           std::to_string(num_proj) + " with rnn_mode '" +
           RnnModeName(rnn_mode) + "'";
  }
  if (num_proj > num_units) {
    return Received("num_proj must be at most num_units", num_proj) +
           " with num_units " + std::to_string(num_units);
  }
  if (input_mode == InputMode::kSkip && input_size != num_units) {
    return "input_mode 'skip_input' feeds the inputs to the gates as they are, "
           "so input_size must equal num_units, but received input_size " +
           std::to_string(input_size) + " and num_units " +
           std::to_string(num_units);
  }
  for (const auto& [name, rate] :
       {std::pair("dropout", dropout),
        std::pair("recurrent_dropout", recurrent_dropout)}) {
    if (!(rate >= 0.0f && rate < 1.0f)) {
      return std::string(name) + " must lie in [0, 1), but received " +
             Text(rate);
    }
  }
  const std::string cell_clip_error = CellClipError(Exact(cell_clip));
  if (!cell_clip_error.empty()) return cell_clip_error;
  if (cell_clip > 0.0f && !is_lstm()) {
    return "cell_clip is for rnn_mode 'lstm' only, but received " +
           Text(cell_clip) + " with rnn_mode '" + RnnModeName(rnn_mode) + "'";
  }
  // Doubles cannot overflow here, and no machine has memory for 10^15 numbers.
  const double fan_in = static_cast<double>(input_size) +
                        2.0 * static_cast<double>(num_units) + 4.0;
  if (2.0 * num_layers * num_gates() * num_units * 2.0 * fan_in > 1e15) {
    return "the network is too large: num_layers " +
           std::to_string(num_layers) + ", num_units " +
           std::to_string(num_units) + ", input_size " +
           std::to_string(input_size);
  }
  return "";
}

}  // namespace cudnn_rnn_tf
