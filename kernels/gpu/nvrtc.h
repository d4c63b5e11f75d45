// Declares the part of NVRTC that is used, CUDA's compiler at run time. Of the
// TensorFlow packages that this builds against, only 2.21 contains NVRTC's own
// header.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_NVRTC_H_
#define CUDNN_RNN_TF_KERNELS_GPU_NVRTC_H_

#include <cstddef>

// Names, numbers and types are those of NVRTC 12 and 13.
extern "C" {

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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_NVRTC_H_
