// The kernels of CudnnRnnTf>ParamsSize, CanonicalToParams and
// ParamsToCanonical.
#include <memory>

#include "kernels/no_throw_kernel.h"
#include "kernels/op_backend.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

TensorShape BlockShape(const ParamBlock& block, bool is_bias) {
  return is_bias ? TensorShape({block.rows})
                 : TensorShape({block.rows, block.cols});
}

class ParamsOp : public OpKernel {
 public:
  explicit ParamsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(
        context, WithoutExceptions([&]() -> absl::Status {
          RnnSpec spec;
          TF_RETURN_IF_ERROR(ReadSpec(context, &spec));
          TF_RETURN_IF_ERROR(context->GetAttr("input_size", &spec.input_size));
          TF_RETURN_IF_ERROR(CheckSpec(spec));
          layout_ = std::make_unique<ParamLayout>(spec);
          return absl::OkStatus();
        }));
  }

 protected:
  const ParamLayout& layout() const { return *layout_; }

 private:
  std::unique_ptr<ParamLayout> layout_;
};

// The base of the two conversions, which checks that the op has as many weights
// and biases as the layout.
class ConversionOp : public ParamsOp {
 public:
  explicit ConversionOp(OpKernelConstruction* context) : ParamsOp(context) {
    if (!context->status().ok()) return;
    CheckCount(context, "num_weights", "weights", layout().weights().size());
    CheckCount(context, "num_biases", "biases", layout().biases().size());
  }

 private:
  static void CheckCount(OpKernelConstruction* context, const char* attr,
                         const char* name, int64_t expected) {
    int64_t count = 0;
    OP_REQUIRES_OK(context, context->GetAttr(attr, &count));
    OP_REQUIRES(
        context, count == expected,
        InvalidArgument("expected ", expected, " ", name,
                        " for this configuration, but received ", count));
  }
};

class ParamsSizeOp : public ParamsOp {
 public:
  using ParamsOp::ParamsOp;

  void Compute(OpKernelContext* context) override {
    Tensor* size;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({}), &size));
    size->scalar<int64_t>()() = layout().size();
  }
};

template <typename Device, typename T>
class CanonicalToParamsOp : public ConversionOp {
 public:
  using ConversionOp::ConversionOp;

  void Compute(OpKernelContext* context) override {
    Tensor* params;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({layout().size()}), &params));
    T* const to = params->flat<T>().data();
    const std::unique_ptr<RnnBackend> backend = MakeBackend<Device>(context);
    for (const bool is_bias : {false, true}) {
      OpInputList list;
      OP_REQUIRES_OK(
          context, context->input_list(is_bias ? "biases" : "weights", &list));
      const auto& blocks = is_bias ? layout().biases() : layout().weights();
      for (int i = 0; i < list.size(); ++i) {
        const TensorShape expected = BlockShape(blocks[i], is_bias);
        OP_REQUIRES(
            context, list[i].shape() == expected,
            InvalidArgument("expected shape ", expected.DebugString(), " for ",
                            blocks[i].Name(), ", but received ",
                            list[i].shape().DebugString()));
        OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                    DataOf(list[i]), to + blocks[i].offset,
                                    list[i].TotalBytes())));
      }
    }
  }
};

template <typename Device, typename T>
class ParamsToCanonicalOp : public ConversionOp {
 public:
  using ConversionOp::ConversionOp;

  void Compute(OpKernelContext* context) override {
    const Tensor& params = context->input(0);
    OP_REQUIRES(context, params.shape() == TensorShape({layout().size()}),
                InvalidArgument("expected params of shape [", layout().size(),
                                "] for this configuration, but received ",
                                params.shape().DebugString()));
    const T* const from = params.flat<T>().data();
    const std::unique_ptr<RnnBackend> backend = MakeBackend<Device>(context);
    for (const bool is_bias : {false, true}) {
      OpOutputList list;
      OP_REQUIRES_OK(
          context, context->output_list(is_bias ? "biases" : "weights", &list));
      const auto& blocks = is_bias ? layout().biases() : layout().weights();
      for (int i = 0; i < list.size(); ++i) {
        Tensor* tensor;
        OP_REQUIRES_OK(
            context, list.allocate(i, BlockShape(blocks[i], is_bias), &tensor));
        OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                    from + blocks[i].offset, DataOf(*tensor),
                                    tensor->TotalBytes())));
      }
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("CudnnRnnTf>ParamsSize").Device(tensorflow::DEVICE_CPU),
    NoThrowKernel<ParamsSizeOp>);
REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>ParamsSize")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("params_size"),
                        NoThrowKernel<ParamsSizeOp>);

#define CRNN_REGISTER_ON(T, DEVICE, Type)                               \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>CanonicalToParams")          \
                              .Device(tensorflow::DEVICE)               \
                              .TypeConstraint<T>("T"),                  \
                          NoThrowKernel<CanonicalToParamsOp<Type, T>>); \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>ParamsToCanonical")          \
                              .Device(tensorflow::DEVICE)               \
                              .TypeConstraint<T>("T"),                  \
                          NoThrowKernel<ParamsToCanonicalOp<Type, T>>)
#define CRNN_REGISTER(T)                      \
  CRNN_REGISTER_ON(T, DEVICE_CPU, CpuDevice); \
  CRNN_REGISTER_ON(T, DEVICE_GPU, GpuDevice)
CRNN_REGISTER(double);
CRNN_REGISTER(float);
CRNN_REGISTER(Eigen::half);
CRNN_REGISTER(Eigen::bfloat16);
#undef CRNN_REGISTER
#undef CRNN_REGISTER_ON

}  // namespace
}  // namespace cudnn_rnn_tf
