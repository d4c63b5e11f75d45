// Transposes the first two dimensions of arrays, by a kernel of our own.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_TRANSPOSE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_TRANSPOSE_H_

#include <cstdint>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Enqueues a copy of `from`, [outer, inner, row_bytes], to `to`, [inner, outer,
// row_bytes]; the two do not overlap.
RnnStatus EnqueueTranspose(CUstream stream, CUdeviceptr from, CUdeviceptr to,
                           int64_t outer, int64_t inner, int64_t row_bytes);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_TRANSPOSE_H_
