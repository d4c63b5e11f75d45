#include "kernels/cpu/cpu_plan.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/packed_rows.h"

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

template <typename T>
CpuForwardWeights<T> PackForward(const CpuPlan& plan, int64_t pseudo_layer,
                                 Stored<T> params, Arena* arena,
                                 Schedule* schedule) {
  const RnnSpec& spec = plan.problem.spec;
  const FactorForms& forms = plan.forms;
  const CellKind& cell = spec.kind();
  const int64_t units = spec.num_units, out = spec.output_size();
  const int64_t gates = cell.num_gates * units;
  const ParamLayout::PseudoLayer& offsets =
      plan.layout.pseudo_layer(pseudo_layer);
  const auto pack = [&](int64_t depth, int64_t cols, bool bfloat16,
                        int64_t offset) {
    const Stored<T> numbers = params.From(offset);
    if (forms.in_place) return RightMatrix<T>(depth, cols, numbers.InPlace());
    return RightMatrix<T>(depth, cols, bfloat16,
                          {{numbers, depth}, /*transposed=*/true}, arena,
                          schedule);
  };
  CpuForwardWeights<T> weights;
  if (offsets.input_weights >= 0) {
    weights.input = pack(spec.layer_input_size(pseudo_layer / spec.num_dirs()),
                         gates, forms.rounds_both, offsets.input_weights);
  }
  for (int64_t gate = 0; gate < cell.num_gates; ++gate) {
    weights.recurrent[gate] =
        pack(out, units, forms.rounds_step_weights,
             offsets.recurrent_weights + gate * units * out);
  }
  if (spec.num_proj > 0) {
    weights.projection =
        pack(units, out, forms.rounds_step_weights, offsets.projection);
  }
  weights.bias = arena->Take<T>(gates);
  weights.candidate_bias = arena->Take<T>(units);
  weights.vectors = arena->Take<T>(cell.num_vectors * units);
  schedule->Add(1, 1, [=, offsets = offsets, &cell](int64_t, int64_t) {
    if (offsets.vectors >= 0) {
      params.From(offsets.vectors)
          .Copy(cell.num_vectors * units, weights.vectors);
    }
    std::fill_n(weights.bias, gates, T(0));
    std::fill_n(weights.candidate_bias, units, T(0));
    if (offsets.input_bias >= 0) {
      params.From(offsets.input_bias).Copy(gates, weights.bias);
    }
    if (offsets.recurrent_bias < 0) return;
    std::vector<T> recurrent(gates);
    params.From(offsets.recurrent_bias).Copy(gates, recurrent.data());
    // The bias of a recurrent side that has a slot of its own is kept apart.
    const int64_t outside =
        cell.splits_gate() ? cell.joint_gates * units : gates;
    for (int64_t j = 0; j < outside; ++j) weights.bias[j] += recurrent[j];
    std::copy(recurrent.begin() + outside, recurrent.end(),
              weights.candidate_bias);
  });
  return weights;
}

#define CRNN_INSTANTIATE(T)                                          \
  template CpuForwardWeights<T> PackForward(const CpuPlan&, int64_t, \
                                            Stored<T>, Arena*, Schedule*)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
