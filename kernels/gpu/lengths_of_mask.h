#ifndef CUDNN_RNN_TF_KERNELS_GPU_LENGTHS_OF_MASK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_LENGTHS_OF_MASK_H_

#include <cstdint>

#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Enqueues the computation of lengths, [B], from a mask in device memory. The
// length is -1 for a sequence whose true values are not all at its beginning.
// If CUDA's compiler is missing, the status says so.
RnnStatus EnqueueLengthsOfMask(CUstream stream, const RnnMask& mask,
                               int64_t* lengths);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_LENGTHS_OF_MASK_H_
