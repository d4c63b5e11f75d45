// A function that XLA compiled for a GPU calls these handlers at run time. They
// enqueue passes into XLA's stream and wait for nothing, unless cuDNN runs a
// pass with lengths or dropout.
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/gpu_plan.h"
#include "kernels/op_backend_gpu.h"
#include "kernels/tensorflow_versions.h"  // First.
#include "kernels/xla/buffer_sizes.h"
#include "kernels/xla/handler.h"
#include "xla/stream_executor/platform_manager.h"
#include "xla/stream_executor/stream_executor.h"

namespace cudnn_rnn_tf {
namespace {

absl::StatusOr<stream_executor::StreamExecutor*> ExecutorOf(int device) {
  TF_ASSIGN_OR_RETURN(
      stream_executor::Platform* const platform,
      stream_executor::PlatformManager::PlatformWithName("CUDA"));
  return platform->ExecutorForDevice(device);
}

std::unique_ptr<GpuBackend> BackendOn(void* stream, int32_t device) {
  GpuResources resources;
  resources.device = device;
  resources.stream = stream;
  return MakeGpuBackend(std::move(resources));
}

// One call of a handler of passes.
class PassCall {
 public:
  PassCall(void* stream, int32_t device, ffi::Span<const int64_t> integers,
           const ffi::RemainingArgs& args, const ffi::RemainingRets& results)
      : given(args, results),
        pass(XlaCallOf<XlaPass>(integers.begin(), integers.size())),
        backend(BackendOn(stream, device)),
        stream_(static_cast<CUstream>(stream)) {}

  // Finds the plan by which the pass was compiled, and checks that the buffers
  // are large enough.
  RnnStatus Plan(bool is_backward) {
    const RnnProblem& problem = pass.problem;
    CRNN_RETURN_IF_ERROR(
        backend->Plan(problem, pass.choice, /*lengths=*/nullptr, &plan));
    const size_t workspace = is_backward ? plan->sizes.backward_workspace
                                         : plan->sizes.forward_workspace;
    if (static_cast<int64_t>(plan->sizes.reserve_space) != pass.reserve_space ||
        static_cast<int64_t>(workspace) > pass.workspace) {
      return {RnnStatus::Code::kFailedPrecondition,
              "XLA compiled the network for a GPU or for settings, such as "
              "TF32, that are not those of this call; compile it again by "
              "another tf.function"};
    }
    if (!problem.has_sequence_lengths) return {};
    lengths.on_device =
        static_cast<const int64_t*>(given.arg(kSequenceLengths));
    if (is_ours()) return {};
    // The sizes of the buffers are those of a pass with lengths.
    CRNN_RETURN_IF_ERROR(backend->FetchLengths(problem, &lengths));
    RnnProblem checked = problem;
    RnnLengths same = lengths;
    return CheckLengths(&checked, &same);
  }
  bool is_ours() const { return static_cast<const GpuPlan&>(*plan).is_ours(); }

  // Tells a forward pass its seed. cuDNN takes it from the host's memory.
  RnnStatus ReadSeed(RnnForwardBuffers* buffers) const {
    if (pass.num_seeds == 0) return {};
    const void* const seed = given.arg(kSeed);
    if (is_ours()) {
      buffers->device_seed = seed;
      return {};
    }
    return CopyToHost(stream_, seed, buffers->seed, sizeof(buffers->seed));
  }

  const Buffers given;
  const XlaPass pass;
  const std::unique_ptr<GpuBackend> backend;
  std::shared_ptr<const RnnPlan> plan;
  RnnLengths lengths;

 private:
  const CUstream stream_;
};

template <bool is_backward>
ffi::Error RunPass(void* stream, int32_t device,
                   ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                   ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    PassCall call(stream, device, integers, args, results);
    CRNN_RETURN_IF_ERROR(call.Plan(is_backward));
    if constexpr (is_backward) {
      RnnBackwardBuffers buffers = call.given.OfBackward(call.pass);
      buffers.sequence_lengths = call.lengths;
      return call.backend->Backward(*call.plan, buffers);
    } else {
      RnnForwardBuffers buffers = call.given.OfForward(call.pass);
      buffers.sequence_lengths = call.lengths;
      CRNN_RETURN_IF_ERROR(call.ReadSeed(&buffers));
      return call.backend->Forward(*call.plan, buffers);
    }
  });
}

// XLA captures only handlers that are declared to be compatible with its
// command buffers. These are not, since the backend replays graphs of its own.
template <typename Call>
constexpr auto kHandle = HandleCall<Call, BackendOn, void*, int32_t>;

CRNN_REGISTER_HANDLERS(
    "CUDA", .Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>());

}  // namespace

absl::Status XlaGpuBufferSizes(bool is_backward, int device, XlaPass* pass,
                               RnnBufferSizes* sizes) {
  TF_ASSIGN_OR_RETURN(stream_executor::StreamExecutor* const executor,
                      ExecutorOf(device));
  const auto current = executor->Activate();
  const std::unique_ptr<GpuBackend> backend = BackendOn(nullptr, device);
  // This makes TensorFlow load its own cuDNN, so that the backend finds it.
  executor->AsDnn();
  std::shared_ptr<const RnnPlan> plan;
  const RnnStatus status = backend->Plan(
      pass->problem, is_backward ? ChoiceIn(pass->reserve_space) : 0,
      /*lengths=*/nullptr, &plan);
  // With this code, auto-clustering leaves the op out.
  if (!status.ok()) return absl::UnimplementedError(status.message);
  *sizes = plan->sizes;
  pass->choice = plan->choice;
  pass->reserve_space = static_cast<int64_t>(sizes->reserve_space);
  pass->workspace = static_cast<int64_t>(
      is_backward ? sizes->backward_workspace : sizes->forward_workspace);
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf
