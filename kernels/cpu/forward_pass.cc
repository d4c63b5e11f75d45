#include "kernels/cpu/forward_pass.h"

#include <algorithm>

namespace cudnn_rnn_tf {

template <typename T>
void ForwardPass<T>::Add(const CpuReserve<T>& reserve,
                         const CpuForwardWeights<T>* packed, Arena* arena,
                         Schedule* schedule) {
  for (const Strand& strand : strands_) strand_rows_.push_back(strand.Rows());
  for (int64_t index = 0; index < spec_.num_layers; ++index) {
    // All layers use the same working memory, one after the other.
    const Arena::Scope scope(arena);
    Layer& layer = *layers_.emplace_back(std::make_unique<Layer>());
    layer.index = index;
    if (packed == nullptr) {
      PackWeights(arena, &layer, schedule);
    } else {
      std::copy_n(packed + index * dirs_, dirs_, layer.weights);
    }
    layer.input = InputOf(index, reserve, arena, schedule);
    LayOut(reserve, arena, &layer);
    if (reserve.outputs[index] != nullptr) {
      layer.outputs.push_back({{reserve.outputs[index]}, layer_out_});
    }
    if (index + 1 == spec_.num_layers) {
      layer.outputs.push_back(
          tensors_.Sequences<T>(buffers_.output, layer_out_));
    }
    layer.input_rows = strand_rows_;
    for (auto& rows : layer.input_rows) {
      if (layer.input.index == nullptr) break;
      for (int64_t& row : rows) row = layer.input.index[row];
    }
    const int64_t threads_per_group =
        division_.threads / static_cast<int64_t>(layer.groups.size());
    AddGroups(layer.groups, std::max(division_.parts, threads_per_group),
              schedule,
              [this](const Group& group, auto* to) { AddGroup(group, to); });
  }
  tensors_.FillPadding(buffers_.output, layer_out_, schedule);
  if (problem_.has_cell_sequences) {
    tensors_.FillPadding(buffers_.cell_sequences, dirs_ * units_, schedule);
  }
}

template <typename T>
void ForwardPass<T>::PackWeights(Arena* arena, Layer* layer,
                                 Schedule* schedule) const {
  const int64_t first = layer->index * dirs_;
  const auto params = tensors_.Numbers<T>(buffers_.params);
  schedule->AddTogether([&] {
    for (int64_t dir = 0; dir < dirs_; ++dir) {
      layer->weights[dir] =
          PackForward(plan_, first + dir, params, arena, schedule);
    }
  });
}

template <typename T>
void ForwardPass<T>::LayOut(const CpuReserve<T>& reserve, Arena* arena,
                            Layer* layer) const {
  for (const CpuNetwork::Group& given : GroupsOf(layer->index)) {
    Group& group = layer->groups.emplace_back();
    static_cast<CpuNetwork::Group&>(group) = given;
    group.layer = layer;
    group.kept = reserve.pseudo_layers[group.index];
    if (has_recurrent_dropout()) group.masks = TakeMasks<T>(arena);
    for (const int parity : {0, 1}) {
      T* const h = group.h[parity] = arena->Take<T>(strand_size_ * h_stride_);
      if (has_recurrent_dropout()) {
        group.read[parity] = {{TakeMasks<T>(arena)}, h_stride_};
      } else if (forms_.rounds_steps) {
        group.read[parity] = TakeRounded<T>(strand_size_, h_stride_, arena);
      } else {
        group.read[parity] = {{h}, h_stride_};
      }
    }
    if (cell_.has_c) group.c = arena->Take<T>(strand_size_ * units_);
    group.zones = arena->Take<T>(zones_size_);
    if (spec_.num_proj > 0) {
      group.unprojected = arena->Take<T>(strand_size_ * units_);
    }
    if (problem_.is_training) continue;
    group.kept.gates = arena->Take<T>(chunk_steps_ * strand_size_ * gates_);
    if (has_slot_) {
      group.kept.candidate = arena->Take<T>(strand_size_ * units_);
    }
  }
}

template <typename T>
void ForwardPass<T>::AddGroup(const Group& group, Schedule* schedule) const {
  const int64_t longest = group.strand->longest;
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) { Begin(group); });
  for (int64_t begin = 0; begin < longest; begin += chunk_steps_) {
    const int64_t end = std::min(begin + chunk_steps_, longest);
    AddInputs(group, begin, end, schedule);
    const auto step_of = [=, &group](int64_t number) {
      return StepOf(group, begin, begin + number);
    };
    AddSteps(Phases(), group, end - begin, step_of, schedule);
  }
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) { End(group); });
}

