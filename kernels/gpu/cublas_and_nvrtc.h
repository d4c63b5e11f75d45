// Declares the parts of cuBLAS and of NVRTC, CUDA's compiler at run time, that
// are used. cuBLAS's own header includes headers of CUDA that TensorFlow's
// package does not contain. Of the TensorFlow packages that this builds
// against, only 2.21 contains NVRTC's own header.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUBLAS_AND_NVRTC_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUBLAS_AND_NVRTC_H_

#include <driver_types.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

// Names, numbers and types are those of versions 12 and 13.
extern "C" {

typedef struct cublasContext* cublasHandle_t;
enum cublasStatus_t : int {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_ALLOC_FAILED = 3
};
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t : int {
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
enum cublasGemmAlgo_t : int { CUBLAS_GEMM_DEFAULT = -1 };

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace,
                                     size_t bytes);
cublasStatus_t cublasGemmEx_64(
    cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
    int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
    cudaDataType_t type_a, int64_t lda, const void* b, cudaDataType_t type_b,
    int64_t ldb, const void* beta, void* c, cudaDataType_t type_c, int64_t ldc,
    cublasComputeType_t compute_type, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
    int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
    cudaDataType_t type_a, int64_t lda, long long int stride_a, const void* b,
    cudaDataType_t type_b, int64_t ldb, long long int stride_b,
    const void* beta, void* c, cudaDataType_t type_c, int64_t ldc,
    long long int stride_c, int64_t batch_count,
    cublasComputeType_t compute_type, cublasGemmAlgo_t algorithm);

typedef struct _nvrtcProgram* nvrtcProgram;
enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_COMPILATION = 6
};

const char* nvrtcGetErrorString(nvrtcResult result);
nvrtcResult nvrtcVersion(int* major, int* minor);
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source,
                               const char* name, int num_headers,
                               const char* const* headers,
                               const char* const* include_names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int num_options,
                                const char* const* options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code);
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size);
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* code);
nvrtcResult nvrtcGetNumSupportedArchs(int* count);
nvrtcResult nvrtcGetSupportedArchs(int* architectures);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log);

}  // extern "C"

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUBLAS_AND_NVRTC_H_
