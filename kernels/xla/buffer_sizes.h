// The op library tells this to the library of lowerings, which is built for the
// versions of TensorFlow whose packages have the headers that it needs.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_BUFFER_SIZES_H_
#define CUDNN_RNN_TF_KERNELS_XLA_BUFFER_SIZES_H_

#include "absl/status/status.h"
#include "kernels/xla/xla_call.h"

namespace cudnn_rnn_tf {

// Computes the sizes of a pass's buffers, which do for lengths of any values,
// and completes the pass with them.
__attribute__((visibility("default"))) absl::Status XlaCpuBufferSizes(
    XlaPass* pass, RnnBufferSizes* sizes);
// A backward pass has the choice of its forward pass already. Fails if the
// device cannot run the pass.
__attribute__((visibility("default"))) absl::Status XlaGpuBufferSizes(
    int device, XlaPass* pass, RnnBufferSizes* sizes);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_BUFFER_SIZES_H_
