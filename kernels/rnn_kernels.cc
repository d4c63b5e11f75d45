// The kernels of CudnnRnnTf>Forward and Backward: they check, allocate and call
// the device's backend.
#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/kept_results.h"
#include "kernels/never_destroyed.h"
#include "kernels/no_throw_kernel.h"
#include "kernels/op_backend.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status CheckShape(const char* name, const Tensor& tensor,
                        const TensorShape& expected) {
  if (tensor.shape() != expected) {
    return InvalidArgument("expected ", name, " of shape ",
                           expected.DebugString(), ", but received ",
                           tensor.shape().DebugString());
  }
  return absl::OkStatus();
}

template <typename Device>
constexpr bool kIsGpu = std::is_same_v<Device, GpuDevice>;

// The base of Forward and Backward, which share most attributes and inputs.
class RnnOp : public OpKernel {
 public:
  explicit RnnOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, WithoutExceptions([&]() -> absl::Status {
                     TF_RETURN_IF_ERROR(ReadSpec(context, &spec_));
                     return ReadRunAttrs(context, &spec_, &time_major_,
                                         &has_sequence_lengths_, &num_seeds_);
                   }));
  }

 protected:
  struct Run {
    RnnProblem problem;
    TensorShape output_shape, h_shape, c_shape;
    RnnLengths sequence_lengths;
    std::vector<int32_t> host_lengths;  // A copy of lengths passed as int64.
    uint64_t seed[2] = {0, 0};

    bool empty() const {
      return problem.max_time == 0 || problem.batch_size == 0;
    }
  };

  // Reads and checks the inputs. `is_gpu` says that lengths of type int64 are
  // in device memory.
  absl::Status ReadRun(OpKernelContext* context, bool is_gpu, Run* run) const {
    const Tensor& input = context->input(0);
    if (input.dims() != 3) {
      return InvalidArgument("expected input of rank 3, ",
                             time_major_ ? "[time, batch, input_size]"
                                         : "[batch, time, input_size]",
                             ", but received shape ",
                             input.shape().DebugString());
    }
    RnnProblem& problem = run->problem;
    problem.spec = spec_;
    problem.spec.input_size = input.dim_size(2);
    TF_RETURN_IF_ERROR(CheckSpec(problem.spec));
    problem.dtype = DataTypeOf(input.dtype());
    problem.max_time = input.dim_size(time_major_ ? 0 : 1);
    problem.batch_size = input.dim_size(time_major_ ? 1 : 0);
    problem.time_major = time_major_;
    problem.has_sequence_lengths = has_sequence_lengths_;
    if (problem.max_time > std::numeric_limits<int32_t>::max() ||
        problem.batch_size > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument(
          "input's time and batch dimensions must fit 32 bits, but received "
          "shape ",
          input.shape().DebugString());
    }

    const RnnSpec& spec = problem.spec;
    const int64_t b = problem.batch_size;
    // A pass may keep the inputs of the gates for every step. Networks for
    // which that is more than any memory holds are refused, so that no size
    // below overflows.
    const double steps = static_cast<double>(problem.max_time) * b;
    if (steps * spec.num_pseudo_layers() *
            (spec.num_gates() * spec.num_units + spec.input_size) >
        1e15) {
      return InvalidArgument("the network, of ", spec.num_layers, " layers of ",
                             spec.num_units,
                             " units, is too large for input of shape ",
                             input.shape().DebugString());
    }
    const auto states = [&](int64_t n, TensorShape* shape) {
      const int64_t layers = spec.num_pseudo_layers();
      return TensorShape::BuildTensorShape(
          {time_major_ ? layers : b, time_major_ ? b : layers, n}, shape);
    };
    run->output_shape = input.shape();
    TF_RETURN_IF_ERROR(
        run->output_shape.SetDimWithStatus(2, spec.layer_output_size()));
    TF_RETURN_IF_ERROR(states(spec.output_size(), &run->h_shape));
    run->c_shape = TensorShape({0});
    if (spec.is_lstm()) {
      TF_RETURN_IF_ERROR(states(spec.num_units, &run->c_shape));
    }
    const TensorShape& h_shape = context->input(1).shape();
    const int batch_axis = time_major_ ? 1 : 0;
    if (h_shape.dims() == 3 && h_shape.dim_size(batch_axis) != b) {
      // These are mostly a stateful layer's, which the caller does not see.
      return InvalidArgument(
          "expected inputs of batch size ", h_shape.dim_size(batch_axis),
          ", that of the initial states, but received ", b,
          "; a stateful layer's last batch that is short can be left out "
          "(drop_remainder=True) or padded with sequences of length 0");
    }
    TF_RETURN_IF_ERROR(CheckShape("input_h", context->input(1), run->h_shape));
    TF_RETURN_IF_ERROR(CheckShape("input_c", context->input(2), run->c_shape));
    const absl::Status params_fit = CheckShape(
        "params", context->input(3), TensorShape({ParamsSize(problem.spec)}));
    if (!params_fit.ok()) {
      // The caller of a SavedModel knows its inputs but not its params, so the
      // message names the input size too.
      return InvalidArgument(params_fit.message(),
                             ": the network was not made for inputs of size ",
                             spec.input_size, " in the last dimension");
    }
    const Tensor& lengths = context->input(4);
    TF_RETURN_IF_ERROR(
        CheckShape("sequence_lengths", lengths,
                   TensorShape({has_sequence_lengths_ ? b : 0})));
    if (has_sequence_lengths_) {
      TF_RETURN_IF_ERROR(TakeLengths(lengths, is_gpu, run));
    }
    if (num_seeds_ == 0) return absl::OkStatus();
    TF_RETURN_IF_ERROR(CheckShape("seed", context->input(5), TensorShape({2})));
    const auto seed = context->input(5).flat<int64_t>();
    run->seed[0] = static_cast<uint64_t>(seed(0));
    run->seed[1] = static_cast<uint64_t>(seed(1));
    return absl::OkStatus();
  }

  absl::Status CheckSeed(const RnnProblem& problem) const {
    if (num_seeds_ > 0 || !(problem.has_dropout_between_layers() ||
                            problem.has_recurrent_dropout())) {
      return absl::OkStatus();
    }
    return InvalidArgument(
        "expected a seed, since dropout draws masks in training, but received "
        "none");
  }

  // The index of the first input after those that both ops begin with.
  int NumSharedInputs() const { return 5 + num_seeds_; }

  static absl::Status TakeLengths(const Tensor& lengths, bool is_gpu,
                                  Run* run) {
    if (lengths.dtype() == tensorflow::DT_INT32) {
      run->sequence_lengths.on_host = lengths.flat<int32_t>().data();
      return absl::OkStatus();
    }
    const auto all = lengths.flat<int64_t>();
    if (is_gpu) {
      run->sequence_lengths.on_device = all.data();
      return absl::OkStatus();
    }
    for (int64_t i = 0; i < all.size(); ++i) {
      const auto length = static_cast<int32_t>(all(i));
      if (length != all(i)) {
        return InvalidArgument("sequence_lengths[", i, "] must lie in [0, ",
                               run->problem.max_time, "], but received ",
                               all(i));
      }
      run->host_lengths.push_back(length);
    }
    run->sequence_lengths.on_host = run->host_lengths.data();
    return absl::OkStatus();
  }

  static absl::Status ReadSequenceLengths(size_t reserve_space,
                                          RnnBackend* backend, Run* run) {
    if (run->empty() || !run->problem.has_sequence_lengths) {
      return absl::OkStatus();
    }
    return ToTensorFlow(backend->ReadSequenceLengths(
        reserve_space, &run->problem, &run->sequence_lengths));
  }

  static absl::Status TakeWorkspace(OpKernelContext* context, size_t bytes,
                                    RnnBackend* backend,
                                    std::shared_ptr<void>* workspace) {
    absl::Status status;
    *workspace = backend->Workspace(bytes, [&](size_t size) {
      return AllocateTemp(context, size, tensorflow::AllocationAttributes(),
                          &status);
    });
    TF_RETURN_IF_ERROR(status);
    backend->Prepare(workspace->get(), bytes);
    return absl::OkStatus();
  }

 private:
  // The size is kept from call to call, since computing a layout takes
  // microseconds and the input size of a network rarely changes.
  int64_t ParamsSize(const RnnSpec& spec) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spec.input_size != known_size_.first) {
      // If computing a layout throws, both numbers stay.
      known_size_ = {spec.input_size, ParamLayout(spec).size()};
    }
    return known_size_.second;
  }

  RnnSpec spec_;
  bool time_major_ = true;
  bool has_sequence_lengths_ = false;
  int num_seeds_ = 1;
  mutable std::mutex mutex_;
  mutable std::pair<int64_t, int64_t> known_size_ = {-1, 0};  // Input, params.
};

