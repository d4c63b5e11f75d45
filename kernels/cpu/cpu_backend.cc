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
#include "kernels/cpu/cpu_plan.h"
#include "kernels/cpu/forward_pass.h"
#include "kernels/cpu/rows.h"
#include "kernels/plan_cache.h"

namespace cudnn_rnn_tf {
namespace {

// Runs a pass. If the buffers are null, it only computes their sizes.
template <typename Buffers>
void RunPass(const CpuPlan& plan, const Division& division,
             const Buffers& buffers, const Threads& threads,
             const CpuPackedParams* packed, RnnBufferSizes* sizes) {
  constexpr bool is_forward = kIsForward<Buffers>;
  const RnnProblem& problem = plan.problem;
  Arena workspace(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const PackedRows rows(problem.max_time, problem.batch_size,
                        buffers.sequence_lengths.on_host, buffers.resets,
                        problem.time_major);
  Schedule schedule(division.threads);
  Dispatch(problem.dtype, [&](auto number) {
    using T = decltype(number);
    const CpuReserve<T> reserve(
        problem, problem.is_training ? &reserve_arena : &workspace);
    std::conditional_t<is_forward, ForwardPass<T>, BackwardPass<T>> pass(
        plan, division, rows, buffers);
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
  CpuPlan plan(problem, /*threads=*/1, /*may_be_at_hand=*/false);
  plan.forms.in_place = false;
  Dispatch(dtype, [&](auto number) {
    using T = decltype(number);
    const Stored<T> stored = {params, HalfTypeOf(dtype)};
    const auto pack = [&](Arena arena, Schedule schedule) {
      std::vector<CpuForwardWeights<T>> weights;
      for (int64_t i = 0; i < spec.num_pseudo_layers(); ++i) {
        weights.push_back(PackForward(plan, i, stored, &arena, &schedule));
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
  const auto plan = std::make_shared<CpuPlan>(problem, threads_.count,
                                              threads_.are_at_hand != nullptr);
  // The workspace must suffice for calls whether or not they find the threads
  // at hand.
  for (const Division* const division : {&plan->woken, &plan->at_hand}) {
    RunPass(*plan, *division, RnnForwardBuffers(), threads_, packed_.get(),
            &plan->sizes);
  }
  if (problem.is_training) {
    RunPass(*plan, plan->backward, RnnBackwardBuffers(), threads_, nullptr,
            &plan->sizes);
  }
  return plan;
}

RnnStatus CpuBackend::Plan(const RnnProblem& given, int /*choice*/,
                           RnnLengths* lengths,
                           std::shared_ptr<const RnnPlan>* plan) {
  static auto* const plans = new PlanCache;
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
  const bool at_hand = ours.woken.threads < ours.at_hand.threads &&
                       threads_.are_at_hand && threads_.are_at_hand();
  RunPass(ours, at_hand ? ours.at_hand : ours.woken, buffers, threads_,
          packed_.get(), nullptr);
  return {};
}

RnnStatus CpuBackend::Backward(const RnnPlan& plan,
                               const RnnBackwardBuffers& buffers) {
  const auto& ours = static_cast<const CpuPlan&>(plan);
  RunPass(ours, ours.backward, buffers, threads_, nullptr, nullptr);
  return {};
}

RnnStatus CpuBackend::Copy(const void* from, void* to, size_t bytes) {
  // An empty tensor may have a null address, which memmove must not get even
  // for zero bytes. States may be copied to where they are.
  if (bytes > 0) std::memmove(to, from, bytes);
  return {};
}

RnnStatus CpuBackend::SetZero(void* to, size_t bytes) {
  if (bytes > 0) std::memset(to, 0, bytes);
  return {};
}

}  // namespace cudnn_rnn_tf
