#include <algorithm>
#include <type_traits>

#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/storage.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace {

// The products with the inputs are computed for about this many rows at a time.
// That is enough to reuse the weights, and few enough that the recurrence finds
// the results in a cache.
constexpr int64_t kChunkRows = 192;

}  // namespace

// Working memory of one layer's forward pass.
template <typename T>
struct CpuNetwork<T>::ForwardLayer {
  int64_t index = 0;
  StoredRows<T> input;  // After dropout.
  // Indexed by strand: its rows, and their rows in the input. The latter is
  // empty if the input has no index, since both are then the same.
  std::vector<std::vector<int64_t>> rows, input_rows;
  // Outputs are written to each of these: for the next layer or the backward
  // pass, and for the caller.
  DestinationRows<T> outputs[2];
  int num_outputs = 0;
  DestinationRows<T> cell_sequences;                 // For the caller.
  typename CpuReserve<T>::PseudoLayer kept[2] = {};  // By direction.

  int64_t chunk_steps = 0;
  CpuForwardWeights<T> weights;
  struct Scratch {
    // The states, [strand, h_stride]. A step reads h[step % 2] and writes the
    // other.
    T* h[2];
    // Only with recurrent dropout: the masks, and for the states in h[0] and
    // h[1] the products with them that the gates read.
    T* masks;
    T* masked[2];
    uint16_t* rounded[2];  // `h` as bfloat16, if products read it.
    T* c;                  // [strand, H]
    T* zones;              // Of zoneout, [strand, 2, H].
    T* unprojected;        // [strand, H]
    T* input;              // A chunk's, if converted, [chunk rows, I].
    T* gates;      // In inference, a chunk's: [chunk rows, num_gates * H].
    T* candidate;  // In inference, as in the reserve space: [strand, H].
  };
  std::vector<Scratch> scratch;  // One for each group.
};

template <typename T>
void CpuNetwork<T>::LayOut(int64_t index, const CpuReserve<T>& reserve,
                           Arena* arena, ForwardLayer* layer) const {
  layer->index = index;
  layer->chunk_steps = std::min(
      problem_.max_time, std::max<int64_t>(1, kChunkRows / strand_size_));
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    layer->kept[dir] = reserve.pseudo_layers[index * dirs_ + dir];
  }
  layer->scratch.resize(num_groups());
  for (auto& scratch : layer->scratch) {
    scratch = {};
    scratch.h[0] = arena->Take<T>(strand_size_ * h_stride_);
    scratch.h[1] = arena->Take<T>(strand_size_ * h_stride_);
    if (has_recurrent_dropout()) {
      scratch.masks = TakeMasks(arena);
      scratch.masked[0] = TakeMasks(arena);
      scratch.masked[1] = TakeMasks(arena);
    } else if (rounds_steps_) {
      for (uint16_t*& rounded : scratch.rounded) {
        rounded = arena->Take<uint16_t>(PaddedRows(strand_size_) * h_stride_);
      }
    }
    if (cell_.has_c) scratch.c = arena->Take<T>(strand_size_ * units_);
    scratch.zones = TakeZones(arena);
    if (spec_.num_proj > 0) {
      scratch.unprojected = arena->Take<T>(strand_size_ * units_);
    }
    if (!layer->input.in_place() && !MultipliesCallersInput()) {
      scratch.input =
          arena->Take<T>(layer->chunk_steps * strand_size_ * spec_.input_size);
    }
    if (!problem_.is_training) {
      scratch.gates =
          arena->Take<T>(layer->chunk_steps * strand_size_ * gates_);
      if (cell_.num_slots > cell_.num_gates)
        scratch.candidate = arena->Take<T>(strand_size_ * units_);
    }
  }
}

