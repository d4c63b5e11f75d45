// Has the resident kernel compiled for random shapes and GPUs by a compiler
// that only notes its options. Tells, without a GPU, whether the GPUs have what
// the kernel's text makes of them, what is refused, and what is left of calls
// that fail.
//
//   resident_kernel_on_fake_gpu SEEDS
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kernels/gpu/cudnn/resident_kernel.h"
#include "kernels/gpu/cudnn/resident_source.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

constexpr CUdevice kDevice = 3;
constexpr int64_t kWarps = 8, kThreads = 32 * kWarps;
constexpr int64_t kChunkBytes = 16 * kThreads;  // One of each thread.
constexpr size_t kCodeBytes = 4096;
constexpr char kLog[] = "resident.cu(1): error: the fake compiler's";
// Arguments stand in the order of LaunchKernel(), without spaces.
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

// From its program to its launches. Machine code begins with its address.
struct FakeKernel {
  std::multiset<std::string> options;
  int shared_bytes = -1;  // That it may be launched with.
};
std::deque<FakeKernel> kernels;
std::set<std::multiset<std::string>> loaded_options;
int num_programs = 0;  // That are not destroyed.
int num_compilations = 0;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
bool IsFloat() { return shape.dtype == RnnDataType::kFloat32; }

// The names are those of the kernel's text.
struct Sizes {
  int64_t item = SizeOf(shape.dtype), gates = NumGates(shape.rnn_mode);
  int64_t units = 0, groups, slices, chunks, rounds;
  int64_t other_registers;  // A thread's arrays', of 32 bits, beside `held`.
  int64_t other_bytes;      // Shared memory for all but weights.

  Sizes() {
    // A block writes whole words, so it has at least so many.
    do {
      units += 4 / item;
    } while (units * device.blocks < shape.num_units);
    const int64_t rows = gates * units;
    groups = DivideUp(rows, 8);
    slices = DivideUp(shape.num_units * item / 64, kWarps);
    chunks = slices * groups;
    rounds = DivideUp(units * shape.batch_size * 4, kThreads);
    const int64_t products =
        IsFloat() ? groups * shape.batch_size : DivideUp(groups, 2) * 4;
    other_registers = 4 * slices + 4 * groups + products + 2 * gates * rounds;
    const int64_t pitch = DivideUp(rows * shape.batch_size, 32) * 32 + 8;
    other_bytes = 2 * kWarps * pitch * 4 +
                  (IsFloat() ? kWarps * 2 * shape.batch_size * 4 * 16 : 0);
  }
};

// Why there is no kernel, if so.
const char* WhyNot() {
  const int64_t item = SizeOf(shape.dtype);
  if (device.major < 8) return "older than Ampere";
  if (shape.dtype == RnnDataType::kFloat64) return "float64";
  if (shape.num_units * item % 64 != 0) return "must be a multiple of";
  if (shape.batch_size > (IsFloat() ? 4 : 8)) return "batch size";
  const Sizes sizes;
  // Whose text is long to compile.
  if (sizes.chunks > 256 || sizes.units * shape.batch_size > 256) {
    return "too many units";
  }
  if (sizes.other_bytes > device.shared_bytes) return "shared memory";
  return nullptr;
}

