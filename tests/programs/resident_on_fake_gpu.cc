// Runs random networks by the algorithm resident on a GPU that is none: its
// memory is the host's, its compiler notes the options that it is given, and in
// place of the kernel the host computes what the kernel's text says. Tells,
// without a GPU, how weights are divided, whether the kernel finds what it
// relies on, and whether the numbers are those of cuDNN's equations.
//
//   resident_on_fake_gpu SEEDS
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cudnn/resident.h"
#include "kernels/cudnn/resident_source.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

// Networks whose products of all steps are more run in parts.
constexpr int64_t kBytesOfPart = int64_t{32} << 20;
// Of a block, whose text is long to compile: chunks of a thread, cells. What it
// may have in shared memory beside chunks.
constexpr int64_t kMaxChunks = 256, kMaxCells = 256, kMaxOtherBytes = 70 << 10;
constexpr int64_t kBytesOfChunks = 256 * 16;  // One of each thread of a block.
// What cuBLAS may have, and what alignment takes.
constexpr int64_t kMaxOtherWorkspace = (4 << 20) + 1024;
constexpr CUdevice kDevice = 3;
constexpr char kLog[] = "resident.cu(1): error: the fake compiler's";
// In the order in which the host passes them.
constexpr char kParameters[] =
    "(const Item* weights, const Item* input_bias, const Item* recurrent_bias, "
    "const float* projected, const Item* first_h, const Item* first_c, "
    "Item* output, Item* last_h, Item* last_c, int first, int steps, "
    "int num_steps, int stride, int is_reversed)";

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int64_t Draw(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % (most - least + 1));
  }
  float Number(float most) {
    return most * (static_cast<float>(random_() % 20001) / 10000 - 1);
  }

 private:
  std::mt19937 random_;
};

// What the fake device is.
struct {
  int major, minor, blocks, shared_bytes, l2_bytes;
} device;

// The call that fails next, and what it was.
long num_calls = 0, failing_call = -1;
std::string failed_call;
cublasStatus_t failure_of_cublas = CUBLAS_STATUS_ALLOC_FAILED;