template <typename T>
CpuForwardWeights<T> CpuNetwork<T>::PackForward(int64_t layer, Stored<T> params,
                                                WeightsForm form, Arena* arena,
                                                Schedule* schedule) const {
  CpuForwardWeights<T> weights;
  const auto pack = [&](int64_t depth, int64_t cols, bool bfloat16,
                        int64_t offset) {
    return PackMatrix(depth, cols, bfloat16, params.From(offset),
                      /*transposed=*/true, form, arena, schedule);
  };
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    const ParamLayout::PseudoLayer& offsets =
        layout_.pseudo_layer(layer * dirs_ + dir);
    if (offsets.input_weights >= 0) {
      weights.input[dir] = pack(spec_.layer_input_size(layer), gates_,
                                MultipliesBfloat16(), offsets.input_weights);
    }
    for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
      weights.recurrent[dir][gate] =
          pack(out_, units_, StepsMultiplyBfloat16(),
               offsets.recurrent_weights + gate * units_ * out_);
    }
    if (spec_.num_proj > 0) {
      weights.projection[dir] =
          pack(units_, out_, StepsMultiplyBfloat16(), offsets.projection);
    }
    weights.bias[dir] = arena->Take<T>(gates_);
    weights.candidate_bias[dir] = arena->Take<T>(units_);
    weights.vectors[dir] = arena->Take<T>(cell_.num_vectors * units_);
  }
  if (!arena->only_counts()) {
    schedule->Add(1, 1,
                  [=](int64_t, int64_t) { SumBiases(layer, params, weights); });
  }
  return weights;
}

template <typename T>
void CpuNetwork<T>::SumBiases(int64_t index, Stored<T> params,
                              const CpuForwardWeights<T>& weights) const {
  for (int64_t dir = 0; dir < dirs_; ++dir) {
    const ParamLayout::PseudoLayer& offsets =
        layout_.pseudo_layer(index * dirs_ + dir);
    if (offsets.vectors >= 0) {
      params.From(offsets.vectors)
          .Copy(cell_.num_vectors * units_, weights.vectors[dir]);
    }
    T* const bias = weights.bias[dir];
    std::fill_n(bias, gates_, T(0));
    std::fill_n(weights.candidate_bias[dir], units_, T(0));
    if (offsets.input_bias >= 0) {
      params.From(offsets.input_bias).Copy(gates_, bias);
    }
    if (offsets.recurrent_bias >= 0) {
      std::vector<T> recurrent(gates_);
      params.From(offsets.recurrent_bias).Copy(gates_, recurrent.data());
      // The bias of a recurrent side that has a slot of its own is kept apart.
      const int64_t outside =
          cell_.splits_gate() ? cell_.joint_gates * units_ : gates_;
      for (int64_t j = 0; j < outside; ++j) bias[j] += recurrent[j];
      std::copy(recurrent.begin() + outside, recurrent.end(),
                weights.candidate_bias[dir]);
    }
  }
}

// Writes n numbers of a sequence's state in the form in which products read
// them, masked or rounded. `parity` says which of the two states of Scratch
// they are in.
template <typename T>
void CpuNetwork<T>::PrepareState(const ForwardLayer& layer, int64_t group_index,
                                 int64_t parity, int64_t r, int64_t first,
                                 int64_t n) const {
  const auto& scratch = layer.scratch[group_index];
  const int64_t begin = r * h_stride_ + first;
  const T* const h = scratch.h[parity] + begin;
  if constexpr (std::is_same_v<T, float>) {
    if (KeepsRoundedStates()) {
      uint16_t* const to = scratch.rounded[parity] + begin;
      Simd().conversions.to_bfloat16(n, h, to);
      if (first + n == out_) std::fill_n(to + n, PaddedDepth(out_) - out_, 0);
    }
  }
  if (!has_recurrent_dropout()) return;
  for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
    const T* const mask = OfGate(scratch.masks, gate) + begin;
    T* const to = OfGate(scratch.masked[parity], gate) + begin;
    for (int64_t j = 0; j < n; ++j) to[j] = h[j] * mask[j];
  }
}

