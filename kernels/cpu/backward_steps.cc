// The steps of the backward pass.
#include <algorithm>

#include "kernels/cpu/backward_pass.h"

namespace cudnn_rnn_tf {

template <typename T>
auto BackwardPass<T>::Phases() const
    -> CpuNetwork::PhasesOf<BackwardPass, Group, Step> {
  using Pass = BackwardPass;
  if (spec_.normalizes()) return {&Pass::RunStates, &Pass::RunRows};
  if (cell_.resets_before) return {&Pass::RunStatesAndUnits, &Pass::RunResets};
  if (spec_.num_proj > 0) return {&Pass::RunStates, &Pass::RunUnits};
  return {&Pass::RunStatesAndUnits, nullptr};
}

template <typename T>
void BackwardPass<T>::RunStates(const Group& group, const Step& step,
                                int64_t part) const {
  ForSlices(out_, part,
            [&](const Slice& slice) { ToStates(group, step, slice); });
}
template <typename T>
void BackwardPass<T>::RunUnits(const Group& group, const Step& step,
                               int64_t part) const {
  ForSlices(units_, part,
            [&](const Slice& slice) { ToUnits(group, step, slice); });
}
template <typename T>
void BackwardPass<T>::RunStatesAndUnits(const Group& group, const Step& step,
                                        int64_t part) const {
  ForSlices(units_, part, [&](const Slice& slice) {
    ToStates(group, step, slice);
    ToUnits(group, step, slice);
  });
}

// Computes the cells of some sequences, if they normalise.
template <typename T>
void BackwardPass<T>::RunRows(const Group& group, const Step& step,
                              int64_t part) const {
  T* const work = group.norms + part * (cell_.num_norms + 1) * units_;
  ForRows(step.active, part, [&](int64_t r) {
    RunCells(group, step, r, /*unit=*/0, units_, work);
  });
}

// Computes the gradients of reset gates that act before the product, from those
// of all candidates.
template <typename T>
void BackwardPass<T>::RunResets(const Group& group, const Step& step,
                                int64_t part) const {
  const Segment& candidate = group.pseudo_layer->segments.back();
  if (step.active == 0) return;
  ForSlices(units_, part, [&](const Slice& slice) {
    const int64_t unit = slice.first, n = slice.n;
    Multiply<T>(slice, step.active, GradientsOf(group, step, candidate),
                candidate.weights, {}, {group.read_backprop, h_stride_});
    for (int64_t r = 0; r < step.active; ++r) {
      const CellRow<T> at = RowOf(group, step, r, unit);
      const int64_t begin = r * h_stride_ + unit;
      T* const through = group.read_backprop + begin;
      if (has_recurrent_dropout()) {
        const T* const mask = OfGate(group.masks, cell_.joint_gates) + begin;
        for (int64_t j = 0; j < n; ++j) through[j] *= mask[j];
      }
      CellSteps<T>().reset_backward(n, at, through);
      if (!forms_.rounds_steps) continue;
      group.rounded_dz[step.number % 2][r].From(unit).Write(n, at.gates);
    }
  });
}

// Takes the gradients of the step that was taken before (a later one in the
// direction's time) back to a slice of the states, and adds those of this
// step's outputs. It needs all panels of the step that was taken before.
template <typename T>
void BackwardPass<T>::ToStates(const Group& group, const Step& step,
                               const Slice& slice) const {
  if (step.number > 0) {
    AddGradientsOfStep(group, group.BackwardStep(step.number - 1), slice);
  }
  AddGradientsOfOutputs(group, step, slice);
}

template <typename T>
void BackwardPass<T>::AddGradientsOfStep(const Group& group, const Step& step,
                                         const Slice& slice) const {
  const Rows<T> dh = {group.dh, h_stride_};
  // Of a cell that reads h, dh already holds what passes no gate, to which the
  // products are added.
  bool is_there = spec_.reads_h();
  for (const auto& segment : group.pseudo_layer->segments) {
    if (segment.first >= cell_.gates_of_h * units_) break;
    const auto multiply = [&](Rows<T> init, Rows<T> c) {
      Multiply<T>(slice, step.active, GradientsOf(group, step, segment),
                  segment.weights, init, c);
    };
    if (has_recurrent_dropout()) {
      multiply({}, {group.read_backprop, h_stride_});
      const T* const masks = OfGate(group.masks, segment.first / units_);
      for (int64_t r = 0; r < step.active; ++r) {
        const int64_t begin = r * h_stride_ + slice.first;
        for (int64_t j = begin; j < begin + slice.n; ++j) {
          const T through = group.read_backprop[j] * masks[j];
          group.dh[j] = is_there ? group.dh[j] + through : through;
        }
      }
    } else {
      multiply(is_there ? dh : Rows<T>(), dh);
    }
    is_there = true;
  }
  for (int64_t r = 0; r < step.active; ++r) {
    const int64_t position = group.strand->Position(r);
    if (!rows_.StartsAnew(position, step.time, group.dir)) continue;
    std::fill_n(dh[r] + slice.first, slice.n, T(0));
  }
}

template <typename T>
void BackwardPass<T>::AddGradientsOfOutputs(const Group& group,
                                            const Step& step,
                                            const Slice& slice) const {
  const Strand& strand = *group.strand;
  const int64_t first = slice.first, n = slice.n;
  const Step next = group.BackwardStep(step.number + 1);
  T converted[kSliceCols];
  const auto output_backprop = [&](int64_t row) {
    return group.layer->output_backprop[row].From(group.dir * out_ + first);
  };
  for (int64_t r = 0; r < step.active; ++r) {
    const int64_t row = strand.Row(step.time, r);
    if (r < next.active) output_backprop(strand.Row(next.time, r)).Prefetch(n);
    const T* const from = output_backprop(row).Read(n, converted);
    T* const to = group.dh + r * h_stride_ + first;
    for (int64_t j = 0; j < n; ++j) to[j] += from[j];
    if (spec_.num_proj > 0) {
      std::copy_n(to, n,
                  group.pseudo_layer->projected_backprop + row * out_ + first);
    }
    if (!has_recurrent_dropout()) continue;
    const T* const h =
        group.layer->output +
        rows_.PreviousRow(strand, step.time, r, group.dir) * layer_out_ +
        group.dir * out_ + first;
    for (int64_t gate = 0; gate < cell_.gates_of_h; ++gate) {
      const T* const mask = OfGate(group.masks, gate) + r * h_stride_ + first;
      T* const masked = group.pseudo_layer->masked +
                        (row * cell_.num_gates + gate) * out_ + first;
      for (int64_t j = 0; j < n; ++j) masked[j] = h[j] * mask[j];
    }
  }
}

// Computes the gradients of preactivations from those of the outputs, for a
// slice of the units, except that of a reset gate which acts before the
// product.
template <typename T>
void BackwardPass<T>::ToUnits(const Group& group, const Step& step,
                              const Slice& slice) const {
  if (step.active == 0) return;
  if (spec_.num_proj > 0) {
    const StoredRows<T> gradients({group.pseudo_layer->projected_backprop},
                                  out_);
    Multiply<T>(slice, step.active,
                StepRows(gradients, *group.strand, step.time),
                group.pseudo_layer->projection, {}, {group.dy, units_});
  }
  for (int64_t r = 0; r < step.active; ++r) {
    RunCells(group, step, r, slice.first, slice.n, /*work=*/nullptr);
  }
}

// Computes the gradients of n cells of a sequence in a step. If products read
// bfloat16, they are rounded.
template <typename T>
void BackwardPass<T>::RunCells(const Group& group, const Step& step, int64_t r,
                               int64_t unit, int64_t n, T* work) const {
  const int64_t row = group.strand->Row(step.time, r);
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
  masks_.SetZones(group.index, row, unit, n, at.zones);
  CellSteps<T>().backward(n, at);
  // Nothing passes to the step before from one that starts anew.
  if (cell_.has_c &&
      rows_.StartsAnew(group.strand->Position(r), step.time, group.dir)) {
    std::fill_n(at.dc, n, T(0));
  }
  if (!forms_.rounds_steps) return;
  const Destination<T> rounded = group.rounded_dz[step.number % 2][r];
  for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
    const bool is_split = cell_.splits_gate() && gate >= cell_.joint_gates;
    rounded.From(gate * units_ + unit)
        .Write(n, is_split ? at.last_slot : at.gates + gate * units_);
  }
  // Products read whole blocks of numbers, up to PaddedDepth.
  if (unit + n == units_) {
    std::fill_n(rounded.Halves() + gates_, PaddedDepth(1), uint16_t{0});
  }
}

