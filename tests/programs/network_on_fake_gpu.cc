// A network that enqueues its steps one by one as a function that Python calls.
// The fake GPU's memory is the host's, its kernels are those of
// steps_on_fake_device.cc, and plain loops take the place of cuBLAS.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/product.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

// The function of the library in use.
bool (*run_kernel)(const char*, unsigned int, unsigned int, void**);
RnnDataType data_type;
bool allows_tf32;

double Load(const void* from, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_64F) return static_cast<const double*>(from)[at];
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[at];
  const uint16_t bits = static_cast<const uint16_t*>(from)[at];
  if (type == CUDA_R_16F) {
    _Float16 value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
  }
  const uint32_t word = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

void Store(double sum, void* to, cudaDataType_t type, int64_t at) {
  const auto value = static_cast<float>(sum);
  if (type == CUDA_R_64F) {
    static_cast<double*>(to)[at] = sum;
  } else if (type == CUDA_R_32F) {
    static_cast<float*>(to)[at] = value;
  } else if (type == CUDA_R_16F) {
    const auto rounded = static_cast<_Float16>(value);
    std::memcpy(static_cast<uint16_t*>(to) + at, &rounded, sizeof(rounded));
  } else {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>(
        value != value ? 0x7FFF : (word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
}

cublasStatus_t MultiplyBatch(
    cublasHandle_t, cublasOperation_t trans_a, cublasOperation_t trans_b,
    int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
    cudaDataType_t type_a, int64_t lda, long long stride_a, const void* b,
    cudaDataType_t type_b, int64_t ldb, long long stride_b, const void* beta,
    void* c, cudaDataType_t type_c, int64_t ldc, long long stride_c,
    int64_t count, cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  const bool is_tf32 = data_type == RnnDataType::kFloat32 && allows_tf32;
  const bool is_double = data_type == RnnDataType::kFloat64;
  Check(compute_type == (is_double ? CUBLAS_COMPUTE_64F
                         : is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                   : CUBLAS_COMPUTE_32F),
        "TF32 where it is allowed");
  const auto factor = [&](const void* from) {
    return is_double ? *static_cast<const double*>(from)
                     : *static_cast<const float*>(from);
  };
  Check(type_a == CudaType(data_type) && type_b == type_a, "types of factors");
  Check(lda >= (trans_a == CUBLAS_OP_N ? m : k) &&
            ldb >= (trans_b == CUBLAS_OP_N ? k : n) && ldc >= m,
        "leading dimensions");
  const double keeps = factor(beta);
  for (int64_t g = 0; g < count; ++g) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0.0;
        for (int64_t x = 0; x < k; ++x) {
          const int64_t of_a =
              trans_a == CUBLAS_OP_N ? i + x * lda : x + i * lda;
          const int64_t of_b =
              trans_b == CUBLAS_OP_N ? x + j * ldb : j + x * ldb;
          sum += Load(a, type_a, g * stride_a + of_a) *
                 Load(b, type_b, g * stride_b + of_b);
        }
        sum *= factor(alpha);
        const int64_t to = g * stride_c + i + j * ldc;
        if (keeps != 0.0) sum += keeps * Load(c, type_c, to);
        Store(sum, c, type_c, to);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Memory of exactly the size that was asked for, full of NaN.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kGuard, 0xFF) {
    const size_t past = reinterpret_cast<uintptr_t>(all_.data()) % kGuard;
    begin_ = all_.data() + (kGuard - past);
  }
  void* data() { return begin_; }
  void CheckEnd() const {
    const unsigned char* const begin = begin_;
    const unsigned char* const end = all_.data() + all_.size();
    Check(std::all_of(begin + bytes_, end,
                      [](unsigned char byte) { return byte == 0xFF; }),
          "nothing is written past the end");
  }

 private:
  static constexpr size_t kGuard = Arena::kAlign;

  size_t bytes_;
  std::vector<unsigned char> all_;
  unsigned char* begin_;
};

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries;
  CudaDriver& cuda = libraries.cuda;
  cuda.cuCtxGetDevice = [](CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
  };
  cuda.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute,
                                 CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
  };
  cuda.cuLaunchKernel = [](CUfunction kernel, unsigned int blocks, unsigned,
                           unsigned, unsigned int threads, unsigned, unsigned,
                           unsigned, CUstream, void** parameters, void**) {
    const char* const name = reinterpret_cast<const char*>(kernel);
    Check(run_kernel(name, blocks, threads, parameters), name);
    return CUDA_SUCCESS;
  };
  CublasLibrary& cublas = libraries.cublas;
  cublas.cublasSetStream_v2 = [](cublasHandle_t, cudaStream_t) {
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas.cublasSetWorkspace_v2 = [](cublasHandle_t, void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas.cublasGemmStridedBatchedEx_64 = MultiplyBatch;
  cublas.cublasGemmEx_64 =
      [](cublasHandle_t handle, cublasOperation_t trans_a,
         cublasOperation_t trans_b, int64_t m, int64_t n, int64_t k,
         const void* alpha, const void* a, cudaDataType_t type_a, int64_t lda,
         const void* b, cudaDataType_t type_b, int64_t ldb, const void* beta,
         void* c, cudaDataType_t type_c, int64_t ldc,
         cublasComputeType_t compute_type, cublasGemmAlgo_t algorithm) {
        return MultiplyBatch(handle, trans_a, trans_b, m, n, k, alpha, a,
                             type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                             ldc, 0, 1, compute_type, algorithm);
      };
  return libraries;
}

// This takes the place of compiler.cc. A kernel is represented by its name.
RnnStatus CompileKernel(const std::string&, const std::string& entry,
                        const std::vector<std::string>&, CUkernel* kernel) {
  static std::set<std::string> names;
  *kernel = reinterpret_cast<CUkernel>(
      const_cast<char*>(names.insert(entry).first->c_str()));
  return {};
}

}  // namespace cudnn_rnn_tf

// Runs a forward and, in training, a backward pass. `numbers` and `rates` are,
// in this order, the fields of RnnSpec and RnnProblem that the function reads.
// The lengths are int32 in the host's memory or, with the last number, int64 in
// the device's. `name` is that of a library with kernels. Returns an empty
// string or an error.
extern "C" const char* run_network(const char* name, const int64_t* numbers,
                                   const float* rates, const void* lengths,
                                   const uint64_t* seed, void** tensors) {
  using namespace cudnn_rnn_tf;
  has_resident_libraries = true;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  Check(library != nullptr, name);
  run_kernel =
      reinterpret_cast<decltype(run_kernel)>(dlsym(library, "run_kernel"));
  RnnProblem problem;
  RnnSpec& spec = problem.spec;
  spec.rnn_mode = static_cast<RnnMode>(*numbers++);
  spec.num_layers = *numbers++;
  spec.num_units = *numbers++;
  spec.input_size = *numbers++;
  spec.num_proj = *numbers++;
  spec.input_mode = static_cast<InputMode>(*numbers++);
  spec.direction = static_cast<Direction>(*numbers++);
  spec.bias_mode = static_cast<BiasMode>(*numbers++);
  problem.dtype = data_type = static_cast<RnnDataType>(*numbers++);
  problem.max_time = *numbers++;
  problem.batch_size = *numbers++;
  problem.time_major = *numbers++ != 0;
  problem.is_training = *numbers++ != 0;
  allows_tf32 = *numbers++ != 0;
  const bool is_on_device = *numbers++ != 0;
  problem.has_sequence_lengths = lengths != nullptr;
  spec.dropout = *rates++;
  spec.recurrent_dropout = *rates++;
  spec.cell_clip = *rates++;

  static std::string message;
  persistent::Network network;
  const RnnStatus status =
      persistent::Network::CreateOfSteps(problem, allows_tf32, &network);
  message = status.message;
  if (!status.ok()) return message.c_str();
  const auto check = [](const RnnStatus& done) {
    Check(done.ok(), done.message);
  };
  Memory reserve(network.reserve_size());
  Memory forward(network.forward_workspace_size());
  RnnForwardBuffers buffers;
  buffers.input = tensors[0];
  buffers.input_h = tensors[1];
  buffers.input_c = tensors[2];
  buffers.params = tensors[3];
  buffers.output = tensors[4];
  buffers.output_h = tensors[5];
  buffers.output_c = tensors[6];
  if (is_on_device) {
    buffers.sequence_lengths.on_device = static_cast<const int64_t*>(lengths);
  } else {
    buffers.sequence_lengths.on_host = static_cast<const int32_t*>(lengths);
  }
  std::copy_n(seed, 2, buffers.seed);
  buffers.reserve_space = reserve.data();
  buffers.workspace = forward.data();
  check(network.StoreLengthsAndSeed({}, buffers));
  check(network.Forward({}, buffers));
  forward.CheckEnd();
  reserve.CheckEnd();
  if (!problem.is_training) return message.c_str();

  Memory backward(network.backward_workspace_size());
  RnnBackwardBuffers gradients;
  gradients.input = buffers.input;
  gradients.input_h = buffers.input_h;
  gradients.input_c = buffers.input_c;
  gradients.params = buffers.params;
  gradients.output = buffers.output;
  gradients.output_backprop = tensors[7];
  gradients.output_h_backprop = tensors[8];
  gradients.output_c_backprop = tensors[9];
  gradients.input_backprop = tensors[10];
  gradients.input_h_backprop = tensors[11];
  gradients.input_c_backprop = tensors[12];
  gradients.params_backprop = tensors[13];
  gradients.reserve_space = reserve.data();
  gradients.workspace = backward.data();
  check(network.Backward({}, gradients));
  backward.CheckEnd();
  reserve.CheckEnd();
  return message.c_str();
}
