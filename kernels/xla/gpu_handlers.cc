// A function that XLA compiled for a GPU calls these handlers at run time. They
// enqueue this package's kernels into XLA's stream and wait for nothing.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/op_backend_gpu.h"
#include "kernels/tensorflow_versions.h"  // First.
#include "kernels/xla/buffer_sizes.h"
#include "kernels/xla/handler.h"
#include "xla/stream_executor/platform_manager.h"
#include "xla/stream_executor/stream_executor.h"

namespace cudnn_rnn_tf {
namespace {

std::unique_ptr<GpuBackend> BackendOn(int device, void* stream) {
  GpuResources resources;
  resources.device = device;
  resources.stream = stream;
  // Only cuDNN asks for these, which does not run here.
  resources.allocate = [](size_t) { return nullptr; };
  resources.memory_limit = [] { return size_t{0}; };
  return MakeGpuBackend(std::move(resources));
}

// Chooses what runs a pass, and computes the sizes of its buffers. Both follow
// from the problem and the device alone.
RnnStatus Choose(bool is_backward, const XlaPass& pass, GpuBackend* backend,
                 RnnBufferSizes* sizes) {
  return is_backward ? backend->BackwardBufferSizes(pass.problem,
                                                    pass.reserve_space, sizes)
                     : backend->ForwardBufferSizes(pass.problem, sizes);
}

// Chooses again at run time, checks that the buffers are large enough, and
// tells `buffers` where the lengths are.
template <typename PassBuffers>
RnnStatus ChooseAsCompiled(bool is_backward, const XlaPass& pass,
                           const Buffers& given, GpuBackend* backend,
                           PassBuffers* buffers) {
  if (pass.problem.has_sequence_lengths) {
    buffers->sequence_lengths.on_device =
        static_cast<const int64_t*>(given.arg(4));
  }
  RnnBufferSizes sizes;
  CRNN_RETURN_IF_ERROR(Choose(is_backward, pass, backend, &sizes));
  const size_t workspace =
      is_backward ? sizes.backward_workspace : sizes.forward_workspace;
  if (static_cast<int64_t>(sizes.reserve_space) == pass.reserve_space &&
      static_cast<int64_t>(workspace) <= pass.workspace) {
    return {};
  }
  return {RnnStatus::Code::kFailedPrecondition,
          "XLA compiled the network for a GPU or for settings, such as TF32, "
          "that are not those of this call; compile it again by another "
          "tf.function"};
}

ffi::Error Forward(void* stream, int32_t device,
                   ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                   ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    const auto pass = XlaCallOf<XlaPass>(integers.begin(), integers.size());
    const std::unique_ptr<GpuBackend> backend = BackendOn(device, stream);
    RnnForwardBuffers buffers = given.OfForward();
    CRNN_RETURN_IF_ERROR(ChooseAsCompiled(/*is_backward=*/false, pass, given,
                                          backend.get(), &buffers));
    if (pass.num_seeds > 0) buffers.device_seed = given.arg(5);
    return backend->Forward(pass.problem, buffers);
  });
}

ffi::Error Backward(void* stream, int32_t device,
                    ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                    ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    const auto pass = XlaCallOf<XlaPass>(integers.begin(), integers.size());
    const std::unique_ptr<GpuBackend> backend = BackendOn(device, stream);
    RnnBackwardBuffers buffers = given.OfBackward();
    CRNN_RETURN_IF_ERROR(ChooseAsCompiled(/*is_backward=*/true, pass, given,
                                          backend.get(), &buffers));
    if (given.reserve_space() != buffers.reserve_space) {
      CRNN_RETURN_IF_ERROR(backend->Copy(
          given.reserve_space(), buffers.reserve_space, pass.reserve_space));
    }
    return backend->Backward(pass.problem, buffers);
  });
}

ffi::Error KerasTensors(void* stream, int32_t device,
                        ffi::Span<const int64_t> integers,
                        ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    const auto call =
        XlaCallOf<XlaKerasTensors>(integers.begin(), integers.size());
    return given.MoveKerasTensors(call, BackendOn(device, stream).get());
  });
}

ffi::Error ReadMask(void* stream, int32_t device,
                    ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                    ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    return given.ReadMask(XlaCallOf<RnnMask>(integers.begin(), integers.size()),
                          BackendOn(device, stream).get());
  });
}

ffi::Error MoveSteps(void* stream, int32_t device,
                     ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                     ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    return given.MoveSteps(
        XlaCallOf<StepMove>(integers.begin(), integers.size()),
        BackendOn(device, stream).get());
  });
}

// XLA captures only handlers that are declared to be compatible with its
// command buffers. These are not, since the backend replays graphs of its own.
#define CRNN_BINDING                            \
  ffi::Ffi::Bind()                              \
      .Ctx<ffi::PlatformStream<void*>>()        \
      .Ctx<ffi::DeviceOrdinal>()                \
      .Attr<ffi::Span<const int64_t>>(kXlaCall) \
      .RemainingArgs()                          \
      .RemainingRets()
XLA_FFI_DEFINE_HANDLER(kForward, Forward, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kBackward, Backward, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kKerasTensors, KerasTensors, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kReadMask, ReadMask, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kMoveSteps, MoveSteps, CRNN_BINDING);
#undef CRNN_BINDING

}  // namespace

absl::Status XlaGpuBufferSizes(bool is_backward, int device, XlaPass* pass,
                               RnnBufferSizes* sizes) {
  RnnAlgorithm& algorithm = pass->problem.algorithm;
  if (algorithm != RnnAlgorithm::kAuto &&
      algorithm != RnnAlgorithm::kPersistent) {
    return absl::UnimplementedError(absl::StrCat(
        "on a GPU, XLA runs the algorithms auto and persistent, but received ",
        kRnnAlgorithmNames[static_cast<int>(algorithm)],
        "; leave out jit_compile=True, so that cuDNN can run the network"));
  }
  // cuDNN's passes are not run under XLA; where auto takes them, so do these.
  algorithm = RnnAlgorithm::kPersistent;
  TF_ASSIGN_OR_RETURN(
      stream_executor::Platform* const platform,
      stream_executor::PlatformManager::PlatformWithName("CUDA"));
  TF_ASSIGN_OR_RETURN(stream_executor::StreamExecutor* const executor,
                      platform->ExecutorForDevice(device));
  const auto current = executor->Activate();
  const RnnStatus status =
      Choose(is_backward, *pass, BackendOn(device, nullptr).get(), sizes);
  if (!status.ok()) {
    // With this code, auto-clustering leaves the op out.
    return absl::UnimplementedError(absl::StrCat(
        status.message,
        ". On a GPU, XLA runs the persistent kernels only; leave out "
        "jit_compile=True, where cuDNN runs the network"));
  }
  pass->reserve_space = static_cast<int64_t>(sizes->reserve_space);
  pass->workspace = static_cast<int64_t>(
      is_backward ? sizes->backward_workspace : sizes->forward_workspace);
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf

#define CRNN_REGISTER(name, handler)                                     \
  XLA_FFI_REGISTER_HANDLER(XLA_FFI_GetApi(), cudnn_rnn_tf::name, "CUDA", \
                           cudnn_rnn_tf::handler)
CRNN_REGISTER(kXlaForward, kForward);
CRNN_REGISTER(kXlaBackward, kBackward);
CRNN_REGISTER(kXlaKerasTensors, kKerasTensors);
CRNN_REGISTER(kXlaReadMask, kReadMask);
CRNN_REGISTER(kXlaMoveSteps, kMoveSteps);
#undef CRNN_REGISTER