// Returns what a sequence's units from `unit` on read and write in a step.
template <typename T>
CellRow<T> BackwardPass<T>::RowOf(const Group& group, const Step& step,
                                  int64_t r, int64_t unit) const {
  const Strand& strand = *group.strand;
  const auto& kept = group.pseudo_layer->kept;
  const int64_t of_row = strand.Row(step.time, r) * units_ + unit;
  const int64_t previous = rows_.PreviousRow(strand, step.time, r, group.dir);
  CellRow<T> row = EmptyRow<T>();
  row.gates = kept.gates + strand.Row(step.time, r) * gates_ + unit;
  row.h_before =
      group.layer->output + previous * layer_out_ + group.dir * out_ + unit;
  if (cell_.num_vectors > 0) {
    row.vectors = group.pseudo_layer->vectors + unit;
    row.vector_sums = group.pseudo_layer->vector_sums + unit +
                      strand.Position(r) * cell_.num_vectors * units_;
  }
  if (spec_.has_zoneout()) row.zones = group.zones + r * 2 * units_ + unit;
  row.dh = group.dh + r * h_stride_ + unit;
  if (has_slot_) row.last_slot = kept.candidate + of_row;
  if (cell_.has_c) {
    row.c = kept.cell + of_row;
    row.c_before = kept.cell + previous * units_ + unit;
    row.dc = group.dc + r * units_ + unit;
  }
  return row;
}

template <typename T>
StoredRows<T> BackwardPass<T>::GradientsOf(const Group& group, const Step& step,
                                           const Segment& segment) const {
  if (forms_.rounds_steps) {
    return group.rounded_dz[step.number % 2].From(0, segment.first);
  }
  return StepRows(segment.dz, *group.strand, step.time);
}

template class BackwardPass<float>;
template class BackwardPass<double>;

}  // namespace cudnn_rnn_tf
