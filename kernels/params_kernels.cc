// The kernels of CudnnRnnTf>ParamsSize and of the ops that convert between
// parameters and canonical tensors or those of Keras's layers.
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/conversion.h"
#include "kernels/kept_results.h"
#include "kernels/keras_layout.h"
#include "kernels/kernel.h"
#include "kernels/op_backend.h"
#include "kernels/param_layout.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Copies the tensors of a layout, weights and then biases, to their places in
// the params, or from there.
RnnStatus Move(const ParamLayout& layout, RnnDataType dtype, bool to_params,
               const std::vector<void*>& tensors, void* params,
               RnnBackend* backend) {
  const size_t item_bytes = SizeOf(dtype);
  auto tensor = tensors.begin();
  for (const ParamBlock& place : layout.tensors()) {
    void* const part = static_cast<char*>(params) + place.offset * item_bytes;
    void* const from = to_params ? *tensor : part;
    const RnnStatus status = backend->Copy(from, to_params ? part : *tensor,
                                           place.size() * item_bytes);
    if (!status.ok()) return status;
    ++tensor;
  }
  return {};
}
RnnStatus Move(const KerasLayout& layout, RnnDataType dtype, bool to_params,
               const std::vector<void*>& tensors, void* params,
               RnnBackend* backend) {
  return backend->MoveKerasTensors(layout, dtype, to_params, tensors, params);
}

class ParamsSizeOp : Conversion<ParamLayout> {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return ReadNetwork(context);
  }
  absl::Status Run(OpKernelContext* context) const {
    Tensor* size;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &size));
    size->scalar<int64_t>()() = layout().size();
    return absl::OkStatus();
  }
};

template <typename Layout, typename Device>
class ToParamsOp : Conversion<Layout> {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(Conversion<Layout>::Read(context));
    return context->HasAttr("may_keep_params")
               ? context->GetAttr("may_keep_params", &may_keep_params_)
               : absl::OkStatus();
  }
  absl::Status Run(OpKernelContext* context) const {
    std::vector<Tensor> tensors;
    for (const char* const list : {"weights", "biases"}) {
      OpInputList inputs;
      TF_RETURN_IF_ERROR(context->input_list(list, &inputs));
      tensors.insert(tensors.end(), inputs.begin(), inputs.end());
    }
    TF_RETURN_IF_ERROR(this->CheckTensors(InputShapes{context}));
    static auto* const kept = new KeptResults<Tensor>;
    const bool may_keep = may_keep_params_ && std::is_same_v<Device, CpuDevice>;
    std::optional<Tensor> params;
    const RnnSpec& spec = this->spec();
    const uint64_t fingerprint = may_keep ? FingerprintOf(tensors) : 0;
    if (may_keep) params = kept->Find(tensors, fingerprint, spec);
    if (!params) {
      TF_RETURN_IF_ERROR(Make(context, tensors, &params.emplace()));
      if (may_keep) {
        kept->Keep(tensors, fingerprint, spec, *params, params->TotalBytes());
      }
    }
    context->set_output(0, *params);
    return absl::OkStatus();
  }

 private:
  absl::Status Make(OpKernelContext* context,
                    const std::vector<Tensor>& tensors, Tensor* params) const {
    const Layout& layout = this->layout();
    TF_RETURN_IF_ERROR(context->allocate_temp(
        context->expected_output_dtype(0), TensorShape({layout.size()}), params,
        context->output_alloc_attr(0)));
    const std::unique_ptr<RnnBackend> backend = MakeBackend(Device(), context);
    backend->Prepare(DataOf(*params), params->TotalBytes());
    std::vector<void*> data;
    for (const Tensor& tensor : tensors) data.push_back(DataOf(tensor));
    return ToTensorFlow(Move(layout, DataTypeOf(params->dtype()),
                             /*to_params=*/true, data, DataOf(*params),
                             backend.get()));
  }

  bool may_keep_params_ = false;
};

template <typename Layout, typename Device>
class FromParamsOp : Conversion<Layout> {
 public:
  using Conversion<Layout>::Read;
  absl::Status Run(OpKernelContext* context) const {
    const Layout& layout = this->layout();
    const Tensor& params = context->input(0);
    TF_RETURN_IF_ERROR(this->CheckParams(params.shape()));
    const std::unique_ptr<RnnBackend> backend = MakeBackend(Device(), context);
    std::vector<void*> data;
    for (const auto& place : layout.tensors()) {
      Tensor* tensor;
      TF_RETURN_IF_ERROR(context->allocate_output(
          static_cast<int>(data.size()), TensorShape(place.Shape()), &tensor));
      backend->Prepare(DataOf(*tensor), tensor->TotalBytes());
      data.push_back(DataOf(*tensor));
    }
    return ToTensorFlow(Move(layout, DataTypeOf(params.dtype()),
                             /*to_params=*/false, data, DataOf(params),
                             backend.get()));
  }
};

CRNN_REGISTER_KERNEL(CPU, "ParamsSize", ParamsSizeOp);
REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>ParamsSize")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("params_size"),
                        Kernel<ParamsSizeOp>);

#define CRNN_REGISTER(NAME, Op, Layout)                   \
  CRNN_REGISTER_KERNEL(CPU, NAME, Op<Layout, CpuDevice>); \
  CRNN_REGISTER_KERNEL(GPU, NAME, Op<Layout, GpuDevice>)
CRNN_REGISTER("CanonicalToParams", ToParamsOp, ParamLayout);
CRNN_REGISTER("ParamsToCanonical", FromParamsOp, ParamLayout);
CRNN_REGISTER("KerasToParams", ToParamsOp, KerasLayout);
CRNN_REGISTER("ParamsToKeras", FromParamsOp, KerasLayout);
#undef CRNN_REGISTER

}  // namespace
}  // namespace cudnn_rnn_tf
