#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_

#include <utility>

#include "kernels/cpu/parallel.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

class CpuBackend : public RnnBackend {
 public:
  explicit CpuBackend(ParallelFor parallel_for)
      : parallel_for_(std::move(parallel_for)) {}

  RnnStatus BufferSizes(const RnnProblem& problem,
                        RnnBufferSizes* sizes) override;
  RnnStatus Forward(const RnnProblem& problem,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnProblem& problem,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;

 private:
  ParallelFor parallel_for_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
