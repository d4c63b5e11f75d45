#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_CUDNN_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_CUDNN_BACKEND_H_

#include <memory>
#include <optional>

#include "kernels/gpu/cudnn/session.h"
#include "kernels/gpu/gpu_options.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Runs a network with cuDNN, or with this package's kernel `resident`, in one
// stream of one GPU. Used by one thread.
class CudnnBackend : public RnnBackend {
 public:
  CudnnBackend(GpuResources resources, const GpuOptions& options);
  ~CudnnBackend() override;

  RnnStatus ForwardBufferSizes(const RnnProblem& problem,
                               RnnBufferSizes* sizes) override;
  size_t OutputOffset(const RnnProblem& problem) const override;
  RnnStatus BackwardBufferSizes(const RnnProblem& problem, size_t reserve_space,
                                RnnBufferSizes* sizes) override;
  std::shared_ptr<void> Workspace(size_t bytes,
                                  const AllocateMemory& allocate) override;
  RnnStatus Forward(const RnnProblem& problem,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnProblem& problem,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;

 private:
  RnnStatus Configure(const RnnProblem& problem);
  size_t WorkspaceBytes(Pass pass) const;
  RnnStatus Enqueue(Pass pass, const CallAddresses& addresses);
  RnnStatus TryReplay(PassReplay* run, Pass pass,
                      const CallAddresses& addresses, bool* done);

  RnnStatus CopyStatesOfEmptySequences(const RnnProblem& problem,
                                       const int32_t* lengths, int64_t size,
                                       const void* from, void* to);
  RnnStatus RepackParams(const void* from, void* to);

  CUstream stream() const { return static_cast<CUstream>(resources_.stream); }

  const GpuResources resources_;
  const GpuOptions options_;
  // These two live as long as the call. A pool lends the session.
  std::optional<RelaxedCaptureMode> relaxed_capture_;
  std::unique_ptr<CudnnSession> session_;
  // These are known once the sizes were asked for. The first is true while
  // someone else is capturing our stream.
  bool is_capturing_ = false;
  CudnnConfiguration* configuration_ = nullptr;
  PlannedPasses* passes_ = nullptr;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_CUDNN_BACKEND_H_
