// The interface of a backend. Only weights that CPU ops keep are known besides.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/arena.h"
#include "kernels/keras_layout.h"
#include "kernels/masked_steps.h"
#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// The outcome of a backend call, without TensorFlow's types.
struct [[nodiscard]] RnnStatus {
  enum class Code {
    kOk = 0,
    kInvalidArgument = 3,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kUnimplemented = 12,
    kInternal = 13
  };
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
};
// Tells whether codes of another library have the same numbers.
template <typename Theirs>
constexpr bool HasNumbersOfCodes() {
  using Ours = RnnStatus::Code;
  const auto is_same = [](Ours a, Theirs b) {
    return static_cast<int>(a) == static_cast<int>(b);
  };
  return is_same(Ours::kOk, Theirs::kOk) &&
         is_same(Ours::kInvalidArgument, Theirs::kInvalidArgument) &&
         is_same(Ours::kResourceExhausted, Theirs::kResourceExhausted) &&
         is_same(Ours::kFailedPrecondition, Theirs::kFailedPrecondition) &&
         is_same(Ours::kUnimplemented, Theirs::kUnimplemented) &&
         is_same(Ours::kInternal, Theirs::kInternal);
}

// What the caller wishes to run a network on a GPU; a CPU ignores it.
// `standard` and the `persist_static` ones are algorithms of cuDNN,
// `persistent` stands for this package's kernels. `auto` lets the backend
// choose among all of these, `cudnn` among those of cuDNN. Stored graphs may
// say `resident`, kernels that there are no longer: it means what `auto` does.
enum class RnnAlgorithm {
  kAuto,
  kStandard,
  kPersistStatic,
  kPersistStaticSmallH,
  kResident,
  kPersistent,
  kCudnn
};
template <>
inline constexpr std::array kNames<RnnAlgorithm> = {
    "auto",     "standard",   "persist_static", "persist_static_small_h",
    "resident", "persistent", "cudnn"};

// One configuration applied to one shape of data.
struct RnnProblem {
  RnnSpec spec;
  RnnDataType dtype = RnnDataType::kFloat32;
  int64_t max_time = 0;
  int64_t batch_size = 0;
  bool time_major = true;
  bool has_sequence_lengths = false;
  bool has_resets = false;
  bool has_cell_sequences = false;  // The last layer's c of all steps.
  // Whether a backward pass computes the gradient of the input. Both kinds read
  // what the same forward pass has left.
  bool has_input_backprop = true;
  // In training, dropout is active, and the forward pass leaves a reserve space
  // for a backward pass.
  bool is_training = true;
  // Whether there is a seed. Without one, zoneout takes the expected values of
  // its masks, as inference does.
  bool has_seed = true;
  RnnAlgorithm algorithm = RnnAlgorithm::kAuto;

  // Returns what is wrong with the network or with these sizes, or an empty
  // string. In a valid problem, no size of a buffer overflows.
  std::string Error() const;
  // Describes the network by what is not as it is by default, and its sizes.
  std::string Text() const;
  bool has_dropout_between_layers() const {
    return is_training && spec.dropout > 0.0f && spec.num_layers > 1;
  }
  // Tells whether what a single step multiplies is floats with bounds, so that
  // float16 may take the place of TF32.
  bool has_bounded_floats() const {
    return dtype == RnnDataType::kFloat32 && spec.bounds_h() &&
           !spec.resets_before() && !spec.normalizes() &&
           !has_recurrent_dropout();
  }
  bool has_recurrent_dropout() const {
    return is_training && spec.recurrent_dropout > 0.0f;
  }
  bool draws_zones() const {
    return is_training && has_seed && spec.has_zoneout();
  }
  // Says what cuDNN lacks of the problem; empty if it lacks nothing.
  std::string LackOfCudnn() const {
    if (has_recurrent_dropout()) return "recurrent_dropout in training";
    if (has_resets) return "resets";
    if (has_cell_sequences) return "the cell states of all steps";
    // cuDNN would take equal sizes to mean that there is no projection.
    if (spec.num_proj == spec.num_units) return "num_proj equal to num_units";
    return spec.is_in_cudnn() ? "" : spec.LackOfCudnn();
  }
  bool is_in_cudnn() const { return LackOfCudnn().empty(); }
};

