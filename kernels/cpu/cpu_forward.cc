#include <algorithm>

#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace {

// Rows that one task carries through all time steps: enough to reuse each panel
// of the recurrent weights, few enough to give every core a task.
constexpr int64_t kBatchBlock = 16;
constexpr int64_t kRowBlock = 64;

}  // namespace

template <typename T>
CpuReserve<T>::CpuReserve(const RnnProblem& problem, Arena* arena) {
  const RnnSpec& spec = problem.spec;
  const int64_t steps = problem.max_time * problem.batch_size;
  const bool training = problem.is_training;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
      if (!training && layer > 0) {
        pseudo_layers.push_back(pseudo_layers[dir]);
        continue;
      }
      PseudoLayer pseudo_layer = {};
      pseudo_layer.gates =
          arena->Take<T>(steps * spec.num_gates() * spec.num_units);
      if (training && spec.is_lstm()) {
        pseudo_layer.cell = arena->Take<T>(steps * spec.num_units);
      }
      if (training && spec.is_gru()) {
        pseudo_layer.candidate = arena->Take<T>(steps * spec.num_units);
      }
      pseudo_layers.push_back(pseudo_layer);
    }
    outputs.push_back(training || layer < 2
                          ? arena->Take<T>(steps * spec.layer_output_size())
                          : outputs[layer - 2]);
  }
}

template <typename T>
CpuNetwork<T>::CpuNetwork(const RnnProblem& problem,
                          const int32_t* sequence_lengths,
                          const uint64_t seed[2],
                          const ParallelFor& parallel_for)
    : problem_(problem),
      spec_(problem.spec),
      layout_(problem.spec),
      lengths_(sequence_lengths),
      seed_{seed[0], seed[1]},
      parallel_for_(parallel_for),
      time_(problem.max_time),
      batch_(problem.batch_size),
      gates_(spec_.num_gates() * spec_.num_units),
      units_(spec_.num_units),
      out_(spec_.output_size()),
      layer_out_(spec_.layer_output_size()),
      dirs_(spec_.num_dirs()) {}

template <typename T>
int64_t CpuNetwork<T>::BatchBlock() {
  return kBatchBlock;
}

template <typename T>
int64_t CpuNetwork<T>::LongestLength(int64_t first_row,
                                     int64_t last_row) const {
  int64_t longest = 0;
  for (int64_t row = first_row; row < last_row; ++row) {
    longest = std::max(longest, length(row));
  }
  return longest;
}

template <typename T>
void CpuNetwork<T>::ForwardInputGates(int64_t layer, int64_t dir,
                                      const T* input, const T* params, T* gates,
                                      T* panels) {
  const ParamLayout::PseudoLayer& offsets =
      layout_.pseudo_layer(layer * dirs_ + dir);
  std::vector<T> bias(gates_, T(0));
  if (offsets.input_bias >= 0) {
    std::copy_n(params + offsets.input_bias, gates_, bias.begin());
  }
  if (offsets.recurrent_bias >= 0) {
    // A GRU's candidate adds its recurrent bias inside the reset gate.
    const int64_t outside = spec_.is_gru() ? 2 * units_ : gates_;
    for (int64_t j = 0; j < outside; ++j) {
      bias[j] += params[offsets.recurrent_bias + j];
    }
  }
  const int64_t steps = time_ * batch_;
  const int64_t input_size = spec_.layer_input_size(layer);
  const bool skip = offsets.input_weights < 0;
  parallel_for_(CeilDiv(steps, kRowBlock), 1.0 * kRowBlock * gates_,
                [&](int64_t begin, int64_t end) {
                  for (int64_t row = begin * kRowBlock;
                       row < std::min(end * kRowBlock, steps); ++row) {
                    T* to = gates + row * gates_;
                    std::copy_n(bias.data(), gates_, to);
                    if (!skip) continue;
                    for (int64_t j = 0; j < gates_; ++j) {
                      to[j] += input[row * input_size + j % units_];
                    }
                  }
                });
  if (skip) return;
  const MatrixView<T> weights = {params + offsets.input_weights, input_size};
  Gemm(steps, gates_, input_size, MatrixView<T>{input, input_size},
       weights.Transposed(), gates, gates_, /*accumulate=*/true, panels,
       parallel_for_);
}

