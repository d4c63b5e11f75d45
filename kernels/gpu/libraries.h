// Loads cuDNN, the CUDA driver, cuBLAS and the CUDA compiler at run time.
// Building needs none of them, and a machine without them uses the CPU.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_LIBRARIES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_LIBRARIES_H_

#include <cuda.h>
#include <cudnn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <vector>

#include "kernels/gpu/cublas_and_nvrtc.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

#define CRNN_CUDNN_FUNCTIONS(F)    \
  F(cudnnGetVersion)               \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnSetStream)                \
  F(cudnnCreateTensorDescriptor)   \
  F(cudnnDestroyTensorDescriptor)  \
  F(cudnnSetTensorNdDescriptor)    \
  F(cudnnCreateDropoutDescriptor)  \
  F(cudnnDestroyDropoutDescriptor) \
  F(cudnnDropoutGetStatesSize)     \
  F(cudnnSetDropoutDescriptor)     \
  F(cudnnRestoreDropoutDescriptor) \
  F(cudnnCreateRNNDescriptor)      \
  F(cudnnDestroyRNNDescriptor)     \
  F(cudnnSetRNNDescriptor_v8)      \
  F(cudnnRNNSetClip_v9)            \
  F(cudnnCreateRNNDataDescriptor)  \
  F(cudnnDestroyRNNDataDescriptor) \
  F(cudnnSetRNNDataDescriptor)     \
  F(cudnnGetRNNTempSpaceSizes)     \
  F(cudnnGetRNNWeightSpaceSize)    \
  F(cudnnGetRNNWeightParams)       \
  F(cudnnRNNForward)               \
  F(cudnnRNNBackwardData_v8)       \
  F(cudnnRNNBackwardWeights_v8)

// Macros of cuda.h replace these names by the versioned ones that the driver
// exports.
#define CRNN_CUDA_FUNCTIONS(F)                   \
  F(cuCtxGetCurrent)                             \
  F(cuCtxGetDevice)                              \
  F(cuCtxSetCurrent)                             \
  F(cuDeviceGetAttribute)                        \
  F(cuGetErrorString)                            \
  F(cuKernelSetAttribute)                        \
  F(cuLaunchKernel)                              \
  F(cuLaunchKernelEx)                            \
  F(cuLibraryGetKernel)                          \
  F(cuLibraryLoadData)                           \
  F(cuMemcpyDtoHAsync)                           \
  F(cuMemcpy2DAsync)                             \
  F(cuMemcpyDtoDAsync)                           \
  F(cuMemsetD8Async)                             \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  F(cuOccupancyMaxActiveClusters)                \
  F(cuStreamCreate)                              \
  F(cuStreamIsCapturing)                         \
  F(cuStreamSynchronize)                         \
  F(cuThreadExchangeStreamCaptureMode)

// Drivers older than that of CUDA 12.4 lack some of these.
#define CRNN_CUDA_GRAPH_FUNCTIONS(F) \
  F(cuStreamBeginCapture)            \
  F(cuStreamEndCapture)              \
  F(cuGraphAddDependencies_v2)       \
  F(cuGraphAddKernelNode)            \
  F(cuGraphDestroy)                  \
  F(cuGraphDestroyNode)              \
  F(cuGraphExecDestroy)              \
  F(cuGraphExecKernelNodeSetParams)  \
  F(cuGraphExecMemcpyNodeSetParams)  \
  F(cuGraphExecMemsetNodeSetParams)  \
  F(cuGraphGetEdges_v2)              \
  F(cuGraphGetNodes)                 \
  F(cuGraphInstantiate)              \
  F(cuGraphKernelNodeGetParams)      \
  F(cuGraphKernelNodeSetParams)      \
  F(cuGraphLaunch)                   \
  F(cuGraphMemcpyNodeGetParams)      \
  F(cuGraphMemcpyNodeSetParams)      \
  F(cuGraphMemsetNodeGetParams)      \
  F(cuGraphMemsetNodeSetParams)      \
  F(cuGraphNodeGetType)              \
  F(cuFuncGetParamInfo)              \
  F(cuKernelGetParamInfo)            \
  F(cuPointerGetAttribute)

