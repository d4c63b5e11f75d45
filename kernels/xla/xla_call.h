// What a lowering tells the handler of a custom call. XLA's FFI carries it as
// an attribute, an array of integers.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_XLA_CALL_H_
#define CUDNN_RNN_TF_KERNELS_XLA_XLA_CALL_H_

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/op_tensors.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// The names of the calls and of their one attribute.
inline constexpr char kXlaForward[] = "cudnn_rnn_tf_forward";
inline constexpr char kXlaBackward[] = "cudnn_rnn_tf_backward";
inline constexpr char kXlaKerasTensors[] = "cudnn_rnn_tf_keras_tensors";
inline constexpr char kXlaReadMask[] = "cudnn_rnn_tf_read_mask";
inline constexpr char kXlaMoveSteps[] = "cudnn_rnn_tf_move_steps";
inline constexpr char kXlaCall[] = "call";

struct XlaPass {
  RnnProblem problem;
  // That of the plan by which the pass was compiled, by which it also runs.
  int choice = 0;
  // The threads that the sizes of the buffers are for.
  int64_t num_threads = 1;

  // More than any machine has.
  static constexpr int64_t kMostThreads = int64_t{1} << 16;
};

// A move of the tensors of Keras's layers to the parameters, or from there.
struct XlaKerasTensors {
  RnnSpec spec;
  RnnDataType dtype = RnnDataType::kFloat32;
  bool to_params = true;
};

// Each calls visit(name, field) for every field of a call that an array has.
template <typename Visit>
constexpr void VisitFields(XlaPass& pass, Visit& visit) {
  VisitFields(pass.problem, visit);
  visit("choice", pass.choice);
  visit("num_threads", pass.num_threads);
}
template <typename Visit>
constexpr void VisitFields(XlaKerasTensors& call, Visit& visit) {
  VisitFields(call.spec, [&](const char* name, AttrOf, auto& field) {
    visit(name, field);
  });
  visit("dtype", call.dtype);
  visit("to_params", call.to_params);
}
template <typename Visit>
constexpr void VisitFields(RnnMask& mask, Visit& visit) {
  visit("max_time", mask.max_time);
  visit("batch_size", mask.batch_size);
  visit("time_major", mask.time_major);
  visit("is_reversed", mask.is_reversed);
  visit("is_shared", mask.is_shared);
}
template <typename Visit>
constexpr void VisitFields(StepMove& move, Visit& visit) {
  visit("packs", move.packs);
  visit("repeats", move.repeats);
  visit("time_major", move.time_major);
  visit("is_reversed", move.is_reversed);
  visit("dtype", move.dtype);
  visit("max_time", move.max_time);
  visit("batch_size", move.batch_size);
  visit("width", move.width);
}

// The rest are pointers, and the fields of what such a struct has within.
static_assert(NumVisited<XlaPass>() ==
                      NumVisited<RnnProblem>() + kOwnFields<XlaPass, 1> &&
                  NumVisited<XlaKerasTensors>() ==
                      kNumFields<RnnSpec> + kOwnFields<XlaKerasTensors, 1> &&
                  NumVisited<RnnMask>() == kOwnFields<RnnMask, 1> &&
                  NumVisited<StepMove>() == kOwnFields<StepMove, 4>,
              "VisitFields leaves a field of a call out");

struct FromIntegers {
  const int64_t* next;

  template <typename T>
  void operator()(const char*, T& field) {
    const int64_t number = *next++;
    if constexpr (std::is_same_v<T, float>) {
      const auto bits = Checked<uint32_t>(number);
      std::memcpy(&field, &bits, sizeof(bits));
    } else {
      field = Checked<T>(number);
    }
  }
  // Fails unless the number is one of the type's values.
  template <typename T>
  static T Checked(int64_t number) {
    bool is_one =
        number >= 0 && static_cast<int64_t>(static_cast<T>(number)) == number;
    if constexpr (std::is_enum_v<T>) {
      is_one = is_one && static_cast<uint64_t>(number) < kNumNames<T>;
    }
    if (is_one) return static_cast<T>(number);
    throw std::invalid_argument("XLA's call has " + std::to_string(number) +
                                " in place of another kind of number");
  }
};

// The first number of an array: a hash of the names of the call's fields, of
// their enumerations' values and of a pass's buffers, in their order.
template <typename Call>
int64_t FormatOf() {
  std::string names;
  const auto visit = [&](const char* name, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    names += name;
    if constexpr (std::is_enum_v<Field>) {
      for (size_t i = 0; i < kNumNames<Field>; ++i) {
        names += std::string(" ") + NameOf(static_cast<Field>(i));
      }
    }
    names += ',';
  };
  Call call;
  VisitFields(call, visit);
  if constexpr (std::is_same_v<Call, XlaPass>) {
    RnnProblem& problem = call.problem;
    problem.has_resets = problem.has_cell_sequences = true;
    for (const bool is_backward : {false, true}) {
      const PassForms forms = FormsOf(problem, kAnySize, kAnySize, is_backward);
      for (const auto& form : forms.inputs) names += form.name;
      for (const auto& form : forms.outputs) names += form.name;
    }
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a.
  for (const char letter : names) hash = (hash ^ letter) * 1099511628211u;
  return static_cast<int64_t>(hash >> 1);
}

// Returns the attribute as XLA's compiler takes it.
template <typename Call>
std::string XlaConfig(Call call) {
  std::string text = std::to_string(FormatOf<Call>());
  const auto visit = [&](const char*, const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, float>) {
      uint32_t bits;
      std::memcpy(&bits, &field, sizeof(bits));
      text += ", " + std::to_string(bits);
    } else {
      text += ", " + std::to_string(static_cast<int64_t>(field));
    }
  };
  VisitFields(call, visit);
  return std::string("{") + kXlaCall + " = array<i64: " + text + ">}";
}

// Reads the array at run time. It may be in a file that another version wrote.
// Throws std::invalid_argument, which handlers catch, if it has another format
// or a number that is no value of its field's type.
template <typename Call>
Call XlaCallOf(const int64_t* integers, size_t size) {
  static const int64_t format = FormatOf<Call>();
  if (size != 1 + NumVisited<Call>() || integers[0] != format) {
    throw std::invalid_argument(
        "XLA compiled the function for another version of cudnn_rnn_tf; "
        "compile it again, without the cache that it was read from");
  }
  Call call;
  FromIntegers from = {integers + 1};
  VisitFields(call, from);
  return call;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_XLA_CALL_H_