template <typename T>
void CpuNetwork<T>::ForwardSteps(int64_t layer, int64_t dir, int64_t first_row,
                                 int64_t last_row, const CpuReserve<T>& reserve,
                                 const T* params, const T* recurrent_panels,
                                 const T* projection_panels, T* h, T* c,
                                 T* block_workspace) {
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t pseudo_layer = layer * dirs_ + dir;
  const typename CpuReserve<T>::PseudoLayer& kept =
      reserve.pseudo_layers[pseudo_layer];
  const int64_t rows = last_row - first_row;
  const int64_t longest = LongestLength(first_row, last_row);
  const T clip = static_cast<T>(spec_.cell_clip);
  const int64_t bias_offset = layout_.pseudo_layer(pseudo_layer).recurrent_bias;
  T* const output = reserve.outputs[layer] + dir * out_;
  h += first_row * out_;
  c += first_row * units_;
  // GRU: R h [rows, 3 H], then a candidate row and a bias row.
  T* const recurrent = block_workspace;
  T* const candidate_row = recurrent + rows * gates_;
  T* const candidate_bias = candidate_row + units_;
  // Projection: what is projected [rows, H], then the result [rows, P].
  T* const unprojected = block_workspace;
  T* const projected = unprojected + rows * units_;
  if (spec_.is_gru()) {
    if (bias_offset >= 0) {
      std::copy_n(params + bias_offset + 2 * units_, units_, candidate_bias);
    } else {
      std::fill_n(candidate_bias, units_, T(0));
    }
  }

  for (int64_t step = 0; step < longest; ++step) {
    const int64_t t = dir == 0 ? step : longest - 1 - step;
    const int64_t first = t * batch_ + first_row;
    T* const gates = kept.gates + first * gates_;
    const MatrixView<T> state = {h, out_};
    if (spec_.is_gru()) {
      GemmPacked(rows, gates_, out_, state, recurrent_panels, recurrent, gates_,
                 /*accumulate=*/false);
    } else {
      GemmPacked(rows, gates_, out_, state, recurrent_panels, gates, gates_,
                 /*accumulate=*/true);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (t >= length(first_row + r)) continue;
      T* const row_gates = gates + r * gates_;
      T* const row_h = h + r * out_;
      switch (spec_.rnn_mode) {
        case RnnMode::kLstm: {
          T* const row_c = c + r * units_;
          simd.lstm_forward(
              units_, clip, row_gates, row_c,
              spec_.num_proj > 0 ? unprojected + r * units_ : row_h);
          if (kept.cell != nullptr) {
            std::copy_n(row_c, units_, kept.cell + (first + r) * units_);
          }
          break;
        }
        case RnnMode::kGru:
          simd.gru_forward(
              units_, recurrent + r * gates_, candidate_bias, row_gates,
              kept.candidate != nullptr ? kept.candidate + (first + r) * units_
                                        : candidate_row,
              row_h);
          break;
        case RnnMode::kRnnTanh:
          simd.rnn_tanh_forward(units_, row_gates, row_h);
          break;
        case RnnMode::kRnnRelu:
          simd.rnn_relu_forward(units_, row_gates, row_h);
          break;
      }
    }
    if (spec_.num_proj > 0) {
      GemmPacked(rows, out_, units_, MatrixView<T>{unprojected, units_},
                 projection_panels, projected, out_, /*accumulate=*/false);
    }
    for (int64_t r = 0; r < rows; ++r) {
      T* const to = output + (first + r) * layer_out_;
      if (t >= length(first_row + r)) {
        std::fill_n(to, out_, T(0));
        continue;
      }
      T* const row_h = h + r * out_;
      if (spec_.num_proj > 0) std::copy_n(projected + r * out_, out_, row_h);
      std::copy_n(row_h, out_, to);
    }
  }
  for (int64_t t = longest; t < time_; ++t) {
    for (int64_t row = first_row; row < last_row; ++row) {
      std::fill_n(output + (t * batch_ + row) * layer_out_, out_, T(0));
    }
  }
}

