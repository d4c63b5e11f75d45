// Runs a network in inference with our own kernel and cuBLAS, without cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/resident/kernel.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {

// For each layer, one matrix product computes the input side of as many steps
// as the workspace has room for, and then the kernel runs these steps.
class ResidentNetwork : public Engine {
 public:
  // The status says why if the kernel cannot run the problem. In float32,
  // `allow_tf32` decides how the input side is multiplied; the recurrent side
  // is always multiplied in full float32.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          std::unique_ptr<Engine>* network);

  RnnAlgorithm algorithm() const override { return RnnAlgorithm::kResident; }
  size_t reserve_size() const override { return 0; }
  size_t forward_workspace_size() const override;
  size_t backward_workspace_size() const override { return 0; }
  std::string Key() const override;
  bool is_replayable() const override { return true; }
  RnnStatus StoreLengthsAndSeed(
      const Handles& /*handles*/,
      const RnnForwardBuffers& /*buffers*/) const override {
    return {};
  }
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& buffers) const override;
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& buffers) const override;

 private:
  // The buffers of a pass, in time-major order. Without an address, they are
  // only laid out.
  struct Pass;

  ResidentNetwork(const RnnProblem& problem, bool allow_tf32)
      : problem_(problem), allow_tf32_(allow_tf32) {}
  int64_t StepsAtOnce() const;
  RnnStatus EnqueueLayer(const Handles& handles, const Pass& pass,
                         const ParamLayout& layout, int64_t pseudo_layer,
                         const void* inputs, void* outputs) const;

  const RnnProblem problem_;
  const bool allow_tf32_;
  ResidentKernel kernel_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_NETWORK_H_
