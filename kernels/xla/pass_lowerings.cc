// The lowerings of Forward and Backward.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/xla/lowering.h"
#include "kernels/xla/single_step.h"
// After TensorFlow's own headers, see tensorflow_versions.h.
#include "kernels/op_tensors.h"
#include "kernels/rnn_run.h"
#include "kernels/xla/buffer_sizes.h"
#include "xla/hlo/builder/lib/constants.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;

template <bool is_backward>
class Pass {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    is_gpu_ = context->device_type() == tensorflow::DEVICE_GPU_XLA_JIT;
    return reader_.ReadAttrs(context, is_backward);
  }

 protected:
  // Sets the shapes of the op's outputs.
  static absl::Status ReadShapes(XlaOpKernelContext* context, const RnnRun& run,
                                 const RnnBufferSizes& sizes,
                                 std::vector<xla::Shape>* shapes) {
    for (const TensorForm& form : run.forms.outputs) {
      tensorflow::TensorShape shape;
      TF_RETURN_IF_ERROR(ReadShape(form, run.problem,
                                   static_cast<int64_t>(sizes.reserve_space),
                                   &shape));
      shapes->push_back(DenseShape(
          form.item_bytes == 0 ? context->input_xla_type(kInput) : xla::U8,
          shape));
    }
    return absl::OkStatus();
  }

  absl::Status BufferSizes(XlaOpKernelContext* context, XlaPass* pass,
                           RnnBufferSizes* sizes) const {
    if (!is_gpu_) return XlaCpuBufferSizes(pass, sizes);
    const int device = context->compiler()->options().device_ordinal;
    return XlaGpuBufferSizes(std::max(device, 0), pass, sizes);
  }

  // Returns what the call takes of the op's inputs. Its lengths are of type
  // int64.
  static LoweringInputs ArgumentsOf(const LoweringInputs& inputs) {
    LoweringInputs arguments = inputs;
    arguments.ops[kSequenceLengths] =
        xla::ConvertElementType(inputs.ops[kSequenceLengths], xla::S64);
    arguments.xla_shapes[kSequenceLengths] =
        DenseShape(xla::S64, inputs(kSequenceLengths));
    return arguments;
  }

  bool is_gpu_ = false;
  RnnRunReader reader_;
};

class Forward : public Pass</*is_backward=*/false> {
 public:
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    RnnRun run;
    XlaPass pass;
    TF_RETURN_IF_ERROR(reader_.Read(context->input_type(kInput), inputs, &run));
    pass.problem = run.problem;
    std::vector<xla::Shape> shapes;
    if (run.empty()) {
      // No step runs, so the states pass through unchanged.
      TF_RETURN_IF_ERROR(ReadShapes(context, run, {}, &shapes));
      for (int i = 0; i < context->num_outputs(); ++i) {
        context->SetOutput(i, i == kOutputH ? inputs.ops[kInputH]
                              : i == kOutputC
                                  ? inputs.ops[kInputC]
                                  : xla::Zeros(context->builder(), shapes[i]));
      }
      return absl::OkStatus();
    }
    const xla::PrimitiveType type = context->input_xla_type(kInput);
    if (IsSingleStep(pass.problem)) {
      // CPUs multiply no numbers of 16 bits as they are.
      const xla::PrimitiveType sums = type == xla::F64 ? xla::F64 : xla::F32;
      const SingleStepTensors after = SingleStep(
          pass.problem, {type, is_gpu_ ? type : sums, sums},
          {inputs.ops[kInput], inputs.ops[kInputH], inputs.ops[kInputC]},
          inputs.ops[kParams]);
      context->SetOutput(kOutput, after.sequence);
      context->SetOutput(kOutputH, after.h);
      context->SetOutput(kOutputC, after.c);
      context->SetOutput(kReserveSpace,
                         xla::Zeros(context->builder(), BytesShape(0)));
      return absl::OkStatus();
    }
    RnnBufferSizes sizes;
    TF_RETURN_IF_ERROR(BufferSizes(context, &pass, &sizes));
    TF_RETURN_IF_ERROR(ReadShapes(context, run, sizes, &shapes));
    shapes.push_back(BytesShape(sizes.forward_workspace));
    LowerToCall(context, kXlaForward, XlaConfig(pass), ArgumentsOf(inputs),
                shapes);
    return absl::OkStatus();
  }

 private:
  // On a GPU, who names an algorithm gets it. A CPU ignores the name.
  bool IsSingleStep(const RnnProblem& problem) const {
    return problem.max_time == 1 && !problem.has_sequence_lengths &&
           !problem.has_resets && !problem.has_cell_sequences &&
           !problem.is_training &&
           (!is_gpu_ || problem.algorithm == RnnAlgorithm::kAuto);
  }
};

class Backward : public Pass</*is_backward=*/true> {
 public:
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    RnnRun run;
    XlaPass pass;
    TF_RETURN_IF_ERROR(reader_.Read(context->input_type(kInput), inputs, &run));
    pass.problem = run.problem;
    const int own_inputs = reader_.num_inputs();
    if (run.empty()) {
      context->SetOutput(kInputBackprop, xla::ZerosLike(inputs.ops[kInput]));
      context->SetOutput(kInputHBackprop,
                         inputs.ops[own_inputs + kOutputHBackprop]);
      context->SetOutput(kInputCBackprop,
                         inputs.ops[own_inputs + kOutputCBackprop]);
      context->SetOutput(kParamsBackprop, xla::ZerosLike(inputs.ops[kParams]));
      return absl::OkStatus();
    }
    const int reserve_space = own_inputs + kForwardReserveSpace;
    pass.choice = ChoiceIn(inputs(reserve_space).num_elements());
    RnnBufferSizes sizes;
    TF_RETURN_IF_ERROR(BufferSizes(context, &pass, &sizes));
    TF_RETURN_IF_ERROR(CheckShape(run.forms.inputs[reserve_space], run.problem,
                                  static_cast<int64_t>(sizes.reserve_space),
                                  inputs(reserve_space)));
    std::vector<xla::Shape> shapes;
    TF_RETURN_IF_ERROR(ReadShapes(context, run, sizes, &shapes));
    shapes.push_back(inputs.xla_shapes[reserve_space]);
    shapes.push_back(BytesShape(sizes.backward_workspace));
    // The pass overwrites the reserve space, so it is a result too, in the same
    // memory. XLA copies it before the call if it is needed again.
    LowerToCall(context, kXlaBackward, XlaConfig(pass), ArgumentsOf(inputs),
                shapes, {{{kUsedReserveSpace}, {reserve_space, {}}}});
    return absl::OkStatus();
  }
};

CRNN_REGISTER_LOWERING("Forward", Forward);
CRNN_REGISTER_LOWERING("Backward", Backward);

}  // namespace
}  // namespace cudnn_rnn_tf