#define CRNN_CUBLAS_FUNCTIONS(F)   \
  F(cublasCreate_v2)               \
  F(cublasDestroy_v2)              \
  F(cublasGemmEx_64)               \
  F(cublasGemmStridedBatchedEx_64) \
  F(cublasGetStatusString)         \
  F(cublasSetStream_v2)            \
  F(cublasSetWorkspace_v2)

#define CRNN_NVRTC_FUNCTIONS(F) \
  F(nvrtcCompileProgram)        \
  F(nvrtcCreateProgram)         \
  F(nvrtcDestroyProgram)        \
  F(nvrtcGetCUBIN)              \
  F(nvrtcGetCUBINSize)          \
  F(nvrtcGetErrorString)        \
  F(nvrtcGetNumSupportedArchs)  \
  F(nvrtcGetPTX)                \
  F(nvrtcGetPTXSize)            \
  F(nvrtcGetProgramLog)         \
  F(nvrtcGetProgramLogSize)     \
  F(nvrtcGetSupportedArchs)     \
  F(nvrtcVersion)

#define CRNN_MEMBER(name) decltype(&::name) name = nullptr;
#define CRNN_TEXT(name) #name
#define CRNN_VISIT(name) visit(CRNN_TEXT(name), &name);
// A library's functions. `visit` takes the name of each and its place.
#define CRNN_LIBRARY(Library, FUNCTIONS) \
  struct Library {                       \
    FUNCTIONS(CRNN_MEMBER)               \
    template <typename Visitor>          \
    void Visit(const Visitor& visit) {   \
      FUNCTIONS(CRNN_VISIT)              \
    }                                    \
  };

CRNN_LIBRARY(CudnnLibrary, CRNN_CUDNN_FUNCTIONS)
CRNN_LIBRARY(CudaFunctions, CRNN_CUDA_FUNCTIONS)
CRNN_LIBRARY(CudaGraphFunctions, CRNN_CUDA_GRAPH_FUNCTIONS)
CRNN_LIBRARY(CublasLibrary, CRNN_CUBLAS_FUNCTIONS)
CRNN_LIBRARY(NvrtcLibrary, CRNN_NVRTC_FUNCTIONS)

#undef CRNN_LIBRARY
#undef CRNN_VISIT
#undef CRNN_TEXT
#undef CRNN_MEMBER

struct CudaDriver : CudaFunctions, CudaGraphFunctions {};

struct GpuLibraries {
  CudnnLibrary cudnn;
  CudaDriver cuda;
  CublasLibrary cublas;
  NvrtcLibrary nvrtc;
  // True if the driver has all of CRNN_CUDA_GRAPH_FUNCTIONS.
  bool has_graphs = false;
};

