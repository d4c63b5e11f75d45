#include <algorithm>
#include <type_traits>

#include "kernels/cpu/backward_layer.h"
#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/storage.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace {

// Only floats are ever rounded to bfloat16.
void RoundGradients(int64_t n, const float* dz, uint16_t* to) {
  Simd().conversions.to_bfloat16(n, dz, to);
}
void RoundGradients(int64_t, const double*, uint16_t*) {}

}  // namespace

template <typename T>
void CpuNetwork<T>::LayOut(int64_t index, const CpuReserve<T>& reserve,
                           Arena* arena, BackwardLayer* layer) const {
  const int64_t max_rows = problem_.max_time * batch_;
  layer->index = index;
  layer->output = reserve.outputs[index];
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    const auto& kept = layer->kept[dir] =
        reserve.pseudo_layers[index * dirs_ + dir];
    const int64_t joint = cell_.joint_gates * units_;
    const int64_t rows = has_recurrent_dropout() ? units_ : joint;
    const Rows<const T> h = {layer->output + dir * out_, layer_out_,
                             previous_rows_[dir].data()};
    auto& segments = layer->segments[dir];
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
      layer->masked[dir] = arena->Take<T>(max_rows * stride);
      for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
        segments[gate].h = {layer->masked[dir] + gate * out_, stride};
      }
    }
    layer->vector_sums[dir] =
        arena->Take<T>(batch_ * cell_.num_vectors * units_);
    if (spec_.num_proj > 0) {
      layer->projected_backprop[dir] = arena->Take<T>(max_rows * out_);
      layer->unprojected[dir] = arena->Take<T>(max_rows * units_);
    }
  }
  layer->scratch.resize(num_groups());
  for (auto& scratch : layer->scratch) {
    scratch = {};
    scratch.dh = arena->Take<T>(strand_size_ * h_stride_);
    if (cell_.has_c) scratch.dc = arena->Take<T>(strand_size_ * units_);
    scratch.zones = TakeZones(arena);
    if (spec_.normalizes()) {
      scratch.norms =
          arena->Take<T>(division_.parts * (cell_.num_norms + 1) * units_);
    }
    if (spec_.num_proj > 0) scratch.dy = arena->Take<T>(strand_size_ * units_);
    if (has_recurrent_dropout()) scratch.masks = TakeMasks(arena);
    if (has_recurrent_dropout() || cell_.resets_before) {
      scratch.read_backprop = arena->Take<T>(strand_size_ * h_stride_);
    }
    if (rounds_steps_) {
      layer->dz_stride = RowStride(gates_ + PaddedDepth(1));
      for (uint16_t*& rounded : scratch.rounded_dz) {
        rounded =
            arena->Take<uint16_t>(PaddedRows(strand_size_) * layer->dz_stride);
      }
    }
  }
}

template <typename T>
void CpuNetwork<T>::PackBackward(Stored<T> params, Arena* arena,
                                 BackwardLayer* layer,
                                 Schedule* schedule) const {
  const auto pack = [&](int64_t depth, int64_t cols, int64_t offset) {
    return PackMatrix(depth, cols, StepsMultiplyBfloat16(), params.From(offset),
                      /*transposed=*/false, PackedForm(), arena, schedule);
  };
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    const ParamLayout::PseudoLayer& offsets =
        layout_.pseudo_layer(layer->index * dirs_ + dir);
    for (auto& segment : layer->segments[dir]) {
      segment.weights = pack(segment.rows, out_,
                             offsets.recurrent_weights + segment.first * out_);
    }
    if (spec_.num_proj > 0) {
      layer->projection[dir] = pack(out_, units_, offsets.projection);
    }
    if (offsets.vectors < 0) continue;
    T* const vectors = arena->Take<T>(cell_.num_vectors * units_);
    layer->vectors[dir] = vectors;
    if (arena->only_counts()) continue;
    schedule->Add(1, 1, [=](int64_t, int64_t) {
      params.From(offsets.vectors).Copy(cell_.num_vectors * units_, vectors);
    });
  }
}

// Copies the gradients of states, from the caller's to those of the steps or
// back.
template <typename T>
void CpuNetwork<T>::CopyBackprops(const CpuBackwardCall<T>& call,
                                  const BackwardLayer& layer,
                                  int64_t group_index, bool is_end) const {
  const auto& scratch = layer.scratch[group_index];
  const auto copy = [&](T* callers, T* steps, int64_t n) {
    std::copy_n(is_end ? steps : callers, n, is_end ? callers : steps);
  };
  const int64_t dir = group(group_index).dir;
  ForEachState(group(group_index), [&](int64_t r, int64_t position,
                                       int64_t state) {
    if (!is_end) {
      const int64_t numbers = cell_.num_vectors * units_;
      std::fill_n(layer.vector_sums[dir] + position * numbers, numbers, T(0));
    }
    state += layer.index * dirs_ * batch_;
    copy(call.h_backprop + state * out_, scratch.dh + r * h_stride_, out_);
    if (!cell_.has_c) return;
    copy(call.c_backprop + state * units_, scratch.dc + r * units_, units_);
  });
}

