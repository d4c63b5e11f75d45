#include "kernels/cudnn/libraries.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

namespace cudnn_rnn_tf {
namespace {

constexpr char kCudaName[] = "libcuda.so.1";
// cudnnRNNSetClip_v9 and the last error's text came with version 9.0.
constexpr size_t kOldestCudnn = 90000;

RnnStatus Unavailable(const std::string& why) {
  return {RnnStatus::Code::kFailedPrecondition,
          "cudnn_rnn_tf cannot use the GPU: " + why};
}

void* Open(const char* name, std::string* error) {
  // Never closed: its code may run until the process ends.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *error = dlerror();
  return library;
}

template <typename Function>
void Find(void* library, const char* library_name, const char* name,
          Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    *missing += std::string(" ") + library_name + ":" + name;
  }
}

RnnStatus Load(GpuLibraries* libraries) {
  std::string error, missing;
  // For a cuDNN other than TensorFlow's.
  const char* const chosen = std::getenv("CUDNN_RNN_TF_CUDNN_LIBRARY");
  const char* const cudnn_name = chosen != nullptr ? chosen : "libcudnn.so.9";
  void* const cuda = Open(kCudaName, &error);
  if (cuda == nullptr) {
    return Unavailable(std::string("the CUDA driver ") + kCudaName +
                       " was looked for where the dynamic linker looks and "
                       "not found (" +
                       error + ")");
  }
  void* const cudnn = Open(cudnn_name, &error);
  if (cudnn == nullptr) {
    return Unavailable(
        std::string("cuDNN ") + cudnn_name +
        " was looked for among the libraries TensorFlow has loaded and where "
        "the dynamic linker looks (LD_LIBRARY_PATH, ldconfig) and not found (" +
        error + "). pip install 'tensorflow[and-cuda]' brings it");
  }
#define CRNN_TEXT(name) #name
#define CRNN_FIND(name) \
  Find(cuda, kCudaName, CRNN_TEXT(name), &libraries->cuda.name, &missing);
  CRNN_CUDA_GRAPH_FUNCTIONS(CRNN_FIND)
  // An older driver runs everything but graphs.
  libraries->has_graphs = missing.empty();
  missing.clear();
  CRNN_CUDA_FUNCTIONS(CRNN_FIND)
#undef CRNN_FIND
#undef CRNN_TEXT
#define CRNN_FIND(name) \
  Find(cudnn, cudnn_name, #name, &libraries->cudnn.name, &missing);
  CRNN_CUDNN_FUNCTIONS(CRNN_FIND)
#undef CRNN_FIND
  if (libraries->cudnn.cudnnGetVersion != nullptr &&
      libraries->cudnn.cudnnGetVersion() < kOldestCudnn) {
    return Unavailable("cuDNN 9.0 or newer is needed, but " +
                       std::string(cudnn_name) + " has version " +
                       std::to_string(libraries->cudnn.cudnnGetVersion()));
  }
  if (!missing.empty()) {
    return Unavailable("these functions are missing:" + missing);
  }
  return {};
}

GpuLibraries* Loaded() {
  static GpuLibraries libraries;
  return &libraries;
}

}  // namespace

RnnStatus LoadGpuLibraries() {
  static std::mutex mutex;
  static std::atomic<bool> loaded = false;
  if (loaded.load(std::memory_order_acquire)) return {};
  const std::lock_guard<std::mutex> lock(mutex);
  // A failure is not remembered: TensorFlow may have loaded cuDNN since.
  if (!loaded.load(std::memory_order_relaxed)) {
    GpuLibraries found;
    const RnnStatus status = Load(&found);
    if (!status.ok()) return status;
    *Loaded() = found;
    loaded.store(true, std::memory_order_release);
  }
  return {};
}

const GpuLibraries& Gpu() { return *Loaded(); }

RnnStatus CudaStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  Gpu().cuda.cuGetErrorString(result, &text);
  return {RnnStatus::Code::kInternal, std::string("CUDA failed to ") + what +
                                          ": " +
                                          (text != nullptr ? text : "unknown")};
}

}  // namespace cudnn_rnn_tf
