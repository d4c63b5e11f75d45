#include <algorithm>

#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {

// Working memory of one layer's backward pass; pointers to arrays of D.
template <typename T>
struct CpuNetwork<T>::BackwardLayer {
  const CpuBackwardCall<T>& call;
  const CpuReserve<T>& reserve;
  int64_t index = 0;
  const T* input = nullptr;            // The layer's input, dropout applied.
  const T* output_backprop = nullptr;  // [T, B, D * P]
  T* input_backprop = nullptr;         // [T, B, fan_in]
  // Gradients of the preactivations, [T, B, dz_width].
  T* dz[2] = {};
  T* first_dz =
      nullptr;           // Those of every sequence's first step, [B, dz_width].
  T* first_h = nullptr;  // With sequence lengths: what they begin with, [B, P].
  // Projection only: the gradient of the projected output and what was
  // projected, [T, B, P] and [T, B, H].
  T* projected_backprop[2] = {};
  T* unprojected[2] = {};
  T* recurrent_panels[2] = {};
  T* projection_panels[2] = {};
  T* block_workspaces = nullptr;
  int64_t block_workspace_size = 0;
  T* panels = nullptr;  // For products of whole sequences.

  BackwardLayer(const CpuBackwardCall<T>& call, const CpuReserve<T>& reserve)
      : call(call), reserve(reserve) {}
};

namespace {

// Which columns of dz belong to which rows of the recurrent weights: a GRU's
// candidate has a gradient of its own on the recurrent side.
struct Segment {
  int64_t dz_col;
  int64_t first_row;
  int64_t num_rows;
};

struct Segments {
  Segment items[2];
  int count;

  explicit Segments(const RnnSpec& spec) {
    const int64_t n = spec.num_units;
    if (spec.is_gru()) {
      items[0] = {0, 0, 2 * n};
      items[1] = {3 * n, 2 * n, n};
      count = 2;
    } else {
      items[0] = {0, 0, spec.num_gates() * n};
      count = 1;
    }
  }
  const Segment* begin() const { return items; }
  const Segment* end() const { return items + count; }
};

int64_t DzWidth(const RnnSpec& spec) {
  return (spec.is_gru() ? 4 : spec.num_gates()) * spec.num_units;
}

// to[j] = the sum of column j. Partial sums over blocks of rows keep the
// rounding error from growing with the number of rows.
template <typename T>
void SumColumns(int64_t rows, int64_t cols, const T* from, int64_t row_stride,
                T* to, const ParallelFor& parallel_for) {
  constexpr int64_t kCols = 64, kRows = 128;
  parallel_for(CeilDiv(cols, kCols), 1.0 * rows * kCols,
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t first = task * kCols;
                   const int64_t width = std::min(kCols, cols - first);
                   T total[kCols] = {};
                   for (int64_t row = 0; row < rows; row += kRows) {
                     T sum[kCols] = {};
                     const int64_t last = std::min(row + kRows, rows);
                     for (int64_t r = row; r < last; ++r) {
                       const T* x = from + r * row_stride + first;
                       for (int64_t j = 0; j < width; ++j) sum[j] += x[j];
                     }
                     for (int64_t j = 0; j < width; ++j) total[j] += sum[j];
                   }
                   std::copy_n(total, width, to + first);
                 }
               });
}

}  // namespace

