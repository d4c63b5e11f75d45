// Plain loops in place of cuBLAS.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_BLAS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_BLAS_H_

#include <algorithm>
#include <cstring>

#include "kernels/gpu/product.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

inline RnnDataType data_type;
inline bool allows_tf32;
inline int num_halved;  // The products of floats that were in float16.
// cuBLAS may overwrite this whenever it multiplies.
inline void* blas_memory;
inline size_t blas_bytes;

inline double Load(const void* from, cudaDataType_t type, int64_t at) {
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

inline void Store(double sum, void* to, cudaDataType_t type, int64_t at) {
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

inline cublasStatus_t MultiplyBatch(
    cublasHandle_t, cublasOperation_t trans_a, cublasOperation_t trans_b,
    int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
    cudaDataType_t type_a, int64_t lda, long long stride_a, const void* b,
    cudaDataType_t type_b, int64_t ldb, long long stride_b, const void* beta,
    void* c, cudaDataType_t type_c, int64_t ldc, long long stride_c,
    int64_t count, cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  std::memset(blas_memory, 0xEE, std::min(blas_bytes, size_t{1} << 12));
  const bool is_tf32 =
      data_type == RnnDataType::kFloat32 && allows_tf32 && type_a != CUDA_R_16F;
  const bool is_double = data_type == RnnDataType::kFloat64;
  Check(compute_type == (is_double ? CUBLAS_COMPUTE_64F
                         : is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                   : CUBLAS_COMPUTE_32F),
        "TF32 or float16 where TF32 is allowed");
  const auto factor = [&](const void* from) {
    return is_double ? *static_cast<const double*>(from)
                     : *static_cast<const float*>(from);
  };
  const bool is_halved =
      data_type == RnnDataType::kFloat32 && allows_tf32 && type_a == CUDA_R_16F;
  num_halved += is_halved;
  Check((is_halved || type_a == TypeOf(data_type).cuda) && type_b == type_a,
        "types of factors");
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

inline void FakeBlas(CublasLibrary* cublas) {
  Succeed(&cublas->cublasSetStream_v2);
  cublas->cublasSetWorkspace_v2 = [](cublasHandle_t, void* memory,
                                     size_t bytes) {
    Check(bytes >= 16 << 10, "as much memory as cuBLAS's documentation wants");
    blas_memory = memory;
    blas_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas->cublasGemmStridedBatchedEx_64 = MultiplyBatch;
  cublas->cublasGemmEx_64 =
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
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_BLAS_H_
