#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_CUDNN_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_CUDNN_BACKEND_H_

#include <memory>

#include "kernels/cudnn/plan.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

class CudnnSession;

// Runs a network with cuDNN in one stream of one GPU, whose context must be
// current.
class CudnnBackend : public RnnBackend {
 public:
  CudnnBackend(int device, void* stream, const CudnnOptions& options);
  ~CudnnBackend() override;

  RnnStatus BufferSizes(const RnnProblem& problem,
                        RnnBufferSizes* sizes) override;
  RnnStatus Forward(const RnnProblem& problem,
                    const RnnForwardBuffers& buffers) override;
  RnnStatus Backward(const RnnProblem& problem,
                     const RnnBackwardBuffers& buffers) override;
  RnnStatus Copy(const void* from, void* to, size_t bytes) override;
  RnnStatus SetZero(void* to, size_t bytes) override;

 private:
  RnnStatus Plan(const RnnProblem& problem, CudnnPlan** plan);
  RnnStatus Fill(void* to, unsigned char byte, size_t bytes);
  RnnStatus CopyStates(const RnnProblem& problem, int64_t size,
                       const void* from, void* to, bool to_cudnn);
  RnnStatus CopyStatesOfEmptySequences(const RnnProblem& problem,
                                       const int32_t* lengths, int64_t size,
                                       const void* from, void* to);

  const int device_;
  void* const stream_;
  const CudnnOptions options_;
  // Lent by a pool for the time of this call.
  std::unique_ptr<CudnnSession> session_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_CUDNN_BACKEND_H_