template <typename Device>
class ForwardOp : public RnnOp {
 public:
  explicit ForwardOp(OpKernelConstruction* context) : RnnOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_training", &is_training_));
    OP_REQUIRES_OK(context,
                   context->GetAttr("may_keep_params", &may_keep_params_));
    OP_REQUIRES_OK(context, WithoutExceptions([&] {
                     return ReadEnum(context, "algorithm", ParseRnnAlgorithm,
                                     &algorithm_);
                   }));
  }

  void Compute(OpKernelContext* context) override {
    Run run;
    OP_REQUIRES_OK(context, ReadRun(context, kIsGpu<Device>, &run));
    run.problem.is_training = is_training_;
    OP_REQUIRES_OK(context, CheckSeed(run.problem));
    run.problem.algorithm = algorithm_;
    for (const int input : {1, 3}) {
      const auto address =
          reinterpret_cast<uintptr_t>(DataOf(context->input(input)));
      if (address % RnnProblem::kAlignment != 0) run.problem.is_aligned = false;
    }
    const std::unique_ptr<RnnBackend> backend =
        MakeBackend<Device>(context, KeptPacked(context->input(3), run));
    OP_REQUIRES_OK(context, ReadSequenceLengths(0, backend.get(), &run));
    Tensor *output, *output_h, *output_c, *reserve_space;
    OP_REQUIRES_OK(context, AllocateOutput(context, run, *backend, &output));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, run.h_shape, &output_h));
    OP_REQUIRES_OK(context,
                   context->allocate_output(2, run.c_shape, &output_c));
    RnnBufferSizes sizes;
    if (!run.empty()) {
      OP_REQUIRES_OK(context, ToTensorFlow(backend->ForwardBufferSizes(
                                  run.problem, &sizes)));
    }
    OP_REQUIRES_OK(
        context,
        context->allocate_output(
            3, TensorShape({static_cast<int64_t>(sizes.reserve_space)}),
            &reserve_space));
    const Tensor& input_h = context->input(1);
    const Tensor& input_c = context->input(2);
    if (run.empty()) {
      // No step runs, so the states pass through unchanged.
      OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                  DataOf(input_h), DataOf(*output_h),
                                  input_h.TotalBytes())));
      OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                  DataOf(input_c), DataOf(*output_c),
                                  input_c.TotalBytes())));
      return;
    }
    std::shared_ptr<void> workspace;
    OP_REQUIRES_OK(context, TakeWorkspace(context, sizes.forward_workspace,
                                          backend.get(), &workspace));
    for (Tensor* const tensor : {output, reserve_space}) {
      backend->Prepare(DataOf(*tensor), tensor->TotalBytes());
    }
    RnnForwardBuffers buffers;
    buffers.input = DataOf(context->input(0));
    buffers.input_h = DataOf(input_h);
    buffers.input_c = DataOf(input_c);
    buffers.params = DataOf(context->input(3));
    buffers.sequence_lengths = run.sequence_lengths;
    std::copy_n(run.seed, 2, buffers.seed);
    buffers.output = DataOf(*output);
    buffers.output_h = DataOf(*output_h);
    buffers.output_c = DataOf(*output_c);
    buffers.reserve_space = DataOf(*reserve_space);
    buffers.workspace = workspace.get();
    OP_REQUIRES_OK(context,
                   ToTensorFlow(backend->Forward(run.problem, buffers)));
  }

 private:
  // If the backend wants the output at an offset, the output is a slice of a
  // larger tensor.
  static absl::Status AllocateOutput(OpKernelContext* context, const Run& run,
                                     const RnnBackend& backend,
                                     Tensor** output) {
    constexpr int64_t kPeriod = RnnBackend::kOutputPeriod;
    const int64_t offset = run.empty() ? 0 : backend.OutputOffset(run.problem);
    if (offset == 0) {
      return context->allocate_output(0, run.output_shape, output);
    }
    const int64_t item = SizeOf(run.problem.dtype);
    const int64_t count = run.output_shape.num_elements();
    Tensor larger;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(context->expected_output_dtype(0),
                               TensorShape({count + kPeriod / item}), &larger,
                               context->output_alloc_attr(0)));
    const int64_t past =
        reinterpret_cast<uintptr_t>(DataOf(larger)) % RnnBackend::kOutputPeriod;
    const int64_t begin = (kPeriod + offset - past) % kPeriod / item;
    Tensor part;
    if (!part.CopyFrom(larger.Slice(begin, begin + count), run.output_shape)) {
      return absl::InternalError("no part of a tensor is the output");
    }
    context->set_output(0, part);
    *output = context->mutable_output(0);
    return absl::OkStatus();
  }

  // In training, parameters change from call to call, so nothing is kept.
  std::shared_ptr<const CpuPackedParams> KeptPacked(const Tensor& params,
                                                    const Run& run) const {
    if (kIsGpu<Device> || run.empty() || !may_keep_params_ || is_training_) {
      return nullptr;
    }
    using Packed = std::shared_ptr<const CpuPackedParams>;
    static NeverDestroyed<KeptResults<Packed>> kept;
    const RnnSpec& spec = run.problem.spec;
    if (const auto found = kept->Find({params}, spec)) return *found;
    const auto packed = std::make_shared<const CpuPackedParams>(
        spec, run.problem.dtype, params.data());
    kept->Keep({params}, spec, packed, packed->bytes());
    return packed;
  }

  bool is_training_ = true;
  bool may_keep_params_ = false;
  RnnAlgorithm algorithm_ = RnnAlgorithm::kAuto;
};

