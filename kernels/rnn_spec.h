// The configuration of a recurrent network.
//
// Everything here is plain C++: the TensorFlow ops, the backends and the Python
// helper module share it.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_
#define CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/cells/activation_list.h"

namespace cudnn_rnn_tf {

enum class RnnDataType { kFloat64, kFloat32, kFloat16, kBfloat16 };
// Calls body with a number, 0, of the type that data of this type are stored in
// as C++ has it, where half types are bits.
template <typename Body>
void WithStorageType(RnnDataType dtype, const Body& body) {
  switch (dtype) {
    case RnnDataType::kFloat64:
      return body(double());
    case RnnDataType::kFloat32:
      return body(float());
    case RnnDataType::kFloat16:
    case RnnDataType::kBfloat16:
      return body(uint16_t());
  }
}
// The size of one number in bytes.
inline size_t SizeOf(RnnDataType dtype) {
  size_t size = 0;
  WithStorageType(dtype, [&](auto number) { size = sizeof(number); });
  return size;
}

// kGruResetBefore is the GRU whose reset gate multiplies h before the recurrent
// matrix does; that of kGru multiplies the product. In kLstmPeephole, gates see
// c. The last two normalise their sums, as kernels/cells/layer_norm.h says.
enum class RnnMode {
  kLstm,
  kGru,
  kRnnTanh,
  kRnnRelu,
  kGruResetBefore,
  kLstmPeephole,
  kLstmLayerNorm,
  kGruLayerNorm,
  kCount
};
enum class InputMode { kLinear, kSkip };
enum class Direction { kUnidirectional, kBidirectional };
enum class Activation { CRNN_ACTIVATIONS(CRNN_VALUE_OF_ACTIVATION) };
enum class BiasMode { kNone, kSingleInput, kSingleRecurrent, kDouble };

// The names of an enumeration's values, by their numbers. They are NumPy's, and
// those of the ops' attributes.
template <typename Enum>
inline constexpr std::array<const char*, 0> kNames = {};
template <>
inline constexpr std::array kNames<RnnDataType> = {"float64", "float32",
                                                   "float16", "bfloat16"};
template <>
inline constexpr std::array kNames<InputMode> = {"linear_input", "skip_input"};
template <>
inline constexpr std::array kNames<Direction> = {"unidirectional",
                                                 "bidirectional"};
template <>
inline constexpr std::array kNames<Activation> = {
    CRNN_ACTIVATIONS(CRNN_NAME_OF_ACTIVATION)};
template <>
inline constexpr std::array kNames<BiasMode> = {"none", "single_input",
                                                "single_recurrent", "double"};

template <typename Enum>
inline constexpr size_t kNumNames = kNames<Enum>.size();

template <typename Enum>
const char* NameOf(Enum value) {
  return kNames<Enum>[static_cast<size_t>(value)];
}
// The names of kinds of cells are in the table of these.
template <>
inline constexpr size_t kNumNames<RnnMode> =
    static_cast<size_t>(RnnMode::kCount);
template <>
const char* NameOf(RnnMode mode);

// Returns false if no value has this name.
template <typename Enum>
bool ParseName(std::string_view name, Enum* value) {
  for (size_t i = 0; i < kNumNames<Enum>; ++i) {
    if (name != NameOf(static_cast<Enum>(i))) continue;
    *value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

// What is known of a kind of cell. Its arithmetic is in kernels/cells/.
struct CellKind {
  RnnMode mode;
  const char* name;          // The value of the ops' attribute rnn_mode.
  const char* type;          // The name of its type in kernels/cells/.
  const char* const* gates;  // What they are called in names of tensors.
  bool swaps_gates;  // Whether Keras and cuDNN order the first two differently.
  int cudnn_mode;    // A cudnnRNNMode_t, or -1.
  const char* const* vectors = nullptr;  // What they are called, if any.
  // The following are those of the type, which cells.h describes.
  int64_t num_gates = 0, joint_gates = 0, gates_of_h = 0, num_slots = 0,
          num_vectors = 0, num_norms = 0;
  bool resets_before = false, has_c = false, reads_h = false, bounds_h = false;

  // Whether the recurrent side of the last gate has a slot after the gates.
  bool splits_gate() const { return joint_gates < gates_of_h; }
  bool is_in_cudnn() const { return cudnn_mode >= 0; }
};
const CellKind& KindOf(RnnMode mode);

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
  Activation activation = Activation::kOwn;            // Of a candidate and c.
  Activation recurrent_activation = Activation::kOwn;  // Of gates.
  // It is added to variances by cells that normalise.
  float layer_norm_epsilon = kLayerNormEpsilon;
  float zoneout = 0.0f;       // Of h.
  float cell_zoneout = 0.0f;  // Of c.

  const CellKind& kind() const { return KindOf(rnn_mode); }
  bool has_c() const { return kind().has_c; }
  bool resets_before() const { return kind().resets_before; }
  bool normalizes() const { return kind().num_norms > 0; }
  bool has_zoneout() const { return zoneout > 0.0f || cell_zoneout > 0.0f; }
  bool reads_h() const { return kind().reads_h || has_zoneout(); }
  bool has_own_activations() const {
    return activation == Activation::kOwn &&
           recurrent_activation == Activation::kOwn;
  }
  // What a candidate and c, or gates, pass through, unless the kind of cell
  // names a function itself, as RnnRelu does.
  Activation candidate_activation() const {
    return activation == Activation::kOwn ? Activation::kTanh : activation;
  }
  Activation gate_activation() const {
    return recurrent_activation == Activation::kOwn ? Activation::kSigmoid
                                                    : recurrent_activation;
  }
  bool is_in_cudnn() const {
    return kind().is_in_cudnn() && has_own_activations() && !has_zoneout();
  }
  // Whether h, before a projection, is at most 1 or its initial value. That of
  // a cell that reads h is a mean of two numbers, if a gate is at least 0.
  bool bounds_h() const {
    const auto has_bound = [](Activation each) {
      return each != Activation::kRelu && each != Activation::kLinear &&
             each != Activation::kElu;
    };
    const bool is_signed = recurrent_activation == Activation::kTanh ||
                           recurrent_activation == Activation::kSoftsign;
    return kind().bounds_h && has_bound(activation) &&
           has_bound(recurrent_activation) && !(kind().reads_h && is_signed);
  }
  // Says what cuDNN lacks, if it is not.
  std::string LackOfCudnn() const;
  int64_t num_gates() const { return kind().num_gates; }
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

  // That of tf.contrib.layers.layer_norm, which TensorFlow 1's cell calls.
  static constexpr float kLayerNormEpsilon = 1e-12f;
  // The random counter of a dropout mask has 16 bits for the layer. The masks
  // of recurrent dropout and of zoneout have the last numbers, which no mask of
  // outputs has, however many layers a network has.
  static constexpr int64_t kMaxLayers = (int64_t{1} << 16) - 1;
  static constexpr int64_t kRecurrentDropoutLayer = kMaxLayers;
  static constexpr int64_t kZoneoutLayer = kMaxLayers - 1;
  // This bounds every other size, since libraries such as cuDNN take 32-bit
  // sizes.
  static constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;
};

// Which ops have a field as an attribute.
enum class AttrOf {
  kAllOps,     // It decides the layout of parameters.
  kParamsOps,  // So does this one, which passes read from their inputs.
  kPasses,     // Only Forward and Backward depend on it.
};

// How many fields a struct has, and how many of them VisitFields visits.
struct AnyField {
  template <typename T>
  operator T() const;
};
template <typename Struct, typename = void, typename... Fields>
inline constexpr int kNumFields = sizeof...(Fields) - 1;
template <typename Struct, typename... Fields>
inline constexpr int
    kNumFields<Struct, std::void_t<decltype(Struct{Fields()...})>, Fields...> =
        kNumFields<Struct, void, Fields..., AnyField>;
// Of these, all but so many structs within and pointers.
template <typename Struct, int kOthers>
inline constexpr int kOwnFields = kNumFields<Struct> - kOthers;
template <typename Struct>
constexpr int NumVisited() {
  Struct fields;
  int count = 0;
  const auto visit = [&](auto&&...) { ++count; };
  VisitFields(fields, visit);
  return count;
}

// Calls visit(name, ops, field) with each field, by the name of its attribute
// and of Python's argument, and in the order of the latter. Whatever depends on
// the fields is made by this: keys, comparisons, attributes, what XLA carries,
// and Python's classes. A field that is missing here does not compile.
template <typename Spec, typename Visit>
constexpr std::enable_if_t<std::is_same_v<std::decay_t<Spec>, RnnSpec>>
VisitFields(Spec&& spec, const Visit& visit) {
  visit("rnn_mode", AttrOf::kAllOps, spec.rnn_mode);
  visit("num_layers", AttrOf::kAllOps, spec.num_layers);
  visit("num_units", AttrOf::kAllOps, spec.num_units);
  visit("input_size", AttrOf::kParamsOps, spec.input_size);
  visit("input_mode", AttrOf::kAllOps, spec.input_mode);
  visit("direction", AttrOf::kAllOps, spec.direction);
  visit("bias_mode", AttrOf::kAllOps, spec.bias_mode);
  visit("num_proj", AttrOf::kAllOps, spec.num_proj);
  visit("dropout", AttrOf::kPasses, spec.dropout);
  visit("cell_clip", AttrOf::kPasses, spec.cell_clip);
  visit("recurrent_dropout", AttrOf::kPasses, spec.recurrent_dropout);
  visit("activation", AttrOf::kPasses, spec.activation);
  visit("recurrent_activation", AttrOf::kPasses, spec.recurrent_activation);
  visit("layer_norm_epsilon", AttrOf::kPasses, spec.layer_norm_epsilon);
  visit("zoneout", AttrOf::kPasses, spec.zoneout);
  visit("cell_zoneout", AttrOf::kPasses, spec.cell_zoneout);
}
static_assert(NumVisited<RnnSpec>() == kNumFields<RnnSpec>,
              "VisitFields leaves a field of networks out");

// Tells whether networks have the same parameters.
bool HaveSameParams(const RnnSpec& a, const RnnSpec& b);

// Returns what is wrong with a clipping bound, or an empty string. Callers
// check a bound before they round it to `RnnSpec::cell_clip`.
std::string CellClipError(double cell_clip);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_SPEC_H_
