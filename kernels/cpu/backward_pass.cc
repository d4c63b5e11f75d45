#include "kernels/cpu/backward_pass.h"

#include <algorithm>
#include <cstring>

namespace cudnn_rnn_tf {

template <typename T>
void BackwardPass<T>::Add(const CpuReserve<T>& reserve, Arena* arena,
                          Schedule* schedule) {
  // The gradient of a layer's input is that of the output of the layer below.
  // Two arrays hold these gradients by turns.
  T* between[2] = {};
  for (int64_t i = 0; i < std::min<int64_t>(2, spec_.num_layers - 1); ++i) {
    between[i] = arena->Take<T>(max_rows_ * layer_out_);
  }
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    previous_rows_[dir] = rows_.PreviousRows(dir);
  }
  const int64_t input_size = spec_.input_size;
  const auto callers_backprop =
      tensors_.Sequences<T>(buffers_.input_backprop, input_size);
  StoredRows<T> output_backprop =
      tensors_.Sequences<T>(buffers_.output_backprop, layer_out_);
  for (int64_t index = spec_.num_layers - 1; index >= 0; --index) {
    const Arena::Scope scope(arena);
    Layer& layer = *layers_.emplace_back(std::make_unique<Layer>());
    layer.index = index;
    LayOut(reserve, arena, &layer);
    layer.output_backprop = output_backprop;
    layer.input = InputOf(index, reserve, arena, schedule);
    if (index > 0) {
      layer.input_backprop = {between[(index - 1) % 2], layer_out_};
    } else {
      layer.input_backprop =
          callers_backprop.in_place() || !problem_.has_input_backprop
              ? callers_backprop.InPlace()
              : Rows<T>{arena->Take<T>(max_rows_ * input_size), input_size};
    }
    {
      // Only the steps need the packed weights, so the scope gives their memory
      // back to the products that come after the steps.
      const Arena::Scope steps_scope(arena);
      schedule->AddTogether([&] {
        for (PseudoLayer& pseudo_layer : layer.pseudo_layers) {
          PackWeights(arena, &pseudo_layer, schedule);
        }
      });
    }
    AddGroups(layer.groups, division_.parts, schedule,
              [this](const Group& group, auto* to) { AddGroup(group, to); });
    if (rows_.num_rows() > 0) AddSums(layer, arena, schedule);
    if (index > 0) output_backprop = {{between[(index - 1) % 2]}, layer_out_};
  }
  if (problem_.has_input_backprop) {
    tensors_.FillPadding(buffers_.input_backprop, input_size, schedule);
  }
  if (rows_.num_rows() > 0) return;
  schedule->Add(1, 1, [this](int64_t, int64_t) {
    std::memset(buffers_.params_backprop, 0,
                plan_.layout.size() * SizeOf(problem_.dtype));
  });
}

template <typename T>
void BackwardPass<T>::LayOut(const CpuReserve<T>& reserve, Arena* arena,
                             Layer* layer) const {
  layer->output = reserve.outputs[layer->index];
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    PseudoLayer& pseudo_layer = layer->pseudo_layers.emplace_back();
    const int64_t index = layer->index * dirs_ + dir;
    pseudo_layer.offsets = plan_.layout.pseudo_layer(index);
    const auto& kept = pseudo_layer.kept = reserve.pseudo_layers[index];
    const int64_t joint = cell_.joint_gates * units_;
    const int64_t rows = has_recurrent_dropout() ? units_ : joint;
    const StoredRows<T> gates({kept.gates}, gates_);
    const StoredRows<T> candidate({kept.candidate}, units_);
    const auto h =
        StoredRows<T>({layer->output}, layer_out_, previous_rows_[dir].data())
            .From(0, dir * out_);
    auto& segments = pseudo_layer.segments;
    for (int64_t first = 0; first < joint; first += rows) {
      segments.push_back({gates.From(0, first), first, rows, h, {}});
    }
    if (cell_.resets_before) {
      segments.push_back({gates.From(0, joint), joint, units_, candidate, {}});
    } else if (cell_.splits_gate()) {
      segments.push_back({candidate, joint, units_, h, {}});
    }
    if (has_recurrent_dropout()) {
      const int64_t stride = cell_.num_gates * out_;
      pseudo_layer.masked = arena->Take<T>(max_rows_ * stride);
      for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
        segments[gate].h =
            StoredRows<T>({pseudo_layer.masked}, stride).From(0, gate * out_);
      }
    }
    pseudo_layer.vector_sums =
        arena->Take<T>(batch_ * cell_.num_vectors * units_);
    if (spec_.num_proj > 0) {
      pseudo_layer.projected_backprop = arena->Take<T>(max_rows_ * out_);
      pseudo_layer.unprojected = arena->Take<T>(max_rows_ * units_);
    }
  }
  for (const CpuNetwork::Group& given : GroupsOf(layer->index)) {
    Group& group = layer->groups.emplace_back();
    static_cast<CpuNetwork::Group&>(group) = given;
    group.layer = layer;
    group.pseudo_layer = &layer->pseudo_layers[group.dir];
    group.dh = arena->Take<T>(strand_size_ * h_stride_);
    if (cell_.has_c) group.dc = arena->Take<T>(strand_size_ * units_);
    group.zones = arena->Take<T>(zones_size_);
    if (spec_.normalizes()) {
      group.norms =
          arena->Take<T>(division_.parts * (cell_.num_norms + 1) * units_);
    }
    if (spec_.num_proj > 0) group.dy = arena->Take<T>(strand_size_ * units_);
    if (has_recurrent_dropout()) group.masks = TakeMasks<T>(arena);
    if (has_recurrent_dropout() || cell_.resets_before) {
      group.read_backprop = arena->Take<T>(strand_size_ * h_stride_);
    }
    for (int i = 0; forms_.rounds_steps && i < 2; ++i) {
      group.rounded_dz[i] = TakeRounded<T>(
          strand_size_, RowStride(gates_ + PaddedDepth(1)), arena);
    }
  }
}