// Copies the initial states to where the steps and the backward pass read them.
template <typename T>
void CpuNetwork<T>::BeginForward(const CpuForwardCall<T>& call,
                                 const ForwardLayer& layer,
                                 int64_t group_index) const {
  const Group group = this->group(group_index);
  const auto& scratch = layer.scratch[group_index];
  if (has_recurrent_dropout()) DrawMasks(layer.index, group, scratch.masks);
  if (problem_.has_resets && problem_.is_training &&
      group.strand == strands_.data()) {
    const int64_t row = rows_.num_rows() + batch_;
    const std::vector<T> zeros(out_);
    layer.outputs[0][row].From(group.dir * out_).Write(out_, zeros.data());
    if (cell_.has_c) {
      std::fill_n(layer.kept[group.dir].cell + row * units_, units_, T(0));
    }
  }
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    state += layer.index * dirs_ * batch_;
    const int64_t row = rows_.num_rows() + position;
    const T* const h = call.input_h + state * out_;
    const bool is_anew = group.dir == 0 && rows_.StartsAnew(position, 0, 0);
    for (const int64_t parity : {0, 1}) {
      T* const to = scratch.h[parity] + r * h_stride_;
      std::copy_n(h, out_, to);
      if (is_anew) std::fill_n(to, out_, T(0));
      PrepareState(layer, group_index, parity, r, 0, out_);
    }
    if (problem_.is_training) {
      layer.outputs[0][row].From(group.dir * out_).Write(out_, h);
    }
    if (!cell_.has_c) return;
    const T* const c = call.input_c + state * units_;
    std::copy_n(c, units_, scratch.c + r * units_);
    if (problem_.is_training) {
      std::copy_n(c, units_, layer.kept[group.dir].cell + row * units_);
    }
  });
}

template <typename T>
void CpuNetwork<T>::EndForward(const CpuForwardCall<T>& call,
                               const ForwardLayer& layer,
                               int64_t group_index) const {
  const Group group = this->group(group_index);
  const auto& scratch = layer.scratch[group_index];
  ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
    state += layer.index * dirs_ * batch_;
    const int64_t steps =
        group.dir == 0 ? rows_.length(position) : group.strand->longest;
    std::copy_n(scratch.h[steps % 2] + r * h_stride_, out_,
                call.output_h + state * out_);
    if (cell_.has_c) {
      std::copy_n(scratch.c + r * units_, units_,
                  call.output_c + state * units_);
    }
  });
}

template <typename T>
void CpuNetwork<T>::ForwardInputs(const ForwardLayer& layer,
                                  int64_t group_index, int64_t first_step,
                                  int64_t last_step, Schedule* schedule) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const int64_t t = std::min(group.Time(first_step), group.Time(last_step - 1));
  const int64_t first = strand.first[t];
  const int64_t num_rows = strand.first[t + last_step - first_step] - first;
  const int64_t index = group.strand - strands_.data();
  const int64_t* const rows = layer.rows[index].data() + first;
  const Rows<T> gates = problem_.is_training
                            ? Rows<T>{layer.kept[group.dir].gates, gates_, rows}
                            : Rows<T>{layer.scratch[group_index].gates, gates_};
  const int64_t* const input_rows =
      layer.input_rows.empty() ? rows : layer.input_rows[index].data() + first;
  StoredRows<T> input(layer.input.numbers, layer.input.stride, input_rows);
  if (!input.in_place() && !MultipliesCallersInput()) {
    T* const converted = layer.scratch[group_index].input;
    const int64_t n = spec_.input_size;
    schedule->AddRanges(num_rows, 16, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        input[row].Copy(n, converted + row * n);
      }
    });
    input = {{converted}, n};
  }
  if (spec_.has_input_weights(layer.index)) {
    Product<T> product;
    product.rows = num_rows;
    product.a = input;
    product.b = layer.weights.input[group.dir];
    product.init = {layer.weights.bias[group.dir], 0};
    product.c = gates;
    product.AddTo(schedule);
    return;
  }
  schedule->AddRanges(num_rows, 16, [=, &layer](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* const x = input[row].InPlace();
      for (int64_t j = 0; j < gates_; ++j) {
        gates[row][j] = layer.weights.bias[group.dir][j] + x[j % units_];
      }
    }
  });
}

