// The steps of the backward pass. It adds a layer after the other to the
// schedule, the last one first; the groups of a layer go back through time side
// by side. cpu_backward_sums.cc then adds what needs the gradients of all
// steps.
#include <algorithm>

#include "kernels/cpu/backward_pass.h"

namespace cudnn_rnn_tf {
namespace {

template <typename T>
void RoundGradients(int64_t n, const T* dz, uint16_t* to) {
  Destination<T>{to, &Simd().bfloat16}.Write(n, dz);
}

}  // namespace

template <typename T>
void BackwardPass<T>::LayOut(const CpuReserve<T>& reserve, Arena* arena,
                             Layer* layer) const {
  const int64_t max_rows = problem_.max_time * batch_;
  layer->output = reserve.outputs[layer->index];
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    PseudoLayer& pseudo_layer = layer->pseudo_layers.emplace_back();
    pseudo_layer.index = layer->index * dirs_ + dir;
    pseudo_layer.offsets = weights_.layout().pseudo_layer(pseudo_layer.index);
    const auto& kept = pseudo_layer.kept =
        reserve.pseudo_layers[pseudo_layer.index];
    const int64_t joint = cell_.joint_gates * units_;
    const int64_t rows = has_recurrent_dropout() ? units_ : joint;
    const Rows<const T> h = {layer->output + dir * out_, layer_out_,
                             previous_rows_[dir].data()};
    auto& segments = pseudo_layer.segments;
    for (int64_t first = 0; first < joint; first += rows) {
      segments.push_back({{kept.gates + first, gates_}, first, rows, h, {}});
    }
    const Rows<T> candidate = {kept.candidate, units_};
    if (cell_.resets_before) {
      segments.push_back(
          {{kept.gates + joint, gates_}, joint, units_, candidate, {}});
    } else if (cell_.splits_gate()) {
      segments.push_back({candidate, joint, units_, h, {}});
    }
    if (has_recurrent_dropout()) {
      const int64_t stride = cell_.num_gates * out_;
      pseudo_layer.masked = arena->Take<T>(max_rows * stride);
      for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
        segments[gate].h = {pseudo_layer.masked + gate * out_, stride};
      }
    }
    pseudo_layer.vector_sums =
        arena->Take<T>(batch_ * cell_.num_vectors * units_);
    if (spec_.num_proj > 0) {
      pseudo_layer.projected_backprop = arena->Take<T>(max_rows * out_);
      pseudo_layer.unprojected = arena->Take<T>(max_rows * units_);
    }
  }
  if (precision_.rounds_steps)
    layer->dz_stride = RowStride(gates_ + PaddedDepth(1));
  for (int64_t i = 0; i < num_groups(); ++i) {
    Group& group = layer->groups.emplace_back();
    static_cast<CpuNetwork::Group&>(group) = this->group(i);
    group.layer = layer;
    group.pseudo_layer = &layer->pseudo_layers[group.dir];
    group.dh = arena->Take<T>(strand_size_ * h_stride_);
    if (cell_.has_c) group.dc = arena->Take<T>(strand_size_ * units_);
    group.zones = TakeZones<T>(arena);
    if (spec_.normalizes()) {
      group.norms =
          arena->Take<T>(division_.parts * (cell_.num_norms + 1) * units_);
    }
    if (spec_.num_proj > 0) group.dy = arena->Take<T>(strand_size_ * units_);
    if (has_recurrent_dropout()) group.masks = TakeMasks<T>(arena);
    if (has_recurrent_dropout() || cell_.resets_before) {
      group.read_backprop = arena->Take<T>(strand_size_ * h_stride_);
    }
    for (int i = 0; precision_.rounds_steps && i < 2; ++i) {
      group.rounded_dz[i] =
          arena->Take<uint16_t>(PaddedRows(strand_size_) * layer->dz_stride);
    }
  }
}

