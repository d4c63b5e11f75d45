#include "kernels/rnn_backend.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace cudnn_rnn_tf {

namespace {

RnnStatus LengthError(const RnnProblem& problem, int64_t index,
                      int64_t length) {
  return {RnnStatus::Code::kInvalidArgument,
          "sequence_lengths[" + std::to_string(index) + "] must lie in [0, " +
              std::to_string(problem.max_time) + "], but received " +
              std::to_string(length)};
}

// Returns the fields of a network, by their names.
std::vector<std::string> FieldsOf(const RnnSpec& spec) {
  std::vector<std::string> fields;
  VisitFields(spec, [&](std::string text, AttrOf, const auto& field) {
    text += ' ';
    if constexpr (std::is_enum_v<std::decay_t<decltype(field)>>) {
      text += NameOf(field);
    } else {
      text += std::to_string(field);
    }
    fields.push_back(text);
  });
  return fields;
}

}  // namespace

std::string RnnProblem::Error() const {
  std::string error = spec.Error();
  if (!error.empty()) return error;
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  if (static_cast<uint64_t>(max_time) > kMost ||
      static_cast<uint64_t>(batch_size) > kMost) {
    return "the input's time and batch dimensions must fit 32 bits, but "
           "received " +
           std::to_string(max_time) + " and " + std::to_string(batch_size);
  }
  if (has_cell_sequences && !spec.has_c()) {
    return std::string(
               "cell_sequences are for LSTMs only, but received "
               "rnn_mode '") +
           spec.kind().name + "'";
  }
  // A pass may keep the inputs of the gates for every step. Networks for which
  // that is more than any memory holds are refused.
  const double steps = static_cast<double>(max_time) * batch_size;
  if (steps * spec.num_pseudo_layers() *
          (spec.num_gates() * spec.num_units + spec.input_size) >
      1e15) {
    return "the network, of " + std::to_string(spec.num_layers) +
           " layers of " + std::to_string(spec.num_units) +
           " units, is too large for " + std::to_string(batch_size) +
           " sequences of " + std::to_string(max_time) + " steps of " +
           std::to_string(spec.input_size) + " numbers";
  }
  return "";
}

std::string RnnProblem::Text() const {
  const std::vector<std::string> fields = FieldsOf(spec);
  const std::vector<std::string> defaults = FieldsOf(RnnSpec());
  std::string text = fields[0];
  for (size_t i = 1; i < fields.size(); ++i) {
    if (fields[i] != defaults[i]) text += ", " + fields[i];
  }
  text += std::string(", ") + NameOf(dtype) + ", time " +
          std::to_string(max_time) + ", batch " + std::to_string(batch_size) +
          (time_major ? ", time-major" : ", batch-major");
  if (has_sequence_lengths) text += ", with sequence lengths";
  if (has_resets) text += ", with resets";
  return text + (is_training ? ", training" : ", inference");
}

RnnStatus NarrowLengths(const int64_t* lengths, const RnnProblem& problem,
                        std::vector<int32_t>* narrowed) {
  for (int64_t i = 0; i < problem.batch_size; ++i) {
    const auto length = static_cast<int32_t>(lengths[i]);
    if (length != lengths[i]) return LengthError(problem, i, lengths[i]);
    narrowed->push_back(length);
  }
  return {};
}

RnnStatus CheckLengths(RnnProblem* problem, RnnLengths* lengths) {
  const int32_t* const all = lengths->on_host;
  for (int64_t i = 0; i < problem->batch_size; ++i) {
    if (all[i] < 0 || all[i] > problem->max_time) {
      return LengthError(*problem, i, all[i]);
    }
  }
  problem->has_sequence_lengths =
      std::any_of(all, all + problem->batch_size,
                  [&](int32_t length) { return length != problem->max_time; });
  if (!problem->has_sequence_lengths) *lengths = {};
  return {};
}

}  // namespace cudnn_rnn_tf
