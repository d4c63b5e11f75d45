// Places the weights of the algorithm resident for random layers and GPUs, and
// gets and launches its kernel, with a fake compiler that only notes its
// options. Checks, without a GPU, that placements suit the GPU, what is
// refused, and what remains after calls that fail.
//
//   resident_kernel_on_fake_gpu SEEDS
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/resident/kernel.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

CUdevice device_id = 3;  // Each device that is drawn has a number of its own.
constexpr int kRegisters = 255;  // The most of a thread.
constexpr size_t kCodeBytes = 4096;
constexpr char kLog[] = "resident.cu(1): error: the fake compiler's";

DeviceLimits& gpu = device_limits;
ResidentRequest request;
const ResidentArguments arguments = {1, 2, 3,  4,  5,  6,  7,
                                     8, 9, 10, 11, 12, 13, 14};
const CUstream stream = reinterpret_cast<CUstream>(uintptr_t{15});

// A kernel from its program to its launches. The machine code begins with the
// address of this.
struct FakeKernel {
  std::multiset<std::string> options;
  int shared_bytes = -1;  // The bytes that are allowed.
};
std::deque<FakeKernel> kernels;
std::set<std::multiset<std::string>> loaded_options;
int num_found;         // How often the driver was asked for a kernel.
int num_programs = 0;  // Programs that are not destroyed.
int num_compilations = 0;
std::function<void()> while_compiling = [] {};

bool IsFloat() { return request.dtype == RnnDataType::kFloat32; }

// Returns why no GPU, or not this one, has a kernel for the layer; null if
// nothing speaks against it.
const char* WhyNot() {
  if (gpu.architecture < 80) return "older than Ampere";
  if (request.dtype == RnnDataType::kFloat64) return "float64";
  if (request.num_units * SizeOf(request.dtype) % 64 != 0) {
    return "must be a multiple of";
  }
  if (request.batch_size > (IsFloat() ? 4 : 8)) return "batch size";
  return nullptr;
}

// The registers that a thread's arrays in the kernel's text take.
int Registers(const ResidentShape& shape) {
  const int products =
      IsFloat() ? shape.groups() * shape.batch : (shape.groups() + 1) / 2 * 4;
  const int of_a_cell = 2 * shape.gates + 2;
  return 4 * shape.in_registers + 4 * shape.own_slices() + 4 * shape.groups() +
         products + of_a_cell * shape.rounds();
}

