// The programs that run on fake GPUs share these.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GPU_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GPU_H_

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Each program defines this function.
GpuLibraries FakeLibraries();

// The current context's device, and what the driver says of it. The driver is
// asked once for each device.
inline CUdevice current_device = 0;
inline DeviceLimits device_limits = {90, 132, 232448, 65536};

inline CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                   CUdevice) {
  const DeviceLimits& limits = device_limits;
  const std::map<CUdevice_attribute, int> attributes = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, limits.architecture / 10},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, limits.architecture % 10},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, limits.multiprocessors},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
       limits.shared_bytes},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, limits.registers}};
  *value = attributes.at(attribute);
  return CUDA_SUCCESS;
}

// Functions that succeed and do nothing else or, if they give a number or a
// handle, give this one.
inline void Succeed() {}
template <typename Result, typename... Arguments, typename... More>
void Succeed(Result (**function)(Arguments...), More... more) {
  *function = [](Arguments...) { return Result(); };
  Succeed(more...);
}
template <auto value, typename Result, typename To, typename... Arguments>
void Give(Result (**function)(To*, Arguments...)) {
  *function = [](To* to, Arguments...) {
    *to = (To)(value);
    return Result();
  };
}

// Returns libraries with the functions that opening a session calls, and with
// those that do nothing in most programs.
inline GpuLibraries LibrariesOfSession() {
  GpuLibraries libraries;
  libraries.has_graphs = true;
  CudaDriver& cuda = libraries.cuda;
  CudnnLibrary& cudnn = libraries.cudnn;
  Succeed(&cuda.cuCtxGetCurrent, &cuda.cuKernelSetAttribute,
          &cuda.cuThreadExchangeStreamCaptureMode, &cuda.cuMemsetD8Async,
          &cudnn.cudnnCreate, &cudnn.cudnnSetStream);
  Give<1>(&cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor);
  cuda.cuCtxGetDevice = [](CUdevice* device) {
    *device = current_device;
    return CUDA_SUCCESS;
  };
  cuda.cuDeviceGetAttribute = DeviceGetAttribute;
  // A kernel is represented by its name, which stays in memory.
  cuda.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary, const char* name) {
    static std::set<std::string> names;
    *kernel = reinterpret_cast<CUkernel>(
        const_cast<char*>(names.insert(name).first->c_str()));
    return CUDA_SUCCESS;
  };
  return libraries;
}

// Fakes what a compiler that knows the device's architecture alone tells.
inline void FakeCompiler(NvrtcLibrary* nvrtc) {
  Give<1>(&nvrtc->nvrtcGetNumSupportedArchs);
  nvrtc->nvrtcGetSupportedArchs = [](int* architectures) {
    *architectures = device_limits.architecture;
    return NVRTC_SUCCESS;
  };
  nvrtc->nvrtcGetCUBINSize =
      nvrtc->nvrtcGetProgramLogSize = [](nvrtcProgram, size_t* bytes) {
        *bytes = 1;
        return NVRTC_SUCCESS;
      };
}

inline std::string being_checked;

inline void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("failed: %s, for %s\n", what.c_str(), being_checked.c_str());
  std::exit(1);
}

// Checks that no other thread could enqueue a graph or a pass right now.
inline void CheckEnqueuesAlone(CUstream stream) {
  bool alone = false;
  std::thread other([&] {
    alone = !std::unique_lock(EnqueueLock(stream), std::try_to_lock);
  });
  other.join();
  Check(alone, "another thread could enqueue at the same time");
}

// Runs `check` for as many seeds as the program's argument says.
inline int RunSeeds(int argc, char** argv,
                    const std::function<void(unsigned)>& check) {
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int seed = 0; seed < seeds; ++seed) {
    being_checked = "seed " + std::to_string(seed);
    check(seed);
  }
  std::printf("%d seeds passed\n", seeds);
  return 0;
}

// The functions from here on take the place of kernels/gpu/libraries.cc.
const GpuLibraries& Gpu() {
  static GpuLibraries libraries = FakeLibraries();
  return libraries;
}

// True in a program that fakes cuBLAS and the compiler as well.
inline bool has_kernel_libraries = false;

RnnStatus LoadCompiler() {
  if (has_kernel_libraries) return {};
  return {RnnStatus::Code::kFailedPrecondition, "no libraries"};
}
RnnStatus LoadKernelLibraries() { return LoadCompiler(); }

RnnStatus CudaStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  return {result == CUDA_ERROR_OUT_OF_MEMORY
              ? RnnStatus::Code::kResourceExhausted
              : RnnStatus::Code::kInternal,
          std::string("the fake GPU failed to ") + what};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GPU_H_
