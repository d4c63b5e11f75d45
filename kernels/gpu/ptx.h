// Loads kernels of our own that are written in PTX. The driver compiles them,
// so building needs no CUDA toolkit.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PTX_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PTX_H_

#include <string>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Loads the kernel `name` from `entry`, its PTX text from `.visible .entry` on.
// A kernel belongs to no context and is never unloaded, since graphs may hold
// it, so this should be called once for each kernel.
RnnStatus LoadPtx(const std::string& name, const std::string& entry,
                  CUkernel* kernel);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PTX_H_
