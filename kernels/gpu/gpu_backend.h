#ifndef CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_

#include <memory>
#include <optional>
#include <vector>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/gpu_plan.h"
#include "kernels/gpu/session.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Runs plans on a GPU. Used by one thread.
class GpuBackend : public RnnBackend {
 public:
  GpuBackend(GpuResources resources, const GpuOptions& options);
  ~GpuBackend() override;

  RnnStatus Plan(const RnnProblem& problem, int choice, RnnLengths* lengths,
                 std::shared_ptr<const RnnPlan>* plan) override;
  // Puts the lengths of a problem, which are in device memory, into host memory
  // that lives as long as the backend. The host waits for the device.
  RnnStatus FetchLengths(const RnnProblem& problem, RnnLengths* lengths);
  void Prepare(void* buffer, size_t bytes) override;
  RnnStatus Forward(const RnnPlan& plan,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnPlan& plan,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;
  // These need CUDA's compiler.
  RnnStatus ReadMask(const RnnMask& mask, const MaskedSteps& found) override;
  RnnStatus MoveSteps(const StepMove& move) override;
  RnnStatus MoveKerasTensors(const KerasLayout& layout, RnnDataType dtype,
                             bool to_params, const std::vector<void*>& tensors,
                             void* params) override;

 private:
  RnnStatus Find(const RnnProblem& problem, int choice,
                 std::shared_ptr<const RnnPlan>* plan);
  Session* session();
  RnnStatus MakeHandles(const GpuPlan& plan);
  // Runs a pass over these buffers, as a graph if it can.
  template <typename Buffers>
  RnnStatus Run(const GpuPlan& plan, const Buffers& buffers,
                RnnStatus (Engine::*enqueue)(const Handles&, const Buffers&)
                    const);
  // Returns false if the pass must be enqueued instead.
  template <typename Buffers>
  bool Replay(const GpuPlan& plan, const Buffers& buffers,
              RnnStatus (Engine::*enqueue)(const Handles&, const Buffers&)
                  const);

  CUstream stream() const { return static_cast<CUstream>(resources_.stream); }

  const GpuResources resources_;
  const GpuOptions options_;
  // These live as long as the call.
  std::optional<RelaxedCaptureMode> relaxed_capture_;
  std::unique_ptr<Session> session_;  // Lent when it is first needed.
  std::vector<int32_t> host_lengths_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GPU_BACKEND_H_
