#include "kernels/cpu/weights.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/packed_rows.h"

namespace cudnn_rnn_tf {

Precision::Precision(const RnnProblem& problem) {
  if (problem.dtype != RnnDataType::kBfloat16) return;
  const bool has_few = PackedRows::MaxBlockSize(problem.batch_size) <= 4;
  rounds_both = Simd().multiplies_bfloat16();
  rounds_step_weights = rounds_both || (has_few && problem.max_time > 2);
  rounds_steps = rounds_both && !(has_few && Simd().multiplies_matrices());
}

bool MultipliesInPlace(const RnnProblem& problem) {
  constexpr int64_t kFewRows = 16;
  return problem.max_time * problem.batch_size <= kFewRows &&
         HalfTypeOf(problem.dtype) == nullptr;
}

template <typename T>
CpuForwardWeights<T> CpuWeights::PackForward(int64_t pseudo_layer,
                                             Stored<T> params, bool in_place,
                                             Arena* arena,
                                             Schedule* schedule) const {
  const RnnSpec& spec = problem_.spec;
  const CellKind& cell = spec.kind();
  const int64_t units = spec.num_units, out = spec.output_size();
  const int64_t gates = cell.num_gates * units;
  const ParamLayout::PseudoLayer& offsets = layout_.pseudo_layer(pseudo_layer);
  const auto pack = [&](int64_t depth, int64_t cols, bool bfloat16,
                        int64_t offset) {
    const Stored<T> numbers = params.From(offset);
    if (in_place) return RightMatrix<T>(depth, cols, numbers.InPlace());
    return RightMatrix<T>(depth, cols, bfloat16,
                          {{numbers, depth}, /*transposed=*/true}, arena,
                          schedule);
  };
  CpuForwardWeights<T> weights;
  if (offsets.input_weights >= 0) {
    weights.input = pack(spec.layer_input_size(pseudo_layer / spec.num_dirs()),
                         gates, precision_.rounds_both, offsets.input_weights);
  }
  for (int64_t gate = 0; gate < cell.num_gates; ++gate) {
    weights.recurrent[gate] =
        pack(out, units, precision_.rounds_step_weights,
             offsets.recurrent_weights + gate * units * out);
  }
  if (spec.num_proj > 0) {
    weights.projection =
        pack(units, out, precision_.rounds_step_weights, offsets.projection);
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

template CpuForwardWeights<float> CpuWeights::PackForward(int64_t,
                                                          Stored<float>, bool,
                                                          Arena*,
                                                          Schedule*) const;
template CpuForwardWeights<double> CpuWeights::PackForward(int64_t,
                                                           Stored<double>, bool,
                                                           Arena*,
                                                           Schedule*) const;

}  // namespace cudnn_rnn_tf
