#ifndef CUDNN_RNN_TF_KERNELS_OP_BACKEND_GPU_H_
#define CUDNN_RNN_TF_KERNELS_OP_BACKEND_GPU_H_

#include <memory>

#include "kernels/gpu/gpu_backend.h"

namespace cudnn_rnn_tf {

// Makes a backend with TensorFlow's settings and log. The caller sets the other
// resources: the device, the stream and memory.
std::unique_ptr<GpuBackend> MakeGpuBackend(GpuResources resources);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_OP_BACKEND_GPU_H_
