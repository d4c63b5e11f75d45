#include "kernels/gpu/product.h"

namespace cudnn_rnn_tf {
namespace {

cublasComputeType_t ComputeType(const ProductType& type) {
  return type.dtype == RnnDataType::kFloat64 ? CUBLAS_COMPUTE_64F
         : type.dtype == RnnDataType::kFloat32 && type.allow_tf32
             ? CUBLAS_COMPUTE_32F_FAST_TF32
             : CUBLAS_COMPUTE_32F;
}

cublasOperation_t Operation(const Factor& factor) {
  return factor.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

// cuBLAS, which is column-major, sees the transposes of all three. It divides
// the sums of a product that is not batched, if it has too few numbers for all
// multiprocessors.
RnnStatus Multiply(cublasHandle_t blas, const ProductType& type, int64_t m,
                   int64_t n, int64_t k, const Factor& a, const Factor& b,
                   const Product& c, int64_t count) {
  // cuBLAS takes these numbers in the type of the product's sums.
  const double doubles[] = {1.0, c.adds ? 1.0 : 0.0};
  const float floats[] = {1.0f, c.adds ? 1.0f : 0.0f};
  const bool is_double = type.dtype == RnnDataType::kFloat64;
  const auto scale = [&](int i) {
    return is_double ? static_cast<const void*>(&doubles[i]) : &floats[i];
  };
  const cudaDataType_t factors = TypeOf(type.dtype).cuda;
  const cudaDataType_t results = TypeOf(c.dtype).cuda;
  return CublasStatus(
      count == 1
          ? Gpu().cublas.cublasGemmEx_64(blas, Operation(b), Operation(a), n, m,
                                         k, scale(0), b.numbers, factors,
                                         b.pitch, a.numbers, factors, a.pitch,
                                         scale(1), c.numbers, results, c.pitch,
                                         ComputeType(type), CUBLAS_GEMM_DEFAULT)
          : Gpu().cublas.cublasGemmStridedBatchedEx_64(
                blas, Operation(b), Operation(a), n, m, k, scale(0), b.numbers,
                factors, b.pitch, b.stride, a.numbers, factors, a.pitch,
                a.stride, scale(1), c.numbers, results, c.pitch, c.stride,
                count, ComputeType(type), CUBLAS_GEMM_DEFAULT),
      "multiply");
}

RnnStatus SetUpBlas(const Handles& handles, void* memory, size_t bytes) {
  CRNN_RETURN_IF_ERROR(CublasStatus(
      Gpu().cublas.cublasSetStream_v2(handles.blas, handles.stream),
      "use a stream"));
  return CublasStatus(
      Gpu().cublas.cublasSetWorkspace_v2(handles.blas, memory, bytes),
      "take memory");
}

}  // namespace cudnn_rnn_tf