template <typename T>
void CpuNetwork<T>::BackwardSteps(const BackwardLayer& layer, int64_t dir,
                                  int64_t first_row, int64_t last_row) {
  const SimdKernels<T>& simd = Kernels<T>();
  const int64_t pseudo_layer = layer.index * dirs_ + dir;
  const typename CpuReserve<T>::PseudoLayer& kept =
      layer.reserve.pseudo_layers[pseudo_layer];
  const int64_t dz_width = DzWidth(spec_);
  const int64_t rows = last_row - first_row;
  const int64_t longest = LongestLength(first_row, last_row);
  const T clip = static_cast<T>(spec_.cell_clip);
  const bool projects = spec_.num_proj > 0;
  const int64_t previous = dir == 0 ? -1 : 1;
  T* const output = layer.reserve.outputs[layer.index] + dir * out_;
  const int64_t states = pseudo_layer * batch_ + first_row;
  const T* const input_h = layer.call.input_h + states * out_;
  T* const dh = layer.call.h_backprop + states * out_;
  const int64_t block =
      dir * CeilDiv(batch_, BatchBlock()) + first_row / BatchBlock();
  // The gradient of this step's h [rows, P], becoming that of the step before;
  // with projection, that of what was projected [rows, H].
  T* const step_dh =
      layer.block_workspaces + block * layer.block_workspace_size;
  T* const step_dy = projects ? step_dh + rows * out_ : step_dh;

  for (int64_t t = longest; t < time_; ++t) {
    const int64_t first = t * batch_ + first_row;
    std::fill_n(layer.dz[dir] + first * dz_width, rows * dz_width, T(0));
    if (projects) {
      std::fill_n(layer.projected_backprop[dir] + first * out_, rows * out_,
                  T(0));
      std::fill_n(layer.unprojected[dir] + first * units_, rows * units_, T(0));
    }
  }
  for (int64_t step = 0; step < longest; ++step) {
    const int64_t t = dir == 0 ? longest - 1 - step : step;
    const int64_t first = t * batch_ + first_row;
    T* const dz = layer.dz[dir] + first * dz_width;
    for (int64_t r = 0; r < rows; ++r) {
      T* const to = step_dh + r * out_;
      if (t >= length(first_row + r)) {
        std::fill_n(to, out_, T(0));
        continue;
      }
      const T* from =
          layer.output_backprop + (first + r) * layer_out_ + dir * out_;
      for (int64_t j = 0; j < out_; ++j) to[j] = dh[r * out_ + j] + from[j];
    }
    if (projects) {
      std::copy_n(step_dh, rows * out_,
                  layer.projected_backprop[dir] + first * out_);
      GemmPacked(rows, units_, out_, MatrixView<T>{step_dh, out_},
                 layer.projection_panels[dir], step_dy, units_,
                 /*accumulate=*/false);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row_length = length(first_row + r);
      T* const row_dz = dz + r * dz_width;
      if (t >= row_length) {
        std::fill_n(row_dz, dz_width, T(0));
        if (projects) {
          std::fill_n(layer.unprojected[dir] + (first + r) * units_, units_,
                      T(0));
        }
        continue;
      }
      const bool is_first = t == (dir == 0 ? 0 : row_length - 1);
      const int64_t before = first + r + previous * batch_;
      const T* const gates = kept.gates + (first + r) * gates_;
      T* const row_dy = step_dy + r * units_;
      switch (spec_.rnn_mode) {
        case RnnMode::kLstm: {
          const T* const c = kept.cell + (first + r) * units_;
          const T* const c_prev =
              is_first ? layer.call.input_c + (states + r) * units_
                       : kept.cell + before * units_;
          simd.lstm_backward(units_, clip, gates, c, c_prev, row_dy,
                             layer.call.c_backprop + (states + r) * units_,
                             row_dz);
          if (projects) {
            simd.lstm_output(units_, clip, gates + 3 * units_, c,
                             layer.unprojected[dir] + (first + r) * units_);
          }
          break;
        }
        case RnnMode::kGru:
          simd.gru_backward(
              units_, gates, kept.candidate + (first + r) * units_,
              is_first ? input_h + r * out_ : output + before * layer_out_,
              row_dy, row_dz);
          break;
        case RnnMode::kRnnTanh:
          simd.rnn_tanh_backward(units_, gates, row_dy, row_dz);
          break;
        case RnnMode::kRnnRelu:
          simd.rnn_relu_backward(units_, gates, row_dy, row_dz);
          break;
      }
    }
    const T* panels = layer.recurrent_panels[dir];
    bool accumulate = spec_.is_gru();  // Onto z * dh, which is there already.
    for (const Segment& segment : Segments(spec_)) {
      GemmPacked(rows, out_, segment.num_rows,
                 MatrixView<T>{dz + segment.dz_col, dz_width}, panels, step_dh,
                 out_, accumulate);
      panels += PackedSize<T>(segment.num_rows, out_);
      accumulate = true;
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (t < length(first_row + r)) {
        std::copy_n(step_dh + r * out_, out_, dh + r * out_);
      }
    }
  }
}

