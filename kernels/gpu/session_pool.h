// A pool of sessions. A session holds what calls in one stream share.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_SESSION_POOL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_SESSION_POOL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kernels/gpu/libraries.h"
#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {

// Lends each caller a session of its own for a device and stream, so that no
// lock is held while work is enqueued.
template <typename Session>
class SessionPool {
 public:
  static SessionPool& Instance() {
    static NeverDestroyed<SessionPool> pool;
    return *pool;
  }

  // Lends an idle session, or opens a new one with `arguments` if there is
  // none.
  template <typename... Arguments>
  RnnStatus Take(int device, CUstream stream, std::unique_ptr<Session>* session,
                 const Arguments&... arguments) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = idle_.size(); i-- > 0;) {
        if (idle_[i].device == device && idle_[i].stream == stream) {
          *session = std::move(idle_[i].session);
          idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
          return {};
        }
      }
    }
    auto opened = std::make_unique<Session>();
    CRNN_RETURN_IF_ERROR(opened->Open(stream, arguments...));
    *session = std::move(opened);
    return {};
  }

  // Takes a session back, and then calls `visit` with each idle session of the
  // device, the most recently used first. If there is no memory left for it,
  // the session is closed. Destructors call this, so it does not throw.
  void Return(
      int device, CUstream stream, std::unique_ptr<Session> session,
      const std::function<void(Session*)>& visit = [](Session*) {}) {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      idle_.push_back({device, stream, std::move(session)});
    } catch (const std::bad_alloc&) {
      return;
    }
    for (auto idle = idle_.rbegin(); idle != idle_.rend(); ++idle) {
      if (idle->device == device) visit(idle->session.get());
    }
  }

 private:
  struct Idle {
    int device;
    CUstream stream;
    std::unique_ptr<Session> session;
  };

  std::mutex mutex_;
  std::vector<Idle> idle_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_SESSION_POOL_H_
