#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_

#include <utility>
#include <variant>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/schedule.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Parameters as forward passes in inference read them, packed once for calls of
// any shape.
class CpuPackedParams {
 public:
  // Copies `params`.
  CpuPackedParams(const RnnSpec& spec, RnnDataType dtype, const void* params);

  // Every layer's weights, in the type T that the data type computes in.
  template <typename T>
  const CpuForwardWeights<T>* layers() const {
    return std::get<std::vector<CpuForwardWeights<T>>>(layers_).data();
  }

 private:
  ArenaMemory memory_;
  std::variant<std::vector<CpuForwardWeights<float>>,
               std::vector<CpuForwardWeights<double>>>
      layers_;
};

class CpuBackend : public RnnBackend {
 public:
  // If there are packed parameters, forward passes read no others.
  explicit CpuBackend(Threads threads, const CpuPackedParams* packed = nullptr)
      : threads_(std::move(threads)), packed_(packed) {}

  RnnStatus BufferSizes(const RnnProblem& problem,
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

 private:
  // On how many threads to run a call.
  int64_t NumThreads(const RnnProblem& problem) const;

  Threads threads_;
  const CpuPackedParams* packed_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