template <typename T>
void BackwardPass<T>::PackWeights(Arena* arena, PseudoLayer* pseudo_layer,
                                  Schedule* schedule) const {
  const auto params = tensors_.Numbers<T>(buffers_.params);
  const ParamLayout::PseudoLayer& offsets = pseudo_layer->offsets;
  const auto pack = [&](int64_t depth, int64_t cols, int64_t offset) {
    return weights_.PackMatrix(depth, cols, precision_.rounds_step_weights,
                               params.From(offset),
                               /*transposed=*/false, arena, schedule);
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

// Copies the gradients of states, from the caller's to those of the steps or
// back.
template <typename T>
void BackwardPass<T>::CopyBackprops(const Group& group, bool is_end) const {
  const auto from_h = tensors_.States<T>(buffers_.output_h_backprop, out_);
  const auto from_c = tensors_.States<T>(buffers_.output_c_backprop, units_);
  const auto to_h = tensors_.States<T>(buffers_.input_h_backprop, out_);
  const auto to_c = tensors_.States<T>(buffers_.input_c_backprop, units_);
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    state += group.layer->index * dirs_ * batch_;
    T* const dh = group.dh + r * h_stride_;
    T* const dc = cell_.has_c ? group.dc + r * units_ : nullptr;
    if (is_end) {
      to_h[state].Write(out_, dh);
      if (cell_.has_c) to_c[state].Write(units_, dc);
      return;
    }
    from_h[state].Copy(out_, dh);
    if (cell_.has_c) from_c[state].Copy(units_, dc);
    const int64_t numbers = cell_.num_vectors * units_;
    std::fill_n(group.pseudo_layer->vector_sums + position * numbers, numbers,
                T(0));
  });
}

template <typename T>
StoredRows<T> BackwardPass<T>::GradientsOf(const Group& group, int64_t step,
                                           const Segment& segment) const {
  if (precision_.rounds_steps) {
    return {{group.rounded_dz[step % 2] + segment.first, &Simd().bfloat16},
            group.layer->dz_stride};
  }
  return StepRows(segment.dz.data, segment.dz.stride, *group.strand,
                  group.TimeBack(step));
}

// The first part of a step, for a slice of the states. It takes the gradients
// of the step that was taken before (a later one in the direction's time) back
// to the states, and adds the gradients of this step's outputs. It needs all
// panels of the step that was taken before.
template <typename T>
void BackwardPass<T>::RunStates(const Group& group, int64_t step,
                                Range slice) const {
  const Strand& strand = *group.strand;
  T* const dh = group.dh;
  const Columns cols = ColumnsOf(slice, out_);
  const int64_t first = cols.first, n = cols.count;
  if (step > 0) {
    const int64_t t = group.TimeBack(step - 1);
    Product<T> product = StepProduct<T>();
    product.rows = strand.Active(t);
    product.c = {dh, h_stride_};
    // Of a cell that reads h, dh already holds what passes no gate, to which
    // the products are added.
    bool is_there = spec_.reads_h();
    for (const auto& segment : group.pseudo_layer->segments) {
      if (segment.first >= cell_.gates_of_h * units_) break;
      product.a = GradientsOf(group, step - 1, segment);
      product.b = segment.weights;
      if (!has_recurrent_dropout()) {
        if (is_there) product.init = {dh, h_stride_};
        product.RunPanels(slice.first, slice.last);
      } else {
        product.c = {group.read_backprop, h_stride_};
        product.RunPanels(slice.first, slice.last);
        const T* const masks = OfGate(group.masks, segment.first / units_);
        for (int64_t r = 0; r < product.rows; ++r) {
          const int64_t begin = r * h_stride_ + first;
          for (int64_t j = begin; j < begin + n; ++j) {
            const T through = group.read_backprop[j] * masks[j];
            dh[j] = is_there ? dh[j] + through : through;
          }
        }
      }
      is_there = true;
    }
    for (int64_t r = 0; r < product.rows; ++r) {
      if (!rows_.StartsAnew(strand.Position(r), t, group.dir)) continue;
      std::fill_n(dh + r * h_stride_ + first, n, T(0));
    }
  }
  if (step == strand.longest) return;
  const int64_t t = group.TimeBack(step);
  const int64_t next_t = group.TimeBack(step + 1);
  T converted[kSliceCols];
  const auto output_backprop = [&](int64_t row) {
    return group.layer->output_backprop[row].From(group.dir * out_ + first);
  };
  for (int64_t r = 0; r < strand.Active(t); ++r) {
    const int64_t row = strand.Row(t, r);
    if (r < strand.Active(next_t)) {
      output_backprop(strand.Row(next_t, r)).Prefetch(n);
    }
    const T* const from = output_backprop(row).Read(n, converted);
    T* const to = dh + r * h_stride_ + first;
    for (int64_t j = 0; j < n; ++j) to[j] += from[j];
    if (spec_.num_proj > 0) {
      std::copy_n(to, n,
                  group.pseudo_layer->projected_backprop + row * out_ + first);
    }
    if (!has_recurrent_dropout()) continue;
    const T* const h = group.layer->output +
                       rows_.PreviousRow(strand, t, r, group.dir) * layer_out_ +
                       group.dir * out_ + first;
    for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
      const T* const mask = OfGate(group.masks, gate) + r * h_stride_ + first;
      T* const masked = group.pseudo_layer->masked +
                        (row * cell_.num_gates + gate) * out_ + first;
      for (int64_t j = 0; j < n; ++j) masked[j] = h[j] * mask[j];
    }
  }
}

