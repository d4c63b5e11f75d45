// The lowerings of the ops for parameters and for masks.
#include <string>
#include <vector>

#include "kernels/xla/lowering.h"
// After TensorFlow's own headers, see tensorflow_versions.h.
#include "kernels/conversion.h"
#include "kernels/keras_layout.h"
#include "kernels/mask_shapes.h"
#include "kernels/op_backend.h"
#include "kernels/op_tensors.h"
#include "kernels/param_layout.h"
#include "kernels/xla/xla_call.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

struct ParamsSize : Conversion<ParamLayout> {
  absl::Status Read(OpKernelConstruction* context) {
    return ReadNetwork(context);
  }
  absl::Status Lower(XlaOpKernelContext* context, const LoweringInputs&) const {
    tensorflow::Tensor size(tensorflow::DT_INT64, {});
    size.scalar<int64_t>()() = layout().size();
    context->SetConstantOutput(0, size);
    return absl::OkStatus();
  }
};

struct CanonicalToParams : Conversion<ParamLayout> {
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    TF_RETURN_IF_ERROR(CheckTensors(inputs));
    // The blocks fill the params without gaps, in this order.
    std::vector<XlaOp> parts;
    for (const ParamBlock& place : layout().tensors()) {
      parts.push_back(xla::Reshape(inputs.ops[parts.size()], {place.size()}));
    }
    context->SetOutput(0, xla::ConcatInDim(context->builder(), parts, 0));
    return absl::OkStatus();
  }
};

struct ParamsToCanonical : Conversion<ParamLayout> {
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    TF_RETURN_IF_ERROR(CheckParams(inputs(0)));
    int output = 0;
    for (const ParamBlock& place : layout().tensors()) {
      const XlaOp part =
          xla::SliceInDim(inputs.ops[0], place.offset,
                          place.offset + place.size(), /*stride=*/1, 0);
      context->SetOutput(output++, xla::Reshape(part, place.Shape()));
    }
    return absl::OkStatus();
  }
};

template <bool to_params>
struct KerasTensors : Conversion<KerasLayout> {
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    const xla::PrimitiveType type = context->input_xla_type(0);
    std::vector<xla::Shape> shapes;
    if (to_params) {
      TF_RETURN_IF_ERROR(CheckTensors(inputs));
      shapes = {DenseShape(type, tensorflow::TensorShape({layout().size()}))};
    } else {
      TF_RETURN_IF_ERROR(CheckParams(inputs(0)));
      for (const KerasTensor& place : layout().tensors()) {
        shapes.push_back(
            DenseShape(type, tensorflow::TensorShape(place.Shape())));
      }
    }
    XlaKerasTensors call;
    call.spec = spec();
    call.dtype = DataTypeOf(context->input_type(0));
    call.to_params = to_params;
    LowerToCall(context, kXlaKerasTensors, XlaConfig(call), inputs, shapes);
    return absl::OkStatus();
  }
};

class ReadMask {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return ReadMaskAttrs(context, &mask_, &owner_);
  }
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    RnnMask mask = mask_;
    TF_RETURN_IF_ERROR(
        ReadMaskShapes(inputs(kMask), inputs(kMasked), owner_, &mask));
    std::vector<xla::Shape> shapes(
        kNumMaskOutputs,
        DenseShape(xla::S64,
                   tensorflow::TensorShape({mask.batch_size, mask.max_time})));
    shapes[kMaskLengths] =
        DenseShape(xla::S64, tensorflow::TensorShape({mask.batch_size}));
    // Of the values, only the shape is read.
    LoweringInputs read = inputs;
    read.ops.resize(kMasked);
    read.xla_shapes.resize(kMasked);
    LowerToCall(context, kXlaReadMask, XlaConfig(mask), read, shapes);
    return absl::OkStatus();
  }

 private:
  RnnMask mask_;
  std::string owner_;
};

class MoveSteps {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return ReadMoveAttrs(context, &move_);
  }
  absl::Status Lower(XlaOpKernelContext* context,
                     const LoweringInputs& inputs) const {
    StepMove move = move_;
    TF_RETURN_IF_ERROR(ReadMoveShapes(inputs, &move));
    LowerToCall(context, kXlaMoveSteps, XlaConfig(move), inputs,
                {inputs.xla_shapes[kUnmoved]});
    return absl::OkStatus();
  }

 private:
  StepMove move_;
};

CRNN_REGISTER_LOWERING("ParamsSize", ParamsSize);
CRNN_REGISTER_LOWERING("CanonicalToParams", CanonicalToParams);
CRNN_REGISTER_LOWERING("ParamsToCanonical", ParamsToCanonical);
CRNN_REGISTER_LOWERING("KerasToParams", KerasTensors<true>);
CRNN_REGISTER_LOWERING("ParamsToKeras", KerasTensors<false>);
CRNN_REGISTER_LOWERING("ReadMask", ReadMask);
CRNN_REGISTER_LOWERING("PackSteps", MoveSteps);
CRNN_REGISTER_LOWERING("UnpackSteps", MoveSteps);

}  // namespace
}  // namespace cudnn_rnn_tf
