// What the calls in one stream share: handles of NVIDIA's libraries.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_SESSION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_SESSION_H_

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/gpu/descriptors.h"
#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// Used by one thread at a time, for one stream of one device. The pool never
// closes a session, since graphs may use memory of its handles.
class Session {
 public:
  explicit Session(CUstream stream) : stream_(stream) {}

  // These make a handle, unless there is one.
  RnnStatus MakeBlas();
  RnnStatus MakeCudnn();
  Handles handles() const { return {stream_, blas_.get(), cudnn_.get()}; }
  // Makes handles for captures. Their stream and cuDNN's handle are used for
  // nothing else, since no other work may enter a capture.
  RnnStatus MakeCaptureHandles(Handles* handles);

 private:
  const CUstream stream_;
  CUstream capture_stream_ = nullptr;
  CublasHandle blas_;
  CudnnHandle cudnn_, capture_cudnn_;
};

// The sessions of a device. Each caller is lent one of its own, so that threads
// enqueue work at the same time, but for passes of cuDNN.
class SessionPool {
 public:
  std::unique_ptr<Session> Take(CUstream stream);
  void Return(std::unique_ptr<Session> session);

 private:
  std::mutex mutex_;
  size_t num_sessions_ = 0;
  // The most recently used comes last.
  std::vector<std::unique_ptr<Session>> idle_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_SESSION_H_