bool Fails(const char* call) {
  if (num_calls++ != failing_call) return false;
  failed_call = call;
  return true;
}
CUresult CudaResult(const char* call) {
  return Fails(call) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
nvrtcResult NvrtcResult(const char* call) {
  return Fails(call) ? NVRTC_ERROR_OUT_OF_MEMORY : NVRTC_SUCCESS;
}
cublasStatus_t CublasResult(const char* call) {
  return Fails(call) ? failure_of_cublas : CUBLAS_STATUS_SUCCESS;
}

// A number of one of the types, of which the half ones have `mantissa` bits
// behind the point.
int MantissaBits(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat16 ? 10 : 7;
}
float FromBits(uint16_t bits, int mantissa) {
  const int bias = (1 << (14 - mantissa)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const int whole = exponent == 0 ? fraction : fraction + (1 << mantissa);
  const float value = std::ldexp(static_cast<float>(whole),
                                 std::max(exponent, 1) - bias - mantissa);
  return bits & 0x8000 ? -value : value;
}
uint16_t ToBits(float value, int mantissa) {
  if (value == 0) return 0;
  const int bias = (1 << (14 - mantissa)) - 1;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const float whole =
      std::nearbyint(std::ldexp(std::abs(value), mantissa - exponent));
  return (value < 0 ? 0x8000 : 0) + ((exponent + bias - 1) << mantissa) +
         static_cast<int>(whole);
}
float Load(RnnDataType dtype, const void* array, int64_t i) {
  if (dtype == RnnDataType::kFloat32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(array) + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(array) + 2 * i, 2);
  return FromBits(bits, MantissaBits(dtype));
}
void Store(RnnDataType dtype, void* array, int64_t i, float value) {
  if (dtype == RnnDataType::kFloat32) {
    std::memcpy(static_cast<char*>(array) + 4 * i, &value, 4);
    return;
  }
  const uint16_t bits = ToBits(value, MantissaBits(dtype));
  std::memcpy(static_cast<char*>(array) + 2 * i, &bits, 2);
}
template <typename Number>
std::vector<Number> LoadAll(RnnDataType dtype, const void* array,
                            int64_t size) {
  std::vector<Number> numbers(size);
  for (int64_t i = 0; i < size; ++i) numbers[i] = Load(dtype, array, i);
  return numbers;
}

// A network's buffers, each as large as it must be, with a guard behind.
enum Place {
  kParams,
  kInput,
  kInputH,
  kInputC,
  kOutput,
  kOutputH,
  kOutputC,
  kWorkspace,
  kNumPlaces
};

class Memory {
 public:
  // A place may begin some bytes past a multiple of kAlign.
  Memory(const std::array<size_t, kNumPlaces>& sizes,
         const std::array<size_t, kNumPlaces>& offsets)
      : sizes_(sizes) {
    for (int i = 0; i < kNumPlaces; ++i) {
      if (sizes[i] == 0) continue;
      const size_t bytes =
          (offsets[i] + sizes[i] + 2 * kAlign - 1) / kAlign * kAlign;
      buffers_[i].reset(
          static_cast<unsigned char*>(std::aligned_alloc(kAlign, bytes)));
      std::memset(buffers_[i].get(), 0xDD, bytes);
      places_[i] = buffers_[i].get() + offsets[i];
      guard_bytes_[i] = bytes - offsets[i] - sizes[i];
    }
  }
  unsigned char* at(Place place) const { return places_[place]; }
  CUdeviceptr address(Place place) const {
    return reinterpret_cast<CUdeviceptr>(places_[place]);
  }
  ResidentNetwork::Buffers OfNetwork() const {
    return {address(kParams),  address(kInput),    address(kInputH),
            address(kInputC),  address(kOutput),   address(kOutputH),
            address(kOutputC), address(kWorkspace)};
  }
  bool Has(Place place, CUdeviceptr begin, size_t bytes) const {
    return begin >= address(place) &&
           begin + bytes <= address(place) + sizes_[place];
  }
  void CheckGuards() const {
    for (int i = 0; i < kNumPlaces; ++i) {
      const unsigned char* const guard = places_[i] + sizes_[i];
      Check(std::all_of(guard, guard + guard_bytes_[i],
                        [](unsigned char byte) { return byte == 0xDD; }),
            "something beyond the end of buffer " + std::to_string(i));
    }
  }

 private:
  static constexpr size_t kAlign = 256;
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  const std::array<size_t, kNumPlaces> sizes_;
  std::array<std::unique_ptr<unsigned char, Free>, kNumPlaces> buffers_;
  std::array<unsigned char*, kNumPlaces> places_ = {};
  std::array<size_t, kNumPlaces> guard_bytes_ = {};
};

// What is run, and over which memory; null where launches are only looked at.
ResidentShape shape;
const Memory* memory = nullptr;
CUstream stream = nullptr;
cublasHandle_t blas = nullptr;
bool allow_tf32 = false;
long num_launches = 0;
int64_t last_streamed = 0, last_ahead = 0;  // Of what was launched.
unsigned char* blas_workspace = nullptr;
size_t blas_workspace_bytes = 0;
CUstream stream_of_blas = nullptr;

void CheckWithin(std::initializer_list<Place> places, CUdeviceptr begin,
                 int64_t bytes, const char* what) {
  for (const Place place : places) {
    if (memory->Has(place, begin, bytes)) return;
  }
  Check(false, std::string(what) + " outside of its buffer");
}

// A compiled kernel: its options.
struct Kernel {
  std::map<std::string, std::string> macros;
  std::string architecture;
  int shared_bytes = -1;  // That it may be launched with.

  int64_t number(const char* macro) const {
    return std::atoll(macros.at(macro).c_str());
  }
};
struct Program {
  std::string code;
};
// By their code.
std::map<std::string, Kernel> kernels;
long num_programs = 0, made_programs = 0, num_compilations = 0;

std::string WithoutBreaks(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool is_space = c == ' ' || c == '\n';
    if (is_space && !result.empty() && result.back() == ' ') continue;
    result += is_space ? ' ' : c;
  }
  return result;
}

nvrtcResult CompileProgram(nvrtcProgram program, int num_options,
                           const char* const* options) {
  ++num_compilations;
  std::string code;
  for (int i = 0; i < num_options; ++i) code += options[i] + std::string("\n");
  Check(kernels.count(code) == 0, "a kernel is compiled again");
  reinterpret_cast<Program*>(program)->code = code;
  return Fails("nvrtcCompileProgram") ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}

Kernel KernelOf(const std::string& code) {
  Kernel kernel;
  for (size_t begin = 0; begin < code.size();) {
    const size_t end = code.find('\n', begin);
    const std::string option = code.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = std::min(option.find('='), option.size());
    const std::string value =
        option.substr(std::min(equals + 1, option.size()));
    if (option.rfind("-D", 0) == 0) {
      Check(kernel.macros.emplace(option.substr(2, equals - 2), value).second,
            "a macro is set twice");
    } else if (option.rfind("--gpu-architecture=", 0) == 0) {
      kernel.architecture = value;
    } else {
      Check(option == "--std=c++17", "an option " + option);
    }
  }
  return kernel;
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What the kernel's text says of its macros and memory.
void CheckDivision(const Kernel& kernel, int64_t blocks, int64_t threads,
                   int64_t shared_bytes) {
  const bool is_float = shape.dtype == RnnDataType::kFloat32;
  const auto check_macro = [&](const char* macro, int64_t value) {
    Check(kernel.macros.count(macro) == 1 && kernel.number(macro) == value,
          std::string("the macro ") + macro);
  };
  const int64_t gates = shape.rnn_mode == RnnMode::kLstm  ? 4
                        : shape.rnn_mode == RnnMode::kGru ? 3
                                                          : 1;
  check_macro("NUM_UNITS", shape.num_units);
  check_macro("BATCH", shape.batch_size);
  check_macro("GATES", gates);
  check_macro(is_float                               ? "IS_FLOAT"
              : shape.dtype == RnnDataType::kFloat16 ? "IS_FLOAT16"
                                                     : "IS_BFLOAT16",
              0);
  check_macro(
      std::array<const char*, 4>{"IS_LSTM", "IS_GRU", "IS_TANH",
                                 "IS_RELU"}[static_cast<int>(shape.rnn_mode)],
      0);
  Check(kernel.macros.size() == 11, "number of macros");
  Check(kernel.architecture ==
            "sm_" + std::to_string(device.major) + std::to_string(device.minor),
        "the architecture");

  const int64_t units = kernel.number("UNITS"), warps = kernel.number("WARPS");
  const int64_t in_registers = kernel.number("IN_REGISTERS"),
                in_shared = kernel.number("IN_SHARED"),
                ahead = kernel.number("AHEAD");
  Check(threads == 32 * warps && threads <= 1024, "number of threads");
  Check(blocks <= device.blocks, "blocks that cannot run at once");
  Check(units * blocks >= shape.num_units, "units are left out");
  Check((blocks - 1) * units < shape.num_units, "a block without units");
  Check(is_float || units % 2 == 0, "a word of two blocks' units");
  const int64_t fewer_units = units - (is_float ? 1 : 2);
  Check(fewer_units * device.blocks < shape.num_units, "blocks are left out");

  const int64_t item = is_float ? 4 : 2;
  Check(shape.num_units * item % 64 == 0, "a part of a slice");
  const int64_t rows = gates * units, groups = DivideUp(rows, 8);
  const int64_t slices = DivideUp(shape.num_units * item / 64, warps);
  const int64_t chunks = slices * groups;
  Check(chunks <= kMaxChunks && units * shape.batch_size <= kMaxCells,
        "a text that is long to compile");
  const int64_t streamed = chunks - in_registers - in_shared;
  Check(in_registers >= 0 && in_shared >= 0 && ahead >= 0 && streamed >= 0,
        "more chunks than there are");
  // The kernel's arrays, of 32 bits each.
  const int64_t products =
      is_float ? groups * shape.batch_size : DivideUp(groups, 2) * 4;
  Check(in_registers == 0 ||
            4 * in_registers + 4 * slices + groups + products <= 255,
        "more registers than there are");

  const int64_t pitch = DivideUp(rows * shape.batch_size, 32) * 32 + 8;
  const int64_t of_sums = 2 * warps * pitch * 4;
  const int64_t staged = is_float ? warps * 2 * shape.batch_size * 4 * 16 : 0;
  Check((in_shared + ahead) * threads * 16 + of_sums + staged <= shared_bytes,
        "too little shared memory for what the kernel has there");
  Check(shared_bytes <= device.shared_bytes, "too much shared memory");
  Check(shared_bytes == kernel.shared_bytes,
        "other shared memory than the kernel may have");

  const double kept = std::atof(kernel.macros.at("KEPT").c_str());
  Check(kernel.macros.at("KEPT").back() == 'f' && kept > 0 && kept <= 1,
        "the part that is kept");
  // Of which at least a part is read from the L2 cache.
  const double streamed_bytes =
      static_cast<double>(streamed * threads * 16 * blocks);
  Check(kept * streamed_bytes <= device.l2_bytes, "more than the L2 cache has");
  last_streamed = streamed;
  last_ahead = ahead;
  if (ahead > 0) {
    Check(streamed > 0 && streamed % ahead == 0,
          "slots that do not come round");
    Check(ahead >= groups, "too few slots for a slice");
  }
  // Nothing is streamed for which there is room.
  const int64_t more = ahead > 0 ? ahead : 1;
  Check(
      streamed == 0 || shared_bytes + more * threads * 16 > device.shared_bytes,
      "shared memory is left");
}

// The kernel's arguments, in its order.
struct Arguments {
  CUdeviceptr weights, input_bias, recurrent_bias, projected;
  CUdeviceptr first_h, first_c, output, last_h, last_c;
  int first, steps, num_steps, stride, is_reversed;

  explicit Arguments(void** pointers) {
    for (CUdeviceptr* const address :
         {&weights, &input_bias, &recurrent_bias, &projected, &first_h,
          &first_c, &output, &last_h, &last_c}) {
      *address = *static_cast<CUdeviceptr*>(*pointers++);
    }
    for (int* const number :
         {&first, &steps, &num_steps, &stride, &is_reversed}) {
      *number = *static_cast<int*>(*pointers++);
    }
  }
};

template <typename Number>
Number Sigmoid(Number x) {
  return 1 / (1 + std::exp(-x));
}

// What all blocks' threads do, step by step.
void RunKernel(const Kernel& kernel, int64_t blocks, const Arguments& a) {
  const RnnDataType dtype = shape.dtype;
  const int64_t item = SizeOf(dtype);
  const int64_t units = kernel.number("UNITS"), gates = kernel.number("GATES"),
                h = shape.num_units, batch = shape.batch_size;
  const bool is_lstm = shape.rnn_mode == RnnMode::kLstm;
  const int64_t row_items = batch * h;
  const auto at = [](CUdeviceptr address) {
    return reinterpret_cast<unsigned char*>(address);
  };

  Check(a.first >= 0 && a.steps > 0 && a.first + a.steps <= a.num_steps,
        "steps that are none");
  for (const CUdeviceptr address : {a.weights, a.first_h, a.output}) {
    Check(address % 16 == 0, "alignment");
  }
  Check(a.stride * item % 16 == 0, "alignment of rows");
  Check(a.projected % sizeof(float) == 0, "alignment of the products");
  CheckWithin({kParams}, a.weights, gates * h * h * item, "weights");
  for (const CUdeviceptr bias : {a.input_bias, a.recurrent_bias}) {
    if (bias != 0) CheckWithin({kParams}, bias, gates * h * item, "a bias");
  }
  CheckWithin({kWorkspace}, a.projected,
              a.steps * batch * gates * h * sizeof(float), "products");
  CheckWithin({kOutput, kWorkspace}, a.output,
              ((int64_t{a.num_steps} * batch - 1) * a.stride + h) * item,
              "outputs");
  CheckWithin({kInputH}, a.first_h, row_items * item, "first h");
  CheckWithin({kOutputH}, a.last_h, row_items * item, "last h");
  if (is_lstm) {
    CheckWithin({kInputC}, a.first_c, row_items * item, "first c");
    CheckWithin({kOutputC}, a.last_c, row_items * item, "last c");
  }

  const auto outputs_at = [&](int64_t step, int64_t b) {
    const int64_t time = a.is_reversed ? a.num_steps - 1 - step : step;
    return at(a.output) + (time * batch + b) * a.stride * item;
  };
  // Blocks that wait would do so for ever, those that do not would go on with
  // what is none.
  const auto check_row = [&](int64_t step, bool is_written) {
    for (int64_t b = 0; b < batch; ++b) {
      const unsigned char* const row = outputs_at(step, b);
      for (int64_t i = 0; i < h * item; i += 4) {
        uint32_t word;
        std::memcpy(&word, row + i, 4);
        if ((word == 0xFFFFFFFF) == is_written) {
          Check(false, is_written ? "outputs that are not written"
                                  : "outputs that seem to be written");
        }
      }
    }
  };
  for (int64_t step = 0; step < a.num_steps; ++step) {
    check_row(step, step < a.first);
  }

  const std::vector<float> weights =
      LoadAll<float>(dtype, at(a.weights), gates * h * h);
  const auto bias_of = [&](CUdeviceptr bias) {
    return bias == 0 ? std::vector<float>(gates * h)
                     : LoadAll<float>(dtype, at(bias), gates * h);
  };
  const std::vector<float> input_bias = bias_of(a.input_bias),
                           recurrent_bias = bias_of(a.recurrent_bias);
  std::vector<float> c;
  if (is_lstm) {
    c = LoadAll<float>(dtype, at(a.first == 0 ? a.first_c : a.last_c),
                       row_items);
  }
  std::vector<float> before(row_items);
  for (int64_t s = 0; s < a.steps; ++s) {
    const int64_t step = a.first + s;
    if (step > 0) check_row(step - 1, true);
    for (int64_t b = 0; b < batch; ++b) {
      const unsigned char* const row =
          step == 0 ? at(a.first_h) + b * h * item : outputs_at(step - 1, b);
      for (int64_t i = 0; i < h; ++i) before[b * h + i] = Load(dtype, row, i);
    }
    const int64_t time = a.is_reversed ? a.steps - 1 - s : s;
    for (int64_t cell = 0; cell < batch * blocks * units; ++cell) {
      const int64_t b = cell / (blocks * units), unit = cell % (blocks * units);
      if (unit >= h) continue;
      float inputs[4], of_gate[4], gate_at[4];
      for (int64_t gate = 0; gate < gates; ++gate) {
        const int64_t row = gate * h + unit;
        inputs[gate] = Load(RnnDataType::kFloat32, at(a.projected),
                            (time * batch + b) * gates * h + row) +
                       input_bias[row];
        float sum = recurrent_bias[row];
        for (int64_t i = 0; i < h; ++i) {
          sum += weights[row * h + i] * before[b * h + i];
        }
        of_gate[gate] = sum;
        gate_at[gate] = inputs[gate] + sum;
      }
      float value = 0;
      switch (shape.rnn_mode) {
        case RnnMode::kLstm: {
          float* const state = &c[b * h + unit];
          *state = Sigmoid(gate_at[1]) * *state +
                   Sigmoid(gate_at[0]) * std::tanh(gate_at[2]);
          value = Sigmoid(gate_at[3]) * std::tanh(*state);
          break;
        }
        case RnnMode::kGru: {
          const float update = Sigmoid(gate_at[1]);
          const float candidate =
              std::tanh(inputs[2] + Sigmoid(gate_at[0]) * of_gate[2]);
          value = (1 - update) * candidate + update * before[b * h + unit];
          break;
        }
        case RnnMode::kRnnTanh:
          value = std::tanh(gate_at[0]);
          break;
        case RnnMode::kRnnRelu:
          value = std::max(gate_at[0], 0.0f);
          break;
      }
      Store(dtype, outputs_at(step, b), unit, value);
      if (s < a.steps - 1) continue;
      Store(dtype, at(a.last_h), b * h + unit, value);
      if (is_lstm) Store(dtype, at(a.last_c), b * h + unit, c[b * h + unit]);
    }
  }
}

CUresult Launch(CUfunction function, unsigned blocks, unsigned blocks_y,
                unsigned blocks_z, unsigned threads, unsigned threads_y,
                unsigned threads_z, unsigned shared_bytes, CUstream launched,
                void** arguments) {
  if (Fails("cuLaunchCooperativeKernel")) return CUDA_ERROR_UNKNOWN;
  ++num_launches;
  const Kernel& kernel = *reinterpret_cast<Kernel*>(function);
  Check(blocks_y * blocks_z * threads_y * threads_z == 1, "dimensions");
  Check(launched == stream, "another stream");
  CheckDivision(kernel, blocks, threads, shared_bytes);
  if (memory != nullptr) RunKernel(kernel, blocks, Arguments(arguments));
  return CUDA_SUCCESS;
}

// Of matrices by columns.
cublasStatus_t Multiply(cublasHandle_t handle, cublasOperation_t trans_a,
                        cublasOperation_t trans_b, int64_t m, int64_t n,
                        int64_t k, const void* alpha, const void* a,
                        cudaDataType_t type_a, int64_t lda, const void* b,
                        cudaDataType_t type_b, int64_t ldb, const void* beta,
                        void* c, cudaDataType_t type_c, int64_t ldc,
                        cublasComputeType_t compute_type,
                        cublasGemmAlgo_t algorithm) {
  if (Fails("cublasGemmEx_64")) return failure_of_cublas;
  const RnnDataType dtype = shape.dtype;
  const bool is_float = dtype == RnnDataType::kFloat32;
  const cudaDataType_t type = is_float                         ? CUDA_R_32F
                              : dtype == RnnDataType::kFloat16 ? CUDA_R_16F
                                                               : CUDA_R_16BF;
  Check(type_a == type && type_b == type && type_c == CUDA_R_32F,
        "types of a product");
  Check(compute_type == (is_float && allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F),
        "how a product is computed");
  Check(algorithm == CUBLAS_GEMM_DEFAULT, "algorithm of a product");
  Check(handle == blas && stream_of_blas == stream,
        "a product in another stream");
  Check(blas_workspace != nullptr, "a product without a workspace");
  Check(m > 0 && n > 0 && k > 0, "a product of nothing");
  std::memset(blas_workspace, 0xEE, blas_workspace_bytes);

  const int64_t columns_of_a = trans_a == CUBLAS_OP_T ? m : k,
                columns_of_b = trans_b == CUBLAS_OP_T ? k : n;
  Check(lda >= m + k - columns_of_a && ldb >= n + k - columns_of_b && ldc >= m,
        "columns that overlap");
  const int64_t size_of_a = lda * (columns_of_a - 1) + m + k - columns_of_a,
                size_of_b = ldb * (columns_of_b - 1) + n + k - columns_of_b;
  const int64_t item = SizeOf(dtype);
  CheckWithin({kParams}, reinterpret_cast<CUdeviceptr>(a), size_of_a * item,
              "a product's weights");
  CheckWithin({kInput, kOutput, kWorkspace}, reinterpret_cast<CUdeviceptr>(b),
              size_of_b * item, "a product's inputs");
  CheckWithin({kWorkspace}, reinterpret_cast<CUdeviceptr>(c),
              (ldc * (n - 1) + m) * sizeof(float), "a product's results");
  const std::vector<float> of_a = LoadAll<float>(dtype, a, size_of_a),
                           of_b = LoadAll<float>(dtype, b, size_of_b);
  const float by = *static_cast<const float*>(alpha),
              old = *static_cast<const float*>(beta);
  float* const results = static_cast<float*>(c);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t x = 0; x < k; ++x) {
        sum += of_a[trans_a == CUBLAS_OP_T ? i * lda + x : x * lda + i] *
               of_b[trans_b == CUBLAS_OP_T ? x * ldb + j : j * ldb + x];
      }
      float* const result = results + j * ldc + i;
      *result = by * sum + (old == 0 ? 0 : old * *result);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
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
    static std::set<std::string> codes;
    const auto at = codes.insert(static_cast<const char*>(code)).first;
    *library = reinterpret_cast<CUlibrary>(const_cast<std::string*>(&*at));
    return CudaResult("cuLibraryLoadData");
  };
  cuda.cuLibraryGetKernel = [](CUkernel* kernel, CUlibrary library,
                               const char* name) {
    Check(name == std::string("resident"), "name of the kernel");
    if (Fails("cuLibraryGetKernel")) return CUDA_ERROR_UNKNOWN;
    const std::string& code = *reinterpret_cast<std::string*>(library);
    *kernel = reinterpret_cast<CUkernel>(
        &kernels.emplace(code, KernelOf(code)).first->second);
    return CUDA_SUCCESS;
  };
  cuda.cuKernelSetAttribute = [](CUfunction_attribute attribute, int value,
                                 CUkernel kernel, CUdevice id) {
    Check(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
          "an attribute of the kernel");
    Check(id == kDevice, "another device");
    Check(kernel != nullptr, "a kernel that was not found");
    reinterpret_cast<Kernel*>(kernel)->shared_bytes = value;
    return CudaResult("cuKernelSetAttribute");
  };
  cuda.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte, size_t bytes,
                            CUstream filled) {
    if (Fails("cuMemsetD8Async")) return CUDA_ERROR_UNKNOWN;
    Check(filled == stream, "another stream");
    CheckWithin({kOutput, kWorkspace}, to, bytes, "a fill");
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return CUDA_SUCCESS;
  };
  cuda.cuLaunchCooperativeKernel = Launch;

  NvrtcLibrary& nvrtc = libraries.nvrtc;
  nvrtc.nvrtcCreateProgram = [](nvrtcProgram* program, const char* source,
                                const char*, int num_headers,
                                const char* const*, const char* const*) {
    Check(source == kResidentSource && num_headers == 0, "another text");
    ++made_programs;
    if (Fails("nvrtcCreateProgram")) return NVRTC_ERROR_OUT_OF_MEMORY;
    ++num_programs;
    *program = reinterpret_cast<nvrtcProgram>(new Program);
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcDestroyProgram = [](nvrtcProgram* program) {
    delete reinterpret_cast<Program*>(*program);
    *program = nullptr;
    --num_programs;
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcCompileProgram = CompileProgram;
  nvrtc.nvrtcGetCUBINSize = [](nvrtcProgram program, size_t* size) {
    *size = reinterpret_cast<Program*>(program)->code.size() + 1;
    return NvrtcResult("nvrtcGetCUBINSize");
  };
  nvrtc.nvrtcGetCUBIN = [](nvrtcProgram program, char* to) {
    const std::string& code = reinterpret_cast<Program*>(program)->code;
    std::memcpy(to, code.c_str(), code.size() + 1);
    return NvrtcResult("nvrtcGetCUBIN");
  };
  nvrtc.nvrtcGetErrorString = [](nvrtcResult) { return "an error of NVRTC's"; };
  nvrtc.nvrtcGetProgramLogSize = [](nvrtcProgram, size_t* size) {
    *size = sizeof(kLog);
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcGetProgramLog = [](nvrtcProgram, char* to) {
    std::memcpy(to, kLog, sizeof(kLog));
    return NVRTC_SUCCESS;
  };

  CublasLibrary& cublas = libraries.cublas;
  cublas.cublasGemmEx_64 = Multiply;
  cublas.cublasGetStatusString = [](cublasStatus_t) {
    return "an error of cuBLAS's";
  };
  // Which takes the workspace away.
  cublas.cublasSetStream_v2 = [](cublasHandle_t handle, cudaStream_t taken) {
    Check(handle == blas, "another handle");
    stream_of_blas = reinterpret_cast<CUstream>(taken);
    blas_workspace = nullptr;
    return CublasResult("cublasSetStream_v2");
  };
  cublas.cublasSetWorkspace_v2 = [](cublasHandle_t handle, void* workspace,
                                    size_t bytes) {
    Check(handle == blas, "another handle");
    const auto address = reinterpret_cast<CUdeviceptr>(workspace);
    Check(address % 256 == 0, "alignment of cuBLAS's workspace");
    CheckWithin({kWorkspace}, address, bytes, "cuBLAS's workspace");
    blas_workspace = static_cast<unsigned char*>(workspace);
    blas_workspace_bytes = bytes;
    return CublasResult("cublasSetWorkspace_v2");
  };
  return libraries;
}

namespace {

std::string seed_checked;

// What of the seed.
void Checking(const std::string& what) {
  being_checked = seed_checked + ": " + what;
}

std::string Describe(const ResidentShape& described) {
  return std::string(RnnModeName(described.rnn_mode)) + " of " +
         std::to_string(described.num_units) + " units, batch " +
         std::to_string(described.batch_size) + ", type " +
         std::to_string(static_cast<int>(described.dtype)) + ", on " +
         std::to_string(device.blocks) + " multiprocessors with " +
         std::to_string(device.shared_bytes) + " bytes each";
}

void DrawDevice(Random* random, int least_blocks) {
  device.major = static_cast<int>(random->Draw(8, 9));
  device.minor = static_cast<int>(random->Draw(0, 1)) * 6;
  device.blocks = static_cast<int>(random->Draw(least_blocks, 150));
  device.shared_bytes = static_cast<int>(random->Draw(99, 227)) << 10;
  device.l2_bytes = static_cast<int>(random->Draw(4, 60)) << 20;
}

int64_t UnitsOfSlice(RnnDataType dtype) { return 64 / SizeOf(dtype); }
int64_t MaxBatch(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat32 ? 4 : 8;
}
RnnDataType DrawType(Random* random) {
  return std::array<RnnDataType, 3>{RnnDataType::kFloat32,
                                    RnnDataType::kFloat16,
                                    RnnDataType::kBfloat16}[random->Draw(0, 2)];
}

bool Names(const RnnStatus& status, const std::string& what) {
  return status.message.find(what) != std::string::npos;
}

// A shape of any size, whose kernel is not run.
void CheckShape() {
  memory = nullptr;
  Checking(Describe(shape));
  ResidentKernel kernel;
  const RnnStatus status = ResidentKernel::Get(shape, &kernel);
  if (status.ok()) {
    Check(kernel.Enqueue(stream, {}).ok(), "a launch");
    return;
  }
  Check(status.code == RnnStatus::Code::kUnimplemented, "code of a refusal");
  const int64_t units = DivideUp(shape.num_units, device.blocks) + 1;
  const int64_t groups = DivideUp(NumGates(shape.rnn_mode) * units, 8);
  const int64_t slices = shape.num_units / UnitsOfSlice(shape.dtype);
  if (Names(status, "too many units")) {
    Check(DivideUp(slices, 8) * groups > kMaxChunks ||
              units * shape.batch_size > kMaxCells,
          "units that are not too many");
  } else {
    Check(Names(status, "too little shared memory"), status.message);
    Check(2 * groups * kBytesOfChunks + kMaxOtherBytes > device.shared_bytes,
          "shared memory that would be enough");
  }
}

void CheckShapes(Random* random) {
  for (int i = 0; i < 40; ++i) {
    DrawDevice(random, 1);
    const RnnDataType dtype = DrawType(random);
    const int64_t slices =
        i % 2 == 0 ? random->Draw(1, 20) : random->Draw(20, 200);
    shape = {static_cast<RnnMode>(random->Draw(0, 3)), dtype,
             slices * UnitsOfSlice(dtype), random->Draw(1, MaxBatch(dtype))};
    CheckShape();
  }
  // More than chips have room for, and then more than L2 caches have.
  const RnnDataType dtype = DrawType(random);
  const int64_t num_units = dtype == RnnDataType::kFloat32 ? 1536 : 2048;
  for (const bool is_ahead : {false, true}) {
    device = {8, 0, is_ahead ? 72 : 100, 99 << 10, (is_ahead ? 4 : 60) << 20};
    shape = {RnnMode::kGru, dtype, num_units + 32 * random->Draw(0, 4), 1};
    last_streamed = last_ahead = 0;
    CheckShape();
    Check(last_streamed > 0 && (last_ahead > 0) == is_ahead,
          "weights are streamed in another way");
  }
}

// What a network is given, and what comes of it, in time-major order.
struct Numbers {
  std::vector<double> params, input, input_h, input_c;
  std::vector<double> output, output_h, output_c;
};

// By cuDNN's equations, one parameter block at a time.
void RunReference(const RnnProblem& problem, Numbers* numbers) {
  const RnnSpec& spec = problem.spec;
  const ParamLayout layout(spec);
  const int64_t h = spec.num_units, gates = NumGates(spec.rnn_mode);
  const auto find = [&](const std::vector<ParamBlock>& blocks, int64_t layer,
                        int64_t dir, int64_t id) {
    for (const ParamBlock& block : blocks) {
      if (block.layer == layer && block.dir == dir &&
          block.linear_layer_id == id) {
        return static_cast<const double*>(&numbers->params[block.offset]);
      }
    }
    return static_cast<const double*>(nullptr);
  };
  // Outputs are numbers of the network's type.
  const auto rounded = [&](double value) -> double {
    if (problem.dtype == RnnDataType::kFloat32) return value;
    const int mantissa = MantissaBits(problem.dtype);
    return FromBits(ToBits(static_cast<float>(value), mantissa), mantissa);
  };
  numbers->output_h.resize(numbers->input_h.size());
  numbers->output_c.resize(numbers->input_c.size());
  std::vector<double> inputs = numbers->input;
  int64_t input_size = spec.input_size;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const int64_t output_size = spec.num_dirs() * h;
    std::vector<double> outputs(problem.max_time * problem.batch_size *
                                output_size);
    for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
      std::array<const double*, 8> matrix, bias;
      for (int64_t id = 0; id < 2 * gates; ++id) {
        matrix[id] = find(layout.weights(), layer, dir, id);
        bias[id] = find(layout.biases(), layer, dir, id);
      }
      for (int64_t b = 0; b < problem.batch_size; ++b) {
        const int64_t state =
            ((layer * spec.num_dirs() + dir) * problem.batch_size + b) * h;
        std::vector<double> hidden(&numbers->input_h[state],
                                   &numbers->input_h[state] + h);
        std::vector<double> cell(h);
        if (spec.is_lstm()) {
          std::copy_n(&numbers->input_c[state], h, cell.begin());
        }
        for (int64_t step = 0; step < problem.max_time; ++step) {
          const int64_t row = (dir == 0 ? step : problem.max_time - 1 - step) *
                                  problem.batch_size +
                              b;
          const std::vector<double> before = hidden;
          for (int64_t unit = 0; unit < h; ++unit) {
            double side[2][4] = {};
            for (int64_t id = 0; id < 2 * gates; ++id) {
              const bool is_input = id < gates;
              const double* const x =
                  is_input ? &inputs[row * input_size] : before.data();
              const int64_t size = is_input ? input_size : h;
              double sum = bias[id] == nullptr ? 0 : bias[id][unit];
              for (int64_t i = 0; i < size; ++i) {
                sum += matrix[id][unit * size + i] * x[i];
              }
              side[is_input ? 0 : 1][id % gates] = sum;
            }
            const auto sum = [&](int gate) {
              return side[0][gate] + side[1][gate];
            };
            double value = 0;
            if (spec.rnn_mode == RnnMode::kLstm) {
              cell[unit] = Sigmoid(sum(1)) * cell[unit] +
                           Sigmoid(sum(0)) * std::tanh(sum(2));
              value = Sigmoid(sum(3)) * std::tanh(cell[unit]);
            } else if (spec.rnn_mode == RnnMode::kGru) {
              const double update = Sigmoid(sum(1));
              value = (1 - update) *
                          std::tanh(side[0][2] + Sigmoid(sum(0)) * side[1][2]) +
                      update * before[unit];
            } else if (spec.rnn_mode == RnnMode::kRnnTanh) {
              value = std::tanh(sum(0));
            } else {
              value = std::max(sum(0), 0.0);
            }
            hidden[unit] = rounded(value);
            outputs[row * output_size + dir * h + unit] = hidden[unit];
          }
        }
        std::copy_n(hidden.begin(), h, &numbers->output_h[state]);
        if (spec.is_lstm()) {
          std::copy_n(cell.begin(), h, &numbers->output_c[state]);
        }
      }
    }
    inputs = std::move(outputs);
    input_size = output_size;
  }
  numbers->output = std::move(inputs);
}

std::array<size_t, kNumPlaces> SizesOf(const RnnProblem& problem,
                                       const ResidentNetwork& network) {
  const RnnSpec& spec = problem.spec;
  const size_t item = SizeOf(problem.dtype);
  const size_t steps = problem.max_time * problem.batch_size * item;
  const size_t states =
      spec.num_pseudo_layers() * problem.batch_size * spec.num_units * item;
  const size_t of_c = spec.is_lstm() ? states : 0;
  return {ParamLayout(spec).size() * item,
          steps * spec.input_size,
          states,
          of_c,
          steps * spec.layer_output_size(),
          states,
          of_c,
          network.workspace_size()};
}

void Fill(const RnnProblem& problem, const Memory& filled, Random* random,
          Numbers* numbers) {
  const RnnSpec& spec = problem.spec;
  const int64_t states =
      spec.num_pseudo_layers() * problem.batch_size * spec.num_units;
  const auto fill = [&](Place place, int64_t size, float most,
                        std::vector<double>* to) {
    for (int64_t i = 0; i < size; ++i) {
      Store(problem.dtype, filled.at(place), i, random->Number(most));
    }
    *to = LoadAll<double>(problem.dtype, filled.at(place), size);
  };
  // So small that no unit's outputs grow from step to step.
  fill(kParams, ParamLayout(spec).size(),
       1 / std::sqrt(static_cast<float>(spec.num_units)), &numbers->params);
  fill(kInput, problem.max_time * problem.batch_size * spec.input_size, 1,
       &numbers->input);
  fill(kInputH, states, 1, &numbers->input_h);
  fill(kInputC, spec.is_lstm() ? states : 0, 1, &numbers->input_c);
}

void Compare(const RnnProblem& problem, const Memory& written, Place place,
             const std::vector<double>& expected, const char* what) {
  double most = 0, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error =
        std::abs(Load(problem.dtype, written.at(place), i) - expected[i]);
    most = std::max(most, std::abs(expected[i]));
    // Also if it is NaN.
    if (!(error <= worst)) worst = error;
    if (std::isnan(error)) break;
  }
  const double tolerance = problem.dtype == RnnDataType::kFloat32   ? 1e-5
                           : problem.dtype == RnnDataType::kFloat16 ? 3e-3
                                                                    : 2e-2;
  Check(worst <= tolerance * most, std::string(what) + " off by " +
                                       std::to_string(worst) + " of " +
                                       std::to_string(most));
}