template <typename T>
void BackwardPass<T>::PackWeights(Arena* arena, PseudoLayer* pseudo_layer,
                                  Schedule* schedule) const {
  const auto params = tensors_.Numbers<T>(buffers_.params);
  const ParamLayout::PseudoLayer& offsets = pseudo_layer->offsets;
  const auto pack = [&](int64_t depth, int64_t cols, int64_t offset) {
    return RightMatrix<T>(depth, cols, forms_.rounds_step_weights,
                          {{params.From(offset), cols}}, arena, schedule);
  };
  for (Segment& segment : pseudo_layer->segments) {
    segment.weights = pack(segment.rows, out_,
                           offsets.recurrent_weights + segment.first * out_);
  }
  if (spec_.num_proj > 0) {
    pseudo_layer->projection = pack(out_, units_, offsets.projection);
  }
  if (offsets.vectors < 0) return;
  const int64_t numbers = cell_.num_vectors * units_;
  T* const vectors = pseudo_layer->vectors = arena->Take<T>(numbers);
  schedule->Add(1, 1,
                [=, from = params.From(offsets.vectors)](int64_t, int64_t) {
                  from.Copy(numbers, vectors);
                });
}

template <typename T>
void BackwardPass<T>::AddGroup(const Group& group, Schedule* schedule) const {
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) { Begin(group); });
  // One step more takes the gradients of the last back to the initial states.
  const auto step_of = [&group](int64_t number) {
    return group.BackwardStep(number);
  };
  AddSteps(Phases(), group, group.strand->longest + 1, step_of, schedule);
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) { End(group); });
}

// Copies the gradients of final states to where the steps begin with them.
template <typename T>
void BackwardPass<T>::Begin(const Group& group) const {
  DrawMasks(group, group.masks);
  const auto from_h = tensors_.States<T>(buffers_.output_h_backprop, out_);
  const auto from_c = tensors_.States<T>(buffers_.output_c_backprop, units_);
  const int64_t numbers = cell_.num_vectors * units_;
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    from_h[state].Copy(out_, group.dh + r * h_stride_);
    if (cell_.has_c) from_c[state].Copy(units_, group.dc + r * units_);
    std::fill_n(group.pseudo_layer->vector_sums + position * numbers, numbers,
                T(0));
  });
}

template <typename T>
void BackwardPass<T>::End(const Group& group) const {
  const auto to_h = tensors_.States<T>(buffers_.input_h_backprop, out_);
  const auto to_c = tensors_.States<T>(buffers_.input_c_backprop, units_);
  ForEachState(group, [&](int64_t r, int64_t, int64_t state) {
    to_h[state].Write(out_, group.dh + r * h_stride_);
    if (cell_.has_c) to_c[state].Write(units_, group.dc + r * units_);
  });
}

template class BackwardPass<float>;
template class BackwardPass<double>;

}  // namespace cudnn_rnn_tf
