// The kernels of CudnnRnnTf>Forward and Backward: they check, allocate and call
// the device's backend.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/kept_results.h"
#include "kernels/kernel.h"
#include "kernels/op_backend.h"
#include "kernels/op_tensors.h"
#include "kernels/rnn_attrs.h"
#include "kernels/rnn_run.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Device>
constexpr bool kIsGpu = std::is_same_v<Device, GpuDevice>;

// The base of Forward and Backward, which share most attributes and inputs.
class RnnOp {
 protected:
  struct OpRun : RnnRun {
    RnnLengths sequence_lengths;
    std::vector<int32_t> host_lengths;  // A copy of lengths passed as int64.
    uint64_t seed[2] = {0, 0};
  };

  // Reads and checks the inputs. `is_gpu` says that lengths of type int64 are
  // in device memory.
  absl::Status ReadRun(OpKernelContext* context, bool is_gpu,
                       OpRun* run) const {
    TF_RETURN_IF_ERROR(reader_.Read(context->input(kInput).dtype(),
                                    InputShapes{context}, run));
    if (run->problem.has_sequence_lengths) {
      TF_RETURN_IF_ERROR(
          TakeLengths(context->input(kSequenceLengths), is_gpu, run));
    }
    if (!run->problem.has_seed) return absl::OkStatus();
    const auto seed = context->input(kSeed).flat<int64_t>();
    run->seed[0] = static_cast<uint64_t>(seed(0));
    run->seed[1] = static_cast<uint64_t>(seed(1));
    return absl::OkStatus();
  }

  static absl::Status TakeLengths(const Tensor& lengths, bool is_gpu,
                                  OpRun* run) {
    if (lengths.dtype() == tensorflow::DT_INT32) {
      run->sequence_lengths.on_host = lengths.flat<int32_t>().data();
      return absl::OkStatus();
    }
    const auto all = lengths.flat<int64_t>();
    if (is_gpu) {
      run->sequence_lengths.on_device = all.data();
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(
        NarrowLengths(all.data(), run->problem, &run->host_lengths)));
    run->sequence_lengths.on_host = run->host_lengths.data();
    return absl::OkStatus();
  }

  static absl::Status CopyAll(const Tensor& from, const Tensor& to,
                              RnnBackend* backend) {
    return ToTensorFlow(
        backend->Copy(DataOf(from), DataOf(to), from.TotalBytes()));
  }

  static absl::Status TakeWorkspace(OpKernelContext* context, size_t bytes,
                                    RnnBackend* backend,
                                    std::shared_ptr<void>* workspace) {
    absl::Status status;
    *workspace = AllocateTemp(context, bytes, &status);
    TF_RETURN_IF_ERROR(status);
    backend->Prepare(workspace->get(), bytes);
    return absl::OkStatus();
  }

  RnnRunReader reader_;
};

