// Gets the resident kernel for random shapes and GPUs, with a fake compiler
// that only notes its options. Checks, without a GPU, that the options suit the
// kernel's text and the GPU, what is refused, and what remains after calls that
// fail.
//
//   resident_kernel_on_fake_gpu SEEDS
//
// With the name of NVRTC's library as a second argument, it compiles kernels
// for GPUs of several generations instead, with the real compiler.
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <string>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/resident/kernel.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

// The kernel's own type, which a lane loads at once.
struct alignas(16) Chunk {
  char bytes[16];
};

// This file defines KernelSizes. It computes, from the macros that the kernel
// is compiled with, the constants of the kernel's text; the test copies their
// definitions from there, so they are not written again here.
#include "kernel_sizes.h"

CUdevice device_id = 3;  // Each device that is drawn has a number of its own.
constexpr int kRegisters = 255;  // The most of a thread.
constexpr size_t kCodeBytes = 4096;
constexpr char kLog[] = "resident.cu(1): error: the fake compiler's";
// The kernel's parameters without spaces, in the order in which LaunchKernel
// reads the arguments.
constexpr char kParameters[] =
    "resident(constItem*weights,constItem*input_bias,constItem*recurrent_bias,"
    "constfloat*projected,constItem*first_h,constItem*first_c,Item*output,"
    "Item*last_h,Item*last_c,intfirst,intsteps,intnum_steps,intstride,"
    "intis_reversed){";

struct FakeDevice {
  int major, minor, blocks, shared_bytes, l2_bytes;
};
FakeDevice device;
ResidentShape shape;
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
const char* nvrtc_name = nullptr;  // Null unless the real compiler is used.

const std::string& Source() {
  for (const SourceFile& file : EmbeddedSources()) {
    if (file.name == "resident.cu") return file.text;
  }
  Check(false, "no text");
  std::abort();
}

bool IsFloat() { return shape.dtype == RnnDataType::kFloat32; }

// Returns why no GPU, or not this one, has a kernel for the shape; null if
// nothing speaks against it.
const char* WhyNot() {
  if (device.major < 8) return "older than Ampere";
  if (shape.dtype == RnnDataType::kFloat64) return "float64";
  if (shape.num_units * SizeOf(shape.dtype) % 64 != 0) {
    return "must be a multiple of";
  }
  if (shape.batch_size > (IsFloat() ? 4 : 8)) return "batch size";
  return nullptr;
}

// These describe the kernel that was launched last.
int64_t in_registers = 0;
int64_t bytes_beside_weights = 0;  // In shared memory.

KernelSizes SizesOf(const FakeKernel& kernel) {
  const auto macro = [&](const std::string& name) {
    const std::string prefix = "-D" + name + "=";
    const auto option = kernel.options.lower_bound(prefix);
    Check(option != kernel.options.end() && option->rfind(prefix, 0) == 0,
          "no macro " + name);
    return std::atoi(option->c_str() + prefix.size());
  };
  return {static_cast<int>(SizeOf(shape.dtype)),
          macro("NUM_UNITS"),
          macro("BATCH"),
          macro("GATES"),
          macro("UNITS"),
          macro("WARPS"),
          macro("IN_REGISTERS"),
          macro("IN_SHARED"),
          macro("AHEAD")};
}

// The registers that a thread's arrays in the kernel's text take.
int Registers(const KernelSizes& sizes) {
  const int products =
      IsFloat() ? sizes.kGroups * sizes.BATCH : (sizes.kGroups + 1) / 2 * 4;
  const int of_a_cell = 2 * sizes.GATES + 2;
  return 4 * sizes.IN_REGISTERS + 4 * sizes.kOwnSlices + 4 * sizes.kGroups +
         products + of_a_cell * sizes.kRounds;
}

void CheckOptions(const FakeKernel& kernel, const KernelSizes& sizes,
                  int kept) {
  Check(sizes.NUM_UNITS == shape.num_units && sizes.BATCH == shape.batch_size &&
            sizes.GATES == NumGates(shape.rnn_mode),
        "a kernel for another shape");
  const char* const modes[] = {"LSTM", "GRU", "TANH", "RELU"};
  const char* const types[] = {"", "FLOAT", "FLOAT16", "BFLOAT16"};
  std::multiset<std::string> others = {
      "--std=c++17",
      "--gpu-architecture=sm_" +
          std::to_string(10 * device.major + device.minor),
      "-DKEPT=(" + std::to_string(kept) + "/1000.0f)",
      std::string("-DIS_") + modes[static_cast<int>(shape.rnn_mode)],
      std::string("-DIS_") + types[static_cast<int>(shape.dtype)]};
  constexpr size_t kNumMacros = 8;  // The macros that SizesOf() reads.
  Check(kernel.options.size() == kNumMacros + others.size() &&
            std::includes(kernel.options.begin(), kernel.options.end(),
                          others.begin(), others.end()),
        "the compiler's options");
}

