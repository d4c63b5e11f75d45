// Moves the parameters of Keras's layers into the opaque buffer and back, by a
// kernel of our own.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_KERAS_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_KERAS_TENSORS_H_

#include "kernels/gpu/libraries.h"
#include "kernels/keras_layout.h"

namespace cudnn_rnn_tf {

// Enqueues the copying of a tensor to its place in `params`, or from there if
// `to_params` is false. Its numbers have 2, 4 or 8 bytes each.
RnnStatus EnqueueKerasTensor(CUstream stream, const KerasTensor& place,
                             size_t item_bytes, bool to_params,
                             CUdeviceptr tensor, CUdeviceptr params);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_KERAS_TENSORS_H_