// Calls visit(name, field) with each field of a problem, those of its network
// first. One that is missing here does not compile.
template <typename Problem, typename Visit>
constexpr std::enable_if_t<std::is_same_v<std::decay_t<Problem>, RnnProblem>>
VisitFields(Problem& problem, Visit& visit) {
  VisitFields(problem.spec, [&](const char* name, AttrOf, auto& field) {
    visit(name, field);
  });
  visit("dtype", problem.dtype);
  visit("max_time", problem.max_time);
  visit("batch_size", problem.batch_size);
  visit("time_major", problem.time_major);
  visit("has_sequence_lengths", problem.has_sequence_lengths);
  visit("has_resets", problem.has_resets);
  visit("has_cell_sequences", problem.has_cell_sequences);
  visit("has_input_backprop", problem.has_input_backprop);
  visit("is_training", problem.is_training);
  visit("has_seed", problem.has_seed);
  visit("algorithm", problem.algorithm);
}
static_assert(NumVisited<RnnProblem>() ==
                  kNumFields<RnnSpec> + kOwnFields<RnnProblem, 1>,
              "VisitFields leaves a field of problems out");

// Appends the bytes of a field to a key.
template <typename Field>
void AppendTo(std::string* key, const Field& field) {
  key->append(reinterpret_cast<const char*>(&field), sizeof(field));
}

// A key that tells problems apart.
inline std::string KeyOf(const RnnProblem& problem) {
  std::string key;
  key.reserve(160);
  const auto append = [&](const char*, const auto& field) {
    AppendTo(&key, field);
  };
  VisitFields(problem, append);
  return key;
}

// The sizes in bytes of the buffers that a plan asks for.
struct RnnBufferSizes {
  size_t reserve_space = 0;  // 0 in inference.
  size_t forward_workspace = 0;
  size_t backward_workspace = 0;
};

// The sequences' lengths, [B], each in [0, T]. They are in host memory or in
// device memory; both pointers are null if all sequences fill T.
struct RnnLengths {
  const int32_t* on_host = nullptr;
  const int64_t* on_device = nullptr;
};

// Checks lengths in host memory. If all sequences fill the time, the problem
// has no lengths from then on.
RnnStatus CheckLengths(RnnProblem* problem, RnnLengths* lengths);
// Puts the lengths of a problem, which are in host memory, into `narrowed`.
// Fails if one does not fit 32 bits.
RnnStatus NarrowLengths(const int64_t* lengths, const RnnProblem& problem,
                        std::vector<int32_t>* narrowed);

// Addresses of tensors, in the problem's data type unless said otherwise. T is
// the number of time steps, B the batch size, I the input size, P the output
// size, H the number of units, L the number of layers and D the number of
// directions. Time-major sequences are [T, B, n] and states [L * D, B, n];
// batch-major sequences are [B, T, n] and states [B, L * D, n].
struct RnnBuffers {
  const void* input = nullptr;    // n = I
  const void* input_h = nullptr;  // n = P
  const void* input_c = nullptr;  // n = H; LSTM only.
  const void* params = nullptr;
  RnnLengths sequence_lengths;
  // Booleans [T, B] or [B, T], if the problem has resets: true where a segment
  // of a sequence begins. No state passes between segments, so a forward
  // direction starts anew there, from zeros, and a backward one before it.
  const void* resets = nullptr;
  // Dropout masks are a function of these two numbers and of a number's place.
  // cuDNN's function is another than everybody else's.
  uint64_t seed[2] = {0, 0};
  void* reserve_space = nullptr;
  void* workspace = nullptr;
};
struct RnnForwardBuffers : RnnBuffers {
  // The seed in device memory, for this package's kernels; null if it is above.
  const void* device_seed = nullptr;

  void* output = nullptr;    // n = D * P
  void* output_h = nullptr;  // n = P
  void* output_c = nullptr;  // n = H; LSTM only.
  // The last layer's c after each step, n = D * H, if the problem has it.
  void* cell_sequences = nullptr;
};
struct RnnBackwardBuffers : RnnBuffers {
  const void* output = nullptr;
  const void* output_backprop = nullptr;
  const void* output_h_backprop = nullptr;
  const void* output_c_backprop = nullptr;
  const void* cell_sequences_backprop = nullptr;

  void* input_backprop = nullptr;  // Null if the problem has none.
  void* input_h_backprop = nullptr;
  void* input_c_backprop = nullptr;
  void* params_backprop = nullptr;
};
template <typename Buffers>
inline constexpr bool kIsForward =
    std::is_same_v<std::remove_const_t<Buffers>, RnnForwardBuffers>;

