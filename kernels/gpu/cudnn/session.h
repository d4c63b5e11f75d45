// Handles of cuDNN, and the plans and graphs that were made with them.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_SESSION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_SESSION_H_

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/gpu/cudnn/enqueue_pass.h"
#include "kernels/gpu/replay.h"
#include "kernels/gpu/session_pool.h"

namespace cudnn_rnn_tf {

// A problem's passes by one algorithm.
struct PlannedPasses {
  std::unique_ptr<CudnnPlan> plan;
  PassReplay forward, backward;

  PassReplay& of(Pass pass) {
    return pass == Pass::kForward ? forward : backward;
  }
};

// A problem with its algorithm and its plans.
struct CudnnConfiguration {
  RnnProblem problem;
  GpuOptions options;
  // What runs its forward passes; kAuto until the first of them is planned.
  RnnAlgorithm algorithm = RnnAlgorithm::kAuto;
  // One for each algorithm, made when it is first needed. A backward pass runs
  // by the algorithm that has left its reserve space.
  std::array<std::unique_ptr<PlannedPasses>, kNumPlannedAlgorithms> passes;
  // The number of the configuration's uses, and its first and last use, which
  // are counted among the uses of all configurations of the session.
  int64_t uses = 0, first_use = 0, last_use = 0;

  size_t ReplayBytes() const;
  void DropReplays();
};

// Used by one thread at a time, for one stream of one device.
class CudnnSession {
 public:
  // `memory_limit` returns the size of the device's memory. Workspaces that are
  // kept take at most a 64th of that.
  RnnStatus Open(CUstream stream, const std::function<size_t()>& memory_limit);
  ~CudnnSession();

  const CudnnHandles& handles() const { return handles_; }

  // Returns memory that stays in its place from pass to pass, until one needs
  // more.
  std::shared_ptr<void> Workspace(size_t bytes, const AllocateMemory& allocate);
  size_t workspace_bytes() const { return workspace_bytes_; }
  void DropWorkspace();
  size_t max_kept_bytes() const { return max_kept_bytes_; }

  // Captures a pass over `addresses`, so that its nodes can be launched.
  RnnStatus Capture(CudnnPlan* plan, Pass pass, const CallAddresses& addresses,
                    CapturedGraph* graph);
  // Captures a pass to be replayed. `region` is scratch memory of the largest
  // buffer's size and Replay::kRegionSlack bytes more.
  RnnStatus CaptureReplay(CudnnPlan* plan, Pass pass, void* region,
                          std::unique_ptr<Replay>* replay);

  // The result is valid until the next call.
  CudnnConfiguration* Configuration(const RnnProblem& problem,
                                    const GpuOptions& options);
  RnnStatus Passes(CudnnConfiguration* configuration, RnnAlgorithm algorithm,
                   PlannedPasses** passes);
  // Tells whether one more pass may be captured. If all replays of the process
  // take too much memory, those that have fallen out of use are dropped. Others
  // stay, since shapes that push each other out would be captured anew at every
  // use.
  bool MakeRoomForReplay();

 private:
  using Entry = std::pair<std::string, std::unique_ptr<CudnnConfiguration>>;

  // Captures have handles of their own, since no other work may enter them.
  RnnStatus CaptureHandles(CudnnHandles* handles);
  RnnStatus MakeBlas();
  void DropOneConfiguration();

  CudnnHandle handle_, capture_handle_;
  CublasHandle blas_;  // Made when first needed.
  CudnnHandles handles_ = {};
  CUstream capture_stream_ = nullptr;
  // The most recently used first.
  std::list<Entry> configurations_;
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  int64_t uses_ = 0;
  std::shared_ptr<void> workspace_;
  size_t workspace_bytes_ = 0, max_kept_bytes_ = 0;
};

using CudnnSessionPool = SessionPool<CudnnSession>;

// Returns a session to the pool. Of the idle sessions of a device, those that
// were used last keep their workspaces, up to max_kept_bytes() in all.
void ReturnSession(int device, CUstream stream,
                   std::unique_ptr<CudnnSession> session);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_SESSION_H_
