#ifndef CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/gpu/cudnn/cudnn_backend.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/persistent/session.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Runs a network on a GPU, with the persistent kernels or with cuDNN. Used by
// one thread.
//
// The problem's algorithm decides which of them runs:
//   algorithm            runs
//   persistent           the persistent kernels; if they cannot, or lengths
//                        differ and it is faster, kernels of single steps
//   auto                 the same, unless the cuDNN backend is likely to be
//                        faster. It is for sequences of full length that the
//                        persistent kernels cannot run, for large layers of
//                        large batches of them, and for inference of a few of
//                        them, for which it measures `resident` among other
//                        algorithms
//   all others           the cuDNN backend
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
  size_t OutputOffset(const RnnProblem& problem) const override;
  RnnStatus BackwardBufferSizes(const RnnProblem& problem, size_t reserve_space,
                                RnnBufferSizes* sizes) override;
  std::shared_ptr<void> Workspace(size_t bytes,
                                  const AllocateMemory& allocate) override;
  void Prepare(void* buffer, size_t bytes) override;
  RnnStatus Forward(const RnnProblem& problem,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnProblem& problem,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus ReadMask(const RnnMask& mask, const MaskedSteps& found) override;
  RnnStatus MoveSteps(const StepMove& move) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;
  RnnStatus MoveKerasTensors(const KerasLayout& layout, size_t item_bytes,
                             bool to_params, const std::vector<void*>& tensors,
                             void* params) override;

 private:
  // Decides once for the call whether the persistent kernels run, and compiles
  // them if they do.
  RnnStatus Choose(const RnnProblem& problem, size_t reserve_space);
  // Does work on the host, with a warning, if the device has no kernel for it,
  // as without CUDA's compiler. `status` is the outcome on the device.
  RnnStatus OrOnHost(const RnnStatus& status,
                     const std::function<RnnStatus()>& on_host) const;
  // Runs a pass of the persistent kernels.
  RnnStatus Run(Pass pass, const CallAddresses& addresses);

  CUstream stream() const { return static_cast<CUstream>(stream_); }

  const int device_;
  void* const stream_;
  const bool allow_tf32_, replays_, poisons_;
  const std::function<bool()> is_profiled_;
  const std::function<void(const std::string&)> log_, warn_;
  CudnnBackend cudnn_;
  bool has_chosen_ = false;
  std::optional<persistent::Network> network_;    // Empty if cuDNN runs.
  std::unique_ptr<persistent::Session> session_;  // Lent for the call.
  std::vector<int32_t> host_lengths_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