// Returns what a sequence's units from `unit` on read and write in a step.
template <typename T>
CellRow<T> BackwardPass<T>::RowOf(const Group& group, int64_t step, int64_t r,
                                  int64_t unit) const {
  const Strand& strand = *group.strand;
  const int64_t t = group.TimeBack(step);
  const auto& kept = group.pseudo_layer->kept;
  const int64_t of_row = strand.Row(t, r) * units_ + unit;
  const int64_t previous = rows_.PreviousRow(strand, t, r, group.dir);
  CellRow<T> row = EmptyRow<T>();
  row.gates = kept.gates + strand.Row(t, r) * gates_ + unit;
  row.h_before =
      group.layer->output + previous * layer_out_ + group.dir * out_ + unit;
  if (cell_.num_vectors > 0) {
    row.vectors = group.pseudo_layer->vectors + unit;
    row.vector_sums = group.pseudo_layer->vector_sums + unit +
                      strand.Position(r) * cell_.num_vectors * units_;
  }
  if (spec_.has_zoneout()) row.zones = group.zones + r * 2 * units_ + unit;
  row.dh = group.dh + r * h_stride_ + unit;
  if (cell_.num_slots > cell_.num_gates)
    row.last_slot = kept.candidate + of_row;
  if (cell_.has_c) {
    row.c = kept.cell + of_row;
    row.c_before = kept.cell + previous * units_ + unit;
    row.dc = group.dc + r * units_ + unit;
  }
  return row;
}

// The second part of a step, for a slice of the units: it computes the
// gradients of preactivations from those of the outputs, except that of a reset
// gate which acts before the product.
template <typename T>
void BackwardPass<T>::RunUnits(const Group& group, int64_t step,
                               Range slice) const {
  const Strand& strand = *group.strand;
  if (step == strand.longest) return;
  const int64_t t = group.TimeBack(step);
  const int64_t active = strand.Active(t);
  const auto [unit, n] = ColumnsOf(slice, units_);
  if (spec_.num_proj > 0) {
    Product<T> product = StepProduct<T>();
    product.rows = active;
    product.a =
        StepRows(group.pseudo_layer->projected_backprop, out_, strand, t);
    product.b = group.pseudo_layer->projection;
    product.c = {group.dy, units_};
    product.RunPanels(slice.first, slice.last);
  }
  for (int64_t r = 0; r < active; ++r) {
    RunCells(group, step, r, unit, n, /*work=*/nullptr);
  }
}