// The first part of a step, for a slice of the states. It takes the gradients
// of the step that was taken before (a later one in the direction's time) back
// to the states, and adds the gradients of this step's outputs. It needs all
// panels of the step that was taken before.
template <typename T>
void CpuNetwork<T>::BackwardStates(const BackwardLayer& layer,
                                   int64_t group_index, int64_t step,
                                   Range slice) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const auto& scratch = layer.scratch[group_index];
  T* const dh = scratch.dh;
  const Columns cols = ColumnsOf(slice, out_);
  const int64_t first = cols.first, n = cols.count;
  if (step > 0) {
    const int64_t t = group.TimeBack(step - 1);
    Product<T> product = StepProduct();
    product.rows = strand.Active(t);
    product.c = {dh, h_stride_};
    // Of a cell that reads h, dh already holds what passes no gate, to which
    // the products are added.
    bool is_there = spec_.reads_h();
    for (const auto& segment : layer.segments[group.dir]) {
      if (segment.first >= cell_.gates_of_h * units_) break;
      product.a = StepRows(segment.dz.data, segment.dz.stride, strand, t);
      if (rounds_steps_) {
        product.a = layer.RoundedDz(scratch, step - 1, segment);
      }
      product.b = segment.weights;
      if (!has_recurrent_dropout()) {
        if (is_there) product.init = {dh, h_stride_};
        product.RunPanels(slice.first, slice.last);
      } else {
        product.c = {scratch.read_backprop, h_stride_};
        product.RunPanels(slice.first, slice.last);
        const T* const masks = OfGate(scratch.masks, segment.first / units_);
        for (int64_t r = 0; r < product.rows; ++r) {
          const int64_t begin = r * h_stride_ + first;
          for (int64_t j = begin; j < begin + n; ++j) {
            const T through = scratch.read_backprop[j] * masks[j];
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
    return layer.output_backprop[row].From(group.dir * out_ + first);
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
                  layer.projected_backprop[group.dir] + row * out_ + first);
    }
    if (!has_recurrent_dropout()) continue;
    const T* const h = layer.output +
                       rows_.PreviousRow(strand, t, r, group.dir) * layer_out_ +
                       group.dir * out_ + first;
    for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
      const T* const mask = OfGate(scratch.masks, gate) + r * h_stride_ + first;
      T* const masked = layer.masked[group.dir] +
                        (row * cell_.num_gates + gate) * out_ + first;
      for (int64_t j = 0; j < n; ++j) masked[j] = h[j] * mask[j];
    }
  }
}

// Returns what a sequence's units from `unit` on read and write in a step.
template <typename T>
CellRow<T> CpuNetwork<T>::RowOfStep(const BackwardLayer& layer,
                                    int64_t group_index, int64_t step,
                                    int64_t r, int64_t unit) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const int64_t t = group.TimeBack(step);
  const auto& scratch = layer.scratch[group_index];
  const auto& kept = layer.kept[group.dir];
  const int64_t of_row = strand.Row(t, r) * units_ + unit;
  const int64_t previous = rows_.PreviousRow(strand, t, r, group.dir);
  CellRow<T> row = EmptyRow();
  row.gates = kept.gates + strand.Row(t, r) * gates_ + unit;
  row.h_before = layer.output + previous * layer_out_ + group.dir * out_ + unit;
  if (cell_.num_vectors > 0) {
    row.vectors = layer.vectors[group.dir] + unit;
    row.vector_sums = layer.vector_sums[group.dir] + unit +
                      strand.Position(r) * cell_.num_vectors * units_;
  }
  if (spec_.has_zoneout()) row.zones = scratch.zones + r * 2 * units_ + unit;
  row.dh = scratch.dh + r * h_stride_ + unit;
  if (cell_.num_slots > cell_.num_gates)
    row.last_slot = kept.candidate + of_row;
  if (cell_.has_c) {
    row.c = kept.cell + of_row;
    row.c_before = kept.cell + previous * units_ + unit;
    row.dc = scratch.dc + r * units_ + unit;
  }
  return row;
}