RnnProblem DrawProblem(Random* random) {
  RnnProblem problem;
  problem.is_training = false;
  problem.dtype = DrawType(random);
  problem.batch_size = random->Draw(1, MaxBatch(problem.dtype));
  RnnSpec& spec = problem.spec;
  spec.rnn_mode = static_cast<RnnMode>(random->Draw(0, 3));
  spec.bias_mode = static_cast<BiasMode>(random->Draw(0, 3));
  spec.direction = static_cast<Direction>(random->Draw(0, 1));
  spec.num_units = UnitsOfSlice(problem.dtype) * random->Draw(1, 3);
  spec.num_layers = random->Draw(1, 4);
  spec.input_size = random->Draw(1, 40);
  problem.max_time = random->Draw(1, 7);
  return problem;
}

// One whose steps run in two parts, with all there is to hand over, as cheap as
// can be: many steps of few units.
RnnProblem DrawInParts(Random* random, Direction direction) {
  RnnProblem problem = DrawProblem(random);
  RnnSpec& spec = problem.spec;
  spec.rnn_mode = RnnMode::kLstm;
  spec.direction = direction;
  spec.num_units = UnitsOfSlice(RnnDataType::kFloat32);
  problem.dtype = RnnDataType::kFloat32;
  problem.batch_size = MaxBatch(problem.dtype);
  spec.num_layers = 1;
  spec.input_size = random->Draw(1, 3);
  const int64_t steps = kBytesOfPart / (problem.batch_size * spec.num_gates() *
                                        spec.num_units * 4);
  problem.max_time = steps + random->Draw(1, steps / 20);
  return problem;
}

