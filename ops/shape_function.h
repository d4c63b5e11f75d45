// Shape functions whose exceptions end in a status.
#ifndef CUDNN_RNN_TF_OPS_SHAPE_FUNCTION_H_
#define CUDNN_RNN_TF_OPS_SHAPE_FUNCTION_H_

#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace cudnn_rnn_tf {

// `function`, for TensorFlow to call.
template <
    absl::Status (*function)(tensorflow::shape_inference::InferenceContext*)>
absl::Status NoThrow(tensorflow::shape_inference::InferenceContext* context) {
  return WithoutExceptions([=] { return function(context); });
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_OPS_SHAPE_FUNCTION_H_