void CheckDivision(const FakeKernel& kernel, int64_t blocks, int64_t threads,
                   int64_t shared_bytes) {
  const KernelSizes sizes = SizesOf(kernel);
  const auto option = kernel.options.lower_bound("-DKEPT=(");
  const int kept = std::atoi(option->c_str() + std::strlen("-DKEPT=("));
  CheckOptions(kernel, sizes, kept);

  // Every unit has one block, every block has units, and all blocks run at
  // once. A word that is written holds units of one block.
  Check(blocks * sizes.UNITS >= shape.num_units &&
            (blocks - 1) * sizes.UNITS < shape.num_units,
        "units without a block, or blocks without units");
  Check(blocks <= device.blocks, "blocks that wait for a multiprocessor");
  Check(sizes.UNITS * sizes.ITEM_BYTES % 4 == 0, "a word of two blocks");
  Check((sizes.UNITS - 4 / sizes.ITEM_BYTES) * device.blocks < shape.num_units,
        "more units in a block than there need be");
  // Loops over chunks and over rounds are unrolled.
  Check(sizes.kChunks <= 512 && sizes.kRounds <= 8, "a text long to compile");
  Check(threads == sizes.kThreads, "number of threads");

  Check(sizes.IN_REGISTERS >= 0 && sizes.IN_SHARED >= 0 && sizes.AHEAD >= 0 &&
            sizes.kResident <= sizes.kChunks,
        "more weights than there are");
  Check(sizes.text_compiles, "slots that do not come round");
  const int registers = Registers(sizes);
  Check(sizes.IN_REGISTERS == 0 || registers <= kRegisters,
        "more registers than there are");
  Check(sizes.IN_REGISTERS == sizes.kChunks || registers > kRegisters / 3,
        "most registers are left");

  // The bytes of one chunk for each thread.
  const int64_t chunk = sizes.kThreads * static_cast<int64_t>(sizeof(Chunk));
  const int64_t of_sums = 2 * sizes.WARPS * sizes.kPitch * sizeof(float);
  const int64_t of_stages =
      IsFloat() ? sizes.WARPS * 2 * sizes.BATCH * 4 * sizeof(Chunk) : 0;
  in_registers = sizes.IN_REGISTERS;
  bytes_beside_weights = of_sums + of_stages;
  Check(shared_bytes ==
            (sizes.IN_SHARED + sizes.AHEAD) * chunk + bytes_beside_weights,
        "other shared memory than the kernel lays out");
  Check(shared_bytes <= device.shared_bytes, "too much shared memory");
  Check(shared_bytes == kernel.shared_bytes,
        "other shared memory than the kernel may have");
  if (sizes.kStreamed == 0) return;

  // Weights without room are left to the L2 cache if it can hold them.
  // Otherwise they are fetched ahead, if there is room for as many slots as
  // that takes, and the cache holds a good part of them.
  const int64_t room = (device.shared_bytes - bytes_beside_weights) / chunk;
  const int64_t without_room = sizes.kChunks - sizes.IN_REGISTERS - room;
  const double streamed = static_cast<double>(sizes.kStreamed * chunk * blocks);
  if (sizes.AHEAD > 0) {
    Check(4.0 * without_room * chunk * blocks > device.l2_bytes,
          "slots for weights that the cache would hold");
    const double kept_bytes = streamed * kept / 1000;
    Check(kept_bytes <= device.l2_bytes, "more than the cache holds");
    Check(kept <= 1000 && 4 * kept_bytes > device.l2_bytes,
          "little of the cache is used");
  } else {
    Check(sizes.IN_SHARED == room, "shared memory is left");
    if (streamed <= device.l2_bytes) return;
  }
  // The number of slots divides the number of streamed chunks. No other number
  // of slots leaves room for more weights.
  const int64_t least = sizes.AHEAD > 0 ? sizes.IN_SHARED + 1 : 0;
  for (int64_t slots = sizes.kGroups; slots <= 2 * sizes.kGroups; ++slots) {
    for (int64_t in_shared = least; in_shared + slots <= room; ++in_shared) {
      Check((without_room + room - in_shared) % slots != 0,
            "slots that would be better");
    }
  }
}

