// The products over all steps that end a layer's backward pass.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/backward_pass.h"
#include "kernels/cpu/transposed_products.h"

namespace cudnn_rnn_tf {

// Computes dx = dz W. The second direction's product is added to the first's.
template <typename T>
void BackwardPass<T>::AddInputs(const Layer& layer, int64_t dir, Arena* arena,
                                Schedule* schedule) const {
  const ParamLayout::PseudoLayer& offsets = layer.pseudo_layers[dir].offsets;
  const int64_t fan_in = spec_.layer_input_size(layer.index);
  const Rows<T> dz = {layer.pseudo_layers[dir].kept.gates, gates_};
  const Rows<T> dx = layer.input_backprop;
  if (offsets.input_weights >= 0) {
    Product<T> product;
    product.rows = rows_.num_rows();
    product.a = dz;
    product.rounds_both = forms_.rounds_both;
    if (dir > 0) product.init = dx;
    product.c = dx;
    // The scope gives the memory back, so the next product packs in the same
    // place.
    const Arena::Scope scope(arena);
    const Stored<T> weights =
        tensors_.Numbers<T>(buffers_.params).From(offsets.input_weights);
    product.b = RightMatrix<T>(gates_, fan_in, forms_.rounds_both,
                               {{weights, fan_in}}, arena, schedule);
    product.AddTo(schedule);
    return;
  }
  schedule->AddRanges(rows_.num_rows(), 16, [=](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      if (dir == 0) std::fill_n(dx[row], units_, T(0));
      for (int64_t j = 0; j < gates_; ++j) dx[row][j % units_] += dz[row][j];
    }
  });
}

// Computes the gradients of a cell's vectors.
template <typename T>
void BackwardPass<T>::AddVectors(const Layer& layer, Schedule* schedule) const {
  const int64_t numbers = cell_.num_vectors * units_;
  for (const PseudoLayer& pseudo_layer : layer.pseudo_layers) {
    const int64_t offset = pseudo_layer.offsets.vectors;
    const T* const of_sequences = pseudo_layer.vector_sums;
    schedule->AddRanges(numbers, kSliceCols, [=](int64_t first, int64_t last) {
      std::vector<T> sums(last - first);
      for (int64_t i = 0; i < batch_ * (last - first); ++i) {
        const int64_t j = i % (last - first);
        sums[j] += of_sequences[i / (last - first) * numbers + first + j];
      }
      params_backprop().From(offset + first).Write(last - first, sums.data());
    });
  }
}

// Computes gradients of parameters as sums over all steps: dW = dz^T x, dR =
// dz^T h, and the sums of dz themselves for the biases.
template <typename T>
void BackwardPass<T>::AddWeights(const Layer& layer, Arena* arena,
                                 Schedule* schedule) const {
  using Term = typename TransposedProducts<T>::Term;
  TransposedProducts<T> products(rows_.num_rows(), forms_.rounds_both);
  const int64_t fan_in = spec_.layer_input_size(layer.index);
  const bool has_input_weights = spec_.has_input_weights(layer.index);
  const int64_t x = has_input_weights ? products.AddB(layer.input, fan_in) : -1;
  for (const PseudoLayer& pseudo_layer : layer.pseudo_layers) {
    const ParamLayout::PseudoLayer& offsets = pseudo_layer.offsets;
    const auto gradient = [=](int64_t b, int64_t offset, int64_t first,
                              int64_t cols) {
      return Term{b, params_backprop().From(offset + first * cols)};
    };
    const StoredRows<T> gates({pseudo_layer.kept.gates}, gates_);
    int64_t h = -1;
    for (const auto& segment : pseudo_layer.segments) {
      const bool reads_h = segment.first < cell_.gates_of_h * units_;
      if (h < 0 || !reads_h || has_recurrent_dropout()) {
        h = products.AddB(segment.h, out_);
      }
      std::vector<Term> terms = {
          gradient(h, offsets.recurrent_weights, segment.first, out_)};
      std::vector<Destination<T>> sums;
      if (offsets.recurrent_bias >= 0) {
        sums.push_back(
            params_backprop().From(offsets.recurrent_bias + segment.first));
      }
      if (cell_.splits_gate() && segment.first == cell_.joint_gates * units_) {
        products.AddA(segment.dz, segment.rows, std::move(terms),
                      std::move(sums));
        terms.clear();
        sums.clear();
      }
      if (has_input_weights) {
        terms.push_back(
            gradient(x, offsets.input_weights, segment.first, fan_in));
      }
      if (offsets.input_bias >= 0) {
        sums.push_back(
            params_backprop().From(offsets.input_bias + segment.first));
      }
      products.AddA(gates.From(0, segment.first), segment.rows,
                    std::move(terms), std::move(sums));
    }
    if (spec_.num_proj > 0) {
      const int64_t y =
          products.AddB({{pseudo_layer.unprojected}, units_}, units_);
      products.AddA({{pseudo_layer.projected_backprop}, out_}, out_,
                    {gradient(y, offsets.projection, 0, units_)}, {});
    }
  }
  products.AddTo(arena, schedule);
}

template <typename T>
void BackwardPass<T>::AddSums(const Layer& layer, Arena* arena,
                              Schedule* schedule) const {
  const Rows<T> dx = layer.input_backprop;
  const bool is_left_out = layer.index == 0 && !problem_.has_input_backprop;
  for (int64_t dir = 0; dir < dirs_ && !is_left_out; ++dir) {
    AddInputs(layer, dir, arena, schedule);
  }
  AddWeights(layer, arena, schedule);
  AddVectors(layer, schedule);
  if (masks_.DropsInput(layer.index))
    masks_.DropInput(layer.index, dx.data, dx.data, schedule);
  const int64_t n = spec_.input_size;
  const auto to = tensors_.Sequences<T>(buffers_.input_backprop, n);
  if (layer.index > 0 || is_left_out || to.in_place()) return;
  schedule->AddRanges(rows_.num_rows(), 16, [=](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) to[row].Write(n, dx[row]);
  });
}

template class BackwardPass<float>;
template class BackwardPass<double>;

}  // namespace cudnn_rnn_tf