// The second part of a step, for a slice of the units: it computes the
// gradients of preactivations from those of the outputs, except that of a reset
// gate which acts before the product.
template <typename T>
void CpuNetwork<T>::BackwardUnits(const BackwardLayer& layer,
                                  int64_t group_index, int64_t step,
                                  Range slice) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  if (step == strand.longest) return;
  const int64_t t = group.TimeBack(step);
  const int64_t active = strand.Active(t);
  const auto& scratch = layer.scratch[group_index];
  const auto [unit, n] = ColumnsOf(slice, units_);
  if (spec_.num_proj > 0) {
    Product<T> product = StepProduct();
    product.rows = active;
    product.a = StepRows(layer.projected_backprop[group.dir], out_, strand, t);
    product.b = layer.projection[group.dir];
    product.c = {scratch.dy, units_};
    product.RunPanels(slice.first, slice.last);
  }
  for (int64_t r = 0; r < active; ++r) {
    BackwardCells(layer, group_index, step, r, unit, n, /*work=*/nullptr);
  }
}

// Computes the gradients of n cells of a sequence in a step. If products read
// bfloat16, they are rounded.
template <typename T>
void CpuNetwork<T>::BackwardCells(const BackwardLayer& layer,
                                  int64_t group_index, int64_t step, int64_t r,
                                  int64_t unit, int64_t n, T* work) const {
  const Group group = this->group(group_index);
  const int64_t t = group.TimeBack(step), row = group.strand->Row(t, r);
  CellRow<T> at = RowOfStep(layer, group_index, step, r, unit);
  at.work = work;
  if (spec_.num_proj > 0) {
    at.dh = layer.scratch[group_index].dy + r * units_ + unit;
    at.h = layer.unprojected[group.dir] + row * units_ + unit;
  }
  // The gradients that a step's c has from the caller.
  T converted[kSliceCols];
  const int64_t callers = has_cell_sequences(layer.index) ? n : 0;
  for (int64_t first = 0; first < callers; first += kSliceCols) {
    const int64_t count = std::min(kSliceCols, n - first);
    const T* const from = layer.cell_sequences_backprop[row]
                              .From(group.dir * units_ + unit + first)
                              .Read(count, converted);
    for (int64_t j = 0; j < count; ++j) at.dc[first + j] += from[j];
  }
  SetZones(layer.index * dirs_ + group.dir, row, unit, n, at.zones);
  CellSteps().backward(n, at);
  // Nothing passes to the step before from one that starts anew.
  if (cell_.has_c &&
      rows_.StartsAnew(group.strand->Position(r), t, group.dir)) {
    std::fill_n(at.dc, n, T(0));
  }
  if (!rounds_steps_) return;
  uint16_t* const rounded = layer.scratch[group_index].rounded_dz[step % 2];
  for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
    const bool is_split = cell_.splits_gate() && gate >= cell_.joint_gates;
    RoundGradients(n, is_split ? at.last_slot : at.gates + gate * units_,
                   rounded + r * layer.dz_stride + gate * units_ + unit);
  }
  // The last segment's padding is shorter than that of one number.
  if (unit + n == units_) {
    std::fill_n(rounded + r * layer.dz_stride + gates_, PaddedDepth(1), 0);
  }
}

// The third part of a step, for a slice of the units of a GRU whose reset gate
// acts before the product. It needs all panels of the second part.
template <typename T>
void CpuNetwork<T>::BackwardReset(const BackwardLayer& layer,
                                  int64_t group_index, int64_t step,
                                  Range slice) const {
  const CellKernels<T>& cell = CellSteps();
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const int64_t t = group.TimeBack(step);
  const auto& scratch = layer.scratch[group_index];
  const auto& candidate = layer.segments[group.dir].back();
  const auto [unit, n] = ColumnsOf(slice, units_);
  Product<T> product = StepProduct();
  product.rows = strand.Active(t);
  product.a = StepRows(candidate.dz.data, candidate.dz.stride, strand, t);
  if (rounds_steps_) product.a = layer.RoundedDz(scratch, step, candidate);
  product.b = candidate.weights;
  product.c = {scratch.read_backprop, h_stride_};
  product.RunPanels(slice.first, slice.last);
  for (int64_t r = 0; r < product.rows; ++r) {
    const CellRow<T> at = RowOfStep(layer, group_index, step, r, unit);
    const int64_t begin = r * h_stride_ + unit;
    T* const through = scratch.read_backprop + begin;
    if (has_recurrent_dropout()) {
      const T* const mask = OfGate(scratch.masks, cell_.joint_gates) + begin;
      for (int64_t j = 0; j < n; ++j) through[j] *= mask[j];
    }
    cell.reset_backward(n, at, through);
    if (rounds_steps_) {
      RoundGradients(n, at.gates,
                     scratch.rounded_dz[step % 2] + r * layer.dz_stride + unit);
    }
  }
}