// Writes n numbers of a sequence's h after a step to all places that outputs go
// to, and prepares what the next step reads of them.
template <typename T>
void CpuNetwork<T>::FinishState(const ForwardLayer& layer, int64_t group_index,
                                int64_t step, int64_t r, int64_t first,
                                int64_t n) const {
  const Group group = this->group(group_index);
  const int64_t next = (step + 1) % 2;
  T* const h = layer.scratch[group_index].h[next] + r * h_stride_ + first;
  const int64_t row = group.strand->Row(group.Time(step), r);
  for (int i = 0; i < layer.num_outputs; ++i) {
    layer.outputs[i][row].From(group.dir * out_ + first).Write(n, h);
  }
  if (rows_.StartsAnew(group.strand->Position(r), group.Time(step + 1),
                       group.dir)) {
    std::fill_n(h, n, T(0));
  }
  PrepareState(layer, group_index, next, r, first, n);
}

template <typename T>
typename CpuNetwork<T>::StepGates CpuNetwork<T>::GatesOfStep(
    const ForwardLayer& layer, int64_t group_index, int64_t chunk_step,
    int64_t step) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const int64_t t = group.Time(step);
  if (problem_.is_training) {
    const auto& kept = layer.kept[group.dir];
    return {StepRows(kept.gates, gates_, strand, t),
            StepRows(kept.candidate, units_, strand, t)};
  }
  const auto& scratch = layer.scratch[group_index];
  const int64_t chunk_time =
      group.dir == 0 ? chunk_step
                     : std::max<int64_t>(
                           0, strand.longest - chunk_step - layer.chunk_steps);
  return {Rows<T>{scratch.gates, gates_}.From(strand.first[t] -
                                              strand.first[chunk_time]),
          {scratch.candidate, units_}};
}

// Returns what a sequence's units from `unit` on read and write in a step.
template <typename T>
CellRow<T> CpuNetwork<T>::RowOfStep(const ForwardLayer& layer,
                                    int64_t group_index,
                                    const StepGates& of_step, int64_t step,
                                    int64_t r, int64_t unit) const {
  const auto& scratch = layer.scratch[group_index];
  const int64_t begin = r * h_stride_ + unit, of_units = r * units_ + unit;
  CellRow<T> row = EmptyRow();
  row.gates = of_step.gates[r] + unit;
  row.h_before = scratch.h[step % 2] + begin;
  row.h = spec_.num_proj > 0 ? scratch.unprojected + of_units
                             : scratch.h[(step + 1) % 2] + begin;
  if (cell_.num_slots > cell_.num_gates) {
    row.last_slot = of_step.candidate[r] + unit;
    row.last_bias = layer.weights.candidate_bias[group(group_index).dir] + unit;
  }
  if (cell_.has_c) row.c = scratch.c + of_units;
  if (spec_.has_zoneout()) row.zones = scratch.zones + r * 2 * units_ + unit;
  if (cell_.num_vectors > 0) {
    row.vectors = layer.weights.vectors[group(group_index).dir] + unit;
  }
  return row;
}

// Computes one step of the recurrence for one part of the units, or the first
// phase of such a step. The gates of the steps from chunk_step on already hold
// the products with the inputs.
template <typename T>
void CpuNetwork<T>::ForwardUnits(const ForwardLayer& layer, int64_t group_index,
                                 int64_t chunk_step, int64_t step,
                                 int64_t part) const {
  const Group group = this->group(group_index);
  const int64_t active = group.strand->Active(group.Time(step));
  const auto& scratch = layer.scratch[group_index];
  const StepGates of_step = GatesOfStep(layer, group_index, chunk_step, step);
  const Range panels = PartPanels(units_, part);
  // Steps read the weights forwards and backwards by turns. If no cache holds
  // all of them, those that one step read last are still there when the next
  // step begins.
  const bool from_the_end = step % 2 == 1;
  const int64_t slices = NumSlices(panels);
  for (int64_t i = 0; i < slices; ++i) {
    const Range slice = Slice(panels, from_the_end ? slices - 1 - i : i);
    const auto [unit, n] = ColumnsOf(slice, units_);
    Product<T> product = StepProduct();
    product.rows = active;
    product.a = {KeepsRoundedStates()
                     ? StoredBfloat16<T>(scratch.rounded[step % 2])
                     : Stored<T>{scratch.h[step % 2]},
                 h_stride_};
    for (int64_t j = 0; j < cell_.gates_of_h; ++j) {
      const int64_t gate = from_the_end ? cell_.gates_of_h - 1 - j : j;
      product.b = layer.weights.recurrent[group.dir][gate];
      if (has_recurrent_dropout()) {
        product.a.numbers = {OfGate(scratch.masked[step % 2], gate)};
      }
      if (gate >= cell_.joint_gates) {
        product.c = of_step.candidate;
        product.init = {};
      } else {
        product.init = of_step.gates.From(0, gate * units_);
        product.c = of_step.gates.From(0, gate * units_);
      }
      product.RunPanels(slice.first, slice.last);
    }
    if (spec_.normalizes()) continue;
    for (int64_t r = 0; r < active; ++r) {
      if (!cell_.resets_before) {
        RunCells(layer, group_index, of_step, step, r, unit, n);
        continue;
      }
      CellRow<T> at = RowOfStep(layer, group_index, of_step, step, r, unit);
      if (has_recurrent_dropout()) {
        at.h_before = OfGate(scratch.masked[step % 2], cell_.joint_gates) +
                      r * h_stride_ + unit;
      }
      CellSteps().reset_forward(n, at);
    }
  }
}