// Whichever call fails, that is told, nothing is left of it, and the next
// attempt is made from the start.
std::unique_ptr<ResidentNetwork> CreateAfterFailures(
    const RnnProblem& problem) {
  std::unique_ptr<ResidentNetwork> network;
  const long compilations_before = num_compilations;
  has_resident_libraries = false;
  Check(ResidentNetwork::Create(problem, allow_tf32, &network).code ==
            RnnStatus::Code::kFailedPrecondition,
        "libraries that are not there");
  has_resident_libraries = true;
  Check(num_compilations == compilations_before, "a useless compilation");
  for (int call = 0;; ++call) {
    Check(network == nullptr && num_programs == 0, "a failure left something");
    failed_call.clear();
    num_calls = 0;
    failing_call = call;
    const long compilations = num_compilations;
    const RnnStatus status =
        ResidentNetwork::Create(problem, allow_tf32, &network);
    failing_call = -1;
    if (failed_call.empty()) {
      Check(status.ok(), status.message);
      break;
    }
    Check(!status.ok(), failed_call + " failed, which is not told");
    Check(num_calls == call + 1, "calls after one that failed");
    const bool of_nvrtc = failed_call.rfind("nvrtc", 0) == 0;
    Check(status.code == (of_nvrtc ? RnnStatus::Code::kUnimplemented
                                   : RnnStatus::Code::kInternal),
          "code of a failure of " + failed_call);
    if (failed_call == "nvrtcCompileProgram") {
      Check(num_compilations == compilations + 1, "number of compilations");
      Check(Names(status, kLog), "a log that is not told");
      Check(Names(status, "an error of NVRTC's"), "an error without its text");
    }
  }
  Check(num_programs == 0, "a program is left");
  // Each call on the way to a kernel failed once, from compiling to finding it,
  // unless there was one already.
  const long compilations = num_compilations - compilations_before;
  Check(compilations == 0 || compilations == 6, "number of compilations");
  return network;
}