template <typename T>
void CpuNetwork<T>::BackwardGroup(
    const CpuBackwardCall<T>& call,
    const std::shared_ptr<const BackwardLayer>& layer, int64_t group_index,
    Schedule* schedule) const {
  const int64_t phases_per_step = PhasesPerStep();
  const bool projects = spec_.num_proj > 0;
  schedule->Add(1, 1, [=, &call](int64_t, int64_t) {
    if (has_recurrent_dropout()) {
      DrawMasks(layer->index, group(group_index),
                layer->scratch[group_index].masks);
    }
    CopyBackprops(call, *layer, group_index, /*is_end=*/false);
  });
  // There is one more phase after the last step, which takes its gradients back
  // to the initial states.
  schedule->Add(group(group_index).strand->longest * phases_per_step + 1,
                division_.parts, [=](int64_t phase, int64_t part) {
                  const int64_t step = phase / phases_per_step;
                  const bool is_first_phase = phase % phases_per_step == 0;
                  if (spec_.normalizes() && !is_first_phase) {
                    const Group group = this->group(group_index);
                    const Range rows = PartRows(
                        group.strand->Active(group.TimeBack(step)), part);
                    T* const work = layer->scratch[group_index].norms +
                                    part * (cell_.num_norms + 1) * units_;
                    for (int64_t r = rows.first; r < rows.last; ++r) {
                      BackwardCells(*layer, group_index, step, r, /*unit=*/0,
                                    units_, work);
                    }
                    return;
                  }
                  const Range panels =
                      PartPanels(is_first_phase ? out_ : units_, part);
                  for (int64_t i = 0; i < NumSlices(panels); ++i) {
                    const Range slice = Slice(panels, i);
                    if (is_first_phase) {
                      BackwardStates(*layer, group_index, step, slice);
                    }
                    if (spec_.normalizes()) continue;
                    if (is_first_phase != projects) {
                      BackwardUnits(*layer, group_index, step, slice);
                    } else if (!projects) {
                      BackwardReset(*layer, group_index, step, slice);
                    }
                  }
                });
  schedule->Add(1, 1, [=, &call](int64_t, int64_t) {
    CopyBackprops(call, *layer, group_index, /*is_end=*/true);
  });
}

template <typename T>
void CpuNetwork<T>::Backward(const CpuBackwardCall<T>& call,
                             const CpuReserve<T>& reserve, Arena* arena,
                             Schedule* schedule) {
  const int64_t max_rows = problem_.max_time * batch_;
  // The gradient of a layer's input is that of the output of the layer below.
  // Two arrays hold these gradients by turns.
  T* between[2] = {};
  for (int64_t i = 0; i < std::min<int64_t>(2, spec_.num_layers - 1); ++i) {
    between[i] = arena->Take<T>(max_rows * layer_out_);
  }
  T* const dropped = has_dropout(spec_.num_layers - 1)
                         ? arena->Take<T>(max_rows * layer_out_)
                         : nullptr;
  if (rows_.num_rows() == 0) return;
  if (!arena->only_counts()) {
    for (int64_t dir = 0; dir < dirs_; ++dir) {
      previous_rows_[dir] = rows_.PreviousRows(dir);
    }
  }
  StoredRows<T> output_backprop = call.output_backprop;
  for (int64_t index = spec_.num_layers - 1; index >= 0; --index) {
    const Arena::Scope scope(arena);
    const auto layer = std::make_shared<BackwardLayer>();
    LayOut(index, reserve, arena, layer.get());
    layer->output_backprop = output_backprop;
    layer->cell_sequences_backprop = call.cell_sequences_backprop;
    layer->input = call.input;
    if (index > 0) {
      layer->input = {{reserve.outputs[index - 1]}, layer_out_};
      layer->input_backprop = {between[(index - 1) % 2], layer_out_};
    } else if (call.input_backprop.in_place()) {
      layer->input_backprop = call.input_backprop.InPlace();
    } else {
      const int64_t n = spec_.input_size;
      layer->input_backprop = {arena->Take<T>(max_rows * n), n};
    }
    if (has_dropout(index) && !arena->only_counts()) {
      DropOut(index, layer->input.numbers.InPlace(), dropped, schedule);
      layer->input = {{dropped}, layer_out_};
    }
    {
      // Only the steps need the packed weights, so the scope gives their memory
      // back to the products that come after the steps.
      const Arena::Scope steps_scope(arena);
      schedule->AddTogether(
          [&] { PackBackward(call.params, arena, layer.get(), schedule); });
    }
    if (!arena->only_counts()) {
      AddGroups(
          division_.parts,
          [this, &call, layer](int64_t group_index, Schedule* schedule) {
            BackwardGroup(call, layer, group_index, schedule);
          },
          schedule);
    }
    BackwardSums(*layer, call, arena, schedule);
    if (index > 0) output_backprop = {{between[(index - 1) % 2]}, layer_out_};
  }
}

#define CRNN_INSTANTIATE(T)              \
  template void CpuNetwork<T>::Backward( \
      const CpuBackwardCall<T>&, const CpuReserve<T>&, Arena*, Schedule*)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