// Calls visit(pointer) with each pointer to a tensor of a forward pass, or of a
// backward pass, in this order.
template <typename Buffers, typename Visit>
constexpr void VisitTensors(Buffers& all, const Visit& visit) {
  const auto each = [&](auto&... pointers) { (visit(pointers), ...); };
  each(all.input, all.input_h, all.input_c, all.params, all.resets);
  if constexpr (kIsForward<Buffers>) {
    each(all.output, all.output_h, all.output_c, all.cell_sequences);
  } else {
    each(all.output, all.output_backprop, all.output_h_backprop,
         all.output_c_backprop, all.cell_sequences_backprop, all.input_backprop,
         all.input_h_backprop, all.input_c_backprop, all.params_backprop);
  }
  each(all.reserve_space, all.workspace);
}
// A recorded pass that runs again reads a pointer that is left out from where
// it was. So what has none of a tensor has this many bytes.
template <typename Buffers>
constexpr size_t BytesWithoutTensors() {
  Buffers all;
  size_t bytes = sizeof(all);
  VisitTensors(all, [&](auto*) { bytes -= sizeof(void*); });
  return bytes;
}
static_assert(BytesWithoutTensors<RnnForwardBuffers>() ==
                      sizeof(RnnLengths) + 2 * sizeof(uint64_t) +
                          sizeof(RnnForwardBuffers::device_seed) &&
                  BytesWithoutTensors<RnnBackwardBuffers>() ==
                      sizeof(RnnLengths) + 2 * sizeof(uint64_t),
              "VisitTensors leaves a tensor of a pass out");

// How a device runs a problem: chosen, compiled and laid out once. A plan does
// not change, and any thread may use it.
struct RnnPlan {
  explicit RnnPlan(const RnnProblem& problem) : problem(problem) {}
  virtual ~RnnPlan() = default;

  const RnnProblem problem;
  RnnBufferSizes sizes;
  // What the backend chose, a number below Arena::kAlign; 0 if it has nothing
  // to choose. The size of a reserve space, which would be a multiple of
  // Arena::kAlign, is larger by this. So it tells a backward pass what left it,
  // wherever the tensor has been.
  int choice = 0;
};
// Returns the choice that the size of a reserve space tells. A caller may have
// made up a size that tells none.
inline int ChoiceIn(size_t reserve_space) {
  return static_cast<int>(reserve_space % Arena::kAlign);
}

// A backend is made for one call and uses the device resources of that call.
class RnnBackend {
 public:
  virtual ~RnnBackend() = default;

  // Finds the plan of a problem, or makes it. `choice` is 0, or another plan's
  // of the problem, which is then not chosen anew; the problem's algorithm
  // does not matter then.
  //
  // If the problem has lengths and `lengths` is not null, this checks them and
  // puts them where the plan reads them. A backend may leave lengths in device
  // memory unchecked, so that the host need not wait for the device. If all
  // sequences are found to fill the time, the plan is that of the problem
  // without lengths.
  virtual RnnStatus Plan(const RnnProblem& problem, int choice,
                         RnnLengths* lengths,
                         std::shared_ptr<const RnnPlan>* plan) = 0;
  // The caller passes every large buffer that it has allocated for a pass to
  // write to, before the pass. A CPU asks for its memory in large pages then,
  // and tests have a GPU fill it with NaN.
  virtual void Prepare(void* /*buffer*/, size_t /*bytes*/) {}
  // Run a pass of one of the backend's plans.
  virtual RnnStatus Forward(const RnnPlan& plan,
                            const RnnForwardBuffers& buffers) = 0;
  // Overwrites the reserve space. A caller who may need it again must pass a
  // copy.
  virtual RnnStatus Backward(const RnnPlan& plan,
                             const RnnBackwardBuffers& buffers) = 0;
  // Finds the steps that a mask selects.
  virtual RnnStatus ReadMask(const RnnMask& mask, const MaskedSteps& found) = 0;
  virtual RnnStatus MoveSteps(const StepMove& move) = 0;
  // Copies within the device's memory, in order with the other work that is
  // enqueued there.
  virtual RnnStatus Copy(const void* from, void* to, size_t bytes) = 0;
  virtual RnnStatus SetZero(void* to, size_t bytes) = 0;
  // Copies the tensors of Keras's layers, the layout's weights and then its
  // biases, to their places in the parameters, or from there if `to_params` is
  // false.
  virtual RnnStatus MoveKerasTensors(const KerasLayout& layout,
                                     RnnDataType dtype, bool to_params,
                                     const std::vector<void*>& tensors,
                                     void* params) = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
