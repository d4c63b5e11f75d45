// Compiles resident kernels with the real compiler, which needs no GPU, for
// devices of several generations.
//
//   compile_resident_kernels NVRTC_LIBRARY
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/gpu/resident/kernel.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

struct FakeDevice {
  int major, minor, multiprocessors, shared_bytes, l2_bytes;
};
FakeDevice device;
CUdevice device_id = 0;  // Each device has a number of its own.
const char* nvrtc_name;

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  Check(*function != nullptr, name);
}

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  libraries.cuda.cuCtxGetDevice = [](CUdevice* id) {
    *id = device_id;
    return CUDA_SUCCESS;
  };
  libraries.cuda.cuDeviceGetAttribute =
      [](int* value, CUdevice_attribute attribute, CUdevice) {
        switch (attribute) {
          case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            *value = device.major;
            break;
          case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            *value = device.minor;
            break;
          case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            *value = device.multiprocessors;
            break;
          case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            *value = device.shared_bytes;
            break;
          default:
            *value = device.l2_bytes;
        }
        return CUDA_SUCCESS;
      };
  libraries.cuda.cuLibraryLoadData = [](CUlibrary*, const void* code,
                                        CUjit_option*, void**, unsigned,
                                        CUlibraryOption*, void**, unsigned) {
    Check(std::memcmp(code,
                      "\x7f"
                      "ELF",
                      4) == 0,
          "machine code");
    return CUDA_SUCCESS;
  };
  libraries.cuda.cuKernelSetAttribute = [](CUfunction_attribute, int, CUkernel,
                                           CUdevice) { return CUDA_SUCCESS; };
  void* const nvrtc = dlopen(nvrtc_name, RTLD_NOW);
  Check(nvrtc != nullptr, "NVRTC");
#define CRNN_FIND(name) Find(nvrtc, #name, &libraries.nvrtc.name);
  CRNN_NVRTC_FUNCTIONS(CRNN_FIND)
#undef CRNN_FIND
  return libraries;
}

namespace {

int CompileAll() {
  constexpr FakeDevice kDevices[] = {
      {8, 0, 108, 163 << 10, 40 << 20},  // A100
      {8, 9, 76, 99 << 10, 48 << 20},    // RTX 4080
      {9, 0, 132, 227 << 10, 50 << 20},  // H200
      {12, 0, 170, 99 << 10, 96 << 20},  // RTX 5090
  };
  // Some shapes have all weights on the chip, some have a part of them in the
  // L2 cache, and some in memory.
  constexpr ResidentShape kShapes[] = {
      {RnnMode::kLstm, RnnDataType::kFloat32, 96, 3},
      {RnnMode::kGru, RnnDataType::kFloat32, 2816, 1},
      {RnnMode::kRnnTanh, RnnDataType::kFloat32, 2048, 4},
      {RnnMode::kGru, RnnDataType::kFloat16, 2816, 1},
      {RnnMode::kRnnRelu, RnnDataType::kFloat16, 512, 8},
      {RnnMode::kLstm, RnnDataType::kBfloat16, 2048, 8},
  };
  int compiled = 0;
  for (const FakeDevice& one : kDevices) {
    device = one;
    ++device_id;
    for (const ResidentShape& shape : kShapes) {
      being_checked = std::to_string(one.major) + "." +
                      std::to_string(one.minor) + ", " +
                      std::to_string(shape.num_units) + " units of " +
                      RnnModeName(shape.rnn_mode);
      ResidentKernel kernel;
      const RnnStatus status = ResidentKernel::Get(shape, &kernel);
      // A smaller GPU has no room for some shapes.
      const bool is_too_large =
          status.message.find("too many units") != std::string::npos;
      Check(status.ok() || is_too_large, status.message);
      compiled += status.ok();
    }
  }
  std::printf("%d kernels compiled\n", compiled);
  return 0;
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int, char** argv) {
  setenv("CUDNN_RNN_TF_KERNEL_CACHE", "", /*overwrite=*/1);  // Keeps no files.
  cudnn_rnn_tf::nvrtc_name = argv[1];
  cudnn_rnn_tf::has_resident_libraries = true;
  return cudnn_rnn_tf::CompileAll();
}