// Computes the gradients of n cells of a sequence in a step. If products read
// bfloat16, they are rounded.
template <typename T>
void BackwardPass<T>::RunCells(const Group& group, int64_t step, int64_t r,
                               int64_t unit, int64_t n, T* work) const {
  const int64_t t = group.TimeBack(step), row = group.strand->Row(t, r);
  CellRow<T> at = RowOf(group, step, r, unit);
  at.work = work;
  if (spec_.num_proj > 0) {
    at.dh = group.dy + r * units_ + unit;
    at.h = group.pseudo_layer->unprojected + row * units_ + unit;
  }
  // The gradients that a step's c has from the caller.
  T converted[kSliceCols];
  const int64_t callers = has_cell_sequences(group.layer->index) ? n : 0;
  for (int64_t first = 0; first < callers; first += kSliceCols) {
    const int64_t count = std::min(kSliceCols, n - first);
    const T* const from =
        tensors_
            .Sequences<T>(buffers_.cell_sequences_backprop, dirs_ * units_)[row]
            .From(group.dir * units_ + unit + first)
            .Read(count, converted);
    for (int64_t j = 0; j < count; ++j) at.dc[first + j] += from[j];
  }
  masks_.SetZones(group.pseudo_layer->index, row, unit, n, at.zones);
  CellSteps<T>().backward(n, at);
  // Nothing passes to the step before from one that starts anew.
  if (cell_.has_c &&
      rows_.StartsAnew(group.strand->Position(r), t, group.dir)) {
    std::fill_n(at.dc, n, T(0));
  }
  if (!precision_.rounds_steps) return;
  uint16_t* const rounded = group.rounded_dz[step % 2];
  for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
    const bool is_split = cell_.splits_gate() && gate >= cell_.joint_gates;
    RoundGradients(n, is_split ? at.last_slot : at.gates + gate * units_,
                   rounded + r * group.layer->dz_stride + gate * units_ + unit);
  }
  // The last segment's padding is shorter than that of one number.
  if (unit + n == units_) {
    std::fill_n(rounded + r * group.layer->dz_stride + gates_, PaddedDepth(1),
                0);
  }
}

// The third part of a step, for a slice of the units of a GRU whose reset gate
// acts before the product. It needs all panels of the second part.
template <typename T>
void BackwardPass<T>::RunReset(const Group& group, int64_t step,
                               Range slice) const {
  const Segment& candidate = group.pseudo_layer->segments.back();
  const auto [unit, n] = ColumnsOf(slice, units_);
  Product<T> product = StepProduct<T>();
  product.rows = group.strand->Active(group.TimeBack(step));
  product.a = GradientsOf(group, step, candidate);
  product.b = candidate.weights;
  product.c = {group.read_backprop, h_stride_};
  product.RunPanels(slice.first, slice.last);
  for (int64_t r = 0; r < product.rows; ++r) {
    const CellRow<T> at = RowOf(group, step, r, unit);
    const int64_t begin = r * h_stride_ + unit;
    T* const through = group.read_backprop + begin;
    if (has_recurrent_dropout()) {
      const T* const mask = OfGate(group.masks, cell_.joint_gates) + begin;
      for (int64_t j = 0; j < n; ++j) through[j] *= mask[j];
    }
    CellSteps<T>().reset_backward(n, at, through);
    if (precision_.rounds_steps) {
      RoundGradients(
          n, at.gates,
          group.rounded_dz[step % 2] + r * group.layer->dz_stride + unit);
    }
  }
}

