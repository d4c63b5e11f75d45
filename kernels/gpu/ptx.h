// Kernels of our own, written in PTX, which the driver compiles: building needs
// no toolkit.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PTX_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PTX_H_

#include <string>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// A kernel by its name and its PTX, from `.visible .entry` on. It is of any
// context, and never unloaded, since graphs may hold it: to be called once for
// each.
RnnStatus LoadPtx(const std::string& name, const std::string& entry,
                  CUkernel* kernel);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PTX_H_