template <typename Device>
class BackwardOp : public RnnOp {
 public:
  using RnnOp::RnnOp;

  void Compute(OpKernelContext* context) override {
    Run run;
    OP_REQUIRES_OK(context, ReadRun(context, kIsGpu<Device>, &run));
    run.problem.is_training = true;
    OP_REQUIRES_OK(context, CheckSeed(run.problem));
    const int own_inputs = NumSharedInputs();
    const char* const names[] = {
        "output",          "output_h",          "output_c",
        "output_backprop", "output_h_backprop", "output_c_backprop"};
    const TensorShape* const shapes[] = {&run.output_shape, &run.h_shape,
                                         &run.c_shape};
    for (int i = 0; i < 6; ++i) {
      OP_REQUIRES_OK(
          context,
          CheckShape(names[i], context->input(own_inputs + i), *shapes[i % 3]));
    }
    const std::unique_ptr<RnnBackend> backend = MakeBackend<Device>(context);
    Tensor* backprops[4];
    for (int i = 0; i < 4; ++i) {
      OP_REQUIRES_OK(context, context->allocate_output(
                                  i, context->input(i).shape(), &backprops[i]));
    }
    const Tensor& h_backprop = context->input(own_inputs + 4);
    const Tensor& c_backprop = context->input(own_inputs + 5);
    if (run.empty()) {
      OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                  DataOf(h_backprop), DataOf(*backprops[1]),
                                  h_backprop.TotalBytes())));
      OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                  DataOf(c_backprop), DataOf(*backprops[2]),
                                  c_backprop.TotalBytes())));
      OP_REQUIRES_OK(
          context, ToTensorFlow(backend->SetZero(DataOf(*backprops[3]),
                                                 backprops[3]->TotalBytes())));
      return;
    }
    const Tensor& reserve_space = context->input(own_inputs + 6);
    OP_REQUIRES_OK(context, ReadSequenceLengths(reserve_space.TotalBytes(),
                                                backend.get(), &run));
    RnnBufferSizes sizes;
    OP_REQUIRES_OK(context,
                   ToTensorFlow(backend->BackwardBufferSizes(
                       run.problem, reserve_space.TotalBytes(), &sizes)));
    OP_REQUIRES_OK(
        context,
        CheckShape("reserve_space", reserve_space,
                   TensorShape({static_cast<int64_t>(sizes.reserve_space)})));
    std::shared_ptr<void> workspace;
    OP_REQUIRES_OK(context, TakeWorkspace(context, sizes.backward_workspace,
                                          backend.get(), &workspace));
    for (Tensor* const tensor : {backprops[0], backprops[3]}) {
      backend->Prepare(DataOf(*tensor), tensor->TotalBytes());
    }
    RnnBackwardBuffers buffers;
    buffers.input = DataOf(context->input(0));
    buffers.input_h = DataOf(context->input(1));
    buffers.input_c = DataOf(context->input(2));
    buffers.params = DataOf(context->input(3));
    buffers.sequence_lengths = run.sequence_lengths;
    std::copy_n(run.seed, 2, buffers.seed);
    buffers.output = DataOf(context->input(own_inputs));
    buffers.output_backprop = DataOf(context->input(own_inputs + 3));
    buffers.output_h_backprop = DataOf(h_backprop);
    buffers.output_c_backprop = DataOf(c_backprop);
    Tensor consumable;  // A second reference would prevent forwarding.
    // If nobody else holds the reserve space, this forwards its buffer.
    OP_REQUIRES_OK(
        context,
        context->forward_input_or_allocate_temp(
            {own_inputs + 6}, tensorflow::DT_UINT8, reserve_space.shape(),
            tensorflow::AllocatorAttributes(), &consumable));
    if (!consumable.SharesBufferWith(reserve_space)) {
      OP_REQUIRES_OK(context, ToTensorFlow(backend->Copy(
                                  DataOf(reserve_space), DataOf(consumable),
                                  reserve_space.TotalBytes())));
    }
    buffers.reserve_space = DataOf(consumable);
    buffers.input_backprop = DataOf(*backprops[0]);
    buffers.input_h_backprop = DataOf(*backprops[1]);
    buffers.input_c_backprop = DataOf(*backprops[2]);
    buffers.params_backprop = DataOf(*backprops[3]);
    buffers.workspace = workspace.get();
    OP_REQUIRES_OK(context,
                   ToTensorFlow(backend->Backward(run.problem, buffers)));
  }
};

