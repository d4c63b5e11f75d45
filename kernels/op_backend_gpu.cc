// This file is separate from op_backend.cc since it needs TensorFlow's stream
// executor.
#include "kernels/op_backend_gpu.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/op_backend.h"
#include "kernels/tensorflow_versions.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/logging.h"
#include "tsl/platform/tensor_float_32_utils.h"
#include "tsl/profiler/lib/traceme.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace cudnn_rnn_tf {

namespace {

// Replay is on unless the variable is "0".
bool ReplayIsOn() {
  static const bool on = [] {
    const char* const value = std::getenv("CUDNN_RNN_TF_CUDA_GRAPH");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return on;
}

}  // namespace

std::unique_ptr<GpuBackend> MakeGpuBackend(GpuResources resources) {
  static const bool poison_scratch =
      std::getenv("CUDNN_RNN_TF_POISON_SCRATCH") != nullptr;
  GpuOptions options;
  options.allow_tf32 = tsl::tensor_float_32_execution_enabled();
  options.replay = ReplayIsOn();
  options.poison_scratch = poison_scratch;
  resources.is_profiled = [] { return tsl::profiler::TraceMe::Active(); };
  resources.log = [](const std::string& text) {
    VLOG(1) << "cudnn_rnn_tf: " << text;
  };
  resources.warn = [](const std::string& text) {
    static auto* const mutex = new std::mutex;
    static auto* const warned = new std::set<std::string>;
    const std::lock_guard<std::mutex> lock(*mutex);
    if (warned->insert(text).second) LOG(WARNING) << "cudnn_rnn_tf: " << text;
  };
  return std::make_unique<GpuBackend>(std::move(resources), options);
}

std::unique_ptr<RnnBackend> MakeBackend(
    GpuDevice, tensorflow::OpKernelContext* context,
    std::shared_ptr<const CpuPackedParams> /*packed*/) {
  stream_executor::Stream* const stream =
      context->op_device_context()->stream();
  GpuResources resources;
  resources.device = stream->parent()->device_ordinal();
  resources.stream = stream->platform_specific_handle().stream;
  std::unique_ptr<RnnBackend> backend = MakeGpuBackend(std::move(resources));
  // AsDnn makes TensorFlow load its own cuDNN, so that the backend finds the
  // same one. The loading may call CUDA functions that end the captures of
  // other threads; while a backend lives, its RelaxedCaptureMode prevents that,
  // so the backend is made first.
  stream->parent()->AsDnn();
  return backend;
}

}  // namespace cudnn_rnn_tf

// Returns one line per persistent kernel that the process has used. The text is
// valid until the same thread calls this function again.
extern "C" __attribute__((visibility("default"))) const char*
cudnn_rnn_tf_gpu_kernels() {
  static thread_local std::string text;
  text = cudnn_rnn_tf::persistent::KernelsText();
  return text.c_str();
}

// Returns the architecture that this process imitates, such as 80, or 0 if it
// imitates none or the variable that asks for it is wrong, which ops say.
extern "C" __attribute__((visibility("default"))) int
cudnn_rnn_tf_gpu_imitated_architecture() {
  int architecture = 0;
  return cudnn_rnn_tf::ImitatedArchitecture(&architecture).ok() ? architecture
                                                                : 0;
}

extern "C" __attribute__((visibility("default"))) int64_t
cudnn_rnn_tf_gpu_replays() {
  return cudnn_rnn_tf::GraphCache::NumLaunches();
}

extern "C" __attribute__((visibility("default"))) int
cudnn_rnn_tf_gpu_replay_is_on() {
  return cudnn_rnn_tf::ReplayIsOn();
}
