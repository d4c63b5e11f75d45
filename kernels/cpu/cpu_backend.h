#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/schedule.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Parameters in the packed form that forward passes in inference read. They are
// packed once and serve calls of any shape.
class CpuPackedParams {
 public:
  CpuPackedParams(const RnnSpec& spec, RnnDataType dtype, const void* params);
  size_t bytes() const { return memory_.size(); }
  // Returns the weights of all pseudo-layers. T is the type that the data type
  // is computed in.
  template <typename T>
  const CpuForwardWeights<T>* weights() const {
    return std::get<std::vector<CpuForwardWeights<T>>>(weights_).data();
  }

 private:
  ArenaMemory memory_;
  std::variant<std::vector<CpuForwardWeights<float>>,
               std::vector<CpuForwardWeights<double>>>
      weights_;
};

class CpuBackend : public RnnBackend {
 public:
  // If `packed` is not null, forward passes read these weights in place of a
  // call's parameters.
  explicit CpuBackend(Threads threads,
                      std::shared_ptr<const CpuPackedParams> packed = nullptr)
      : threads_(std::move(threads)), packed_(std::move(packed)) {}

  RnnStatus Plan(const RnnProblem& problem, int choice, RnnLengths* lengths,
                 std::shared_ptr<const RnnPlan>* plan) override;
  // Makes a plan that is not kept, without a lock.
  std::shared_ptr<const RnnPlan> MakePlan(const RnnProblem& problem) const;
  void Prepare(void* buffer, size_t bytes) override;
  RnnStatus Forward(const RnnPlan& plan,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnPlan& plan,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus ReadMask(const RnnMask& mask, const MaskedSteps& found) override;
  RnnStatus MoveSteps(const StepMove& move) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;
  RnnStatus MoveKerasTensors(const KerasLayout& layout, RnnDataType dtype,
                             bool to_params, const std::vector<void*>& tensors,
                             void* params) override;

 private:
  Threads threads_;
  std::shared_ptr<const CpuPackedParams> packed_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
