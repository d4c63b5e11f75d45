// A function that XLA compiled calls these handlers at run time. On a GPU, they
// enqueue passes into XLA's stream and wait for nothing, unless cuDNN runs a
// pass with lengths or dropout.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/gpu_plan.h"
#include "kernels/op_backend.h"
#include "kernels/op_backend_gpu.h"
#include "kernels/pool_threads.h"
#include "kernels/tensorflow_versions.h"
#include "kernels/xla/buffer_sizes.h"
#include "kernels/xla/call_buffers.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "xla/stream_executor/platform_manager.h"
#include "xla/stream_executor/stream_executor.h"

namespace cudnn_rnn_tf {
namespace {

// The place where XLA runs a call is made of the context that XLA gives. It has
// a backend, and reads a call's lengths and seed, which may be in a device's
// memory.
class CpuPlace {
 public:
  // At most as many threads of the pool run as the sizes of a pass's buffers
  // are for.
  explicit CpuPlace(ffi::ThreadPool pool,
                    int64_t num_threads = tensorflow::port::MaxParallelism()) {
    const auto run = [pool](int64_t members,
                            const std::function<void(int64_t)>& body) mutable {
      RunInPool(&pool,
                std::min(members, std::max<int64_t>(1, pool.num_threads())),
                body);
    };
    backend = std::make_unique<CpuBackend>(Threads{num_threads, run});
  }

  RnnStatus ReadLengths(const XlaPass& pass, const RnnPlan&, const void* data,
                        RnnLengths* lengths) {
    RnnProblem checked = pass.problem;
    const RnnStatus status = NarrowLengths(static_cast<const int64_t*>(data),
                                           checked, &host_lengths_);
    if (!status.ok()) return status;
    lengths->on_host = host_lengths_.data();
    return CheckLengths(&checked, lengths);
  }
  template <typename Buffers>
  RnnStatus ReadSeed(const RnnPlan&, const void* seed, Buffers* buffers) const {
    std::memcpy(buffers->seed, seed, sizeof(buffers->seed));
    return {};
  }

  std::unique_ptr<CpuBackend> backend;

 private:
  std::vector<int32_t> host_lengths_;
};

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
  // cuDNN takes the seed of dropout from the host's memory.
  RnnStatus ReadSeed(const RnnPlan& plan, const void* seed,
                     RnnForwardBuffers* buffers) const {
    if (IsOurs(plan)) {
      buffers->device_seed = seed;
    } else if (plan.problem.has_dropout_between_layers()) {
      return CopyToHost(stream_, seed, buffers->seed, sizeof(buffers->seed));
    }
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

template <typename Place, typename... Context>
struct Handlers {
  template <typename Call>
  static ffi::Error Run(Context... context, ffi::Span<const int64_t> integers,
                        ffi::RemainingArgs args, ffi::RemainingRets results) {
    return Handle([&] {
      const auto call = XlaCallOf<Call>(integers.begin(), integers.size());
      const CallBuffers given(args, results, SizesOf(call));
      const Place place(context...);
      return given.Run(call, place.backend.get());
    });
  }

  template <bool is_backward>
  static ffi::Error RunPass(Context... context,
                            ffi::Span<const int64_t> integers,
                            ffi::RemainingArgs args,
                            ffi::RemainingRets results) {
    return Handle([&]() -> RnnStatus {
      const auto pass = XlaCallOf<XlaPass>(integers.begin(), integers.size());
      const CallBuffers given(args, results, SizesOf(pass, is_backward));
      Place place(context..., pass.num_threads);
      std::shared_ptr<const RnnPlan> plan;
      CRNN_RETURN_IF_ERROR(place.backend->Plan(pass.problem, pass.choice,
                                               /*lengths=*/nullptr, &plan));
      CRNN_RETURN_IF_ERROR(given.CheckMemory(is_backward, *plan));
      const auto run = [&](auto buffers, auto run_pass) -> RnnStatus {
        if (pass.problem.has_sequence_lengths) {
          CRNN_RETURN_IF_ERROR(place.ReadLengths(pass, *plan,
                                                 given.arg(kSequenceLengths),
                                                 &buffers.sequence_lengths));
        }
        if (pass.problem.has_seed) {
          CRNN_RETURN_IF_ERROR(
              place.ReadSeed(*plan, given.arg(kSeed), &buffers));
        }
        return (place.backend.get()->*run_pass)(*plan, buffers);
      };
      return is_backward ? run(given.Of<RnnBackwardBuffers>(pass.problem),
                               &RnnBackend::Backward)
                         : run(given.Of<RnnForwardBuffers>(pass.problem),
                               &RnnBackend::Forward);
    });
  }
};

// XLA captures only handlers that are declared to be compatible with its
// command buffers. Those on GPUs are not, since the backend replays graphs of
// its own.
using CpuHandlers = Handlers<CpuPlace, ffi::ThreadPool>;
using GpuHandlers = Handlers<GpuPlace, void*, int32_t>;
#define CRNN_REGISTER_ON(PLATFORM, CLASS, NAME, FUNCTION, CONTEXT)            \
  XLA_FFI_DEFINE_HANDLER(NAME##CLASS, CLASS::FUNCTION,                        \
                         ffi::Ffi::Bind()                                     \
                             CONTEXT.Attr<ffi::Span<const int64_t>>(kXlaCall) \
                                 .RemainingArgs()                             \
                                 .RemainingRets());                           \
  XLA_FFI_REGISTER_HANDLER(XLA_FFI_GetApi(), NAME, PLATFORM, NAME##CLASS)
#define CRNN_REGISTER_HANDLER(NAME, FUNCTION)           \
  CRNN_REGISTER_ON("Host", CpuHandlers, NAME, FUNCTION, \
                   .Ctx<ffi::ThreadPool>());            \
  CRNN_REGISTER_ON(                                     \
      "CUDA", GpuHandlers, NAME, FUNCTION,              \
      .Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>())
CRNN_REGISTER_HANDLER(kXlaForward, RunPass<false>);
CRNN_REGISTER_HANDLER(kXlaBackward, RunPass<true>);
CRNN_REGISTER_HANDLER(kXlaKerasTensors, Run<XlaKerasTensors>);
CRNN_REGISTER_HANDLER(kXlaReadMask, Run<RnnMask>);
CRNN_REGISTER_HANDLER(kXlaMoveSteps, Run<StepMove>);
#undef CRNN_REGISTER_HANDLER
#undef CRNN_REGISTER_ON

}  // namespace

absl::Status XlaCpuBufferSizes(XlaPass* pass, RnnBufferSizes* sizes) {
  pass->num_threads = std::clamp<int64_t>(tensorflow::port::MaxParallelism(), 1,
                                          XlaPass::kMostThreads);
  CpuBackend backend(Threads{pass->num_threads, nullptr});
  std::shared_ptr<const RnnPlan> plan;
  TF_RETURN_IF_ERROR(ToTensorFlow(backend.Plan(pass->problem, /*choice=*/0,
                                               /*lengths=*/nullptr, &plan)));
  *sizes = plan->sizes;
  return absl::OkStatus();
}

absl::Status XlaGpuBufferSizes(int device, XlaPass* pass,
                               RnnBufferSizes* sizes) {
  TF_ASSIGN_OR_RETURN(
      stream_executor::Platform* const platform,
      stream_executor::PlatformManager::PlatformWithName("CUDA"));
  TF_ASSIGN_OR_RETURN(stream_executor::StreamExecutor* const executor,
                      platform->ExecutorForDevice(device));
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