template <typename T>
void CpuNetwork<T>::BackwardWeights(const BackwardLayer& layer, int64_t dir) {
  const int64_t pseudo_layer = layer.index * dirs_ + dir;
  const ParamLayout::PseudoLayer& offsets = layout_.pseudo_layer(pseudo_layer);
  const int64_t fan_in = spec_.layer_input_size(layer.index);
  const int64_t steps = time_ * batch_;
  const int64_t dz_width = DzWidth(spec_);
  const T* const dz = layer.dz[dir];
  T* const dparams = layer.call.params_backprop;

  // Input side: dW = dz^T x, dx = dz W.
  const MatrixView<T> dz_input = {dz, dz_width};
  if (offsets.input_weights >= 0) {
    const T* const weights = layer.call.params + offsets.input_weights;
    Gemm(gates_, fan_in, steps, dz_input.Transposed(),
         MatrixView<T>{layer.input, fan_in}, dparams + offsets.input_weights,
         fan_in, /*accumulate=*/false, layer.panels, parallel_for_);
    Gemm(steps, fan_in, gates_, dz_input, MatrixView<T>{weights, fan_in},
         layer.input_backprop, fan_in, /*accumulate=*/dir > 0, layer.panels,
         parallel_for_);
  } else {
    for (int64_t row = 0; row < steps; ++row) {
      T* const dx = layer.input_backprop + row * fan_in;
      if (dir == 0) std::fill_n(dx, fan_in, T(0));
      for (int64_t j = 0; j < gates_; ++j) {
        dx[j % units_] += dz[row * dz_width + j];
      }
    }
  }
  if (offsets.input_bias >= 0) {
    SumColumns(steps, gates_, dz, dz_width, dparams + offsets.input_bias,
               parallel_for_);
  }

  // Recurrent side. The state before a step is the output of its neighbour,
  // except for a sequence's first step: padded outputs are zero, so those rows
  // add nothing in the first product and come in the second.
  const MatrixView<T> output = {layer.reserve.outputs[layer.index] + dir * out_,
                                layer_out_};
  const int64_t pairs = steps - batch_;
  const T* const dz_after = dir == 0 ? dz + batch_ * dz_width : dz;
  const MatrixView<T> output_before = {
      dir == 0 ? output.data : output.data + batch_ * layer_out_, layer_out_};
  for (int64_t row = 0; row < batch_; ++row) {
    T* const to = layer.first_dz + row * dz_width;
    if (length(row) == 0) {
      std::fill_n(to, dz_width, T(0));
      continue;
    }
    const int64_t t = dir == 0 ? 0 : length(row) - 1;
    std::copy_n(dz + (t * batch_ + row) * dz_width, dz_width, to);
  }
  MatrixView<T> input_h = {layer.call.input_h + pseudo_layer * batch_ * out_,
                           out_};
  if (lengths_ != nullptr) {
    // What an empty sequence begins with, NaN perhaps, must not reach a
    // product.
    for (int64_t row = 0; row < batch_; ++row) {
      T* const to = layer.first_h + row * out_;
      if (length(row) == 0) {
        std::fill_n(to, out_, T(0));
      } else {
        std::copy_n(input_h.data + row * out_, out_, to);
      }
    }
    input_h.data = layer.first_h;
  }
  for (const Segment& segment : Segments(spec_)) {
    T* const dweights =
        dparams + offsets.recurrent_weights + segment.first_row * out_;
    const MatrixView<T> first = {layer.first_dz + segment.dz_col, dz_width};
    Gemm(segment.num_rows, out_, batch_, first.Transposed(), input_h, dweights,
         out_, /*accumulate=*/false, layer.panels, parallel_for_);
    if (pairs > 0) {
      const MatrixView<T> after = {dz_after + segment.dz_col, dz_width};
      Gemm(segment.num_rows, out_, pairs, after.Transposed(), output_before,
           dweights, out_, /*accumulate=*/true, layer.panels, parallel_for_);
    }
    if (offsets.recurrent_bias >= 0) {
      SumColumns(steps, segment.num_rows, dz + segment.dz_col, dz_width,
                 dparams + offsets.recurrent_bias + segment.first_row,
                 parallel_for_);
    }
  }
  if (spec_.num_proj > 0) {
    const MatrixView<T> dprojected = {layer.projected_backprop[dir], out_};
    Gemm(out_, units_, steps, dprojected.Transposed(),
         MatrixView<T>{layer.unprojected[dir], units_},
         dparams + offsets.projection, units_, /*accumulate=*/false,
         layer.panels, parallel_for_);
  }
}