void CheckPlacement(const ResidentShape& shape) {
  Check(shape.num_units == request.num_units &&
            shape.batch == request.batch_size &&
            shape.gates == KindOf(request.rnn_mode).num_gates &&
            shape.item_bytes == static_cast<int>(SizeOf(request.dtype)),
        "a kernel for another layer");
  // Every unit has one block, every block has units, and all blocks run at
  // once. A word that is written holds units of one block.
  const int blocks = shape.blocks();
  Check(blocks * shape.units >= shape.num_units &&
            (blocks - 1) * shape.units < shape.num_units,
        "units without a block, or blocks without units");
  Check(blocks <= gpu.multiprocessors, "blocks that wait for a multiprocessor");
  Check(shape.units * shape.item_bytes % 4 == 0, "a word of two blocks");
  Check((shape.units - 4 / shape.item_bytes) * gpu.multiprocessors <
            shape.num_units,
        "more units in a block than there need be");
  // Loops over chunks and over rounds are unrolled.
  Check(shape.chunks() <= 512 && shape.rounds() <= 8, "a text long to compile");

  Check(shape.in_registers >= 0 && shape.in_shared >= 0 && shape.ahead >= 0 &&
            shape.resident() <= shape.chunks(),
        "more weights than there are");
  const int registers = Registers(shape);
  Check(shape.in_registers == 0 || registers <= kRegisters,
        "more registers than there are");
  Check(shape.in_registers == shape.chunks() || registers > kRegisters / 3,
        "most registers are left");
  Check(shape.shared_bytes() <= gpu.shared_bytes, "too much shared memory");
  if (shape.streamed() == 0) return;

  // Weights without room are left to the L2 cache if it can hold them.
  // Otherwise they are fetched ahead, if there is room for as many slots as
  // that takes, and the cache holds a good part of them.
  const int room =
      (gpu.shared_bytes - shape.other_bytes()) / shape.chunk_bytes();
  const int without_room = shape.chunks() - shape.in_registers - room;
  const double chunk = static_cast<double>(shape.chunk_bytes()) * blocks;
  const double streamed = shape.streamed() * chunk;
  if (shape.ahead > 0) {
    Check(4.0 * without_room * chunk > gpu.l2_bytes,
          "slots for weights that the cache would hold");
    const double kept_bytes = streamed * shape.kept / 1000;
    Check(kept_bytes <= gpu.l2_bytes, "more than the cache holds");
    Check(shape.kept <= 1000 && 4 * kept_bytes > gpu.l2_bytes,
          "little of the cache is used");
    Check(shape.streamed() % shape.ahead == 0 && shape.ahead >= shape.groups(),
          "slots that do not come round");
  } else {
    Check(shape.in_shared == room, "shared memory is left");
    if (streamed <= gpu.l2_bytes) return;
  }
  // The number of slots divides the number of streamed chunks. No other number
  // of slots leaves room for more weights.
  const int least = shape.ahead > 0 ? shape.in_shared + 1 : 0;
  for (int slots = shape.groups(); slots <= 2 * shape.groups(); ++slots) {
    for (int in_shared = least; in_shared + slots <= room; ++in_shared) {
      Check((without_room + room - in_shared) % slots != 0,
            "slots that would be better");
    }
  }
}

std::multiset<std::string> OptionsOf(const ResidentShape& shape) {
  const char* const cells[] = {"Lstm", "Gru", "RnnTanh", "RnnRelu"};
  const char* const types[] = {"", "FLOAT", "FLOAT16", "BFLOAT16"};
  std::vector<std::string> macros = {
      std::string("CELL=") + cells[static_cast<int>(request.rnn_mode)],
      std::string("IS_") + types[static_cast<int>(request.dtype)]};
  for (const auto& [name, value] : {std::pair("NUM_UNITS", shape.num_units),
                                    {"BATCH", shape.batch},
                                    {"UNITS", shape.units},
                                    {"WARPS", shape.warps},
                                    {"IN_REGISTERS", shape.in_registers},
                                    {"IN_SHARED", shape.in_shared},
                                    {"AHEAD", shape.ahead},
                                    {"KEPT", shape.kept}}) {
    macros.push_back(std::string(name) + '=' + std::to_string(value));
  }
  const std::vector<std::string> all =
      CompilerOptions("sm_" + std::to_string(gpu.architecture), macros);
  return {all.begin(), all.end()};
}

CUresult LaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y,
                      unsigned blocks_z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared_bytes, CUstream given,
                      void** pointers) {
  if (Fails("cuLaunchCooperativeKernel")) return CUDA_ERROR_UNKNOWN;
  Check(blocks_y * blocks_z * threads_y * threads_z == 1, "dimensions");
  Check(given == stream, "another stream");
  for (CUdeviceptr address = 1; address <= 9; ++address) {
    Check(*static_cast<CUdeviceptr*>(*pointers++) == address, "an argument");
  }
  for (int number = 10; number <= 14; ++number) {
    Check(*static_cast<int*>(*pointers++) == number, "an argument");
  }
  const FakeKernel& kernel = *reinterpret_cast<FakeKernel*>(function);
  ResidentShape shape;
  Check(PlaceResident(request, gpu, &shape).ok(), "a placement");
  Check(kernel.options == OptionsOf(shape), "the compiler's options");
  Check(static_cast<int>(blocks) == shape.blocks() &&
            static_cast<int>(threads) == shape.threads() &&
            static_cast<int>(shared_bytes) == shape.shared_bytes() &&
            kernel.shared_bytes == shape.shared_bytes(),
        "the grid and the shared memory");
  return CUDA_SUCCESS;
}

