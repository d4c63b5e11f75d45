// Functions that read a configuration from an op's attributes. Shape functions
// and kernels share them.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_
#define CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_

#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "kernels/op_status.h"
#include "kernels/rnn_backend.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/platform/errors.h"

namespace cudnn_rnn_tf {

template <typename Context, typename Value>
absl::Status ReadAttr(Context* context, const char* attr, Value* value) {
  if constexpr (std::is_enum_v<Value>) {
    std::string name;
    TF_RETURN_IF_ERROR(context->GetAttr(attr, &name));
    if (ParseName(name, value)) return absl::OkStatus();
    return InvalidArgument("unknown ", attr, " '", name, "'");
  } else {
    return context->GetAttr(attr, value);
  }
}

// Reads the attributes of a network that such ops have, and leaves the other
// fields as they are.
template <typename Context>
absl::Status ReadSpec(Context* context, RnnSpec* spec,
                      AttrOf ops = AttrOf::kAllOps) {
  absl::Status status;
  VisitFields(*spec, [&](const char* name, AttrOf its_ops, auto& field) {
    if (its_ops == ops && status.ok()) status = ReadAttr(context, name, &field);
  });
  return status;
}

// Reads the attributes of Forward or Backward.
template <typename Context>
absl::Status ReadProblem(Context* context, bool is_backward,
                         RnnProblem* problem) {
  RnnSpec* const spec = &problem->spec;
  TF_RETURN_IF_ERROR(ReadSpec(context, spec));
  TF_RETURN_IF_ERROR(ReadSpec(context, spec, AttrOf::kPasses));
  TF_RETURN_IF_ERROR(context->GetAttr("time_major", &problem->time_major));
  TF_RETURN_IF_ERROR(
      context->GetAttr("has_sequence_lengths", &problem->has_sequence_lengths));
  if (!is_backward) {
    TF_RETURN_IF_ERROR(context->GetAttr("is_training", &problem->is_training));
    TF_RETURN_IF_ERROR(ReadAttr(context, "algorithm", &problem->algorithm));
  }
  // Lists of types rather than numbers, since a number in an edited graph could
  // be so large that TensorFlow itself would never be done with it.
  std::vector<tensorflow::DataType> types;
  for (const auto& [attr, what, is_there] :
       {std::tuple("Tseed", "one seed", &problem->has_seed),
        {"Tresets", "one tensor of resets", &problem->has_resets},
        {"Tcells", "one tensor of cell_sequences",
         &problem->has_cell_sequences}}) {
    types.clear();
    TF_RETURN_IF_ERROR(context->GetAttr(attr, &types));
    *is_there = !types.empty();
    if (types.size() <= 1) continue;
    return InvalidArgument("expected at most ", what, ", but received ",
                           types.size());
  }
  if (!problem->has_cell_sequences) return absl::OkStatus();
  tensorflow::DataType type;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &type));
  if (types[0] != type || !spec->has_c()) {
    return InvalidArgument(
        "expected cell_sequences of an LSTM, of the type of its other tensors");
  }
  return absl::OkStatus();
}

inline absl::Status CheckSpec(const RnnSpec& spec) {
  const std::string error = spec.Error();
  if (!error.empty()) return InvalidArgument(error);
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_
