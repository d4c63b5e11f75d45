// A time step of inference in XLA's own operations. It takes a microsecond or
// ten, so that in a loop of steps, as when text is generated, the call of a
// backend would take as long as the step itself.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_SINGLE_STEP_H_
#define CUDNN_RNN_TF_KERNELS_XLA_SINGLE_STEP_H_

#include "kernels/tensorflow_versions.h"  // First.
#include "xla/hlo/builder/xla_builder.h"
// After TensorFlow's own headers, see tensorflow_versions.h.
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// The types of inputs and results, of the factors of matrix products, and of
// all else.
struct SingleStepTypes {
  xla::PrimitiveType tensors, factors, sums;
};

// A sequence of one step, and states. c is an LSTM's only.
struct SingleStepTensors {
  xla::XlaOp sequence, h, c;
};

// Computes the outputs and the final states from the inputs and the initial
// states. The problem has one time step, and no lengths.
SingleStepTensors SingleStep(const RnnProblem& problem,
                             const SingleStepTypes& types,
                             const SingleStepTensors& before,
                             xla::XlaOp params);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_SINGLE_STEP_H_
