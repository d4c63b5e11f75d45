#include "kernels/gpu/session.h"

#include <cstddef>
#include <utility>

#include "kernels/gpu/cudnn/description.h"

namespace cudnn_rnn_tf {
namespace {

RnnStatus MakeHandle(CUstream stream, CudnnHandle* handle) {
  if (handle->get() != nullptr) return {};
  const RnnProblem none;
  CudnnHandle made;
  CRNN_RETURN_IF_CUDNN_ERROR(made.Create(), none);
  CRNN_RETURN_IF_CUDNN_ERROR(Gpu().cudnn.cudnnSetStream(made.get(), stream),
                             none);
  *handle = std::move(made);
  return {};
}

}  // namespace

RnnStatus Session::MakeBlas() {
  if (blas_.get() != nullptr) return {};
  return CublasStatus(blas_.Create(), "make a handle");
}

RnnStatus Session::MakeCudnn() { return MakeHandle(stream_, &cudnn_); }

RnnStatus Session::MakeCaptureHandles(Handles* handles) {
  if (capture_stream_ == nullptr) {
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuStreamCreate(&capture_stream_, CU_STREAM_NON_BLOCKING),
        "make a stream"));
  }
  if (cudnn_.get() != nullptr) {
    CRNN_RETURN_IF_ERROR(MakeHandle(capture_stream_, &capture_cudnn_));
  }
  *handles = {capture_stream_, blas_.get(), capture_cudnn_.get()};
  return {};
}

std::unique_ptr<Session> SessionPool::Take(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = idle_.size(); i-- > 0;) {
    if (idle_[i]->handles().stream != stream) continue;
    std::unique_ptr<Session> session = std::move(idle_[i]);
    idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
    return session;
  }
  idle_.reserve(++num_sessions_);
  return std::make_unique<Session>(stream);
}

// Destructors call this. It does not throw, since there is room for all
// sessions.
void SessionPool::Return(std::unique_ptr<Session> session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(session));
}

}  // namespace cudnn_rnn_tf
