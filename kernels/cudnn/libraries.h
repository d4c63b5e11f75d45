// cuDNN and the CUDA driver, loaded at run time: building needs neither, and a
// machine without them uses the CPU.
#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_LIBRARIES_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_LIBRARIES_H_

#include <cuda.h>
#include <cudnn.h>

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

#define CRNN_CUDNN_FUNCTIONS(F)    \
  F(cudnnGetVersion)               \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnSetStream)                \
  F(cudnnCreateTensorDescriptor)   \
  F(cudnnDestroyTensorDescriptor)  \
  F(cudnnSetTensorNdDescriptor)    \
  F(cudnnGetTensorNdDescriptor)    \
  F(cudnnCreateDropoutDescriptor)  \
  F(cudnnDestroyDropoutDescriptor) \
  F(cudnnDropoutGetStatesSize)     \
  F(cudnnSetDropoutDescriptor)     \
  F(cudnnRestoreDropoutDescriptor) \
  F(cudnnCreateRNNDescriptor)      \
  F(cudnnDestroyRNNDescriptor)     \
  F(cudnnSetRNNDescriptor_v8)      \
  F(cudnnRNNSetClip_v9)            \
  F(cudnnCreateRNNDataDescriptor)  \
  F(cudnnDestroyRNNDataDescriptor) \
  F(cudnnSetRNNDataDescriptor)     \
  F(cudnnGetRNNTempSpaceSizes)     \
  F(cudnnGetRNNWeightSpaceSize)    \
  F(cudnnGetRNNWeightParams)       \
  F(cudnnRNNForward)               \
  F(cudnnRNNBackwardData_v8)       \
  F(cudnnRNNBackwardWeights_v8)

struct CudnnLibrary {
#define CRNN_MEMBER(name) decltype(&::name) name = nullptr;
  CRNN_CUDNN_FUNCTIONS(CRNN_MEMBER)
#undef CRNN_MEMBER
};

// The driver's exported names carry versions that cuda.h's macros hide.
struct CudaDriver {
  CUresult (*MemcpyAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = nullptr;
  CUresult (*Memcpy2DAsync)(const CUDA_MEMCPY2D*, CUstream) = nullptr;
  CUresult (*MemsetAsync)(CUdeviceptr, unsigned char, size_t,
                          CUstream) = nullptr;
  CUresult (*GetErrorString)(CUresult, const char**) = nullptr;
};

struct GpuLibraries {
  CudnnLibrary cudnn;
  CudaDriver cuda;
};

// Loads both libraries, unless they are loaded already, or says why they cannot
// be had. TensorFlow should have loaded its cuDNN before, so that this finds
// the same one.
RnnStatus LoadGpuLibraries();

// The loaded libraries; only after LoadGpuLibraries has succeeded.
const GpuLibraries& Gpu();

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_LIBRARIES_H_