void CheckNetwork(Random* random, const RnnProblem& problem, bool in_parts) {
  const RnnSpec& spec = problem.spec;
  // So many that all problems' cells have their lanes.
  DrawDevice(random, 8);
  shape = {spec.rnn_mode, problem.dtype, spec.num_units, problem.batch_size};
  Checking("a network, " + std::to_string(spec.num_layers) + " layers in " +
           std::to_string(spec.num_dirs()) + " directions of " +
           std::to_string(problem.max_time) + " steps, bias mode " +
           std::to_string(static_cast<int>(spec.bias_mode)) + ", " +
           Describe(shape));
  stream = reinterpret_cast<CUstream>(random->Draw(1, 100));
  blas = reinterpret_cast<cublasHandle_t>(random->Draw(1, 100));
  allow_tf32 = random->Draw(0, 1) == 1;

  const auto network = CreateAfterFailures(problem);
  std::unique_ptr<ResidentNetwork> again;
  const long compilations = num_compilations;
  Check(ResidentNetwork::Create(problem, allow_tf32, &again).ok(),
        "a second network");
  Check(num_compilations == compilations, "a kernel is compiled again");

  const size_t item = SizeOf(problem.dtype);
  const std::array<size_t, kNumPlaces> sizes = SizesOf(problem, *network);
  // Where it does not matter, buffers begin anywhere.
  std::array<size_t, kNumPlaces> offsets = {};
  for (const Place place : {kInput, kInputC, kOutputH, kOutputC}) {
    offsets[place] = item * random->Draw(0, 16);
  }
  const size_t between = spec.num_layers > 1 ? sizes[kOutput] : 0;
  const int64_t products = problem.max_time * problem.batch_size *
                           spec.num_gates() * spec.num_units * 4;
  Check(sizes[kWorkspace] <=
            between + std::min(products, kBytesOfPart) + kMaxOtherWorkspace,
        "size of the workspace");
  const Memory of_network(sizes, offsets);
  memory = &of_network;
  Numbers numbers;
  Fill(problem, of_network, random, &numbers);
  stream_of_blas = nullptr;
  num_launches = num_calls = 0;
  const RnnStatus status =
      network->Enqueue(blas, stream, of_network.OfNetwork());
  Check(status.ok(), status.message);
  const long calls = num_calls;
  Check(num_launches == spec.num_pseudo_layers() * (in_parts ? 2 : 1),
        "number of parts");
  of_network.CheckGuards();
  for (const auto& [place, given] :
       {std::pair(kParams, &numbers.params), std::pair(kInput, &numbers.input),
        std::pair(kInputH, &numbers.input_h),
        std::pair(kInputC, &numbers.input_c)}) {
    Check(LoadAll<double>(problem.dtype, of_network.at(place), given->size()) ==
              *given,
          "what is given is overwritten");
  }
  RunReference(problem, &numbers);
  Compare(problem, of_network, kOutput, numbers.output, "outputs");
  Compare(problem, of_network, kOutputH, numbers.output_h, "last h");
  Compare(problem, of_network, kOutputC, numbers.output_c, "last c");
  if (in_parts) return;

  failing_call = random->Draw(0, calls - 1);
  failure_of_cublas = random->Draw(0, 1) == 0 ? CUBLAS_STATUS_ALLOC_FAILED
                                              : static_cast<cublasStatus_t>(13);
  num_calls = 0;
  const RnnStatus failure =
      network->Enqueue(blas, stream, of_network.OfNetwork());
  Check(num_calls == failing_call + 1, "calls after one that failed");
  failing_call = -1;
  const bool lacks_memory = failed_call.rfind("cublas", 0) == 0 &&
                            failure_of_cublas == CUBLAS_STATUS_ALLOC_FAILED;
  Check(failure.code == (lacks_memory ? RnnStatus::Code::kResourceExhausted
                                      : RnnStatus::Code::kInternal),
        "code of a failure of " + failed_call);

  const Place moved =
      std::array<Place, 3>{kParams, kInputH, kOutput}[random->Draw(0, 2)];
  offsets[moved] = item * random->Draw(1, 16 / item - 1);
  const Memory misaligned(sizes, offsets);
  memory = &misaligned;
  Fill(problem, misaligned, random, &numbers);
  const RnnStatus refusal =
      network->Enqueue(blas, stream, misaligned.OfNetwork());
  Check(refusal.code == RnnStatus::Code::kUnimplemented &&
            Names(refusal, "multiples of 16 bytes"),
        "alignment that is not refused");
  misaligned.CheckGuards();
}

