#include "kernels/gpu/cudnn/session.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace cudnn_rnn_tf {
namespace {

// Every new shape makes a new configuration. Apart from its replays, it is a
// few descriptors in host memory.
constexpr size_t kMaxConfigurations = 256;
// Each session may have replays of this size even if all replays of the process
// take too much memory.
constexpr size_t kOwnReplayBytes = size_t{64} << 20;
// A configuration has fallen out of use when kIntervalsUnused times the mean
// interval between its uses has gone by without one. Intervals are counted in
// uses of all configurations. For a configuration that was used once, the
// interval is assumed.
constexpr int64_t kIntervalsUnused = 8;
constexpr int64_t kMinInterval = 8;
constexpr int64_t kAssumedInterval = 64;
constexpr size_t kKeptPart = 64;

std::string KeyOf(const RnnProblem& problem, const GpuOptions& options) {
  std::string key = KeyOf(problem);
  key.push_back(static_cast<char>(
      options.allow_tf32 | options.force_repack << 1 | options.replay << 2));
  return key;
}

bool HasFallenOutOfUse(const CudnnConfiguration& configuration, int64_t now) {
  const int64_t intervals = configuration.uses - 1;
  const int64_t interval =
      intervals == 0
          ? kAssumedInterval
          : (configuration.last_use - configuration.first_use) / intervals;
  return now - configuration.last_use >
         kIntervalsUnused * std::max(interval, kMinInterval);
}

}  // namespace

size_t CudnnConfiguration::ReplayBytes() const {
  size_t bytes = 0;
  for (const std::unique_ptr<PlannedPasses>& held : passes) {
    if (held == nullptr) continue;
    for (const PassReplay* const pass : {&held->forward, &held->backward}) {
      if (pass->replay != nullptr) bytes += pass->replay->bytes();
    }
  }
  return bytes;
}

void CudnnConfiguration::DropReplays() {
  for (const std::unique_ptr<PlannedPasses>& held : passes) {
    if (held == nullptr) continue;
    held->forward.replay.reset();
    held->backward.replay.reset();
  }
}

RnnStatus CudnnSession::Open(CUstream stream,
                             const std::function<size_t()>& memory_limit) {
  const RnnProblem none;
  CRNN_RETURN_IF_CUDNN_ERROR(handle_.Create(), none);
  CRNN_RETURN_IF_CUDNN_ERROR(Gpu().cudnn.cudnnSetStream(handle_.get(), stream),
                             none);
  handles_ = {handle_.get(), stream, /*blas=*/nullptr};
  max_kept_bytes_ = memory_limit() / kKeptPart;
  return {};
}

CudnnSession::~CudnnSession() {
  if (capture_stream_ != nullptr) Gpu().cuda.cuStreamDestroy(capture_stream_);
}

std::shared_ptr<void> CudnnSession::Workspace(size_t bytes,
                                              const AllocateMemory& allocate) {
  if (bytes > workspace_bytes_) {
    DropWorkspace();  // The new one may reuse its memory.
    workspace_ = allocate(bytes);
    if (workspace_ != nullptr) workspace_bytes_ = bytes;
  }
  return workspace_;
}

void CudnnSession::DropWorkspace() {
  workspace_.reset();
  workspace_bytes_ = 0;
}

RnnStatus CudnnSession::CaptureHandles(CudnnHandles* handles) {
  const RnnProblem none;
  if (capture_stream_ == nullptr) {
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuStreamCreate(&capture_stream_, CU_STREAM_NON_BLOCKING),
        "make a stream"));
  }
  if (capture_handle_.get() == nullptr) {
    CRNN_RETURN_IF_CUDNN_ERROR(capture_handle_.Create(), none);
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnSetStream(capture_handle_.get(), capture_stream_),
        none);
  }
  *handles = {capture_handle_.get(), capture_stream_, blas_.get()};
  return {};
}

RnnStatus CudnnSession::Capture(CudnnPlan* plan, Pass pass,
                                const CallAddresses& addresses,
                                CapturedGraph* graph) {
  CudnnHandles handles;
  CRNN_RETURN_IF_ERROR(CaptureHandles(&handles));
  GraphNode::Kernels kernels;
  CRNN_RETURN_IF_ERROR(CapturedGraph::Capture(
      handles.stream,
      [&] { return EnqueuePass(pass, handles, plan, addresses); }, &kernels,
      graph));
  return graph->is_in_order() ? RnnStatus()
                              : NotReplayable("its nodes are not in order");
}

