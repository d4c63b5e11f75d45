#include "kernels/rnn_backend.h"

#include <algorithm>

namespace cudnn_rnn_tf {

namespace {

RnnStatus LengthError(const RnnProblem& problem, int64_t index,
                      int64_t length) {
  return {RnnStatus::Code::kInvalidArgument,
          "sequence_lengths[" + std::to_string(index) + "] must lie in [0, " +
              std::to_string(problem.max_time) + "], but received " +
              std::to_string(length)};
}

}  // namespace

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
