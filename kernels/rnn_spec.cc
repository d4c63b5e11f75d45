#include "kernels/rnn_spec.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace cudnn_rnn_tf {
namespace {

#include "kernels/cells/cells.h"

template <typename Cell>
struct Row {
  CellKind kind;
};
template <typename... Cells>
constexpr std::array<CellKind, sizeof...(Cells)> MakeKinds(Row<Cells>... row) {
  static_assert(std::is_same_v<CellList<Cells...>, AllCells>,
                "the rows have the order of AllCells");
  static_assert(sizeof...(Cells) == static_cast<size_t>(RnnMode::kCount),
                "every RnnMode has a row");
  ((row.kind.num_gates = Cells::kGates,
    row.kind.joint_gates = Cells::kJointGates,
    row.kind.gates_of_h = Cells::kGatesOfH, row.kind.num_slots = Cells::kSlots,
    row.kind.resets_before = Cells::kResetsBefore,
    row.kind.has_c = Cells::kHasC, row.kind.reads_h = Cells::kReadsH,
    row.kind.bounds_h = Cells::kBoundsH, row.kind.num_vectors = Cells::kVectors,
    row.kind.num_norms = Cells::kNorms),
   ...);
  return {row.kind...};
}

constexpr const char* kLstmGates[] = {"input_gate_", "forget_gate_",
                                      "cell_candidate_", "output_gate_"};
constexpr const char* kGruGates[] = {"reset_gate_", "update_gate_",
                                     "candidate_"};
constexpr const char* kOneGate[] = {""};
// These are the names in checkpoints of TensorFlow 1.
constexpr const char* kPeepholes[] = {"w_i_diag", "w_f_diag", "w_o_diag"};
constexpr const char* kNormsOfLstm[] = {
    "input_gate_gamma",  "input_gate_beta",      "forget_gate_gamma",
    "forget_gate_beta",  "cell_candidate_gamma", "cell_candidate_beta",
    "output_gate_gamma", "output_gate_beta",     "cell_state_gamma",
    "cell_state_beta"};
constexpr const char* kNormsOfGru[] = {"reset_gate_gamma",  "reset_gate_beta",
                                       "update_gate_gamma", "update_gate_beta",
                                       "candidate_gamma",   "candidate_beta"};

// cuDNN's numbers are those of CUDNN_RNN_RELU, CUDNN_RNN_TANH, CUDNN_LSTM and
// CUDNN_GRU.
constexpr auto kKinds = MakeKinds(
    Row<Lstm>{{RnnMode::kLstm, "lstm", "Lstm", kLstmGates, false, 2}},
    Row<Gru>{{RnnMode::kGru, "gru", "Gru", kGruGates, true, 3}},
    Row<RnnTanh>{
        {RnnMode::kRnnTanh, "rnn_tanh", "RnnTanh", kOneGate, false, 1}},
    Row<RnnRelu>{
        {RnnMode::kRnnRelu, "rnn_relu", "RnnRelu", kOneGate, false, 0}},
    Row<GruResetBefore>{{RnnMode::kGruResetBefore, "gru_reset_before",
                         "GruResetBefore", kGruGates, true, -1}},
    Row<LstmPeephole>{{RnnMode::kLstmPeephole, "lstm_peephole", "LstmPeephole",
                       kLstmGates, false, -1, kPeepholes}},
    Row<LstmLayerNorm>{{RnnMode::kLstmLayerNorm, "lstm_layer_norm",
                        "LstmLayerNorm", kLstmGates, false, -1, kNormsOfLstm}},
    Row<GruLayerNorm>{{RnnMode::kGruLayerNorm, "gru_layer_norm", "GruLayerNorm",
                       kGruGates, true, -1, kNormsOfGru}});

constexpr bool AreInOrder() {
  int count = 0;
  for (const CellKind& kind : kKinds) {
    if (kind.mode != static_cast<RnnMode>(count++)) return false;
  }
  return true;
}
static_assert(AreInOrder(), "the rows have the order of RnnMode");

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

// Returns the fields that decide the layout of parameters.
std::vector<int64_t> FieldsOfLayout(const RnnSpec& spec) {
  std::vector<int64_t> fields;
  VisitFields(spec, [&](const char*, AttrOf ops, const auto& field) {
    if (ops != AttrOf::kPasses) fields.push_back(static_cast<int64_t>(field));
  });
  return fields;
}

}  // namespace

