// A cuDNN handle with the plans made for it, and the pool that lends them.
#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_SESSION_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_SESSION_H_

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cudnn/plan.h"

namespace cudnn_rnn_tf {

// Used by one thread at a time, for one stream.
class CudnnSession {
 public:
  RnnStatus Open(void* stream);
  cudnnHandle_t handle() const { return handle_.get(); }

  // The plan of a problem, made at its first use. Valid until the next call.
  RnnStatus Plan(const RnnProblem& problem, const CudnnOptions& options,
                 CudnnPlan** plan);

 private:
  using Entry = std::pair<std::string, std::unique_ptr<CudnnPlan>>;

  CudnnHandle handle_;
  // The most recently used first.
  std::list<Entry> plans_;
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

// Lends each caller a session of its own for a device and stream, so that no
// lock is held while work is enqueued.
class CudnnSessionPool {
 public:
  static CudnnSessionPool& Instance();

  RnnStatus Take(int device, void* stream,
                 std::unique_ptr<CudnnSession>* session);
  void Return(int device, void* stream, std::unique_ptr<CudnnSession> session);

 private:
  struct Idle {
    int device;
    void* stream;
    std::unique_ptr<CudnnSession> session;
  };

  std::mutex mutex_;
  std::vector<Idle> idle_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_SESSION_H_