void CheckRefusals(Random* random) {
  const RnnProblem runs = DrawProblem(random);
  DrawDevice(random, 8);
  const auto device_before = device;
  const int64_t max_batch = MaxBatch(runs.dtype),
                units_of_slice = UnitsOfSlice(runs.dtype);
  const std::pair<const char*, std::function<void(RnnProblem*)>> changes[] = {
      {"training", [](RnnProblem* problem) { problem->is_training = true; }},
      {"sequence lengths",
       [](RnnProblem* problem) { problem->has_sequence_lengths = true; }},
      {"projections",
       [](RnnProblem* problem) {
         problem->spec.rnn_mode = RnnMode::kLstm;
         problem->spec.num_proj = problem->spec.num_units / 2;
       }},
      {"skip_input",
       [](RnnProblem* problem) {
         problem->spec.input_mode = InputMode::kSkip;
         problem->spec.input_size = problem->spec.num_units;
       }},
      {"cell clipping",
       [](RnnProblem* problem) {
         problem->spec.rnn_mode = RnnMode::kLstm;
         problem->spec.cell_clip = 1.0f;
       }},
      {"float64",
       [](RnnProblem* problem) { problem->dtype = RnnDataType::kFloat64; }},
      {"batch size",
       [&](RnnProblem* problem) {
         problem->batch_size = max_batch + random->Draw(1, 3);
       }},
      {"number of units",
       [&](RnnProblem* problem) {
         problem->spec.num_units += random->Draw(1, units_of_slice - 1);
       }},
      {"too many units",
       [](RnnProblem* problem) { problem->spec.num_units = 1 << 15; }},
      {"older than Ampere", [](RnnProblem*) { device.major = 7; }}};
  for (const auto& [word, change] : changes) {
    RnnProblem problem = runs;
    change(&problem);
    Checking(std::string("a refusal for ") + word);
    const long programs = made_programs;
    std::unique_ptr<ResidentNetwork> network;
    const RnnStatus status =
        ResidentNetwork::Create(problem, allow_tf32, &network);
    Check(status.code == RnnStatus::Code::kUnimplemented && network == nullptr,
          "what cannot run is not refused");
    Check(Names(status, word), "a refusal without its reason");
    Check(made_programs == programs, "a useless compilation");
    device = device_before;
  }
}

void CheckSeed(unsigned seed) {
  Random random(seed);
  seed_checked = being_checked;
  has_resident_libraries = true;
  const size_t at = std::string(kResidentSource).find("resident(");
  Check(at != std::string::npos &&
            WithoutBreaks(kResidentSource + at)
                    .rfind(std::string("resident") + kParameters, 0) == 0,
        "the kernel's parameters");
  CheckShapes(&random);
  const bool in_parts = seed % 25 == 0;
  CheckNetwork(
      &random,
      in_parts ? DrawInParts(&random, static_cast<Direction>(1 - seed / 25 % 2))
               : DrawProblem(&random),
      in_parts);
  CheckRefusals(&random);
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckSeed);
}
