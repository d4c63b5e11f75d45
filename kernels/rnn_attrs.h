// Functions that read a configuration from an op's attributes. Shape functions
// and kernels share them.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_
#define CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/op_status.h"
#include "kernels/rnn_spec.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/platform/errors.h"

namespace cudnn_rnn_tf {

template <typename E, typename Context>
absl::Status ReadEnum(Context* context, const char* attr,
                      bool (*parse)(std::string_view, E*), E* value) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr(attr, &name));
  if (!parse(name, value)) {
    return InvalidArgument("unknown ", attr, " '", name, "'");
  }
  return absl::OkStatus();
}

// Reads the attributes that all ops on networks have. This leaves input_size
// unchanged, which is an attribute of some ops only.
template <typename Context>
absl::Status ReadSpec(Context* context, RnnSpec* spec) {
  TF_RETURN_IF_ERROR(
      ReadEnum(context, "rnn_mode", ParseRnnMode, &spec->rnn_mode));
  TF_RETURN_IF_ERROR(
      ReadEnum(context, "input_mode", ParseInputMode, &spec->input_mode));
  TF_RETURN_IF_ERROR(
      ReadEnum(context, "direction", ParseDirection, &spec->direction));
  TF_RETURN_IF_ERROR(
      ReadEnum(context, "bias_mode", ParseBiasMode, &spec->bias_mode));
  TF_RETURN_IF_ERROR(context->GetAttr("num_layers", &spec->num_layers));
  TF_RETURN_IF_ERROR(context->GetAttr("num_units", &spec->num_units));
  return context->GetAttr("num_proj", &spec->num_proj);
}

// Reads the attributes that Forward and Backward have in addition.
template <typename Context>
absl::Status ReadRunAttrs(Context* context, RnnSpec* spec, bool* time_major,
                          bool* has_sequence_lengths, int* num_seeds) {
  TF_RETURN_IF_ERROR(context->GetAttr("dropout", &spec->dropout));
  TF_RETURN_IF_ERROR(context->GetAttr("cell_clip", &spec->cell_clip));
  TF_RETURN_IF_ERROR(
      context->GetAttr("recurrent_dropout", &spec->recurrent_dropout));
  TF_RETURN_IF_ERROR(context->GetAttr("time_major", time_major));
  TF_RETURN_IF_ERROR(
      context->GetAttr("has_sequence_lengths", has_sequence_lengths));
  // A list of types rather than a number, since a number in an edited graph
  // could be so large that TensorFlow itself would never be done with it.
  std::vector<tensorflow::DataType> seeds;
  TF_RETURN_IF_ERROR(context->GetAttr("Tseed", &seeds));
  *num_seeds = static_cast<int>(seeds.size());
  if (*num_seeds <= 1) return absl::OkStatus();
  return InvalidArgument("expected at most one seed, but received ",
                         *num_seeds);
}

inline absl::Status CheckSpec(const RnnSpec& spec) {
  const std::string error = spec.Error();
  if (!error.empty()) return InvalidArgument(error);
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_ATTRS_H_
