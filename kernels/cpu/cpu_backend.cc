#include "kernels/cpu/cpu_backend.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/cpu/backward_pass.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/forward_pass.h"
#include "kernels/cpu/rows.h"
#include "kernels/never_destroyed.h"
#include "kernels/param_layout.h"
#include "kernels/plan_cache.h"

namespace cudnn_rnn_tf {
namespace {

struct CpuPlan : RnnPlan {
  using RnnPlan::RnnPlan;

  // The threads that passes run on. Forward passes may find them at hand;
  // otherwise they must be woken.
  int64_t threads_woken = 1, threads_at_hand = 1, threads_backward = 1;
};

// Runs a pass. If the buffers are null, it only computes their sizes.
template <typename Buffers>
void RunPass(const RnnProblem& problem, const Buffers& buffers,
             const Threads& threads, int64_t num_threads,
             const CpuPackedParams* packed, RnnBufferSizes* sizes) {
  constexpr bool is_forward = std::is_same_v<Buffers, RnnForwardBuffers>;
  Arena workspace(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const PackedRows rows(problem.max_time, problem.batch_size,
                        buffers.sequence_lengths.on_host, buffers.resets,
                        problem.time_major);
  Schedule schedule(
      is_forward ? ThreadsInForward(problem, ThisCore(problem), num_threads)
                 : num_threads);
  Dispatch(problem.dtype, [&](auto number) {
    using T = decltype(number);
    const CpuReserve<T> reserve(
        problem, problem.is_training ? &reserve_arena : &workspace);
    std::conditional_t<is_forward, ForwardPass<T>, BackwardPass<T>> pass(
        problem, rows, buffers, schedule.num_threads());
    if constexpr (is_forward) {
      pass.Add(reserve, packed == nullptr ? nullptr : packed->weights<T>(),
               &workspace, &schedule);
    } else {
      pass.Add(reserve, &workspace, &schedule);
    }
    if (!workspace.only_counts()) schedule.Run(threads);
  });
  if (sizes == nullptr) return;
  size_t* const size =
      is_forward ? &sizes->forward_workspace : &sizes->backward_workspace;
  *size = std::max(*size, workspace.used());
  sizes->reserve_space = reserve_arena.used();
}

// Asks the system for large pages. Otherwise new memory costs a page fault for
// each 4 KiB when it is first written, which takes longer than computing what
// is written. The call may fail without harm, so its result is ignored.
void AdviseLargePages(void* buffer, size_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kLargePage = 1 << 21;
  const uintptr_t start = reinterpret_cast<uintptr_t>(buffer);
  const uintptr_t first = (start + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t last = (start + bytes) / kLargePage * kLargePage;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
}

}  // namespace

CpuPackedParams::CpuPackedParams(const RnnSpec& spec, RnnDataType dtype,
                                 const void* params) {
  // A few steps of one sequence give the form that small batches read the
  // fastest. Larger batches read it as fast as any other.
  RnnProblem problem;
  problem.spec = spec;
  problem.dtype = dtype;
  problem.max_time = 3;
  problem.batch_size = 1;
  problem.is_training = false;
  const CpuWeights all(problem);
  Dispatch(dtype, [&](auto number) {
    using T = decltype(number);
    const Stored<T> stored = {params, HalfTypeOf(dtype)};
    const auto pack = [&](Arena arena, Schedule schedule) {
      std::vector<CpuForwardWeights<T>> weights;
      for (int64_t i = 0; i < spec.num_pseudo_layers(); ++i) {
        weights.push_back(
            all.PackForward(i, stored, /*in_place=*/false, &arena, &schedule));
      }
      if (arena.only_counts()) memory_.Grow(arena.used());
      return weights;
    };
    pack(Arena(nullptr), Schedule(1));
    AdviseLargePages(memory_.data(), memory_.size());
    weights_ = pack(Arena(memory_.data()), Schedule::Immediate());
  });
}

void CpuBackend::Prepare(void* buffer, size_t bytes) {
  AdviseLargePages(buffer, bytes);
}

std::shared_ptr<const RnnPlan> CpuBackend::MakePlan(
    const RnnProblem& problem) const {
  auto plan = std::make_shared<CpuPlan>(problem);
  const auto worth = [&](bool is_backward, bool at_hand) {
    return WorthThreads(problem, is_backward, threads_.count, at_hand);
  };
  plan->threads_woken = worth(/*is_backward=*/false, /*at_hand=*/false);
  plan->threads_at_hand =
      worth(/*is_backward=*/false, /*at_hand=*/threads_.are_at_hand != nullptr);
  plan->threads_backward = worth(/*is_backward=*/true, /*at_hand=*/false);
  // The workspace must suffice for calls whether or not they find the threads
  // at hand.
  for (const int64_t count : {plan->threads_woken, plan->threads_at_hand}) {
    RunPass(problem, RnnForwardBuffers(), threads_, count, packed_.get(),
            &plan->sizes);
  }
  if (problem.is_training) {
    RunPass(problem, RnnBackwardBuffers(), threads_, plan->threads_backward,
            nullptr, &plan->sizes);
  }
  return plan;
}

RnnStatus CpuBackend::Plan(const RnnProblem& given, int /*choice*/,
                           RnnLengths* lengths,
                           std::shared_ptr<const RnnPlan>* plan) {
  static NeverDestroyed<PlanCache> plans;
  RnnProblem problem = given;
  problem.algorithm = RnnAlgorithm::kAuto;
  if (problem.has_sequence_lengths && lengths != nullptr) {
    const RnnStatus status = CheckLengths(&problem, lengths);
    if (!status.ok()) return status;
  }
  std::string key = KeyOf(problem);
  AppendTo(&key, threads_.count);
  AppendTo(&key, packed_ != nullptr);
  PlanCache::Made made;
  if (!plans->Find(key, &made)) {
    made.plan = MakePlan(problem);
    plans->Keep(key, made);
  }
  *plan = std::move(made.plan);
  return {};
}

RnnStatus CpuBackend::Forward(const RnnPlan& plan,
                              const RnnForwardBuffers& buffers) {
  const auto& ours = static_cast<const CpuPlan&>(plan);
  const bool at_hand = ours.threads_woken < ours.threads_at_hand &&
                       threads_.are_at_hand && threads_.are_at_hand();
  RunPass(plan.problem, buffers, threads_,
          at_hand ? ours.threads_at_hand : ours.threads_woken, packed_.get(),
          nullptr);
  return {};
}

RnnStatus CpuBackend::Backward(const RnnPlan& plan,
                               const RnnBackwardBuffers& buffers) {
  RunPass(plan.problem, buffers, threads_,
          static_cast<const CpuPlan&>(plan).threads_backward, nullptr, nullptr);
  return {};
}

RnnStatus CpuBackend::Copy(const void* from, void* to, size_t bytes) {
  // An empty tensor may have a null address, which memcpy must not get even for
  // zero bytes.
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

RnnStatus CpuBackend::SetZero(void* to, size_t bytes) {
  if (bytes > 0) std::memset(to, 0, bytes);
  return {};
}

}  // namespace cudnn_rnn_tf
