// Loads the libraries of this package's kernels beside those that TensorFlow is
// said to have loaded. The compiler alone is loaded first, without cuBLAS.
//
//   libraries_in_packages LIBRARY...
#include <dlfcn.h>

#include <cstdio>
#include <string>

#include "kernels/gpu/libraries.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::printf("failed: %s\n", dlerror());
      return 1;
    }
  }
  // Where something is missing, it is looked for in few of many calls.
  cudnn_rnn_tf::Loading rare;
  int looks = 0;
  for (int i = 0; i < 100; ++i) {
    const auto look = [&] {
      return cudnn_rnn_tf::RnnStatus{
          cudnn_rnn_tf::RnnStatus::Code::kFailedPrecondition,
          std::to_string(++looks)};
    };
    const cudnn_rnn_tf::RnnStatus status =
        rare.Once(look, /*may_be_missing=*/true);
    if (status.message != std::to_string(looks)) return 1;
  }
  if (looks != 6) return 1;
  const auto cublas_is_loaded = [] {
    return dlopen("libcublas.so.12", RTLD_NOW | RTLD_NOLOAD) != nullptr;
  };
  const bool was_loaded = cublas_is_loaded();
  const bool has_compiler = cudnn_rnn_tf::LoadCompiler().ok();
  if (cublas_is_loaded() != was_loaded) {
    std::printf("the compiler loaded cuBLAS\n");
    return 1;
  }
  const cudnn_rnn_tf::RnnStatus status = cudnn_rnn_tf::LoadKernelLibraries();
  if (status.ok() && !has_compiler) {
    std::printf("the compiler was found with cuBLAS alone\n");
    return 1;
  }
  if (!status.ok()) {
    std::printf("%s\n", status.message.c_str());
    return 0;
  }
  int major = 0, minor = 0;
  cudnn_rnn_tf::Gpu().nvrtc.nvrtcVersion(&major, &minor);
  Dl_info cublas;
  dladdr(reinterpret_cast<void*>(cudnn_rnn_tf::Gpu().cublas.cublasCreate_v2),
         &cublas);
  const std::string path = cublas.dli_fname;
  std::printf("loaded, NVRTC %d.%d, %s\n", major, minor,
              path.substr(path.rfind('/') + 1).c_str());
  return 0;
}