template <typename T>
void BackwardPass<T>::AddGroup(const Group& group, Schedule* schedule) const {
  const int64_t phases_per_step = PhasesPerStep();
  const bool projects = spec_.num_proj > 0;
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) {
    if (has_recurrent_dropout()) {
      DrawMasks(group.layer->index, group, group.masks);
    }
    CopyBackprops(group, /*is_end=*/false);
  });
  // There is one more phase after the last step, which takes its gradients back
  // to the initial states.
  schedule->Add(
      group.strand->longest * phases_per_step + 1, division_.parts,
      [=, &group](int64_t phase, int64_t part) {
        const int64_t step = phase / phases_per_step;
        const bool is_first_phase = phase % phases_per_step == 0;
        if (spec_.normalizes() && !is_first_phase) {
          const Range rows =
              PartRows(group.strand->Active(group.TimeBack(step)), part);
          T* const work = group.norms + part * (cell_.num_norms + 1) * units_;
          for (int64_t r = rows.first; r < rows.last; ++r) {
            RunCells(group, step, r, /*unit=*/0, units_, work);
          }
          return;
        }
        const Range panels = PartPanels(is_first_phase ? out_ : units_, part);
        for (int64_t i = 0; i < NumSlices(panels); ++i) {
          const Range slice = Slice(panels, i);
          if (is_first_phase) RunStates(group, step, slice);
          if (spec_.normalizes()) continue;
          if (is_first_phase != projects) {
            RunUnits(group, step, slice);
          } else if (!projects) {
            RunReset(group, step, slice);
          }
        }
      });
  schedule->Add(1, 1, [this, &group](int64_t, int64_t) {
    CopyBackprops(group, /*is_end=*/true);
  });
}

template <typename T>
void BackwardPass<T>::Add(const CpuReserve<T>& reserve, Arena* arena,
                          Schedule* schedule) {
  const int64_t max_rows = problem_.max_time * batch_;
  // The gradient of a layer's input is that of the output of the layer below.
  // Two arrays hold these gradients by turns.
  T* between[2] = {};
  for (int64_t i = 0; i < std::min<int64_t>(2, spec_.num_layers - 1); ++i) {
    between[i] = arena->Take<T>(max_rows * layer_out_);
  }
  T* const dropped = problem_.has_dropout_between_layers()
                         ? arena->Take<T>(max_rows * layer_out_)
                         : nullptr;
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
    if (index > 0) {
      layer.input = {{reserve.outputs[index - 1]}, layer_out_};
      layer.input_backprop = {between[(index - 1) % 2], layer_out_};
    } else {
      layer.input = tensors_.Sequences<T>(buffers_.input, input_size);
      layer.input_backprop =
          callers_backprop.in_place() || !problem_.has_input_backprop
              ? callers_backprop.InPlace()
              : Rows<T>{arena->Take<T>(max_rows * input_size), input_size};
    }
    if (masks_.DropsInput(index)) {
      masks_.DropInput(index, layer.input.numbers.InPlace(), dropped, schedule);
      layer.input = {{dropped}, layer_out_};
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
    AddGroups(
        layer.groups, division_.parts,
        [this](const Group& group, Schedule* schedule) {
          AddGroup(group, schedule);
        },
        schedule);
    if (rows_.num_rows() > 0) AddSums(layer, arena, schedule);
    if (index > 0) output_backprop = {{between[(index - 1) % 2]}, layer_out_};
  }
  if (problem_.has_input_backprop) {
    tensors_.FillPadding(buffers_.input_backprop, input_size, schedule);
  }
  if (rows_.num_rows() > 0) return;
  schedule->AddRanges(weights_.layout().size(), kSliceCols,
                      [this](int64_t first, int64_t last) {
                        const std::vector<T> zeros(last - first);
                        params_backprop().From(first).Write(last - first,
                                                            zeros.data());
                      });
}

template <typename T>
std::shared_ptr<const void> AddPass(const RnnProblem& problem,
                                    const PackedRows& rows,
                                    const RnnBackwardBuffers& buffers,
                                    const CpuReserve<T>& reserve, Arena* arena,
                                    Schedule* schedule) {
  const auto pass = std::make_shared<BackwardPass<T>>(problem, rows, buffers,
                                                      schedule->num_threads());
  pass->Add(reserve, arena, schedule);
  return pass;
}
#define CRNN_INSTANTIATE(T)                                            \
  template std::shared_ptr<const void> AddPass(                        \
      const RnnProblem&, const PackedRows&, const RnnBackwardBuffers&, \
      const CpuReserve<T>&, Arena*, Schedule*)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
