#include "kernels/cpu/cpu_plan.h"

#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/rows.h"

namespace cudnn_rnn_tf {

FactorForms::FactorForms(const RnnProblem& problem) {
  constexpr int64_t kFewRows = 16;
  in_place = problem.max_time * problem.batch_size <= kFewRows &&
             HalfTypeOf(problem.dtype) == nullptr;
  if (problem.dtype != RnnDataType::kBfloat16) return;
  const bool has_few = PackedRows::MaxBlockSize(problem.batch_size) <= 4;
  rounds_both = Simd().multiplies_bfloat16();
  rounds_step_weights = rounds_both || (has_few && problem.max_time > 2);
  rounds_steps = rounds_both && !(has_few && Simd().multiplies_matrices());
}

CpuPlan::CpuPlan(const RnnProblem& problem, int64_t threads,
                 bool may_be_at_hand)
    : RnnPlan(problem),
      layout(problem.spec),
      forms(problem),
      core(ThisCore(problem.dtype, forms.rounds_both)) {
  const auto worth = [&](bool is_backward, bool are_at_hand) {
    return WorthThreads(problem, is_backward, threads, are_at_hand);
  };
  woken = DivideForward(problem, core, worth(false, false));
  at_hand = DivideForward(problem, core, worth(false, may_be_at_hand));
  backward = DivideGroups(problem, core, worth(true, false));
}

}  // namespace cudnn_rnn_tf
