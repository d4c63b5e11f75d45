// The steps of the forward pass.
#include <algorithm>

#include "kernels/cpu/forward_pass.h"

namespace cudnn_rnn_tf {

template <typename T>
auto ForwardPass<T>::Phases() const
    -> CpuNetwork::PhasesOf<ForwardPass, Group, Step> {
  using Pass = ForwardPass;
  if (spec_.normalizes()) return {&Pass::RunSums, &Pass::RunRows};
  if (cell_.resets_before) return {&Pass::RunResets, &Pass::RunCandidates};
  if (spec_.num_proj > 0) return {&Pass::RunUnits, &Pass::RunProjection};
  return {&Pass::RunUnits, nullptr};
}

// The gates of the steps from chunk_step on already hold the products with the
// inputs.
template <typename T>
auto ForwardPass<T>::StepOf(const Group& group, int64_t chunk_step,
                            int64_t number) const -> Step {
  const Strand& strand = *group.strand;
  const int64_t t = group.Time(number);
  const Rows<T> gates = {group.kept.gates, gates_};
  const Rows<T> candidate = {group.kept.candidate, units_};
  const CpuNetwork::Step step = {number, t, strand.Active(t)};
  if (problem_.is_training) {
    return {step, StepRows(gates, strand, t),
            has_slot_ ? StepRows(candidate, strand, t) : candidate};
  }
  const int64_t chunk_end = chunk_step + chunk_steps_;
  const int64_t chunk_time =
      group.dir == 0 ? chunk_step
                     : std::max<int64_t>(0, strand.longest - chunk_end);
  return {step, gates.From(strand.first[t] - strand.first[chunk_time]),
          candidate};
}

// Returns the states before a step as a gate's product reads them.
template <typename T>
StoredRows<T> ForwardPass<T>::StatesOf(const Group& group, int64_t step,
                                       int64_t gate) const {
  return group.read[step % 2].From(has_recurrent_dropout() ? gate * strand_size_
                                                           : 0);
}

// Brings n numbers of a sequence's state before a step into that form.
template <typename T>
void ForwardPass<T>::PrepareStates(const Group& group, int64_t step, int64_t r,
                                   int64_t first, int64_t n) const {
  const int64_t begin = r * h_stride_ + first;
  const T* const h = group.h[step % 2] + begin;
  const DestinationRows<T>& read = group.read[step % 2];
  if (has_recurrent_dropout()) {
    for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
      const T* const mask = OfGate(group.masks, gate) + begin;
      T* const to = OfGate(read.numbers.InPlace(), gate) + begin;
      for (int64_t j = 0; j < n; ++j) to[j] = h[j] * mask[j];
    }
  } else if (forms_.rounds_steps) {
    const Destination<T> to = read[r].From(first);
    to.Write(n, h);
    if (first + n < out_) return;
    std::fill_n(to.Halves() + n, PaddedDepth(out_) - out_, uint16_t{0});
  }
}

// Writes n numbers of a sequence's h after a step to all places that outputs go
// to, and prepares what the next step reads of them.
template <typename T>
void ForwardPass<T>::FinishStates(const Group& group, const Step& step,
                                  int64_t r, int64_t first, int64_t n) const {
  const int64_t next = step.number + 1;
  T* const h = group.h[next % 2] + r * h_stride_ + first;
  const int64_t row = group.strand->Row(step.time, r);
  for (const DestinationRows<T>& output : group.layer->outputs) {
    output[row].From(group.dir * out_ + first).Write(n, h);
  }
  if (rows_.StartsAnew(group.strand->Position(r), group.Time(next),
                       group.dir)) {
    std::fill_n(h, n, T(0));
  }
  PrepareStates(group, next, r, first, n);
}

// Adds the products with h to the gates of a part's units, and calls body(r,
// unit, n) with units of each sequence whose gates are complete.
template <typename T>
template <typename Body>
void ForwardPass<T>::ForUnits(const Group& group, const Step& step,
                              int64_t part, const Body& body) const {
  // Steps read the weights forwards and backwards by turns. If no cache holds
  // all of them, those that one step read last are still there when the next
  // step begins.
  const bool from_the_end = step.number % 2 == 1;
  const auto run = [&](const Slice& slice) {
    for (int64_t j = 0; j < cell_.gates_of_h; ++j) {
      const int64_t gate = from_the_end ? cell_.gates_of_h - 1 - j : j;
      const bool is_apart = gate >= cell_.joint_gates;
      const Rows<T> sums =
          is_apart ? step.candidate : step.gates.From(0, gate * units_);
      Multiply<T>(slice, step.active, StatesOf(group, step.number, gate),
                  group.weights().recurrent[gate], is_apart ? Rows<T>() : sums,
                  sums);
    }
    for (int64_t r = 0; r < step.active; ++r) body(r, slice.first, slice.n);
  };
  ForSlices(units_, part, run, from_the_end);
}