const CellKind& KindOf(RnnMode mode) { return kKinds[static_cast<int>(mode)]; }

template <>
const char* NameOf(RnnMode mode) {
  return KindOf(mode).name;
}

bool HaveSameParams(const RnnSpec& a, const RnnSpec& b) {
  return FieldsOfLayout(a) == FieldsOfLayout(b);
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

std::string RnnSpec::LackOfCudnn() const {
  if (has_zoneout()) return "zoneout";
  return has_own_activations() ? std::string("rnn_mode ") + kind().name
                               : "activations other than the cell's own";
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
  if (num_proj > 0 && !has_c()) {
    return std::string("num_proj is for LSTMs only, but received ") +
           std::to_string(num_proj) + " with rnn_mode '" + kind().name + "'";
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
  for (const auto& [name, rate] : {std::pair("dropout", dropout),
                                   {"recurrent_dropout", recurrent_dropout},
                                   {"zoneout", zoneout},
                                   {"cell_zoneout", cell_zoneout}}) {
    if (!(rate >= 0.0f && rate < 1.0f)) {
      return std::string(name) + " must lie in [0, 1), but received " +
             Text(rate);
    }
  }
  const std::string cell_clip_error = CellClipError(Exact(cell_clip));
  if (!cell_clip_error.empty()) return cell_clip_error;
  for (const auto& [name, value] :
       {std::pair("cell_clip", cell_clip), {"cell_zoneout", cell_zoneout}}) {
    if (value == 0.0f || has_c()) continue;
    return std::string(name) + " is for LSTMs only, but received " +
           Text(value) + " with rnn_mode '" + kind().name + "'";
  }
  if (normalizes() && num_proj > 0) {
    return Received("layer normalization takes no num_proj", num_proj);
  }
  if (normalizes() && cell_clip > 0.0f) {
    return "layer normalization takes no cell_clip, but received " +
           Text(cell_clip);
  }
  if (has_zoneout() && num_proj > 0) {
    return Received("zoneout takes no num_proj", num_proj);
  }
  if (has_zoneout() &&
      (normalizes() || (cell_zoneout > 0.0f && kind().num_vectors > 0))) {
    return "zoneout takes no layer normalization, and that of c no peepholes, "
           "but received " +
           std::string(normalizes() ? "use_layer_norm" : "use_peepholes") +
           "=True";
  }
  if (!(layer_norm_epsilon >= std::numeric_limits<float>::min() &&
        layer_norm_epsilon <= std::numeric_limits<float>::max())) {
    return "layer_norm_epsilon must be a positive finite number, but "
           "received " +
           Text(layer_norm_epsilon);
  }
  if (layer_norm_epsilon != kLayerNormEpsilon && !normalizes()) {
    return "layer_norm_epsilon is for layer-normalized LSTMs and GRUs only, "
           "but received " +
           Text(layer_norm_epsilon) + " with rnn_mode '" + kind().name + "'";
  }
  if (recurrent_activation != Activation::kOwn && num_gates() == 1) {
    return "recurrent_activation is for LSTMs and GRUs only, but received '" +
           std::string(NameOf(recurrent_activation)) + "' with rnn_mode '" +
           kind().name + "'";
  }
  if (activation != Activation::kOwn && rnn_mode == RnnMode::kRnnRelu) {
    return "rnn_mode 'rnn_relu' has its activation, but received activation '" +
           std::string(NameOf(activation)) + "'";
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