RnnStatus CudnnSession::CaptureReplay(CudnnPlan* plan, Pass pass, void* region,
                                      std::unique_ptr<Replay>* replay) {
  CudnnHandles handles;
  CRNN_RETURN_IF_ERROR(CaptureHandles(&handles));
  std::array<bool, kNumCallBuffers> used;
  const auto sizes = CallBufferSizes(*plan, pass);
  std::transform(sizes.begin(), sizes.end(), used.begin(),
                 [](size_t size) { return size > 0; });
  return Replay::Capture(
      handles.stream, reinterpret_cast<CUdeviceptr>(region), used,
      [&](const CallAddresses& addresses) {
        return EnqueuePass(pass, handles, plan, addresses);
      },
      replay);
}

CudnnConfiguration* CudnnSession::Configuration(const RnnProblem& problem,
                                                const GpuOptions& options) {
  const std::string key = KeyOf(problem, options);
  const auto found = index_.find(key);
  ++uses_;
  if (found != index_.end()) {
    configurations_.splice(configurations_.begin(), configurations_,
                           found->second);
  } else {
    auto made = std::make_unique<CudnnConfiguration>();
    made->problem = problem;
    made->options = options;
    made->first_use = uses_;
    configurations_.emplace_front(key, std::move(made));
    index_[key] = configurations_.begin();
    if (configurations_.size() > kMaxConfigurations) DropOneConfiguration();
  }
  CudnnConfiguration* const configuration =
      configurations_.front().second.get();
  ++configuration->uses;
  configuration->last_use = uses_;
  return configuration;
}

// Drops the least recently used configuration without replays or, if all have
// replays, the least recently used one. The latest is never dropped.
void CudnnSession::DropOneConfiguration() {
  auto dropped = std::prev(configurations_.end());
  for (auto entry = dropped; entry != configurations_.begin(); --entry) {
    if (entry->second->ReplayBytes() == 0) {
      dropped = entry;
      break;
    }
  }
  index_.erase(dropped->first);
  configurations_.erase(dropped);
}

RnnStatus CudnnSession::Passes(CudnnConfiguration* configuration,
                               RnnAlgorithm algorithm, PlannedPasses** passes) {
  std::unique_ptr<PlannedPasses>& held =
      configuration->passes[static_cast<int>(algorithm)];
  if (held == nullptr) {
    auto made = std::make_unique<PlannedPasses>();
    CRNN_RETURN_IF_ERROR(
        CudnnPlan::Create(handle_.get(), configuration->problem, algorithm,
                          configuration->options, &made->plan));
    if (made->plan->resident() != nullptr) CRNN_RETURN_IF_ERROR(MakeBlas());
    held = std::move(made);
  }
  *passes = held.get();
  return {};
}

RnnStatus CudnnSession::MakeBlas() {
  if (blas_.get() != nullptr) return {};
  CRNN_RETURN_IF_ERROR(CublasStatus(blas_.Create(), "make a handle"));
  handles_.blas = blas_.get();
  return {};
}

bool CudnnSession::MakeRoomForReplay() {
  if (Replay::TotalBytes() < Replay::kMaxTotalBytes) return true;
  size_t own = 0;
  for (const auto& [key, configuration] : configurations_) {
    if (HasFallenOutOfUse(*configuration, uses_)) configuration->DropReplays();
    own += configuration->ReplayBytes();
  }
  return Replay::TotalBytes() < Replay::kMaxTotalBytes || own < kOwnReplayBytes;
}

void ReturnSession(int device, CUstream stream,
                   std::unique_ptr<CudnnSession> session) {
  size_t kept = 0;
  CudnnSessionPool::Instance().Return(
      device, stream, std::move(session), [&kept](CudnnSession* idle) {
        if (kept + idle->workspace_bytes() > idle->max_kept_bytes()) {
          idle->DropWorkspace();
        }
        kept += idle->workspace_bytes();
      });
}

}  // namespace cudnn_rnn_tf
