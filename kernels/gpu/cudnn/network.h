// Runs a network's passes with cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_

#include <memory>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/session.h"

namespace cudnn_rnn_tf {

// Makes the network that runs one of cuDNN's algorithms, which must be that of
// the forward pass in a backward pass. The network must not outlive the
// session's next plan.
RnnStatus CreateCudnnNetwork(const RnnProblem& problem, RnnAlgorithm algorithm,
                             const GpuOptions& options, Session* session,
                             std::unique_ptr<Engine>* network);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_
