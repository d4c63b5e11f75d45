// Reads what Forward and Backward are asked for from their attributes and the
// shapes of their inputs. The kernels do so in each call, and the lowerings for
// XLA once for each shape.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_RUN_H_
#define CUDNN_RNN_TF_KERNELS_RNN_RUN_H_

#include <mutex>
#include <string>

#include "kernels/op_backend.h"
#include "kernels/op_tensors.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

inline absl::Status CheckShape(const char* name,
                               const tensorflow::TensorShape& shape,
                               const tensorflow::TensorShape& expected) {
  if (shape != expected) {
    return InvalidArgument("expected ", name, " of shape ",
                           expected.DebugString(), ", but received ",
                           shape.DebugString());
  }
  return absl::OkStatus();
}

struct RnnRun {
  RnnProblem problem;
  tensorflow::TensorShape output_shape, h_shape, c_shape, cells_shape;

  bool empty() const {
    return problem.max_time == 0 || problem.batch_size == 0;
  }
};

class RnnRunReader {
 public:
  absl::Status ReadAttrs(tensorflow::OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(ReadSpec(context, &spec_));
    return ReadRunAttrs(context, &spec_, &attrs_);
  }

  int num_seeds() const { return attrs_.num_seeds; }
  int num_cells() const { return attrs_.num_cells; }
  // The number of inputs that both ops begin with.
  int num_inputs() const { return kSeed + num_seeds(); }

  // Checks these inputs. `shape_of(i)` is the shape of input i, and `dtype` the
  // type of the first.
  template <typename ShapeOf>
  absl::Status Read(tensorflow::DataType dtype, const ShapeOf& shape_of,
                    RnnRun* run) const {
    using tensorflow::TensorShape;
    const TensorShape& input = shape_of(kInput);
    if (input.dims() != 3) {
      return InvalidArgument("expected input of rank 3, ",
                             attrs_.time_major ? "[time, batch, input_size]"
                                               : "[batch, time, input_size]",
                             ", but received shape ", input.DebugString());
    }
    RnnProblem& problem = run->problem;
    problem.spec = spec_;
    problem.spec.input_size = input.dim_size(2);
    problem.dtype = DataTypeOf(dtype);
    problem.max_time = input.dim_size(attrs_.time_major ? 0 : 1);
    problem.batch_size = input.dim_size(attrs_.time_major ? 1 : 0);
    problem.time_major = attrs_.time_major;
    problem.has_sequence_lengths = attrs_.has_sequence_lengths;
    problem.has_resets = attrs_.num_resets > 0;
    problem.has_cell_sequences = num_cells() > 0;
    problem.has_seed = num_seeds() > 0;
    const std::string error = problem.Error();
    if (!error.empty()) return InvalidArgument(error);

    const RnnSpec& spec = problem.spec;
    const int64_t b = problem.batch_size;
    const auto states = [&](int64_t n, TensorShape* shape) {
      const int64_t layers = spec.num_pseudo_layers();
      return TensorShape::BuildTensorShape(
          {attrs_.time_major ? layers : b, attrs_.time_major ? b : layers, n},
          shape);
    };
    run->output_shape = input;
    TF_RETURN_IF_ERROR(
        run->output_shape.SetDimWithStatus(2, spec.layer_output_size()));
    run->cells_shape = input;
    TF_RETURN_IF_ERROR(
        run->cells_shape.SetDimWithStatus(2, spec.num_dirs() * spec.num_units));
    TF_RETURN_IF_ERROR(states(spec.output_size(), &run->h_shape));
    run->c_shape = TensorShape({0});
    if (spec.has_c()) {
      TF_RETURN_IF_ERROR(states(spec.num_units, &run->c_shape));
    }
    const TensorShape& h_shape = shape_of(kInputH);
    const int batch_axis = attrs_.time_major ? 1 : 0;
    if (h_shape.dims() == 3 && h_shape.dim_size(batch_axis) != b) {
      // These are mostly a stateful layer's, which the caller does not see.
      return InvalidArgument(
          "expected inputs of batch size ", h_shape.dim_size(batch_axis),
          ", that of the initial states, but received ", b,
          "; a stateful layer's last batch that is short can be left out "
          "(drop_remainder=True) or padded with sequences of length 0");
    }
    TF_RETURN_IF_ERROR(CheckShape("input_h", h_shape, run->h_shape));
    TF_RETURN_IF_ERROR(CheckShape("input_c", shape_of(kInputC), run->c_shape));
    const absl::Status params_fit = CheckShape(
        "params", shape_of(kParams), TensorShape({ParamsSize(problem.spec)}));
    if (!params_fit.ok()) {
      // The caller of a SavedModel knows its inputs but not its params, so the
      // message names the input size too.
      return InvalidArgument(params_fit.message(),
                             ": the network was not made for inputs of size ",
                             spec.input_size, " in the last dimension");
    }
    TF_RETURN_IF_ERROR(
        CheckShape("sequence_lengths", shape_of(kSequenceLengths),
                   TensorShape({attrs_.has_sequence_lengths ? b : 0})));
    if (num_seeds() == 0) return absl::OkStatus();
    return CheckShape("seed", shape_of(kSeed), TensorShape({2}));
  }

  // Checks the resets, if there are any, which are input number `index` then.
  template <typename ShapeOf>
  absl::Status CheckResets(int index, const ShapeOf& shape_of) const {
    if (attrs_.num_resets == 0) return absl::OkStatus();
    tensorflow::TensorShape steps = shape_of(kInput);
    steps.RemoveLastDims(1);
    return CheckShape("resets", shape_of(index), steps);
  }

  // Checks the inputs that Backward has in addition, except the reserve space.
  template <typename ShapeOf>
  absl::Status CheckBackward(const ShapeOf& shape_of, const RnnRun& run) const {
    const tensorflow::TensorShape* const shapes[] = {
        &run.output_shape, &run.h_shape, &run.c_shape};
    for (int i = 0; i < kForwardReserveSpace; ++i) {
      TF_RETURN_IF_ERROR(CheckShape(
          kBackwardInputNames[i], shape_of(num_inputs() + i), *shapes[i % 3]));
    }
    const int resets = num_inputs() + kNumBackwardInputs;
    TF_RETURN_IF_ERROR(CheckResets(resets, shape_of));
    if (num_cells() == 0) return absl::OkStatus();
    return CheckShape("cell_sequences_backprop",
                      shape_of(resets + attrs_.num_resets), run.cells_shape);
  }

  absl::Status CheckSeed(const RnnProblem& problem) const {
    if (num_seeds() > 0 || !(problem.has_dropout_between_layers() ||
                             problem.has_recurrent_dropout())) {
      return absl::OkStatus();
    }
    return InvalidArgument(
        "expected a seed, since dropout draws masks in training, but received "
        "none");
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

  RnnSpec spec_;
  RunAttrs attrs_;
  mutable std::mutex mutex_;
  mutable int64_t known_input_size_ = -1;
  mutable int64_t params_size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_RUN_H_
