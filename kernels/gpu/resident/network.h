// Runs a network in inference with our own kernel and cuBLAS, without cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_

#include <memory>

#include "kernels/gpu/engine.h"

namespace cudnn_rnn_tf {

// For each layer of the network, one matrix product computes the input side of
// as many steps as the workspace has room for, and then the kernel runs these
// steps. The status says why if the kernel cannot run the problem. In float32,
// `allow_tf32` decides how the input side is multiplied; the recurrent side is
// always multiplied in full float32.
RnnStatus CreateResidentNetwork(const RnnProblem& problem, bool allow_tf32,
                                std::unique_ptr<Engine>* network);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
