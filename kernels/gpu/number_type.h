// What the GPU's libraries and kernels of our own call the types of numbers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_NUMBER_TYPE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_NUMBER_TYPE_H_

#include <cstddef>
#include <iterator>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

struct NumberType {
  RnnDataType dtype;
  const char* macro;    // Kernels are compiled with it (items.cuh).
  cudaDataType_t cuda;  // For cuBLAS.
  cudnnDataType_t cudnn;
};
inline constexpr NumberType kNumberTypes[] = {
    {RnnDataType::kFloat64, "IS_FLOAT64", CUDA_R_64F, CUDNN_DATA_DOUBLE},
    {RnnDataType::kFloat32, "IS_FLOAT", CUDA_R_32F, CUDNN_DATA_FLOAT},
    {RnnDataType::kFloat16, "IS_FLOAT16", CUDA_R_16F, CUDNN_DATA_HALF},
    {RnnDataType::kBfloat16, "IS_BFLOAT16", CUDA_R_16BF, CUDNN_DATA_BFLOAT16}};
static_assert(std::size(kNumberTypes) == kNumNames<RnnDataType>,
              "GPUs lack a type of numbers");

constexpr const NumberType& TypeOf(RnnDataType dtype) {
  return kNumberTypes[static_cast<size_t>(dtype)];
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_NUMBER_TYPE_H_
