// Runs a network's passes with cuDNN.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_

#include <memory>
#include <string>
#include <utility>

#include "kernels/gpu/cudnn/plan.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/gpu_options.h"
#include "kernels/gpu/session.h"

namespace cudnn_rnn_tf {

class CudnnNetwork : public Engine {
 public:
  // Makes the network that runs one of cuDNN's algorithms, which must be that
  // of the forward pass in a backward pass. The network must not outlive the
  // session's next plan.
  static RnnStatus Create(const RnnProblem& problem, RnnAlgorithm algorithm,
                          const GpuOptions& options, Session* session,
                          std::unique_ptr<Engine>* network);

  RnnAlgorithm algorithm() const override { return algorithm_; }
  size_t reserve_size() const override;
  size_t forward_workspace_size() const override;
  size_t backward_workspace_size() const override;
  std::string Key() const override;
  // cuDNN chooses its kernels by the sequence lengths.
  bool is_replayable() const override {
    return !plan_.problem().has_sequence_lengths;
  }
  RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& buffers) const override;
  // Batch-major data are copied into cuDNN's order and back, in the workspace:
  // cuDNN's own way with them takes several times as long.
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& buffers) const override;
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& buffers) const override;

 private:
  CudnnNetwork(std::string key, RnnAlgorithm algorithm, CudnnPlan* plan)
      : key_(std::move(key)), algorithm_(algorithm), plan_(*plan) {}
  RnnStatus CopyStatesOfEmptySequences(CUstream stream, const int32_t* lengths,
                                       int64_t size, const void* from,
                                       void* to) const;

  const std::string key_;
  const RnnAlgorithm algorithm_;
  CudnnPlan& plan_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_NETWORK_H_
