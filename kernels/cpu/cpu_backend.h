#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_

#include <utility>

#include "kernels/cpu/schedule.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

class CpuBackend : public RnnBackend {
 public:
  explicit CpuBackend(Threads threads) : threads_(std::move(threads)) {}

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
  Threads threads_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_BACKEND_H_