CUresult LaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y,
                      unsigned blocks_z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared_bytes, CUstream given,
                      void** pointers) {
  if (Fails("cuLaunchCooperativeKernel")) return CUDA_ERROR_UNKNOWN;
  Check(blocks_y * blocks_z * threads_y * threads_z == 1, "dimensions");
  Check(given == stream, "another stream");
  const ResidentArguments& a = arguments;
  for (const CUdeviceptr address :
       {a.weights, a.input_bias, a.recurrent_bias, a.projected, a.first_h,
        a.first_c, a.output, a.last_h, a.last_c}) {
    Check(*static_cast<CUdeviceptr*>(*pointers++) == address, "an argument");
  }
  for (const int number :
       {a.first, a.steps, a.num_steps, a.stride, a.is_reversed}) {
    Check(*static_cast<int*>(*pointers++) == number, "an argument");
  }
  CheckDivision(*reinterpret_cast<FakeKernel*>(function), blocks, threads,
                shared_bytes);
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
    const std::map<CUdevice_attribute, int> attributes = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device.major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device.minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.blocks},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
         device.shared_bytes},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device.l2_bytes}};
    *value = attributes.at(attribute);
    return CudaResult("cuDeviceGetAttribute");
  };
  cuda.cuLibraryLoadData = [](CUlibrary* library, const void* code,
                              CUjit_option*, void**, unsigned num_jit_options,
                              CUlibraryOption*, void**, unsigned num_options) {
    Check(num_jit_options == 0 && num_options == 0, "options of a library");
    if (nvrtc_name != nullptr) {
      Check(static_cast<const char*>(code)[1] == 'E', "machine code");
      *library = reinterpret_cast<CUlibrary>(&kernels.emplace_back());
      return CUDA_SUCCESS;
    }
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
    *architectures = 10 * device.major + device.minor;
    return NvrtcResult("nvrtcGetSupportedArchs");
  };
  nvrtc.nvrtcCreateProgram = [](nvrtcProgram* program, const char* source,
                                const char*, int, const char* const*,
                                const char* const*) {
    Check(source == Source(), "another text");
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
  if (nvrtc_name == nullptr) return libraries;
  void* const real = dlopen(nvrtc_name, RTLD_NOW);
  Check(real != nullptr, "NVRTC");
#define CRNN_FIND(name) \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(dlsym(real, #name));
  CRNN_NVRTC_FUNCTIONS(CRNN_FIND)
#undef CRNN_FIND
  return libraries;
}