void CheckDivision(const FakeKernel& kernel, int64_t blocks,
                   int64_t shared_bytes) {
  const auto number = [&](const std::string& prefix) {
    const auto at = kernel.options.lower_bound(prefix);
    const bool is_there =
        at != kernel.options.end() && at->rfind(prefix, 0) == 0;
    return is_there ? std::atoll(at->c_str() + prefix.size()) : -1;
  };
  const Sizes sizes;
  const int64_t in_registers = number("-DIN_REGISTERS="),
                in_shared = number("-DIN_SHARED="), ahead = number("-DAHEAD="),
                kept = number("-DKEPT=(");
  std::multiset<std::string> expected = {
      "--std=c++17", "--gpu-architecture=sm_" + std::to_string(device.major) +
                         std::to_string(device.minor)};
  const auto define = [&](const std::string& name, int64_t value) {
    expected.insert("-D" + name + "=" + std::to_string(value));
  };
  define("NUM_UNITS", shape.num_units);
  define("BATCH", shape.batch_size);
  define("GATES", sizes.gates);
  define("UNITS", sizes.units);
  define("WARPS", kWarps);
  define("IN_REGISTERS", in_registers);
  define("IN_SHARED", in_shared);
  define("AHEAD", ahead);
  expected.insert("-DKEPT=(" + std::to_string(kept) + "/1000.0f)");
  const char* const modes[] = {"LSTM", "GRU", "TANH", "RELU"};
  const char* const types[] = {"", "FLOAT", "FLOAT16", "BFLOAT16"};
  for (const std::string name : {modes[static_cast<int>(shape.rnn_mode)],
                                 types[static_cast<int>(shape.dtype)]}) {
    expected.insert("-DIS_" + name);
  }
  Check(kernel.options == expected, "the compiler's options");

  // All units have a block and all blocks have units, and run at once.
  Check(blocks == DivideUp(shape.num_units, sizes.units) &&
            blocks <= device.blocks,
        "number of blocks");
  const int64_t streamed = sizes.chunks - in_registers - in_shared;
  Check(in_registers >= 0 && in_shared >= 0 && ahead >= 0 && streamed >= 0,
        "more chunks than there are");
  const int64_t registers = 4 * in_registers + sizes.other_registers;
  Check(in_registers == 0 || registers <= 255, "more registers than there are");
  Check(in_registers == sizes.chunks || registers + 32 * sizes.rounds > 224,
        "registers are left");
  Check(shared_bytes == (in_shared + ahead) * kChunkBytes + sizes.other_bytes,
        "other shared memory than the kernel lays out");
  Check(shared_bytes <= device.shared_bytes, "too much shared memory");
  Check(shared_bytes == kernel.shared_bytes,
        "other shared memory than the kernel may have");
  const int64_t room = (device.shared_bytes - sizes.other_bytes) / kChunkBytes;
  // The L2 cache keeps a part of the weights that are streamed.
  const double of_l2 =
      static_cast<double>(streamed * kChunkBytes * blocks) / device.l2_bytes;
  if (ahead > 0) {
    const double part = of_l2 * kept / 1000;
    Check(part > 0.5 && part <= 0.7 && kept <= 1000,
          "another part than the cache may keep");
    Check(streamed > 0 && streamed % ahead == 0 && ahead >= sizes.groups,
          "slots that do not come round");
  } else {
    Check(streamed == 0 || in_shared == room, "shared memory is left");
  }
  // Slots come round once a step; no others leave room for more chunks.
  for (int64_t more = ahead > 0 ? in_shared + 1 : 0;
       (ahead > 0 || of_l2 > 0.7) && more < room; ++more) {
    const int64_t most = std::min(room - more, 3 * sizes.groups);
    for (int64_t slots = sizes.groups; slots <= most; ++slots) {
      Check((streamed + in_shared - more) % slots != 0,
            "slots that would be better");
    }
  }
}