// Computes n cells of a sequence in a step, and writes their results to all
// places that these go to; those of a projection's input are not h yet.
template <typename T>
void CpuNetwork<T>::RunCells(const ForwardLayer& layer, int64_t group_index,
                             const StepGates& of_step, int64_t step, int64_t r,
                             int64_t unit, int64_t n) const {
  const Group group = this->group(group_index);
  const Strand& strand = *group.strand;
  const int64_t t = group.Time(step), row = strand.Row(t, r);
  const CellRow<T> at = RowOfStep(layer, group_index, of_step, step, r, unit);
  if (cell_.has_c && rows_.StartsAnew(strand.Position(r), t, group.dir)) {
    std::fill_n(at.c, n, T(0));
  }
  SetZones(layer.index * dirs_ + group.dir, row, unit, n, at.zones);
  CellSteps().forward(n, at);
  if (problem_.is_training && cell_.has_c) {
    std::copy_n(at.c, n, layer.kept[group.dir].cell + row * units_ + unit);
  }
  if (has_cell_sequences(layer.index)) {
    layer.cell_sequences[row].From(group.dir * units_ + unit).Write(n, at.c);
  }
  if (spec_.num_proj > 0) return;
  FinishState(layer, group_index, step, r, unit, n);
}

// The second phase of a step: the cells of some sequences, if they normalise,
// a projection, or the candidate of a GRU whose reset gate acts before the
// product.
template <typename T>
void CpuNetwork<T>::ForwardSecondPhase(const ForwardLayer& layer,
                                       int64_t group_index, int64_t chunk_step,
                                       int64_t step, int64_t part) const {
  const Group group = this->group(group_index);
  const bool projects = spec_.num_proj > 0;
  const auto& scratch = layer.scratch[group_index];
  const StepGates of_step = GatesOfStep(layer, group_index, chunk_step, step);
  const int64_t cols = projects ? out_ : units_;
  const int64_t active = group.strand->Active(group.Time(step));
  if (spec_.normalizes()) {
    const Range rows = PartRows(active, part);
    for (int64_t r = rows.first; r < rows.last; ++r) {
      RunCells(layer, group_index, of_step, step, r, /*unit=*/0, units_);
    }
    return;
  }
  const Range panels = PartPanels(cols, part);
  Product<T> product = StepProduct();
  product.rows = active;
  if (projects) {
    product.a = {{scratch.unprojected}, units_};
    product.b = layer.weights.projection[group.dir];
    product.c = {scratch.h[(step + 1) % 2], h_stride_};
  } else {
    product.a = of_step.candidate;
    product.b = layer.weights.recurrent[group.dir][cell_.joint_gates];
    product.init = of_step.gates.From(0, cell_.joint_gates * units_);
    product.c = of_step.gates.From(0, cell_.joint_gates * units_);
  }
  product.RunPanels(panels.first, panels.last);
  const auto [first, n] = ColumnsOf(panels, cols);
  for (int64_t r = 0; r < product.rows; ++r) {
    if (projects) {
      FinishState(layer, group_index, step, r, first, n);
    } else {
      RunCells(layer, group_index, of_step, step, r, first, n);
    }
  }
}

