// Loads the libraries of this package's kernels beside those that TensorFlow is
// said to have loaded.
//
//   libraries_in_packages LIBRARY...
#include <dlfcn.h>

#include <cstdio>

#include "kernels/gpu/libraries.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::printf("failed: %s\n", dlerror());
      return 1;
    }
  }
  const cudnn_rnn_tf::RnnStatus status = cudnn_rnn_tf::LoadKernelLibraries();
  std::printf("%s\n", status.ok() ? "loaded" : status.message.c_str());
  return 0;
}
