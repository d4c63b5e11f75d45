// Reads what Forward and Backward are asked for from their attributes and the
// shapes of their inputs. The kernels do so in each call, and the lowerings for
// XLA once for each shape.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_RUN_H_
#define CUDNN_RNN_TF_KERNELS_RNN_RUN_H_

#include <array>
#include <mutex>
#include <string>

#include "absl/types/span.h"
#include "kernels/op_backend.h"
#include "kernels/op_tensors.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

struct RnnRun {
  RnnProblem problem;
  PassForms forms;  // Of the op's tensors.

  bool empty() const {
    return problem.max_time == 0 || problem.batch_size == 0;
  }
};

// Sets the shape of a tensor of a pass. What may have any size gets this one.
inline absl::Status ReadShape(const TensorForm& form, const RnnProblem& problem,
                              int64_t any_size,
                              tensorflow::TensorShape* shape) {
  std::array<int64_t, 3> sizes = {};
  for (int i = 0; i < form.rank; ++i) {
    sizes[i] =
        form.axes[i] == kAnySize ? any_size : SizeOfAxis(form.axes[i], problem);
  }
  return tensorflow::TensorShape::BuildTensorShape(
      absl::MakeSpan(sizes.data(), form.rank), shape);
}
// Checks the shape of such a tensor. What may have any size has `any_size`.
inline absl::Status CheckShape(const TensorForm& form,
                               const RnnProblem& problem, int64_t any_size,
                               const tensorflow::TensorShape& shape) {
  tensorflow::TensorShape expected;
  TF_RETURN_IF_ERROR(ReadShape(form, problem, any_size, &expected));
  if (shape == expected) return absl::OkStatus();
  return InvalidArgument("expected ", form.name, " of shape ",
                         expected.DebugString(), ", but received ",
                         shape.DebugString());
}

class RnnRunReader {
 public:
  // Reads the attributes of Forward, or of Backward.
  absl::Status ReadAttrs(tensorflow::OpKernelConstruction* context,
                         bool is_backward) {
    is_backward_ = is_backward;
    return ReadProblem(context, is_backward, &problem_);
  }
  // The number of inputs that both ops begin with.
  int num_inputs() const { return kSeed + (problem_.has_seed ? 1 : 0); }

  // Checks the inputs, but for a reserve space's size. `shape_of(i)` is the
  // shape of input i, and `dtype` the type of the first.
  template <typename ShapeOf>
  absl::Status Read(tensorflow::DataType dtype, const ShapeOf& shape_of,
                    RnnRun* run) const {
    const tensorflow::TensorShape& input = shape_of(kInput);
    const bool time_major = problem_.time_major;
    if (input.dims() != 3) {
      return InvalidArgument("expected input of rank 3, ",
                             time_major ? "[time, batch, input_size]"
                                        : "[batch, time, input_size]",
                             ", but received shape ", input.DebugString());
    }
    RnnProblem& problem = run->problem;
    problem = problem_;
    problem.spec.input_size = input.dim_size(2);
    problem.dtype = DataTypeOf(dtype);
    problem.max_time = input.dim_size(time_major ? 0 : 1);
    problem.batch_size = input.dim_size(time_major ? 1 : 0);
    const std::string error = problem.Error();
    if (!error.empty()) return InvalidArgument(error);
    if (!problem.has_seed && (problem.has_dropout_between_layers() ||
                              problem.has_recurrent_dropout())) {
      return InvalidArgument(
          "expected a seed, since dropout draws masks in training, but "
          "received none");
    }
    const tensorflow::TensorShape& h = shape_of(kInputH);
    const int batch_axis = time_major ? 1 : 0;
    if (h.dims() == 3 && h.dim_size(batch_axis) != problem.batch_size) {
      // These are mostly a stateful layer's, which the caller does not see.
      return InvalidArgument(
          "expected inputs of batch size ", h.dim_size(batch_axis),
          ", that of the initial states, but received ", problem.batch_size,
          "; a stateful layer's last batch that is short can be left out "
          "(drop_remainder=True) or padded with sequences of length 0");
    }
    const RnnSpec& spec = problem.spec;
    run->forms =
        FormsOf(problem, spec.input_size, ParamsSize(spec), is_backward_);
    for (size_t i = 0; i < run->forms.inputs.size(); ++i) {
      const tensorflow::TensorShape& shape = shape_of(i);
      const TensorForm& form = run->forms.inputs[i];
      const int64_t any_size = shape.dims() == 1 ? shape.dim_size(0) : 0;
      const absl::Status fits = CheckShape(form, problem, any_size, shape);
      if (!fits.ok() && i == kParams) {
        // The caller of a SavedModel knows its inputs but not its params, so
        // the message names the input size too.
        return InvalidArgument(fits.message(),
                               ": the network was not made for inputs of size ",
                               spec.input_size, " in the last dimension");
      }
      TF_RETURN_IF_ERROR(fits);
    }
    return absl::OkStatus();
  }

 private:
  // The size is kept from call to call, since computing a layout takes
  // microseconds and the input size of a network rarely changes.
  int64_t ParamsSize(const RnnSpec& spec) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spec.input_size != known_input_size_) {
      // If this throws, what is known stays.
      params_size_ = ParamLayout(spec).size();
      known_input_size_ = spec.input_size;
    }
    return params_size_;
  }

  bool is_backward_ = false;
  RnnProblem problem_;
  mutable std::mutex mutex_;
  mutable int64_t known_input_size_ = -1;
  mutable int64_t params_size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_RUN_H_
