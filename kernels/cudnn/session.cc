#include "kernels/cudnn/session.h"

#include <cstring>
#include <initializer_list>

namespace cudnn_rnn_tf {
namespace {

// A plan is a few descriptors in host memory; changing shapes make new ones.
constexpr size_t kMaxPlans = 256;

std::string KeyOf(const RnnProblem& problem, const CudnnOptions& options) {
  const RnnSpec& spec = problem.spec;
  std::string key;
  for (const int64_t number :
       {static_cast<int64_t>(spec.rnn_mode), spec.num_layers, spec.num_units,
        spec.num_proj, spec.input_size, static_cast<int64_t>(spec.input_mode),
        static_cast<int64_t>(spec.direction),
        static_cast<int64_t>(spec.bias_mode),
        static_cast<int64_t>(problem.dtype), problem.max_time,
        problem.batch_size,
        static_cast<int64_t>(problem.time_major) |
            static_cast<int64_t>(problem.has_sequence_lengths) << 1 |
            static_cast<int64_t>(problem.is_training) << 2 |
            static_cast<int64_t>(options.allow_tf32) << 3 |
            static_cast<int64_t>(options.force_repack) << 4}) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  for (const float number : {spec.dropout, spec.cell_clip}) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return key;
}

}  // namespace

RnnStatus CudnnSession::Open(void* stream) {
  const RnnProblem none;
  CRNN_RETURN_IF_CUDNN_ERROR(handle_.Create(), none);
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnSetStream(handle_.get(),
                                 static_cast<cudaStream_t>(stream)),
      none);
  return {};
}

RnnStatus CudnnSession::Plan(const RnnProblem& problem,
                             const CudnnOptions& options, CudnnPlan** plan) {
  const std::string key = KeyOf(problem, options);
  const auto found = index_.find(key);
  if (found != index_.end()) {
    plans_.splice(plans_.begin(), plans_, found->second);
    *plan = found->second->second.get();
    return {};
  }
  std::unique_ptr<CudnnPlan> made;
  CRNN_RETURN_IF_ERROR(
      CudnnPlan::Create(handle_.get(), problem, options, &made));
  *plan = made.get();
  plans_.emplace_front(key, std::move(made));
  index_[key] = plans_.begin();
  if (plans_.size() > kMaxPlans) {
    index_.erase(plans_.back().first);
    plans_.pop_back();
  }
  return {};
}

CudnnSessionPool& CudnnSessionPool::Instance() {
  // Never destroyed: at exit the CUDA context may be gone before it.
  alignas(CudnnSessionPool) static char storage[sizeof(CudnnSessionPool)];
  static CudnnSessionPool* const pool = ::new (storage) CudnnSessionPool;
  return *pool;
}

RnnStatus CudnnSessionPool::Take(int device, void* stream,
                                 std::unique_ptr<CudnnSession>* session) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      if (idle_[i].device == device && idle_[i].stream == stream) {
        *session = std::move(idle_[i].session);
        idle_.erase(idle_.begin() + i);
        return {};
      }
    }
  }
  auto opened = std::make_unique<CudnnSession>();
  CRNN_RETURN_IF_ERROR(opened->Open(stream));
  *session = std::move(opened);
  return {};
}

void CudnnSessionPool::Return(int device, void* stream,
                              std::unique_ptr<CudnnSession> session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back({device, stream, std::move(session)});
}

}  // namespace cudnn_rnn_tf
