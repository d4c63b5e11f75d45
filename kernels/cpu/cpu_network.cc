#include "kernels/cpu/cpu_network.h"

#include <algorithm>

namespace cudnn_rnn_tf {
template <typename T>
CpuReserve<T>::CpuReserve(const RnnProblem& problem, Arena* arena) {
  const RnnSpec& spec = problem.spec;
  const int64_t steps = problem.max_time * problem.batch_size;
  // See PackedRows.
  const int64_t states =
      steps + problem.batch_size + (problem.has_resets ? 1 : 0);
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
      PseudoLayer pseudo_layer = {};
      if (problem.is_training) {
        pseudo_layer.gates =
            arena->Take<T>(steps * spec.num_gates() * spec.num_units);
        if (spec.has_c()) {
          pseudo_layer.cell = arena->Take<T>(states * spec.num_units);
        }
        if (spec.kind().num_slots > spec.num_gates()) {
          pseudo_layer.candidate = arena->Take<T>(steps * spec.num_units);
        }
      }
      pseudo_layers.push_back(pseudo_layer);
    }
    T* output = nullptr;
    if (problem.is_training) {
      output = arena->Take<T>(states * spec.layer_output_size());
    } else if (layer + 1 < spec.num_layers) {
      output = layer < 2 ? arena->Take<T>(steps * spec.layer_output_size())
                         : outputs[layer - 2];
    }
    outputs.push_back(output);
  }
}

CpuNetwork::CpuNetwork(const RnnProblem& problem, const PackedRows& rows,
                       const uint64_t seed[2], int64_t num_threads)
    : problem_(problem),
      spec_(problem.spec),
      cell_(spec_.kind()),
      rows_(rows),
      tensors_(problem, rows),
      layout_(problem.spec),
      masks_(problem, rows, seed),
      core_(ThisCore(problem)),
      division_(DivideGroups(problem, core_, num_threads)),
      strands_(rows.Strands(division_.strands)),
      batch_(problem.batch_size),
      gates_(cell_.num_gates * spec_.num_units),
      units_(spec_.num_units),
      out_(spec_.output_size()),
      layer_out_(spec_.layer_output_size()),
      dirs_(spec_.num_dirs()),
      h_stride_(RowStride(PaddedDepth(out_))),
      strand_size_(
          CeilDiv(PackedRows::MaxBlockSize(batch_), division_.strands)) {}

template <typename T>
RightMatrix<T> CpuNetwork::PackMatrix(int64_t depth, int64_t cols,
                                      bool bfloat16, Stored<T> numbers,
                                      bool transposed, WeightsForm form,
                                      Arena* arena, Schedule* schedule) const {
  const typename RightMatrix<T>::Source source = {
      {numbers, transposed ? depth : cols}, transposed};
  switch (form) {
    case WeightsForm::kInPlace:
      return RightMatrix<T>(depth, cols, numbers.InPlace());
    case WeightsForm::kUnpacked:
      return RightMatrix<T>(depth, cols, bfloat16, source);
    case WeightsForm::kPacked:
      break;
  }
  const RightMatrix<T> matrix(depth, cols, bfloat16, arena);
  matrix.Pack(source, schedule);
  return matrix;
}

template <typename T>
CpuForwardWeights<T> CpuNetwork::PackForward(int64_t pseudo_layer,
                                             Stored<T> params, WeightsForm form,
                                             Arena* arena,
                                             Schedule* schedule) const {
  const ParamLayout::PseudoLayer& offsets = layout_.pseudo_layer(pseudo_layer);
  const auto pack = [&](int64_t depth, int64_t cols, bool bfloat16,
                        int64_t offset) {
    return PackMatrix(depth, cols, bfloat16, params.From(offset),
                      /*transposed=*/true, form, arena, schedule);
  };
  CpuForwardWeights<T> weights;
  if (offsets.input_weights >= 0) {
    weights.input = pack(spec_.layer_input_size(pseudo_layer / dirs_), gates_,
                         MultipliesBfloat16(), offsets.input_weights);
  }
  for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
    weights.recurrent[gate] =
        pack(out_, units_, StepsMultiplyBfloat16(),
             offsets.recurrent_weights + gate * units_ * out_);
  }
  if (spec_.num_proj > 0) {
    weights.projection =
        pack(units_, out_, StepsMultiplyBfloat16(), offsets.projection);
  }
  weights.bias = arena->Take<T>(gates_);
  weights.candidate_bias = arena->Take<T>(units_);
  weights.vectors = arena->Take<T>(cell_.num_vectors * units_);
  schedule->Add(1, 1, [=, &offsets](int64_t, int64_t) {
    if (offsets.vectors >= 0) {
      params.From(offsets.vectors)
          .Copy(cell_.num_vectors * units_, weights.vectors);
    }
    std::fill_n(weights.bias, gates_, T(0));
    std::fill_n(weights.candidate_bias, units_, T(0));
    if (offsets.input_bias >= 0) {
      params.From(offsets.input_bias).Copy(gates_, weights.bias);
    }
    if (offsets.recurrent_bias < 0) return;
    std::vector<T> recurrent(gates_);
    params.From(offsets.recurrent_bias).Copy(gates_, recurrent.data());
    // The bias of a recurrent side that has a slot of its own is kept apart.
    const int64_t outside =
        cell_.splits_gate() ? cell_.joint_gates * units_ : gates_;
    for (int64_t j = 0; j < outside; ++j) weights.bias[j] += recurrent[j];
    std::copy(recurrent.begin() + outside, recurrent.end(),
              weights.candidate_bias);
  });
  return weights;
}

#define CRNN_INSTANTIATE(T)                                                    \
  template struct CpuReserve<T>;                                               \
  template RightMatrix<T> CpuNetwork::PackMatrix(                              \
      int64_t, int64_t, bool, Stored<T>, bool, WeightsForm, Arena*, Schedule*) \
      const;                                                                   \
  template CpuForwardWeights<T> CpuNetwork::PackForward(                       \
      int64_t, Stored<T>, WeightsForm, Arena*, Schedule*) const
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
