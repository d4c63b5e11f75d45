#ifndef CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/session.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Runs a network on a GPU, with the engine that it chooses for a call. Used by
// one thread.
//
// The problem's algorithm decides which of them runs:
//   algorithm            runs
//   persistent           the persistent kernels; if they cannot, or lengths
//                        differ and it is faster, kernels of single steps
//   auto                 the same, unless cuDNN is likely to be faster. It runs
//                        sequences of full length that the persistent kernels
//                        cannot run, large layers of large batches of them,
//                        and inference of a few of them, for which it may use
//                        `resident`
//   resident             `resident`
//   all others           cuDNN
// If lengths differ, cuDNN runs only where it is named or where our own kernels
// cannot be had: it reads lengths in host memory, for which the host waits in
// each call. In training with recurrent dropout, which cuDNN lacks, `auto` runs
// what `persistent` does, and all others are an error.
class GpuBackend : public RnnBackend {
 public:
  GpuBackend(GpuResources resources, const GpuOptions& options);
  ~GpuBackend() override;

  RnnStatus ReadSequenceLengths(size_t reserve_space, RnnProblem* problem,
                                RnnLengths* lengths) override;
  RnnStatus ForwardBufferSizes(const RnnProblem& problem,
                               RnnBufferSizes* sizes) override;
  RnnStatus BackwardBufferSizes(const RnnProblem& problem, size_t reserve_space,
                                RnnBufferSizes* sizes) override;
  void Prepare(void* buffer, size_t bytes) override;
  RnnStatus Forward(const RnnProblem& problem,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnProblem& problem,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;
  // If the device has no kernel for one of these, as without CUDA's compiler,
  // the host does the same, with a warning, and waits for the device.
  RnnStatus ReadMask(const RnnMask& mask, const MaskedSteps& found) override;
  RnnStatus MoveSteps(const StepMove& move) override;
  RnnStatus MoveKerasTensors(const KerasLayout& layout, size_t item_bytes,
                             bool to_params, const std::vector<void*>& tensors,
                             void* params) override;

 private:
  // Decides once for the call whether the persistent kernels run, and compiles
  // them if they do. If they do not, `engine_` stays null.
  RnnStatus Choose(const RnnProblem& problem, size_t reserve_space);
  // Makes the engine of a forward pass that the persistent kernels do not run,
  // by the algorithm that the caller names or the rule does.
  RnnStatus ChooseOther(const RnnProblem& problem);
  RnnStatus MakeOther(const RnnProblem& problem, RnnAlgorithm algorithm);
  Session* session();
  // Runs a pass over these buffers, as a graph if it can.
  template <typename Buffers>
  RnnStatus Run(const Buffers& buffers,
                RnnStatus (Engine::*enqueue)(const Handles&, const Buffers&)
                    const);
  // Returns false if the pass must be enqueued instead.
  template <typename Buffers>
  bool Replay(const Buffers& buffers,
              RnnStatus (Engine::*enqueue)(const Handles&, const Buffers&)
                  const);

  CUstream stream() const { return static_cast<CUstream>(resources_.stream); }

  const GpuResources resources_;
  const GpuOptions options_;
  // These live as long as the call.
  std::optional<RelaxedCaptureMode> relaxed_capture_;
  std::unique_ptr<Session> session_;  // Lent when it is first needed.
  std::unique_ptr<Engine> engine_;
  bool has_chosen_ = false;
  std::vector<int32_t> host_lengths_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