// TensorFlow keeps int32 tensors in host memory even on GPUs, so lengths of
// that type are read from there.
#define CRNN_REGISTER_LENGTHS(T, Lengths)                             \
  REGISTER_KERNEL_BUILDER(Lengths(Name("CudnnRnnTf>Forward")          \
                                      .Device(tensorflow::DEVICE_GPU) \
                                      .HostMemory("seed")             \
                                      .TypeConstraint<T>("T")),       \
                          NoThrowKernel<ForwardOp<GpuDevice>>);       \
  REGISTER_KERNEL_BUILDER(Lengths(Name("CudnnRnnTf>Backward")         \
                                      .Device(tensorflow::DEVICE_GPU) \
                                      .HostMemory("seed")             \
                                      .TypeConstraint<T>("T")),       \
                          NoThrowKernel<BackwardOp<GpuDevice>>)
#define CRNN_INT32(builder) \
  builder.TypeConstraint<int32_t>("Tlengths").HostMemory("sequence_lengths")
#define CRNN_INT64(builder) builder.TypeConstraint<int64_t>("Tlengths")
#define CRNN_REGISTER(T)                                         \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>Forward")             \
                              .Device(tensorflow::DEVICE_CPU)    \
                              .TypeConstraint<T>("T"),           \
                          NoThrowKernel<ForwardOp<CpuDevice>>);  \
  REGISTER_KERNEL_BUILDER(Name("CudnnRnnTf>Backward")            \
                              .Device(tensorflow::DEVICE_CPU)    \
                              .TypeConstraint<T>("T"),           \
                          NoThrowKernel<BackwardOp<CpuDevice>>); \
  CRNN_REGISTER_LENGTHS(T, CRNN_INT32);                          \
  CRNN_REGISTER_LENGTHS(T, CRNN_INT64)
CRNN_REGISTER(double);
CRNN_REGISTER(float);
CRNN_REGISTER(Eigen::half);
CRNN_REGISTER(Eigen::bfloat16);
#undef CRNN_REGISTER
#undef CRNN_INT64
#undef CRNN_INT32
#undef CRNN_REGISTER_LENGTHS

}  // namespace
}  // namespace cudnn_rnn_tf
