// Runs a network in inference with our own kernel and cuBLAS, without cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_

#include <cstddef>
#include <memory>

#include "kernels/gpu/handles.h"
#include "kernels/gpu/resident/kernel.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {

// For each layer, one matrix product computes the input side of as many steps
// as the workspace has room for, and then the kernel runs these steps.
// Thread-compatible.
class ResidentNetwork {
 public:
  // The status says why if the kernel cannot run the problem. In float32,
  // `allow_tf32` decides how the input side is multiplied; the recurrent side
  // is always multiplied in full float32.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          std::unique_ptr<ResidentNetwork>* network);

  size_t workspace_size() const;
  // The buffers are in time-major order.
  RnnStatus Enqueue(const Handles& handles,
                    const RnnForwardBuffers& buffers) const;

 private:
  // The parts of the workspace. Without an address, they are only laid out.
  struct Workspace;

  ResidentNetwork(const RnnProblem& problem, bool allow_tf32)
      : problem_(problem), layout_(problem.spec), allow_tf32_(allow_tf32) {}
  int64_t StepsAtOnce() const;
  RnnStatus EnqueueLayer(const Handles& handles,
                         const RnnForwardBuffers& buffers, int64_t pseudo_layer,
                         const void* inputs, void* outputs,
                         float* projected) const;

  const RnnProblem problem_;
  const ParamLayout layout_;
  const bool allow_tf32_;
  ResidentKernel kernel_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
