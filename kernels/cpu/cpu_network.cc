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
      PseudoLayer& kept = pseudo_layers.emplace_back();
      if (!problem.is_training) continue;
      kept.gates = arena->Take<T>(steps * spec.num_gates() * spec.num_units);
      if (spec.has_c()) kept.cell = arena->Take<T>(states * spec.num_units);
      if (spec.kind().num_slots == spec.num_gates()) continue;
      kept.candidate = arena->Take<T>(steps * spec.num_units);
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

CpuNetwork::CpuNetwork(const CpuPlan& plan, const Division& division,
                       const PackedRows& rows, const RnnBuffers& buffers)
    : plan_(plan),
      problem_(plan.problem),
      spec_(problem_.spec),
      cell_(spec_.kind()),
      rows_(rows),
      tensors_(problem_, rows),
      masks_(problem_, rows, buffers.seed),
      division_(division),
      forms_(plan.forms),
      input_(buffers.input),
      strands_(rows.Strands(division_.strands)),
      batch_(problem_.batch_size),
      max_rows_(problem_.max_time * batch_),
      gates_(cell_.num_gates * spec_.num_units),
      units_(spec_.num_units),
      out_(spec_.output_size()),
      layer_out_(spec_.layer_output_size()),
      dirs_(spec_.num_dirs()),
      h_stride_(RowStride(PaddedDepth(out_))),
      strand_size_(
          CeilDiv(PackedRows::MaxBlockSize(batch_), division_.strands)) {}

template struct CpuReserve<float>;
template struct CpuReserve<double>;

}  // namespace cudnn_rnn_tf