template <typename Device>
class ForwardOp : RnnOp {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(reader_.ReadAttrs(context, /*is_backward=*/false));
    return context->GetAttr("may_keep_params", &may_keep_params_);
  }
  absl::Status Run(OpKernelContext* context) const {
    OpRun run;
    TF_RETURN_IF_ERROR(ReadRun(context, kIsGpu<Device>, &run));
    const std::unique_ptr<RnnBackend> backend = MakeBackend(
        Device(), context, KeptPacked(context->input(kParams), run));
    std::shared_ptr<const RnnPlan> plan;
    if (!run.empty()) {
      TF_RETURN_IF_ERROR(ToTensorFlow(backend->Plan(
          run.problem, /*choice=*/0, &run.sequence_lengths, &plan)));
    }
    const RnnBufferSizes sizes =
        plan == nullptr ? RnnBufferSizes() : plan->sizes;
    Tensor* outputs[kMostForwardOutputs] = {};
    for (int i = 0; i < context->num_outputs(); ++i) {
      TensorShape shape;
      TF_RETURN_IF_ERROR(ReadShape(run.forms.outputs[i], run.problem,
                                   static_cast<int64_t>(sizes.reserve_space),
                                   &shape));
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &outputs[i]));
    }
    if (run.empty()) {
      // No step runs, so the states pass through unchanged.
      for (const auto& [input, output] :
           {std::pair(kInputH, kOutputH), std::pair(kInputC, kOutputC)}) {
        TF_RETURN_IF_ERROR(
            CopyAll(context->input(input), *outputs[output], backend.get()));
      }
      return absl::OkStatus();
    }
    std::shared_ptr<void> workspace;
    TF_RETURN_IF_ERROR(TakeWorkspace(context, sizes.forward_workspace,
                                     backend.get(), &workspace));
    for (const int i : {kOutput, kReserveSpace, kCellSequences}) {
      if (outputs[i] == nullptr) continue;
      backend->Prepare(DataOf(*outputs[i]), outputs[i]->TotalBytes());
    }
    auto buffers = BuffersOf<RnnForwardBuffers>(
        plan->problem, [&](int i) { return DataOf(context->input(i)); },
        reader_.num_inputs(), [&](int i) { return DataOf(*outputs[i]); });
    buffers.sequence_lengths = run.sequence_lengths;
    std::copy_n(run.seed, 2, buffers.seed);
    buffers.workspace = workspace.get();
    return ToTensorFlow(backend->Forward(*plan, buffers));
  }

 private:
  // In training, parameters change from call to call, so nothing is kept.
  std::shared_ptr<const CpuPackedParams> KeptPacked(const Tensor& params,
                                                    const OpRun& run) const {
    using Packed = std::shared_ptr<const CpuPackedParams>;
    static auto* const kept = new KeptResults<Packed>;
    if (kIsGpu<Device>) return nullptr;
    kept->DropUnused();  // Training may have gone on with other weights.
    const RnnProblem& problem = run.problem;
    if (run.empty() || !may_keep_params_ || problem.is_training) return nullptr;
    // It takes less time than to read all parameters for their fingerprint.
    if (FactorForms(problem).in_place) return nullptr;
    const RnnSpec& spec = problem.spec;
    const uint64_t fingerprint = FingerprintOf({params});
    if (const auto found = kept->Find({params}, fingerprint, spec)) {
      return *found;
    }
    const auto packed = std::make_shared<const CpuPackedParams>(
        spec, problem.dtype, params.data());
    kept->Keep({params}, fingerprint, spec, packed, packed->bytes());
    return packed;
  }

  bool may_keep_params_ = false;
};