template <typename T>
void CpuNetwork<T>::ForwardGroup(
    const CpuForwardCall<T>& call,
    const std::shared_ptr<const ForwardLayer>& layer, int64_t group_index,
    Schedule* schedule) const {
  // The chunks that are added hold `layer`, so it lives until the schedule has
  // run.
  const int64_t longest = group(group_index).strand->longest;
  const int64_t phases_per_step = PhasesPerStep();
  schedule->Add(1, 1, [=, &call](int64_t, int64_t) {
    BeginForward(call, *layer, group_index);
  });
  for (int64_t begin = 0; begin < longest; begin += layer->chunk_steps) {
    const int64_t end = std::min(begin + layer->chunk_steps, longest);
    ForwardInputs(*layer, group_index, begin, end, schedule);
    schedule->Add((end - begin) * phases_per_step, division_.parts,
                  [=](int64_t phase, int64_t part) {
                    const int64_t step = begin + phase / phases_per_step;
                    if (phase % phases_per_step == 0) {
                      ForwardUnits(*layer, group_index, begin, step, part);
                    } else {
                      ForwardSecondPhase(*layer, group_index, begin, step,
                                         part);
                    }
                  });
  }
  schedule->Add(1, 1, [=, &call](int64_t, int64_t) {
    EndForward(call, *layer, group_index);
  });
}

template <typename T>
void CpuNetwork<T>::Forward(const CpuForwardCall<T>& call,
                            const CpuReserve<T>& reserve, Arena* arena,
                            Schedule* schedule) const {
  T* const dropped =
      has_dropout(spec_.num_layers - 1)
          ? arena->Take<T>(problem_.max_time * batch_ * layer_out_)
          : nullptr;
  const WeightsForm form =
      MultipliesInPlace(call.params) ? WeightsForm::kInPlace : PackedForm();
  for (int64_t index = 0; index < spec_.num_layers; ++index) {
    // All layers use the same working memory, one after the other.
    const Arena::Scope scope(arena);
    const auto layer = std::make_shared<ForwardLayer>();
    if (call.packed != nullptr) {
      layer->weights = call.packed[index];
    } else {
      schedule->AddTogether([&] {
        layer->weights = PackForward(index, call.params, form, arena, schedule);
      });
    }
    layer->cell_sequences = call.cell_sequences;
    layer->input = call.input;
    if (index > 0) layer->input = {{reserve.outputs[index - 1]}, layer_out_};
    LayOut(index, reserve, arena, layer.get());
    if (arena->only_counts()) continue;

    if (has_dropout(index)) {
      DropOut(index, layer->input.numbers.InPlace(), dropped, schedule);
      layer->input = {{dropped}, layer_out_};
    }
    if (reserve.outputs[index] != nullptr) {
      layer->outputs[layer->num_outputs++] = {{reserve.outputs[index]},
                                              layer_out_};
    }
    if (index + 1 == spec_.num_layers) {
      layer->outputs[layer->num_outputs++] = call.output;
    }
    for (const Strand& strand : strands_) {
      layer->rows.push_back(strand.Rows());
      if (layer->input.index == nullptr) continue;
      auto& input_rows = layer->input_rows.emplace_back(layer->rows.back());
      for (int64_t& row : input_rows) row = layer->input.index[row];
    }
    AddGroups(
        std::max(division_.parts,
                 schedule->num_threads() / std::max<int64_t>(1, num_groups())),
        [this, &call, layer](int64_t group_index, Schedule* schedule) {
          ForwardGroup(call, layer, group_index, schedule);
        },
        schedule);
  }
}

#define CRNN_INSTANTIATE(T)                                      \
  template CpuForwardWeights<T> CpuNetwork<T>::PackForward(      \
      int64_t, Stored<T>, WeightsForm, Arena*, Schedule*) const; \
  template void CpuNetwork<T>::Forward(                          \
      const CpuForwardCall<T>&, const CpuReserve<T>&, Arena*, Schedule*) const
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
