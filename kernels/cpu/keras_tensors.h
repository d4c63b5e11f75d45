// Moves the parameters of Keras's layers into the opaque buffer and back.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_KERAS_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_KERAS_TENSORS_H_

#include <cstddef>

#include "kernels/cpu/schedule.h"
#include "kernels/keras_layout.h"

namespace cudnn_rnn_tf {

// Copies a tensor to its place in `params`, or from there if `to_params` is
// false. Its numbers have `item_bytes` bytes each.
void MoveKerasTensor(const KerasTensor& place, size_t item_bytes,
                     bool to_params, void* tensor, void* params,
                     const Threads& threads);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_KERAS_TENSORS_H_