template <typename T>
void CpuNetwork<T>::Forward(const CpuForwardCall<T>& call,
                            const CpuReserve<T>& reserve, Arena* arena,
                            bool count_only) {
  const int64_t steps = time_ * batch_;
  const int64_t blocks = CeilDiv(batch_, kBatchBlock);
  const int64_t block_workspace_size =
      kBatchBlock * std::max(gates_, units_ + out_) + 2 * units_;
  T* const input_panels =
      arena->Take<T>(std::max(PackedSize<T>(spec_.input_size, gates_),
                              PackedSize<T>(layer_out_, gates_)));
  T* recurrent_panels[2] = {};
  T* projection_panels[2] = {};
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    recurrent_panels[dir] = arena->Take<T>(PackedSize<T>(out_, gates_));
    if (spec_.num_proj > 0) {
      projection_panels[dir] = arena->Take<T>(PackedSize<T>(units_, out_));
    }
  }
  T* const block_workspaces =
      arena->Take<T>(dirs_ * blocks * block_workspace_size);
  T* const dropped = has_dropout(1) && spec_.num_layers > 1
                         ? arena->Take<T>(steps * layer_out_)
                         : nullptr;
  if (count_only) return;

  std::copy_n(call.input_h, spec_.num_pseudo_layers() * batch_ * out_,
              call.output_h);
  if (spec_.is_lstm()) {
    std::copy_n(call.input_c, spec_.num_pseudo_layers() * batch_ * units_,
                call.output_c);
  }
  const T* input = call.input;
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    if (has_dropout(layer)) {
      ApplyDropout(MaskBefore(layer), steps * layer_out_, input, dropped,
                   parallel_for_);
      input = dropped;
    }
    for (int64_t dir = 0; dir < dirs_; ++dir) {
      const int64_t pseudo_layer = layer * dirs_ + dir;
      const ParamLayout::PseudoLayer& offsets =
          layout_.pseudo_layer(pseudo_layer);
      ForwardInputGates(layer, dir, input, call.params,
                        reserve.pseudo_layers[pseudo_layer].gates,
                        input_panels);
      const MatrixView<T> recurrent = {call.params + offsets.recurrent_weights,
                                       out_};
      PackPanels(out_, gates_, recurrent.Transposed(), recurrent_panels[dir],
                 parallel_for_);
      if (spec_.num_proj > 0) {
        const MatrixView<T> projection = {call.params + offsets.projection,
                                          units_};
        PackPanels(units_, out_, projection.Transposed(),
                   projection_panels[dir], parallel_for_);
      }
    }
    const double flops =
        2.0 * time_ * std::min(batch_, kBatchBlock) * gates_ * (out_ + 10.0);
    parallel_for_(dirs_ * blocks, flops, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t dir = task / blocks;
        const int64_t first_row = task % blocks * kBatchBlock;
        const int64_t pseudo_layer = layer * dirs_ + dir;
        ForwardSteps(layer, dir, first_row,
                     std::min(first_row + kBatchBlock, batch_), reserve,
                     call.params, recurrent_panels[dir], projection_panels[dir],
                     call.output_h + pseudo_layer * batch_ * out_,
                     call.output_c + pseudo_layer * batch_ * units_,
                     block_workspaces + task * block_workspace_size);
      }
    });
    input = reserve.outputs[layer];
  }
}

template struct CpuReserve<float>;
template struct CpuReserve<double>;
// The members that other files define are instantiated there.
#define CRNN_INSTANTIATE(T)                                                \
  template CpuNetwork<T>::CpuNetwork(const RnnProblem&, const int32_t*,    \
                                     const uint64_t*, const ParallelFor&); \
  template int64_t CpuNetwork<T>::BatchBlock();                            \
  template int64_t CpuNetwork<T>::LongestLength(int64_t, int64_t) const;   \
  template void CpuNetwork<T>::Forward(const CpuForwardCall<T>&,           \
                                       const CpuReserve<T>&, Arena*, bool)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
