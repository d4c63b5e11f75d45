// Sigmoid and tanh, as exact as the type that kernels compute in. Beside the
// products of cuBLAS, they take little time.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FUNCTIONS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FUNCTIONS_CUH_

#include "items.cuh"

#if defined(IS_FLOAT64)
static __device__ double Sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static __device__ double Tanh(double x) { return tanh(x); }
#else
static __device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static __device__ float Tanh(float x) { return tanhf(x); }
#endif

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FUNCTIONS_CUH_
