// Makes the lowerings, which tell XLA's compiler what an op computes: a
// custom call in most cases, to a handler of the op library.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_LOWERING_H_
#define CUDNN_RNN_TF_KERNELS_XLA_LOWERING_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/op_status.h"
#include "kernels/tensorflow_versions.h"  // First.
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

inline xla::Shape DenseShape(xla::PrimitiveType type,
                             const tensorflow::TensorShape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(type, shape.dim_sizes());
}
inline xla::Shape BytesShape(size_t bytes) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(
      xla::U8, {static_cast<int64_t>(bytes)});
}

// The inputs of an op.
struct LoweringInputs {
  std::vector<xla::XlaOp> ops;
  std::vector<tensorflow::TensorShape> shapes;
  std::vector<xla::Shape> xla_shapes;

  const tensorflow::TensorShape& operator()(int i) const { return shapes[i]; }
};

// Makes the first results of a call the op's outputs.
using CallAlias =
    std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>;
inline void LowerToCall(tensorflow::XlaOpKernelContext* context,
                        const char* target, const std::string& config,
                        const LoweringInputs& inputs,
                        const std::vector<xla::Shape>& results,
                        const std::vector<CallAlias>& aliases = {}) {
  const xla::XlaOp all = xla::CustomCallWithLayout(
      context->builder(), target, inputs.ops,
      xla::ShapeUtil::MakeTupleShape(results), inputs.xla_shapes, config,
      /*has_side_effect=*/false, aliases, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->SetOutput(i, xla::GetTupleElement(all, i));
  }
}

// The lowering of an Operation, which is a class with
//   absl::Status Read(OpKernelConstruction*), which reads the attributes, and
//   absl::Status Lower(XlaOpKernelContext*, const LoweringInputs&) const.
template <typename Operation>
class Lowering final : public tensorflow::XlaOpKernel {
 public:
  explicit Lowering(tensorflow::OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context,
                   WithoutExceptions([&] { return operation_.Read(context); }));
  }

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    OP_REQUIRES_OK(context, WithoutExceptions([&]() -> absl::Status {
                     LoweringInputs inputs;
                     TF_RETURN_IF_ERROR(ReadInputs(context, &inputs));
                     return operation_.Lower(context, inputs);
                   }));
  }

 private:
  absl::Status ReadInputs(tensorflow::XlaOpKernelContext* context,
                          LoweringInputs* inputs) const {
    for (int i = 0; i < context->num_inputs(); ++i) {
      xla::XlaOp op = context->Input(i);
      TF_ASSIGN_OR_RETURN(xla::Shape shape, context->InputXlaShape(i));
      if (shape.element_type() == xla::U8 && !shape.is_static()) {
        // A reserve space that a branch of a condition left: the other branch
        // leaves an empty one, so the bound is the size.
        op = xla::RemoveDynamicDimension(op, 0);
        shape.set_dynamic_dimension(0, false);
      }
      if (!shape.is_static()) {
        return InvalidArgument(
            "expected inputs of ", type_string(),
            " of a shape that XLA knows when it compiles, but input ", i,
            " has the shape ", xla::ShapeUtil::HumanString(shape),
            ", of which it knows the bounds only, as of what boolean_mask and "
            "where return; padded sequences with a mask or sequence_lengths "
            "have a fixed shape");
      }
      tensorflow::TensorShape sizes;
      for (const int64_t size : shape.dimensions()) {
        TF_RETURN_IF_ERROR(sizes.AddDimWithStatus(size));
      }
      inputs->ops.push_back(op);
      inputs->xla_shapes.push_back(DenseShape(shape.element_type(), sizes));
      inputs->shapes.push_back(sizes);
    }
    return absl::OkStatus();
  }

  Operation operation_;
};

// As REGISTER_XLA_OP would have TensorFlow register them, but that has an
// effect only on ops that are known when a process runs its first op.
#define CRNN_REGISTER_LOWERING(NAME, Operation)                        \
  REGISTER_KERNEL_BUILDER(                                             \
      Name("CudnnRnnTf>" NAME).Device(tensorflow::DEVICE_CPU_XLA_JIT), \
      Lowering<Operation>);                                            \
  REGISTER_KERNEL_BUILDER(                                             \
      Name("CudnnRnnTf>" NAME).Device(tensorflow::DEVICE_GPU_XLA_JIT), \
      Lowering<Operation>)

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_LOWERING_H_
