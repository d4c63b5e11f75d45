// How a GPU runs a problem.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_GPU_PLAN_H_
#define CUDNN_RNN_TF_KERNELS_GPU_GPU_PLAN_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/session.h"
#include "kernels/plan_cache.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct GpuPlan : RnnPlan {
  using RnnPlan::RnnPlan;

  // Our own kernels read lengths and seeds in device memory. cuDNN has to be
  // told them in host memory.
  bool is_ours() const { return chosen.engine != GpuEngine::kCudnn; }

  GpuChoice chosen;
  std::unique_ptr<const Engine> engine;
  // Tells plans of a process apart, also those that are no more.
  const int64_t id = NextId();

 private:
  static int64_t NextId() {
    static std::atomic<int64_t> last = 0;
    return ++last;
  }
};

// Makes the plan of a problem on the current context's device: what comes first
// in the rule's list of choices and can be had. Unless `choice` is 0, it is
// this one, or one that reads what this one's forward pass leaves.
PlanCache::Made MakeGpuPlan(const RnnProblem& problem, int choice,
                            const GpuOptions& options,
                            const GpuResources& resources, Session* session);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_GPU_PLAN_H_
