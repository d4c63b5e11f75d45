// Matrix products by cuBLAS.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PRODUCT_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PRODUCT_H_

#include <cstdint>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Returns the type of the sums of a type's products.
inline RnnDataType SumType(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat64 ? dtype : RnnDataType::kFloat32;
}

// How numbers are multiplied.
struct ProductType {
  RnnDataType dtype;
  bool allow_tf32;  // Of no meaning but to float32.
};

// A matrix in device memory, by rows, which begin `pitch` numbers apart. One
// that is transposed is stored the other way round. Matrices of a batch are
// `stride` numbers apart.
struct Factor {
  const void* numbers;
  int64_t pitch;
  bool is_transposed = false;
  int64_t stride = 0;
};
struct Product {
  void* numbers;
  RnnDataType dtype;
  int64_t pitch;
  bool adds = false;  // To what is there.
  int64_t stride = 0;
};

// Enqueues c = a * b, [m, k] by [k, n], for each of `count` matrices.
RnnStatus Multiply(cublasHandle_t blas, const ProductType& type, int64_t m,
                   int64_t n, int64_t k, const Factor& a, const Factor& b,
                   const Product& c, int64_t count = 1);

// Lets cuBLAS use a pass's stream and memory.
RnnStatus SetUpBlas(const Handles& handles, void* memory, size_t bytes);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PRODUCT_H_