template <typename T>
void CpuNetwork<T>::Backward(const CpuBackwardCall<T>& call,
                             const CpuReserve<T>& reserve, Arena* arena,
                             bool count_only) {
  const int64_t steps = time_ * batch_;
  const int64_t blocks = CeilDiv(batch_, BatchBlock());
  const int64_t dz_width = DzWidth(spec_);
  const bool projects = spec_.num_proj > 0;
  BackwardLayer layer(call, reserve);
  int64_t recurrent_size = 0;
  for (const Segment& segment : Segments(spec_)) {
    recurrent_size += PackedSize<T>(segment.num_rows, out_);
  }
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    layer.dz[dir] = arena->Take<T>(steps * dz_width);
    layer.recurrent_panels[dir] = arena->Take<T>(recurrent_size);
    if (projects) {
      layer.projected_backprop[dir] = arena->Take<T>(steps * out_);
      layer.unprojected[dir] = arena->Take<T>(steps * units_);
      layer.projection_panels[dir] =
          arena->Take<T>(PackedSize<T>(out_, units_));
    }
  }
  layer.first_dz = arena->Take<T>(batch_ * dz_width);
  if (problem_.has_sequence_lengths) {
    layer.first_h = arena->Take<T>(batch_ * out_);
  }
  layer.block_workspace_size = BatchBlock() * (out_ + (projects ? units_ : 0));
  layer.block_workspaces =
      arena->Take<T>(dirs_ * blocks * layer.block_workspace_size);
  const int64_t widest = std::max(spec_.input_size, layer_out_);
  layer.panels = arena->Take<T>(
      std::max({PackedSize<T>(steps, widest), PackedSize<T>(gates_, widest),
                PackedSize<T>(batch_, out_),
                projects ? PackedSize<T>(steps, units_) : 0}));
  // The gradient of a layer's input is the one of the output below it.
  T* spare =
      spec_.num_layers > 1 ? arena->Take<T>(steps * layer_out_) : nullptr;
  T* const dropped = spec_.num_layers > 1 && has_dropout(1)
                         ? arena->Take<T>(steps * layer_out_)
                         : nullptr;
  if (count_only) return;

  T* output_backprop = call.output_backprop;
  for (int64_t index = spec_.num_layers - 1; index >= 0; --index) {
    layer.index = index;
    layer.input = index == 0 ? call.input : reserve.outputs[index - 1];
    layer.output_backprop = output_backprop;
    layer.input_backprop = index == 0 ? call.input_backprop : spare;
    if (has_dropout(index)) {
      ApplyDropout(MaskBefore(index), steps * layer_out_, layer.input, dropped,
                   parallel_for_);
      layer.input = dropped;
    }
    for (int64_t dir = 0; dir < dirs_; ++dir) {
      const ParamLayout::PseudoLayer& offsets =
          layout_.pseudo_layer(index * dirs_ + dir);
      T* panels = layer.recurrent_panels[dir];
      for (const Segment& segment : Segments(spec_)) {
        const T* const weights =
            call.params + offsets.recurrent_weights + segment.first_row * out_;
        PackPanels(segment.num_rows, out_, MatrixView<T>{weights, out_}, panels,
                   parallel_for_);
        panels += PackedSize<T>(segment.num_rows, out_);
      }
      if (projects) {
        PackPanels(out_, units_,
                   MatrixView<T>{call.params + offsets.projection, units_},
                   layer.projection_panels[dir], parallel_for_);
      }
    }
    const double flops =
        2.0 * time_ * std::min(batch_, BatchBlock()) * dz_width * (out_ + 10.0);
    parallel_for_(dirs_ * blocks, flops, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first_row = task % blocks * BatchBlock();
        BackwardSteps(layer, task / blocks, first_row,
                      std::min(first_row + BatchBlock(), batch_));
      }
    });
    for (int64_t dir = 0; dir < dirs_; ++dir) BackwardWeights(layer, dir);
    if (has_dropout(index)) {
      ApplyDropout(MaskBefore(index), steps * layer_out_, layer.input_backprop,
                   layer.input_backprop, parallel_for_);
    }
    std::swap(output_backprop, spare);
  }
}

#define CRNN_INSTANTIATE(T)                                        \
  template void CpuNetwork<T>::Backward(const CpuBackwardCall<T>&, \
                                        const CpuReserve<T>&, Arena*, bool)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
