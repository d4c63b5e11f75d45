#include "kernels/gpu/libraries.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

namespace cudnn_rnn_tf {
namespace {

constexpr char kCudaName[] = "libcuda.so.1";
// Version 9.0 introduced cudnnRNNSetClip_v9 and cudnnGetLastErrorString.
constexpr size_t kOldestCudnn = 90000;
// Version 12.3 introduced stores of 128 bits as a whole.
constexpr int kOldestNvrtcMinor = 3;

GpuLibraries& Loaded() {
  static GpuLibraries libraries;
  return libraries;
}

RnnStatus Unavailable(const std::string& why) {
  return {RnnStatus::Code::kFailedPrecondition,
          "cudnn_rnn_tf cannot use the GPU: " + why};
}

void* Open(const char* name, std::string* error) {
  // The library is never closed, since its code may run until the process ends.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *error = dlerror();
  return library;
}

// Finds the functions of a library. If some are missing, the failure names
// them.
template <typename Library>
RnnStatus Find(void* library, const char* library_name, Library* functions,
               RnnStatus (*failure)(const std::string&) = Unavailable) {
  std::string missing;
  functions->Visit([&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(
        dlsym(library, name));
    if (*function == nullptr) {
      missing += std::string(" ") + library_name + ":" + name;
    }
  });
  return missing.empty() ? RnnStatus()
                         : failure("these functions are missing:" + missing);
}

RnnStatus LoadCuda() {
  std::string error;
  void* const cuda = Open(kCudaName, &error);
  if (cuda == nullptr) {
    return Unavailable(std::string("the CUDA driver ") + kCudaName +
                       " was looked for where the dynamic linker looks and "
                       "not found (" +
                       error + ")");
  }
  // A driver that lacks some of the functions of graphs can do all but replay.
  CudaGraphFunctions* const graphs = &Loaded().cuda;
  Loaded().has_graphs = Find(cuda, kCudaName, graphs).ok();
  CudaFunctions* const others = &Loaded().cuda;
  return Find(cuda, kCudaName, others);
}

RnnStatus LoadCudnn() {
  std::string error;
  // The variable names a cuDNN other than TensorFlow's.
  const char* const chosen = std::getenv("CUDNN_RNN_TF_CUDNN_LIBRARY");
  const char* const name = chosen != nullptr ? chosen : "libcudnn.so.9";
  void* const cudnn = Open(name, &error);
  if (cudnn == nullptr) {
    return Unavailable(
        std::string("cuDNN ") + name +
        " was looked for among the libraries TensorFlow has loaded and where "
        "the dynamic linker looks (LD_LIBRARY_PATH, ldconfig) and not found (" +
        error + "). pip install 'tensorflow[and-cuda]' brings it");
  }
  CudnnLibrary* const functions = &Loaded().cudnn;
  const RnnStatus found = Find(cudnn, name, functions);
  if (functions->cudnnGetVersion != nullptr &&
      functions->cudnnGetVersion() < kOldestCudnn) {
    return Unavailable("cuDNN 9.0 or newer is needed, but " +
                       std::string(name) + " has version " +
                       std::to_string(functions->cudnnGetVersion()));
  }
  return found;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Where pip's packages have a library, in the order in which its versions are
// looked for.
using Places = std::array<const char*, 2>;
constexpr Places kCublas = {"cu13/lib/libcublas.so.13",
                            "cublas/lib/libcublas.so.12"};
constexpr Places kNvrtc = {"cuda_nvrtc/lib/libnvrtc.so.12",
                           "cu13/lib/libnvrtc.so.13"};

std::string FileOf(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// Returns the newest cuBLAS that somebody has loaded, or null.
void* LoadedCublas() {
  for (const char* const path : kCublas) {
    void* const cublas = dlopen(FileOf(path).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (cublas != nullptr) return cublas;
  }
  return nullptr;
}

// Returns the folders of cuBLAS and cuDNN. TensorFlow has loaded both, but not
// NVRTC, which lies beside them.
std::vector<std::string> FoldersOfLoaded() {
  std::vector<void*> functions;
  if (void* const cublas = LoadedCublas()) {
    functions.push_back(dlsym(cublas, "cublasCreate_v2"));
  }
  if (LoadGpuLibraries().ok()) {
    functions.push_back(
        reinterpret_cast<void*>(Loaded().cudnn.cudnnGetVersion));
  }
  std::vector<std::string> folders;
  for (void* const function : functions) {
    Dl_info info;
    if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) continue;
    const std::string folder = FolderOf(info.dli_fname);
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

// Returns where a library may be. One that lies beside the libraries that
// TensorFlow uses, in a package such as nvidia/cudnn/lib or in their folder,
// comes before the system's, which may be of another version of CUDA.
std::vector<std::string> PathsOf(const Places& places) {
  std::vector<std::string> in_packages, others;
  for (const std::string& folder : FoldersOfLoaded()) {
    for (const char* const place : places) {
      in_packages.push_back(FolderOf(FolderOf(folder)) + '/' + place);
      others.push_back(folder + '/' + FileOf(place));
    }
  }
  for (const char* const place : places) others.push_back(FileOf(place));
  in_packages.insert(in_packages.end(), others.begin(), others.end());
  return in_packages;
}

RnnStatus WithoutKernels(const std::string& why) {
  return {RnnStatus::Code::kFailedPrecondition,
          "the package's own kernels need cuBLAS and NVRTC: " + why};
}

RnnStatus NotFound(const std::string& error) {
  return WithoutKernels(
      "one was looked for among the libraries TensorFlow has loaded, where the "
      "dynamic linker looks and among pip's packages, and not found (" +
      error + "). pip install 'tensorflow[and-cuda]' brings it");
}

// Takes the cuBLAS of the process, if it has one.
RnnStatus LoadCublas() {
  void* library = LoadedCublas();
  std::string error;
  for (const std::string& path : PathsOf(kCublas)) {
    if (library == nullptr) library = Open(path.c_str(), &error);
  }
  if (library == nullptr) return NotFound(error);
  return Find(library, "cuBLAS", &Loaded().cublas, WithoutKernels);
}

// Looks for an NVRTC that is new enough.
RnnStatus LoadNvrtc() {
  std::string error, old;
  for (const std::string& path : PathsOf(kNvrtc)) {
    void* const library = Open(path.c_str(), &error);
    if (library == nullptr) continue;
    int major = 0, minor = 0;
    const auto version = reinterpret_cast<decltype(&nvrtcVersion)>(
        dlsym(library, "nvrtcVersion"));
    if (version != nullptr) version(&major, &minor);
    if (major > 12 || (major == 12 && minor >= kOldestNvrtcMinor)) {
      return Find(library, "NVRTC", &Loaded().nvrtc, WithoutKernels);
    }
    old = path + " has version " + std::to_string(major) + '.' +
          std::to_string(minor);
  }
  if (old.empty()) return NotFound(error);
  return WithoutKernels("NVRTC must be of version 12." +
                        std::to_string(kOldestNvrtcMinor) + " or newer, but " +
                        old);
}

}  // namespace

RnnStatus LoadCudaDriver() {
  static auto* const loading = new Loading;
  return loading->Once(LoadCuda);
}

RnnStatus LoadGpuLibraries() {
  static auto* const loading = new Loading;
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return loading->Once(LoadCudnn);
}

RnnStatus LoadCompiler() {
  static auto* const loading = new Loading;
  return loading->Once(LoadNvrtc, /*may_be_missing=*/true);
}

RnnStatus LoadKernelLibraries() {
  static auto* const loading = new Loading;
  CRNN_RETURN_IF_ERROR(loading->Once(LoadCublas, /*may_be_missing=*/true));
  return LoadCompiler();
}

const GpuLibraries& Gpu() { return Loaded(); }

RnnStatus CudaStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  Gpu().cuda.cuGetErrorString(result, &text);
  return {result == CUDA_ERROR_OUT_OF_MEMORY
              ? RnnStatus::Code::kResourceExhausted
              : RnnStatus::Code::kInternal,
          std::string("CUDA failed to ") + what + ": " +
              (text != nullptr ? text : "unknown")};
}

}  // namespace cudnn_rnn_tf
