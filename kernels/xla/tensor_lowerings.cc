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

class ParamsSizeLowering : public Lowering {
 public:
  explicit ParamsSizeLowering(OpKernelConstruction* context)
      : Lowering(context) {
    OP_REQUIRES_OK(context, WithoutExceptions(
                                [&] { return network_.ReadNetwork(context); }));
  }

 protected:
  absl::Status Lower(XlaOpKernelContext* context, const Inputs&) override {
    tensorflow::Tensor size(tensorflow::DT_INT64, {});
    size.scalar<int64_t>()() = network_.layout().size();
    context->SetConstantOutput(0, size);
    return absl::OkStatus();
  }

 private:
  Conversion<ParamLayout> network_;
};

template <typename Layout>
class ConversionLowering : public Lowering {
 public:
  explicit ConversionLowering(OpKernelConstruction* context)
      : Lowering(context) {
    OP_REQUIRES_OK(context, conversion_.Read(context));
  }

 protected:
  Conversion<Layout> conversion_;
};

class CanonicalToParamsLowering : public ConversionLowering<ParamLayout> {
 public:
  using ConversionLowering::ConversionLowering;

 protected:
  absl::Status Lower(XlaOpKernelContext* context,
                     const Inputs& inputs) override {
    TF_RETURN_IF_ERROR(conversion_.CheckTensors(inputs));
    // The blocks fill the params without gaps, in this order.
    std::vector<XlaOp> parts;
    for (const ParamBlock& place : conversion_.layout().tensors()) {
      parts.push_back(xla::Reshape(inputs.ops[parts.size()], {place.size()}));
    }
    context->SetOutput(0, xla::ConcatInDim(context->builder(), parts, 0));
    return absl::OkStatus();
  }
};

class ParamsToCanonicalLowering : public ConversionLowering<ParamLayout> {
 public:
  using ConversionLowering::ConversionLowering;

 protected:
  absl::Status Lower(XlaOpKernelContext* context,
                     const Inputs& inputs) override {
    TF_RETURN_IF_ERROR(conversion_.CheckParams(inputs(0)));
    int output = 0;
    const ParamLayout& layout = conversion_.layout();
    for (const ParamBlock& place : layout.tensors()) {
      const XlaOp part =
          xla::SliceInDim(inputs.ops[0], place.offset,
                          place.offset + place.size(), /*stride=*/1, 0);
      context->SetOutput(output++, xla::Reshape(part, place.Shape()));
    }
    return absl::OkStatus();
  }
};

template <bool to_params>
class KerasLowering : public ConversionLowering<KerasLayout> {
 public:
  using ConversionLowering::ConversionLowering;

 protected:
  absl::Status Lower(XlaOpKernelContext* context,
                     const Inputs& inputs) override {
    const xla::PrimitiveType type = context->input_xla_type(0);
    const KerasLayout& layout = conversion_.layout();
    std::vector<xla::Shape> shapes;
    if (to_params) {
      TF_RETURN_IF_ERROR(conversion_.CheckTensors(inputs));
      shapes = {DenseShape(type, tensorflow::TensorShape({layout.size()}))};
    } else {
      TF_RETURN_IF_ERROR(conversion_.CheckParams(inputs(0)));
      for (const KerasTensor& place : layout.tensors()) {
        shapes.push_back(
            DenseShape(type, tensorflow::TensorShape(place.Shape())));
      }
    }
    XlaKerasTensors call;
    call.spec = conversion_.spec();
    call.dtype = DataTypeOf(context->input_type(0));
    call.to_params = to_params;
    Call(context, kXlaKerasTensors, XlaConfig(call), inputs, shapes);
    return absl::OkStatus();
  }
};

class MaskLowering : public Lowering {
 public:
  explicit MaskLowering(OpKernelConstruction* context) : Lowering(context) {
    OP_REQUIRES_OK(context, ReadMaskAttrs(context, &mask_, &owner_));
  }

 protected:
  absl::Status Lower(XlaOpKernelContext* context,
                     const Inputs& inputs) override {
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
    Inputs read = inputs;
    read.ops.resize(kMasked);
    read.xla_shapes.resize(kMasked);
    Call(context, kXlaReadMask, XlaConfig(mask), read, shapes);
    return absl::OkStatus();
  }

 private:
  RnnMask mask_;
  std::string owner_;
};

class MoveStepsLowering : public Lowering {
 public:
  explicit MoveStepsLowering(OpKernelConstruction* context)
      : Lowering(context) {
    OP_REQUIRES_OK(context, ReadMoveAttrs(context, &move_));
  }

 protected:
  absl::Status Lower(XlaOpKernelContext* context,
                     const Inputs& inputs) override {
    StepMove move = move_;
    TF_RETURN_IF_ERROR(ReadMoveShapes(inputs, &move));
    Call(context, kXlaMoveSteps, XlaConfig(move), inputs,
         {inputs.xla_shapes[kUnmoved]});
    return absl::OkStatus();
  }

 private:
  StepMove move_;
};

CRNN_REGISTER_LOWERING("ParamsSize", ParamsSizeLowering);
CRNN_REGISTER_LOWERING("CanonicalToParams", CanonicalToParamsLowering);
CRNN_REGISTER_LOWERING("ParamsToCanonical", ParamsToCanonicalLowering);
CRNN_REGISTER_LOWERING("KerasToParams", KerasLowering<true>);
CRNN_REGISTER_LOWERING("ParamsToKeras", KerasLowering<false>);
CRNN_REGISTER_LOWERING("ReadMask", MaskLowering);
CRNN_REGISTER_LOWERING("PackSteps", MoveStepsLowering);
CRNN_REGISTER_LOWERING("UnpackSteps", MoveStepsLowering);

}  // namespace
}  // namespace cudnn_rnn_tf