CUresult CudaResult(const char* call) {
  return Fails(call) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
nvrtcResult NvrtcResult(const char* call) {
  return Fails(call) ? NVRTC_ERROR_OUT_OF_MEMORY : NVRTC_SUCCESS;
}

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries;
  CudaDriver& cuda = libraries.cuda;
  cuda.cuCtxGetDevice = [](CUdevice* id) {
    *id = device_id;
    return CudaResult("cuCtxGetDevice");
  };
  cuda.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute,
                                 CUdevice id) {
    Check(id == device_id, "another device");
    DeviceGetAttribute(value, attribute, id);
    return CudaResult("cuDeviceGetAttribute");
  };
  cuda.cuLibraryLoadData = [](CUlibrary* library, const void* code,
                              CUjit_option*, void**, unsigned num_jit_options,
                              CUlibraryOption*, void**, unsigned num_options) {
    Check(num_jit_options == 0 && num_options == 0, "options of a library");
    if (Fails("cuLibraryLoadData")) return CUDA_ERROR_UNKNOWN;
    std::memcpy(library, code, sizeof(FakeKernel*));
    loaded_options.insert(reinterpret_cast<FakeKernel*>(*library)->options);
    return CUDA_SUCCESS;
  };
  cuda.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary library,
                               const char* name) {
    Check(name == std::string("resident"), "name of the kernel");
    ++num_found;
    *kernel = reinterpret_cast<CUkernel>(library);
    return CudaResult("cuLibraryGetKernel");
  };
  cuda.cuKernelSetAttribute = [](CUfunction_attribute attribute, int value,
                                 CUkernel kernel, CUdevice id) {
    Check(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
          "an attribute of the kernel");
    Check(id == device_id, "another device");
    reinterpret_cast<FakeKernel*>(kernel)->shared_bytes = value;
    return CudaResult("cuKernelSetAttribute");
  };
  cuda.cuLaunchCooperativeKernel = LaunchKernel;

  NvrtcLibrary& nvrtc = libraries.nvrtc;
  nvrtc.nvrtcVersion = [](int*, int*) { return NVRTC_SUCCESS; };
  nvrtc.nvrtcGetNumSupportedArchs = [](int* count) {
    *count = 1;
    return NvrtcResult("nvrtcGetNumSupportedArchs");
  };
  nvrtc.nvrtcGetSupportedArchs = [](int* architectures) {
    *architectures = gpu.architecture;
    return NvrtcResult("nvrtcGetSupportedArchs");
  };
  nvrtc.nvrtcCreateProgram = [](nvrtcProgram* program, const char* source,
                                const char*, int, const char* const*,
                                const char* const*) {
    Check(std::strstr(source, "resident(") != nullptr, "another text");
    if (Fails("nvrtcCreateProgram")) return NVRTC_ERROR_OUT_OF_MEMORY;
    ++num_programs;
    *program = reinterpret_cast<nvrtcProgram>(&kernels.emplace_back());
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcDestroyProgram = [](nvrtcProgram*) {
    --num_programs;
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcCompileProgram = [](nvrtcProgram program, int num_options,
                                 const char* const* options) {
    ++num_compilations;
    while_compiling();
    FakeKernel* const kernel = reinterpret_cast<FakeKernel*>(program);
    kernel->options = {options, options + num_options};
    Check(loaded_options.count(kernel->options) == 0,
          "a kernel is compiled again");
    return Fails("nvrtcCompileProgram") ? NVRTC_ERROR_COMPILATION
                                        : NVRTC_SUCCESS;
  };
  nvrtc.nvrtcGetCUBINSize = [](nvrtcProgram, size_t* size) {
    *size = kCodeBytes;
    return NvrtcResult("nvrtcGetCUBINSize");
  };
  nvrtc.nvrtcGetCUBIN = [](nvrtcProgram program, char* code) {
    std::memset(code, 0, kCodeBytes);
    std::memcpy(code, &program, sizeof(FakeKernel*));
    return NvrtcResult("nvrtcGetCUBIN");
  };
  nvrtc.nvrtcGetErrorString = [](nvrtcResult) { return "an error of NVRTC's"; };
  nvrtc.nvrtcGetProgramLogSize = [](nvrtcProgram, size_t* size) {
    *size = sizeof(kLog);  // This counts the NUL.
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcGetProgramLog = [](nvrtcProgram, char* log) {
    std::memcpy(log, kLog, sizeof(kLog));
    return NVRTC_SUCCESS;
  };
  return libraries;
}

namespace {

int DrawInt(int least, int most) { return static_cast<int>(Draw(least, most)); }

void DrawDevice() {
  gpu = {};
  gpu.architecture =
      10 * (DrawInt(0, 19) == 0 ? 7 : DrawInt(8, 9)) + DrawInt(0, 9);
  gpu.multiprocessors = DrawInt(1, 150);
  gpu.shared_bytes = DrawInt(40, 227) << 10;
  gpu.registers = 65536;
  gpu.l2_bytes = DrawInt(1, 60) << 20;
}

void DrawRequest() {
  request.rnn_mode = static_cast<RnnMode>(Draw(0, 3));
  request.dtype = static_cast<RnnDataType>(Draw(0, 19) == 0 ? 0 : Draw(1, 3));
  const int64_t slices = Draw(0, 1) == 0 ? Draw(1, 20) : Draw(20, 200);
  request.num_units = slices * 64 / SizeOf(request.dtype);
  if (Draw(0, 19) == 0) request.num_units += Draw(1, 31);
  request.batch_size = Draw(1, IsFloat() ? 5 : 9);
}

RnnStatus Place(ResidentShape* shape) {
  const RnnStatus status = PlaceResident(request, gpu, shape);
  if (status.ok()) {
    CheckPlacement(*shape);
  } else {
    Check(status.code == RnnStatus::Code::kUnimplemented, status.message);
  }
  return status;
}

void CheckRefused(const char* why) {
  ResidentShape shape;
  Check(Names(Place(&shape), why), std::string("no refusal for ") + why);
}

// Checks the placement, or why there is none.
void CheckRequest() {
  if (const char* const why_not = WhyNot()) return CheckRefused(why_not);
  const DeviceLimits drawn_gpu = gpu;
  const ResidentRequest drawn_request = request;
  ResidentShape shape;
  const RnnStatus status = Place(&shape);
  if (status.ok()) {
    // There is just enough shared memory for everything but weights, and then a
    // byte too little.
    const ResidentShape of_all_sequences = shape;
    gpu.shared_bytes = shape.other_bytes();
    Check(Place(&shape).ok(), "a refusal though all fits");
    --gpu.shared_bytes;
    CheckRefused("shared memory");
    // With fewer sequences, there is no less room for weights.
    gpu = drawn_gpu;
    if (--request.batch_size > 0) {
      Check(Place(&shape).ok(), "a refusal of fewer sequences");
      Check(shape.in_registers >= of_all_sequences.in_registers,
            "registers for fewer sequences");
    }
  } else if (Names(status, "shared memory")) {
    gpu.shared_bytes = 1 << 20;
    Check(Place(&shape).ok(), "a refusal though all fits");
    Check(shape.other_bytes() > drawn_gpu.shared_bytes,
          "a refusal for want of shared memory that is there");
  } else {
    Check(Names(status, "too many units"), status.message);
    // More units are too many as well, but not if each unit has a block.
    for (const int64_t times : {2, 1 << 20}) {
      request.num_units = times * drawn_request.num_units;
      CheckRefused("too many units");
    }
    request = drawn_request;
    gpu.multiprocessors = static_cast<int>(request.num_units);
    Check(Place(&shape).ok(), "a refusal of units with a block each");
  }
  gpu = drawn_gpu;
  request = drawn_request;
}

void CheckFailures(unsigned seed) {
  // The device fits any kernel, and no kernel is compiled for it yet.
  do {
    DrawRequest();
    DrawDevice();
  } while (WhyNot() != nullptr);
  gpu.architecture = static_cast<int>(100 + seed);
  gpu.multiprocessors = static_cast<int>(request.num_units);
  gpu.shared_bytes = 227 << 10;
  ++device_id;
  const int compilations = num_compilations;
  ResidentKernel kernel;
  const auto get = [&] { return ResidentKernel::Get(request, &kernel); };
  has_resident_libraries = false;
  Check(get().code == RnnStatus::Code::kFailedPrecondition,
        "libraries that are not there");
  has_resident_libraries = true;
  Check(num_compilations == compilations, "a useless compilation");
  // A new device's attributes are read in each attempt.
  const auto get_anew = [&] {
    ++device_id;
    return get();
  };
  FailEachCall(get_anew, [](const RnnStatus& status) {
    Check(num_programs == 0, "a program is left");
    const bool of_nvrtc = failed_call.rfind("nvrtc", 0) == 0;
    // The other calls of NVRTC fail for want of memory.
    Check(status.code == (failed_call == "nvrtcCompileProgram"
                              ? RnnStatus::Code::kUnimplemented
                          : of_nvrtc ? RnnStatus::Code::kResourceExhausted
                                     : RnnStatus::Code::kInternal),
          "code of a failure of " + failed_call);
    Check(!of_nvrtc || Names(status, "an error of NVRTC's"),
          "an error without its text");
    Check(failed_call != "nvrtcCompileProgram" || Names(status, kLog),
          "a log that is not told");
    Check(!Names(status, std::string(1, '\0')), "a NUL in a message");
  });
  // Another device of the same kind has attributes of its own. Three of the
  // calls that failed came between a compilation and its code, so only the
  // fourth compilation led to a kernel.
  ++device_id;
  kernels.back().shared_bytes = -1;
  Check(get().ok() && num_compilations == compilations + 4,
        "number of compilations");
  const int found = num_found;
  Check(get().ok() && num_found == found,
        "a kernel that is known is looked for");
  FailEachCall([&] { return kernel.Enqueue(stream, arguments); },
               [](const RnnStatus& status) {
                 Check(status.code == RnnStatus::Code::kInternal,
                       "code of a failed launch");
               });
}

// A call gets a kernel that is known, as CheckFailures leaves one, while
// another one is compiled.
void CheckLock() {
  const ResidentRequest known = request;
  const auto get_known = [known] {
    ResidentKernel kernel;
    return ResidentKernel::Get(known, &kernel).ok();
  };
  while_compiling = [get_known] {
    auto other = std::async(std::launch::async, get_known);
    Check(other.wait_for(std::chrono::seconds(30)) == std::future_status::ready,
          "a call waits for a compilation that it does not need");
    Check(other.get(), "the known kernel");
  };
  request.batch_size += request.batch_size == 1 ? 1 : -1;
  const int compilations = num_compilations;
  ResidentKernel kernel;
  Check(ResidentKernel::Get(request, &kernel).ok() &&
            num_compilations == compilations + 1,
        "another kernel");
  while_compiling = [] {};
}

void CheckSeed(unsigned seed) {
  generator.seed(seed);
  CheckFailures(seed);
  CheckLock();
  for (int i = 0; i < 80; ++i) {
    DrawRequest();
    DrawDevice();
    being_checked = "seed " + std::to_string(seed) + ", layer " +
                    std::to_string(i) + ": " +
                    std::to_string(request.num_units) + " units";
    CheckRequest();
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  setenv("CUDNN_RNN_TF_KERNEL_CACHE", "", /*overwrite=*/1);  // Keeps no files.
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckSeed);
}
