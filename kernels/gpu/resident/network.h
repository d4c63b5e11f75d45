// A network in inference by our own kernel and cuBLAS, without cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_

#include <cstddef>
#include <memory>

#include "kernels/gpu/resident/kernel.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {

// Thread-compatible. Each layer's input side is one matrix product for as many
// steps as have room in the workspace, then the kernel runs these steps.
class ResidentNetwork {
 public:
  // Device memory: what cudnnRNNForward takes, in time-major order.
  struct Buffers {
    CUdeviceptr params, input, input_h, input_c;
    CUdeviceptr output, output_h, output_c;
    CUdeviceptr workspace;  // At a multiple of Arena::kAlign.
  };

  // Says why where there is no kernel for the problem. The float32 products
  // follow `allow_tf32` on the input side; the recurrent side is exact.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          std::unique_ptr<ResidentNetwork>* network);

  size_t workspace_size() const;
  RnnStatus Enqueue(cublasHandle_t blas, CUstream stream,
                    const Buffers& buffers) const;

 private:
  // Its parts; only laid out without an address.
  struct Workspace;

  ResidentNetwork(const RnnProblem& problem, bool allow_tf32)
      : problem_(problem), layout_(problem.spec), allow_tf32_(allow_tf32) {}
  int64_t StepsAtOnce() const;
  // `steps` steps of time from `first`, [steps * B, G * H].
  RnnStatus Project(cublasHandle_t blas, const Buffers& buffers,
                    int64_t pseudo_layer, CUdeviceptr inputs,
                    int64_t input_size, int64_t first, int64_t steps,
                    CUdeviceptr projected) const;
  RnnStatus EnqueueLayer(cublasHandle_t blas, CUstream stream,
                         const Buffers& buffers, int64_t pseudo_layer,
                         CUdeviceptr inputs, CUdeviceptr outputs,
                         CUdeviceptr projected) const;

  const RnnProblem problem_;
  const ParamLayout layout_;
  const bool allow_tf32_;
  ResidentKernel kernel_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
