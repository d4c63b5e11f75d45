// Moves the parameters of Keras's layers into the opaque buffer and back.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_H_

#include "kernels/gpu/libraries.h"
#include "kernels/keras_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Enqueues the work of RnnBackend::MoveKerasTensors. If CUDA's compiler is
// missing, the status says so.
RnnStatus EnqueueKerasTensors(CUstream stream, const KerasLayout& layout,
                              size_t item_bytes, bool to_params,
                              const std::vector<void*>& tensors, void* params);

// Does the same on the host, which waits for the device.
RnnStatus MoveKerasTensorsOnHost(CUstream stream, const KerasLayout& layout,
                                 size_t item_bytes, bool to_params,
                                 const std::vector<void*>& tensors,
                                 void* params);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_H_
