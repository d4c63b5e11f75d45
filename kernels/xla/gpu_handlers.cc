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

class GpuPlace {
 public:
  GpuPlace(void* stream, int32_t device, int64_t /*num_threads*/ = 1)
      : backend(BackendOn(stream, device)),
        stream_(static_cast<CUstream>(stream)) {}

  RnnStatus ReadLengths(const XlaPass& pass, const RnnPlan& plan,
                        const void* data, RnnLengths* lengths) const {
    lengths->on_device = static_cast<const int64_t*>(data);
    if (IsOurs(plan)) return {};
    // The sizes of the buffers are those of a pass with lengths.
    CRNN_RETURN_IF_ERROR(backend->FetchLengths(pass.problem, lengths));
    RnnProblem checked = pass.problem;
    RnnLengths same = *lengths;
    return CheckLengths(&checked, &same);
  }
  // cuDNN takes the seed from the host's memory.
  RnnStatus ReadSeed(const RnnPlan& plan, const void* seed,
                     RnnForwardBuffers* buffers) const {
    if (!IsOurs(plan)) {
      return CopyToHost(stream_, seed, buffers->seed, sizeof(buffers->seed));
    }
    buffers->device_seed = seed;
    return {};
  }
  // It is in the reserve space.
  RnnStatus ReadSeed(const RnnPlan&, const void*, RnnBackwardBuffers*) const {
    return {};
  }

  const std::unique_ptr<GpuBackend> backend;

 private:
  static bool IsOurs(const RnnPlan& plan) {
    return static_cast<const GpuPlan&>(plan).is_ours();
  }

  const CUstream stream_;
};

// XLA captures only handlers that are declared to be compatible with its
// command buffers. These are not, since the backend replays graphs of its own.
using DeviceHandlers = Handlers<GpuPlace, void*, int32_t>;
CRNN_REGISTER_HANDLERS(
    "CUDA", .Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>());

}  // namespace

absl::Status XlaGpuBufferSizes(int device, XlaPass* pass,
                               RnnBufferSizes* sizes) {
  TF_ASSIGN_OR_RETURN(stream_executor::StreamExecutor* const executor,
                      ExecutorOf(device));
  const auto current = executor->Activate();
  const std::unique_ptr<GpuBackend> backend = BackendOn(nullptr, device);
  // This makes TensorFlow load its own cuDNN, so that the backend finds it.
  executor->AsDnn();
  std::shared_ptr<const RnnPlan> plan;
  const RnnStatus status = backend->Plan(pass->problem, pass->choice,
                                         /*lengths=*/nullptr, &plan);
  // With this code, auto-clustering leaves the op out.
  if (!status.ok()) return absl::UnimplementedError(status.message);
  *sizes = plan->sizes;
  pass->choice = plan->choice;
  return absl::OkStatus();
}

}  // namespace cudnn_rnn_tf
