// CUDA's compiler at run time: kernels of our own for the GPU at hand.
//
// Machine code is kept in the process and in files, so that a kernel is
// compiled once for each version of its source, of the compiler and of the GPU.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_
#define CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_

#include <string>
#include <vector>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

struct SourceFile {
  std::string name, text;
};

// The files under kernels/gpu that the build puts into the library.
const std::vector<SourceFile>& EmbeddedSources();

// The kernel `entry` of the embedded file `file`, compiled with `macros` ("A",
// "B=1") for the current context's device. Kernels belong to no context and are
// never unloaded, since graphs may hold them.
//
// Says why where the compiler is missing or fails. The folder of files is
// $CUDNN_RNN_TF_KERNEL_CACHE, else cudnn_rnn_tf in $XDG_CACHE_HOME or
// ~/.cache; an empty variable means that nothing is kept. Files that are
// damaged, or that others may write, are ignored and replaced.
RnnStatus CompileKernel(const std::string& file, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CUkernel* kernel);

// The machine code of the embedded file for these options of the compiler,
// which must have been loaded. It needs no GPU.
RnnStatus CompileCode(const std::string& file,
                      const std::vector<std::string>& options,
                      std::string* code);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_
