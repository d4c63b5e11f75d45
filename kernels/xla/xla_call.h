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

// Each calls `visit` for every field of a call that an array has.
template <typename Visit>
constexpr void VisitFields(XlaPass& pass, Visit& visit) {
  VisitFields(pass.problem, visit);
  visit(pass.choice);
  visit(pass.num_threads);
}
template <typename Visit>
constexpr void VisitFields(XlaKerasTensors& call, Visit& visit) {
  VisitFields(call.spec,
              [&](const char*, AttrOf, auto& field) { visit(field); });
  visit(call.dtype);
  visit(call.to_params);
}
template <typename Visit>
constexpr void VisitFields(RnnMask& mask, Visit& visit) {
  visit(mask.max_time);
  visit(mask.batch_size);
  visit(mask.time_major);
  visit(mask.is_reversed);
  visit(mask.is_shared);
}
template <typename Visit>
constexpr void VisitFields(StepMove& move, Visit& visit) {
  visit(move.packs);
  visit(move.repeats);
  visit(move.time_major);
  visit(move.is_reversed);
  visit(move.dtype);
  visit(move.max_time);
  visit(move.batch_size);
  visit(move.width);
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
  const int64_t* end;

  template <typename T>
  void operator()(T& field) {
    if (next == end) {
      throw std::invalid_argument("XLA's call has too few numbers");
    }
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

// Returns the attribute as XLA's compiler takes it.
template <typename Call>
std::string XlaConfig(const Call& call) {
  std::string text;
  for (const int64_t number : IntegersOf(call)) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return std::string("{") + kXlaCall + " = array<i64: " + text + ">}";
}

// Reads the array at run time. It may be in a file that another version wrote.
// Throws std::invalid_argument, which handlers catch, if it has another number
// of elements, or one that is no value of its field's type.
template <typename Call>
Call XlaCallOf(const int64_t* integers, size_t size) {
  Call call;
  FromIntegers from = {integers, integers + size};
  VisitFields(call, from);
  if (from.next != from.end) {
    throw std::invalid_argument("XLA's call has too many numbers");
  }
  return call;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_XLA_CALL_H_