// Runs a loading function until it has succeeded once in the process. Any
// thread may call this. After a failure, the next call tries again or, if what
// is loaded `may_be_missing` for good, one after twice as many as before.
class Loading {
 public:
  template <typename Load>
  RnnStatus Once(const Load& load, bool may_be_missing = false) {
    if (loaded_.load(std::memory_order_acquire)) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    if (loaded_.load(std::memory_order_relaxed)) return {};
    if (!failure_.ok() && ++calls_ < wait_) return failure_;
    calls_ = 0;
    if (may_be_missing) wait_ *= 2;
    failure_ = load();
    loaded_.store(failure_.ok(), std::memory_order_release);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> loaded_ = false;
  RnnStatus failure_;
  int64_t calls_ = 0, wait_ = 1;
};

// LoadCudaDriver loads the driver and LoadGpuLibraries the driver and cuDNN,
// unless they are loaded already; a failure says why. TensorFlow should have
// loaded its cuDNN before, so that this finds the same one.
RnnStatus LoadCudaDriver();
RnnStatus LoadGpuLibraries();
// Loads the compiler, which all of our own kernels need.
RnnStatus LoadCompiler();
// Loads cuBLAS and the compiler, which our own kernels of networks need.
RnnStatus LoadKernelLibraries();

// A pass is enqueued with these. Those of cuBLAS and cuDNN are null unless
// somebody made them. Of cuBLAS, the pass sets the stream and the workspace.
struct Handles {
  CUstream stream = nullptr;
  cublasHandle_t blas = nullptr;
  cudnnHandle_t cudnn = nullptr;
};

// Returns the libraries. Only those that were loaded may be called.
const GpuLibraries& Gpu();

// While anybody captures the work of a stream, CUDA refuses calls that a
// capture cannot contain, such as those that allocate memory, and ends the
// capture, whatever the calls are for. While an object of this class lives, the
// calls of its thread are let through.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { Exchange(); }
  ~RelaxedCaptureMode() { Exchange(); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  void Exchange() { Gpu().cuda.cuThreadExchangeStreamCaptureMode(&mode_); }

  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Tells whether a stream is being captured, or may be.
inline bool StreamIsCapturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return Gpu().cuda.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Graphs and cuDNN's passes are enqueued under this lock. cuDNN enqueues parts
// of a pass in streams of its own, between two points of the caller's stream. A
// graph that another thread launched between them would run at the same time:
// on an H200, a few of 100,000 passes of an LSTM with a projection in float16
// went wrong that way, although the two share no buffers. Streams may share a
// lock. Graphs of others, such as XLA's command buffers, do not take it, which
// nothing here could change; we have seen no harm from them.
inline std::mutex& EnqueueLock(CUstream stream) {
  static std::array<std::mutex, 64> locks;
  return locks[reinterpret_cast<uintptr_t>(stream) / 64 % locks.size()];
}

#define CRNN_RETURN_IF_ERROR(expression)               \
  do {                                                 \
    const RnnStatus crnn_rnn_status = (expression);    \
    if (!crnn_rnn_status.ok()) return crnn_rnn_status; \
  } while (false)

// Converts a driver call's result to a status; `what` completes "CUDA failed
// to".
RnnStatus CudaStatus(CUresult result, const char* what);

// Reads the sizes of a kernel's parameters by one of the driver's functions,
// which does not tell how many there are, but refuses the index after the last.
template <typename Ask, typename Kernel>
RnnStatus ReadParameters(const Ask& ask, Kernel kernel,
                         std::vector<size_t>* sizes) {
  for (;;) {
    size_t offset, size;
    const CUresult result = ask(kernel, sizes->size(), &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return {};
    CRNN_RETURN_IF_ERROR(CudaStatus(result, "read a kernel's parameters"));
    sizes->push_back(size);
  }
}

// Gets the current context's device.
inline RnnStatus CurrentDevice(CUdevice* device) {
  return CudaStatus(Gpu().cuda.cuCtxGetDevice(device), "name the device");
}

// Converts the result of a call of cuBLAS; `what` completes "cuBLAS failed to".
inline RnnStatus CublasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {status == CUBLAS_STATUS_ALLOC_FAILED
              ? RnnStatus::Code::kResourceExhausted
              : RnnStatus::Code::kInternal,
          std::string("cuBLAS failed to ") + what + ": " +
              Gpu().cublas.cublasGetStatusString(status)};
}

// What CUDA's libraries and kernels of our own call the types of numbers.
struct NumberType {
  RnnDataType dtype;
  const char* macro;    // Kernels are compiled with it (items.cuh).
  cudaDataType_t cuda;  // For cuBLAS.
  cudnnDataType_t cudnn;
};
inline constexpr NumberType kNumberTypes[] = {
    {RnnDataType::kFloat64, "IS_FLOAT64", CUDA_R_64F, CUDNN_DATA_DOUBLE},
    {RnnDataType::kFloat32, "IS_FLOAT", CUDA_R_32F, CUDNN_DATA_FLOAT},
    {RnnDataType::kFloat16, "IS_FLOAT16", CUDA_R_16F, CUDNN_DATA_HALF},
    {RnnDataType::kBfloat16, "IS_BFLOAT16", CUDA_R_16BF, CUDNN_DATA_BFLOAT16}};
static_assert(std::size(kNumberTypes) == kNumNames<RnnDataType>,
              "GPUs lack a type of numbers");

constexpr const NumberType& TypeOf(RnnDataType dtype) {
  return kNumberTypes[static_cast<size_t>(dtype)];
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_LIBRARIES_H_
