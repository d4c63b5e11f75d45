// Wraps shape functions so that their exceptions become a status.
#ifndef CUDNN_RNN_TF_OPS_NO_THROW_SHAPE_H_
#define CUDNN_RNN_TF_OPS_NO_THROW_SHAPE_H_

#include "kernels/op_status.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {

// Calls `function` and returns its exceptions as a status. This is what is
// registered with TensorFlow.
template <
    absl::Status (*function)(tensorflow::shape_inference::InferenceContext*)>
absl::Status NoThrowShape(
    tensorflow::shape_inference::InferenceContext* context) {
  return WithoutExceptions([=] { return function(context); });
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_OPS_NO_THROW_SHAPE_H_