template <typename Device>
class BackwardOp : RnnOp {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    return reader_.ReadAttrs(context, /*is_backward=*/true);
  }
  absl::Status Run(OpKernelContext* context) const {
    OpRun run;
    TF_RETURN_IF_ERROR(ReadRun(context, kIsGpu<Device>, &run));
    const int own_inputs = reader_.num_inputs();
    const std::unique_ptr<RnnBackend> backend = MakeBackend(Device(), context);
    // Nothing reads the gradient of what a model is given. In a graph,
    // TensorFlow knows this.
    run.problem.has_input_backprop = context->output_required(kInputBackprop);
    Tensor* backprops[kNumBackprops] = {};
    for (int i = 0; i < kNumBackprops; ++i) {
      if (i == kInputBackprop && !run.problem.has_input_backprop) continue;
      TF_RETURN_IF_ERROR(context->allocate_output(i, context->input(i).shape(),
                                                  &backprops[i]));
    }
    if (run.empty()) {
      for (const auto& [input, output] :
           {std::pair(kOutputHBackprop, kInputHBackprop),
            std::pair(kOutputCBackprop, kInputCBackprop)}) {
        TF_RETURN_IF_ERROR(CopyAll(context->input(own_inputs + input),
                                   *backprops[output], backend.get()));
      }
      return ToTensorFlow(
          backend->SetZero(DataOf(*backprops[kParamsBackprop]),
                           backprops[kParamsBackprop]->TotalBytes()));
    }
    const Tensor& reserve_space =
        context->input(own_inputs + kForwardReserveSpace);
    std::shared_ptr<const RnnPlan> plan;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        backend->Plan(run.problem, ChoiceIn(reserve_space.TotalBytes()),
                      &run.sequence_lengths, &plan)));
    const RnnBufferSizes& sizes = plan->sizes;
    TF_RETURN_IF_ERROR(CheckShape(
        run.forms.inputs[own_inputs + kForwardReserveSpace], run.problem,
        static_cast<int64_t>(sizes.reserve_space), reserve_space.shape()));
    // TensorFlow hands over what a forward pass has left where that allocated
    // it. Where it slices a stack of tensors, it shares memory only if that is
    // aligned, and XLA aligns all buffers. So only callers of this op with an
    // array of their own could need a copy, which it is not made for.
    constexpr uintptr_t kAlignment = 16;
    const uintptr_t past =
        reinterpret_cast<uintptr_t>(DataOf(reserve_space)) % kAlignment;
    if (past != 0) {
      return InvalidArgument(
          "reserve_space must begin at a multiple of 16 bytes, as a forward "
          "pass leaves it, but begins ",
          past, " bytes after one");
    }
    std::shared_ptr<void> workspace;
    TF_RETURN_IF_ERROR(TakeWorkspace(context, sizes.backward_workspace,
                                     backend.get(), &workspace));
    for (Tensor* const tensor :
         {backprops[kInputBackprop], backprops[kParamsBackprop]}) {
      if (tensor == nullptr) continue;
      backend->Prepare(DataOf(*tensor), tensor->TotalBytes());
    }
    // Kernels of GPUs load neighbouring numbers together, so tensors that begin
    // at any number, as views that come by DLPack do, are copied first.
    absl::Status status;
    std::vector<std::shared_ptr<void>> copies;
    const auto address = [&](int i) {
      const Tensor& tensor = context->input(i);
      void* const given = DataOf(tensor);
      if (!kIsGpu<Device> || !status.ok() ||
          reinterpret_cast<uintptr_t>(given) % kAlignment == 0) {
        return given;
      }
      copies.push_back(AllocateTemp(context, tensor.TotalBytes(), &status));
      if (status.ok()) {
        status = ToTensorFlow(
            backend->Copy(given, copies.back().get(), tensor.TotalBytes()));
      }
      return copies.back().get();
    };
    const auto backprop = [&](int i) {
      return backprops[i] == nullptr ? nullptr : DataOf(*backprops[i]);
    };
    auto buffers = BuffersOf<RnnBackwardBuffers>(plan->problem, address,
                                                 own_inputs, backprop);
    TF_RETURN_IF_ERROR(status);
    buffers.sequence_lengths = run.sequence_lengths;
    std::copy_n(run.seed, 2, buffers.seed);
    Tensor consumable;  // A second reference would prevent forwarding.
    // If nobody else holds the reserve space, this forwards its buffer.
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_temp(
        {own_inputs + kForwardReserveSpace}, tensorflow::DT_UINT8,
        reserve_space.shape(), tensorflow::AllocatorAttributes(), &consumable));
    if (!consumable.SharesBufferWith(reserve_space)) {
      TF_RETURN_IF_ERROR(CopyAll(reserve_space, consumable, backend.get()));
    }
    buffers.reserve_space = DataOf(consumable);
    buffers.workspace = workspace.get();
    return ToTensorFlow(backend->Backward(*plan, buffers));
  }
};

// TensorFlow keeps int32 tensors in host memory even on GPUs, so lengths of
// that type are read from there.
#define CRNN_REGISTER(NAME, Op)                                    \
  CRNN_REGISTER_KERNEL(CPU, NAME, Op<CpuDevice>);                  \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>" NAME)                 \
                              .Device(tensorflow::DEVICE_GPU)      \
                              .TypeConstraint<int32_t>("Tlengths") \
                              .HostMemory("sequence_lengths")      \
                              .HostMemory("seed"),                 \
                          Kernel<Op<GpuDevice>>);                  \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>" NAME)                 \
                              .Device(tensorflow::DEVICE_GPU)      \
                              .TypeConstraint<int64_t>("Tlengths") \
                              .HostMemory("seed"),                 \
                          Kernel<Op<GpuDevice>>)
CRNN_REGISTER("Forward", ForwardOp);
CRNN_REGISTER("Backward", BackwardOp);
#undef CRNN_REGISTER

}  // namespace
}  // namespace cudnn_rnn_tf