// Copies the initial states to where the steps and the backward pass read
// them.
template <typename T>
void ForwardPass<T>::Begin(const Group& group) const {
  const DestinationRows<T>& output = group.layer->outputs.front();
  DrawMasks(group, group.masks);
  if (problem_.has_resets && problem_.is_training &&
      group.strand == strands_.data()) {
    const int64_t row = rows_.num_rows() + batch_;
    const std::vector<T> zeros(out_);
    output[row].From(group.dir * out_).Write(out_, zeros.data());
    if (cell_.has_c) {
      std::fill_n(group.kept.cell + row * units_, units_, T(0));
    }
  }
  const auto first_h = tensors_.States<T>(buffers_.input_h, out_);
  const auto first_c = tensors_.States<T>(buffers_.input_c, units_);
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    const int64_t row = rows_.num_rows() + position;
    const bool is_anew = group.dir == 0 && rows_.StartsAnew(position, 0, 0);
    for (const int64_t parity : {0, 1}) {
      T* const h = group.h[parity] + r * h_stride_;
      first_h[state].Copy(out_, h);
      if (problem_.is_training && parity == 0) {
        output[row].From(group.dir * out_).Write(out_, h);
      }
      if (is_anew) std::fill_n(h, out_, T(0));
      PrepareStates(group, parity, r, 0, out_);
    }
    if (!cell_.has_c) return;
    T* const c = group.c + r * units_;
    first_c[state].Copy(units_, c);
    if (problem_.is_training) {
      std::copy_n(c, units_, group.kept.cell + row * units_);
    }
  });
}

// Adds the products of the inputs of a chunk's steps.
template <typename T>
void ForwardPass<T>::AddInputs(const Group& group, int64_t first_step,
                               int64_t last_step, Schedule* schedule) const {
  const Strand& strand = *group.strand;
  const Layer& layer = *group.layer;
  const int64_t t = std::min(group.Time(first_step), group.Time(last_step - 1));
  const int64_t first = strand.first[t];
  const int64_t num_rows = strand.first[t + last_step - first_step] - first;
  const int64_t index = group.strand - strands_.data();
  const int64_t* const rows = strand_rows_[index].data() + first;
  const Rows<T> gates = {group.kept.gates, gates_,
                         problem_.is_training ? rows : nullptr};
  const StoredRows<T> input(layer.input.numbers, layer.input.stride,
                            layer.input_rows[index].data() + first);
  const T* const bias = group.weights().bias;
  if (spec_.has_input_weights(layer.index)) {
    Product<T> product;
    product.rows = num_rows;
    product.a = input;
    product.b = group.weights().input;
    product.rounds_both = forms_.rounds_both;
    product.init = {bias, 0};
    product.c = gates;
    product.AddTo(schedule);
    return;
  }
  schedule->AddRanges(num_rows, 16, [=](int64_t first, int64_t last) {
    std::vector<T> converted(units_);
    for (int64_t row = first; row < last; ++row) {
      const T* const x = input[row].Read(units_, converted.data());
      for (int64_t j = 0; j < gates_; ++j) {
        gates[row][j] = bias[j] + x[j % units_];
      }
    }
  });
}

template <typename T>
void ForwardPass<T>::End(const Group& group) const {
  const auto final_h = tensors_.States<T>(buffers_.output_h, out_);
  const auto final_c = tensors_.States<T>(buffers_.output_c, units_);
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    const int64_t steps =
        group.dir == 0 ? rows_.length(position) : group.strand->longest;
    final_h[state].Write(out_, group.h[steps % 2] + r * h_stride_);
    if (!cell_.has_c) return;
    final_c[state].Write(units_, group.c + r * units_);
  });
}

template class ForwardPass<float>;
template class ForwardPass<double>;

}  // namespace cudnn_rnn_tf