CUresult LaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y,
                      unsigned blocks_z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared_bytes, CUstream given,
                      void** pointers) {
  if (Fails("cuLaunchCooperativeKernel")) return CUDA_ERROR_UNKNOWN;
  Check(blocks_y * blocks_z * threads_y * threads_z == 1 && threads == kThreads,
        "dimensions");
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
  CheckDivision(*reinterpret_cast<FakeKernel*>(function), blocks, shared_bytes);
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
    *id = kDevice;
    return CudaResult("cuCtxGetDevice");
  };
  cuda.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute,
                                 CUdevice id) {
    Check(id == kDevice, "another device");
    const std::map<CUdevice_attribute, int> attributes = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device.major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device.minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.blocks},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
         device.shared_bytes},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device.l2_bytes}};
    *value = attributes.at(attribute);
    return CudaResult("cuDeviceGetAttribute");
  };
  cuda.cuLibraryLoadData = [](CUlibrary* library, const void* code,
                              CUjit_option*, void**, unsigned num_jit_options,
                              CUlibraryOption*, void**, unsigned num_options) {
    Check(num_jit_options == 0 && num_options == 0, "options of a library");
    std::memcpy(library, code, sizeof(FakeKernel*));
    return CudaResult("cuLibraryLoadData");
  };
  cuda.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary library,
                               const char* name) {
    Check(name == std::string("resident"), "name of the kernel");
    if (Fails("cuLibraryGetKernel")) return CUDA_ERROR_UNKNOWN;
    *kernel = reinterpret_cast<CUkernel>(library);
    loaded_options.insert(reinterpret_cast<FakeKernel*>(library)->options);
    return CUDA_SUCCESS;
  };
  cuda.cuKernelSetAttribute = [](CUfunction_attribute attribute, int value,
                                 CUkernel kernel, CUdevice id) {
    Check(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
          "an attribute of the kernel");
    Check(id == kDevice, "another device");
    reinterpret_cast<FakeKernel*>(kernel)->shared_bytes = value;
    return CudaResult("cuKernelSetAttribute");
  };
  cuda.cuLaunchCooperativeKernel = LaunchKernel;

  NvrtcLibrary& nvrtc = libraries.nvrtc;
  nvrtc.nvrtcCreateProgram = [](nvrtcProgram* program, const char* source,
                                const char*, int num_headers,
                                const char* const*, const char* const*) {
    Check(source == kResidentSource && num_headers == 0, "another text");
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
    *size = sizeof(kLog);  // With the NUL.
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

// Looks at what is launched, or why nothing can be.
void CheckShape() {
  const int compilations = num_compilations;
  const char* const why_not = WhyNot();
  ResidentKernel kernel;
  const RnnStatus status = ResidentKernel::Get(shape, &kernel);
  Check(num_programs == 0, "a program is left");
  if (why_not == nullptr) {
    Check(status.ok(), status.message);
    Check(kernel.Enqueue(stream, arguments).ok(), "a launch");
  } else {
    Check(status.code == RnnStatus::Code::kUnimplemented &&
              Names(status, why_not),
          std::string("no refusal for ") + why_not);
    Check(num_compilations == compilations, "a useless compilation");
  }
}

void CheckFailures(unsigned seed) {
  // That no kernel is compiled for yet.
  do {
    DrawShape();
    DrawDevice();
    device.minor = static_cast<int>(10 + seed);
  } while (WhyNot() != nullptr);
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
    Check(status.code == (of_nvrtc ? RnnStatus::Code::kUnimplemented
                                   : RnnStatus::Code::kInternal),
          "code of a failure of " + failed_call);
    Check(!of_nvrtc || Names(status, "an error of NVRTC's"),
          "an error without its text");
    Check(failed_call != "nvrtcCompileProgram" || Names(status, kLog),
          "a log that is not told");
    Check(!Names(status, std::string(1, '\0')), "a NUL in a message");
  });
  // Another device of the kind has its own attributes. Five calls failed on the
  // way to a kernel, which the sixth compilation led to.
  kernels.back().shared_bytes = -1;
  Check(get().ok() && num_compilations == compilations + 6,
        "number of compilations");
  FailEachCall([&] { return kernel.Enqueue(stream, arguments); },
               [](const RnnStatus& status) {
                 Check(status.code == RnnStatus::Code::kInternal,
                       "code of a failed launch");
               });
}

void CheckSeed(unsigned seed) {
  generator.seed(seed);
  std::string text = kResidentSource;
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](unsigned char c) { return std::isspace(c); }),
             text.end());
  Check(text.find(kParameters) != std::string::npos, "the kernel's parameters");
  CheckFailures(seed);
  const std::string seed_checked = being_checked;
  for (int i = 0; i < 40; ++i) {
    DrawShape();
    being_checked = seed_checked + ", shape " + std::to_string(i) + ": " +
                    std::to_string(shape.num_units) + " units";
    // A kernel that is compiled for one device is not used on another.
    for (int j = 0; j < 2; ++j) {
      DrawDevice();
      CheckShape();
    }
    if (WhyNot() != nullptr) continue;
    // All that is beside weights, and less.
    device.shared_bytes = static_cast<int>(Sizes().other_bytes);
    CheckShape();
    --device.shared_bytes;
    CheckShape();
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckSeed);
}