template <typename T>
void ForwardPass<T>::RunUnits(const Group& group, const Step& step,
                              int64_t part) const {
  ForUnits(group, step, part, [&](int64_t r, int64_t unit, int64_t n) {
    RunCells(group, step, r, unit, n);
  });
}

// The phases of cells that normalise: a part computes the sums of some units,
// and then the cells of some sequences.
template <typename T>
void ForwardPass<T>::RunSums(const Group& group, const Step& step,
                             int64_t part) const {
  ForUnits(group, step, part, [](int64_t, int64_t, int64_t) {});
}
template <typename T>
void ForwardPass<T>::RunRows(const Group& group, const Step& step,
                             int64_t part) const {
  ForRows(step.active, part,
          [&](int64_t r) { RunCells(group, step, r, /*unit=*/0, units_); });
}

// A GRU whose reset gate acts before the product has these phases: first what
// the candidate's matrix reads, then the candidate and the cells.
template <typename T>
void ForwardPass<T>::RunResets(const Group& group, const Step& step,
                               int64_t part) const {
  ForUnits(group, step, part, [&](int64_t r, int64_t unit, int64_t n) {
    CellRow<T> row = RowOf(group, step, r, unit);
    if (has_recurrent_dropout()) {
      row.h_before =
          StatesOf(group, step.number, cell_.joint_gates).InPlace()[r] + unit;
    }
    CellSteps<T>().reset_forward(n, row);
  });
}
template <typename T>
void ForwardPass<T>::RunCandidates(const Group& group, const Step& step,
                                   int64_t part) const {
  const Rows<T> sums = step.gates.From(0, cell_.joint_gates * units_);
  ForSlices(units_, part, [&](const Slice& slice) {
    Multiply<T>(slice, step.active, step.candidate,
                group.weights().recurrent[cell_.joint_gates], sums, sums);
    for (int64_t r = 0; r < step.active; ++r) {
      RunCells(group, step, r, slice.first, slice.n);
    }
  });
}

template <typename T>
void ForwardPass<T>::RunProjection(const Group& group, const Step& step,
                                   int64_t part) const {
  const Rows<T> h = {group.h[(step.number + 1) % 2], h_stride_};
  ForSlices(out_, part, [&](const Slice& slice) {
    Multiply<T>(slice, step.active, {{group.unprojected}, units_},
                group.weights().projection, {}, h);
    for (int64_t r = 0; r < step.active; ++r) {
      FinishStates(group, step, r, slice.first, slice.n);
    }
  });
}

// Returns what a sequence's units from `unit` on read and write in a step.
template <typename T>
CellRow<T> ForwardPass<T>::RowOf(const Group& group, const Step& step,
                                 int64_t r, int64_t unit) const {
  const int64_t begin = r * h_stride_ + unit, of_units = r * units_ + unit;
  CellRow<T> row = EmptyRow<T>();
  row.gates = step.gates[r] + unit;
  row.h_before = group.h[step.number % 2] + begin;
  row.h = spec_.num_proj > 0 ? group.unprojected + of_units
                             : group.h[(step.number + 1) % 2] + begin;
  if (has_slot_) {
    row.last_slot = step.candidate[r] + unit;
    row.last_bias = group.weights().candidate_bias + unit;
  }
  if (cell_.has_c) row.c = group.c + of_units;
  if (spec_.has_zoneout()) row.zones = group.zones + r * 2 * units_ + unit;
  if (cell_.num_vectors > 0) row.vectors = group.weights().vectors + unit;
  return row;
}

// Computes n cells of a sequence in a step, and writes their results to all
// places that these go to; those of a projection's input are not h yet.
template <typename T>
void ForwardPass<T>::RunCells(const Group& group, const Step& step, int64_t r,
                              int64_t unit, int64_t n) const {
  const Strand& strand = *group.strand;
  const int64_t row = strand.Row(step.time, r);
  const CellRow<T> at = RowOf(group, step, r, unit);
  if (cell_.has_c &&
      rows_.StartsAnew(strand.Position(r), step.time, group.dir)) {
    std::fill_n(at.c, n, T(0));
  }
  masks_.SetZones(group.index, row, unit, n, at.zones);
  CellSteps<T>().forward(n, at);
  if (problem_.is_training && cell_.has_c) {
    std::copy_n(at.c, n, group.kept.cell + row * units_ + unit);
  }
  if (has_cell_sequences(group.layer->index)) {
    tensors_.Sequences<T>(buffers_.cell_sequences, dirs_ * units_)[row]
        .From(group.dir * units_ + unit)
        .Write(n, at.c);
  }
  if (spec_.num_proj == 0) FinishStates(group, step, r, unit, n);
}

template class ForwardPass<float>;
template class ForwardPass<double>;

}  // namespace cudnn_rnn_tf