namespace {

int DrawInt(int least, int most) { return static_cast<int>(Draw(least, most)); }

void DrawDevice() {
  ++device_id;
  device.major = DrawInt(0, 19) == 0 ? 7 : DrawInt(8, 9);
  device.minor = DrawInt(0, 9);
  device.blocks = DrawInt(1, 150);
  device.shared_bytes = DrawInt(40, 227) << 10;
  device.l2_bytes = DrawInt(1, 60) << 20;
}

void DrawShape() {
  shape.rnn_mode = static_cast<RnnMode>(Draw(0, 3));
  shape.dtype = static_cast<RnnDataType>(Draw(0, 19) == 0 ? 0 : Draw(1, 3));
  const int64_t slices = Draw(0, 1) == 0 ? Draw(1, 20) : Draw(20, 200);
  shape.num_units = slices * 64 / SizeOf(shape.dtype);
  if (Draw(0, 19) == 0) shape.num_units += Draw(1, 31);
  shape.batch_size = Draw(1, IsFloat() ? 5 : 9);
}

RnnStatus GetAndLaunch() {
  ++device_id;  // A kernel is kept for each device and shape.
  const int compilations = num_compilations;
  ResidentKernel kernel;
  const RnnStatus status = ResidentKernel::Get(shape, &kernel);
  Check(num_programs == 0, "a program is left");
  if (status.ok()) {
    Check(kernel.Enqueue(stream, arguments).ok(), "a launch");
  } else {
    Check(status.code == RnnStatus::Code::kUnimplemented, status.message);
    Check(num_compilations == compilations, "a useless compilation");
  }
  return status;
}

void CheckRefused(const char* why) {
  Check(Names(GetAndLaunch(), why), std::string("no refusal for ") + why);
}

// Checks what is launched, or why nothing can be.
void CheckShape() {
  if (const char* const why_not = WhyNot()) return CheckRefused(why_not);
  const FakeDevice drawn_device = device;
  const ResidentShape drawn_shape = shape;
  const RnnStatus status = GetAndLaunch();
  if (status.ok()) {
    // There is just enough shared memory for everything but weights, and then a
    // byte too little.
    device.shared_bytes = static_cast<int>(bytes_beside_weights);
    Check(GetAndLaunch().ok(), "a refusal though all fits");
    --device.shared_bytes;
    CheckRefused("shared memory");
    // With fewer sequences, there is no less room for weights.
    device = drawn_device;
    const int64_t of_all_sequences = in_registers;
    if (--shape.batch_size > 0) {
      Check(GetAndLaunch().ok(), "a refusal of fewer sequences");
      Check(in_registers >= of_all_sequences, "registers for fewer sequences");
    }
  } else if (Names(status, "shared memory")) {
    device.shared_bytes = 1 << 20;
    Check(GetAndLaunch().ok(), "a refusal though all fits");
    Check(bytes_beside_weights > drawn_device.shared_bytes,
          "a refusal for want of shared memory that is there");
  } else {
    Check(Names(status, "too many units"), status.message);
    // Twice as many units are too many as well, but not if each unit has a
    // block.
    shape.num_units *= 2;
    CheckRefused("too many units");
    shape = drawn_shape;
    device.blocks = static_cast<int>(shape.num_units);
    Check(GetAndLaunch().ok(), "a refusal of units with a block each");
  }
  device = drawn_device;
  shape = drawn_shape;
}

void CheckFailures(unsigned seed) {
  // The device fits any kernel, and no kernel is compiled for it yet.
  do {
    DrawShape();
    DrawDevice();
  } while (WhyNot() != nullptr);
  device.minor = static_cast<int>(10 + seed);
  device.blocks = static_cast<int>(shape.num_units);
  device.shared_bytes = 227 << 10;
  const int compilations = num_compilations;
  ResidentKernel kernel;
  const auto get = [&] { return ResidentKernel::Get(shape, &kernel); };
  has_resident_libraries = false;
  Check(get().code == RnnStatus::Code::kFailedPrecondition,
        "libraries that are not there");
  has_resident_libraries = true;
  Check(num_compilations == compilations, "a useless compilation");
  FailEachCall(get, [](const RnnStatus& status) {
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
  // Another device of the same kind has attributes of its own. Four of the
  // calls that failed came between a compilation and the loading of its code,
  // so only the fifth compilation led to a kernel.
  ++device_id;
  kernels.back().shared_bytes = -1;
  Check(get().ok() && num_compilations == compilations + 5,
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
  const ResidentShape known = shape;
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
  shape.batch_size += shape.batch_size == 1 ? 1 : -1;
  const int compilations = num_compilations;
  ResidentKernel kernel;
  Check(ResidentKernel::Get(shape, &kernel).ok() &&
            num_compilations == compilations + 1,
        "another kernel");
  while_compiling = [] {};
}

void CheckSeed(unsigned seed) {
  generator.seed(seed);
  std::string text = Source();
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](unsigned char c) { return std::isspace(c); }),
             text.end());
  Check(text.find(kParameters) != std::string::npos, "the kernel's parameters");
  CheckFailures(seed);
  CheckLock();
  const std::string seed_checked = being_checked;
  for (int i = 0; i < 40; ++i) {
    DrawShape();
    being_checked = seed_checked + ", shape " + std::to_string(i) + ": " +
                    std::to_string(shape.num_units) + " units";
    // The second device must not get the kernel that was compiled for the
    // first.
    for (int j = 0; j < 2; ++j) {
      DrawDevice();
      CheckShape();
    }
  }
}

// Compiles some kernels with the real compiler, which needs no GPU.
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
    for (const ResidentShape& one_shape : kShapes) {
      being_checked = std::to_string(one.major) + "." +
                      std::to_string(one.minor) + ", " +
                      std::to_string(one_shape.num_units) + " units of " +
                      RnnModeName(one_shape.rnn_mode);
      ResidentKernel kernel;
      const RnnStatus status = ResidentKernel::Get(one_shape, &kernel);
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

int main(int argc, char** argv) {
  setenv("CUDNN_RNN_TF_KERNEL_CACHE", "", /*overwrite=*/1);  // Keeps no files.
  if (argc > 2) {
    cudnn_rnn_tf::nvrtc_name = argv[2];
    cudnn_rnn_tf::has_resident_libraries = true;
    return cudnn_rnn_tf::CompileAll();
  }
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckSeed);
}
