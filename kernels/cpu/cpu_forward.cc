// The forward pass. It adds a layer after the other to the schedule; the groups
// of a layer go through time side by side, each a chunk of steps at a time: the
// products with the inputs of all steps of the chunk, and then step by step the
// products with h and the cells, which the parts of the group share.
#include <algorithm>

#include "kernels/cpu/cpu_network.h"

namespace cudnn_rnn_tf {
namespace {

// The products with the inputs are computed for about this many rows at a time.
// That is enough to reuse the weights, and few enough that the recurrence finds
// the results in a cache.
constexpr int64_t kChunkRows = 192;

template <typename T>
class ForwardPass : public CpuNetwork {
 public:
  ForwardPass(const RnnProblem& problem, const PackedRows& rows,
              const RnnForwardBuffers& buffers,
              const CpuForwardWeights<T>* packed, int64_t num_threads)
      : CpuNetwork(problem, rows, buffers.seed, num_threads,
                   /*is_backward=*/false),
        buffers_(buffers),
        packed_(packed) {}

  void Add(const CpuReserve<T>& reserve, Arena* arena, Schedule* schedule) {
    T* const dropped =
        problem_.has_dropout_between_layers()
            ? arena->Take<T>(problem_.max_time * batch_ * layer_out_)
            : nullptr;
    for (int64_t index = 0; index < spec_.num_layers; ++index) {
      // All layers use the same working memory, one after the other.
      const Arena::Scope scope(arena);
      Layer& layer = *layers_.emplace_back(std::make_unique<Layer>());
      layer.index = index;
      PackWeights(arena, &layer, schedule);
      layer.input =
          index > 0 ? StoredRows<T>({reserve.outputs[index - 1]}, layer_out_)
                    : tensors_.Sequences<T>(buffers_.input, spec_.input_size);
      LayOut(reserve, arena, &layer);
      if (masks_.DropsInput(index)) {
        masks_.DropInput(index, layer.input.numbers.InPlace(), dropped,
                         schedule);
        layer.input = {{dropped}, layer_out_};
      }
      if (reserve.outputs[index] != nullptr) {
        layer.outputs[layer.num_outputs++] = {{reserve.outputs[index]},
                                              layer_out_};
      }
      if (index + 1 == spec_.num_layers) {
        layer.outputs[layer.num_outputs++] =
            tensors_.Sequences<T>(buffers_.output, layer_out_);
      }
      for (const Strand& strand : strands_) {
        layer.rows.push_back(strand.Rows());
        if (layer.input.index == nullptr) continue;
        auto& input_rows = layer.input_rows.emplace_back(layer.rows.back());
        for (int64_t& row : input_rows) row = layer.input.index[row];
      }
      const int64_t threads_per_group =
          schedule->num_threads() / std::max<int64_t>(1, num_groups());
      AddGroups(
          layer.groups, std::max(division_.parts, threads_per_group),
          [this](const Group& group, Schedule* schedule) {
            AddGroup(group, schedule);
          },
          schedule);
    }
    tensors_.FillPadding(buffers_.output, layer_out_, schedule);
    if (problem_.has_cell_sequences) {
      tensors_.FillPadding(buffers_.cell_sequences, dirs_ * units_, schedule);
    }
  }

 private:
  struct Layer;

  struct Group : CpuNetwork::Group {
    const Layer* layer;
    int64_t pseudo_layer;
    typename CpuReserve<T>::PseudoLayer kept;
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
    T* gates;      // In inference, a chunk's: [chunk rows, num_gates * H].
    T* candidate;  // In inference, as in the reserve space: [strand, H].

    const CpuForwardWeights<T>& weights() const {
      return layer->weights[this->dir];
    }
  };
  struct Layer {
    int64_t index = 0;
    StoredRows<T> input;  // After dropout.
    // Indexed by strand: its rows, and their rows in the input. The latter is
    // empty if the input has no index, since both are then the same.
    std::vector<std::vector<int64_t>> rows, input_rows;
    // Outputs are written to each of these: for the next layer or the backward
    // pass, and for the caller.
    DestinationRows<T> outputs[2];
    int num_outputs = 0;
    int64_t chunk_steps = 0;
    CpuForwardWeights<T> weights[2];  // By direction.
    std::vector<Group> groups;
  };
  // A step of a group, whose sequences with this step are the `active` first.
  struct Step {
    int64_t number, time, active;
    Rows<T> gates, candidate;  // Those of the sequences.
  };

  // Returns whether the states that the steps' products read are kept rounded.
  bool KeepsRoundedStates() const {
    return precision_.rounds_steps && !has_recurrent_dropout();
  }

  void PackWeights(Arena* arena, Layer* layer, Schedule* schedule) const {
    const int64_t first = layer->index * dirs_;
    if (packed_ != nullptr) {
      std::copy_n(packed_ + first, dirs_, layer->weights);
      return;
    }
    const auto params = tensors_.Numbers<T>(buffers_.params);
    schedule->AddTogether([&] {
      for (int64_t dir = 0; dir < dirs_; ++dir) {
        layer->weights[dir] =
            weights_.PackForward(first + dir, params, arena, schedule);
      }
    });
  }

  void LayOut(const CpuReserve<T>& reserve, Arena* arena, Layer* layer) const {
    layer->chunk_steps = std::min(
        problem_.max_time, std::max<int64_t>(1, kChunkRows / strand_size_));
    for (int64_t i = 0; i < num_groups(); ++i) {
      Group& group = layer->groups.emplace_back();
      static_cast<CpuNetwork::Group&>(group) = this->group(i);
      group.layer = layer;
      group.pseudo_layer = layer->index * dirs_ + group.dir;
      group.kept = reserve.pseudo_layers[group.pseudo_layer];
      group.h[0] = arena->Take<T>(strand_size_ * h_stride_);
      group.h[1] = arena->Take<T>(strand_size_ * h_stride_);
      if (has_recurrent_dropout()) {
        group.masks = TakeMasks<T>(arena);
        group.masked[0] = TakeMasks<T>(arena);
        group.masked[1] = TakeMasks<T>(arena);
      } else if (precision_.rounds_steps) {
        for (uint16_t*& rounded : group.rounded) {
          rounded = arena->Take<uint16_t>(PaddedRows(strand_size_) * h_stride_);
        }
      }
      if (cell_.has_c) group.c = arena->Take<T>(strand_size_ * units_);
      group.zones = TakeZones<T>(arena);
      if (spec_.num_proj > 0) {
        group.unprojected = arena->Take<T>(strand_size_ * units_);
      }
      if (problem_.is_training) continue;
      group.gates = arena->Take<T>(layer->chunk_steps * strand_size_ * gates_);
      if (cell_.num_slots > cell_.num_gates) {
        group.candidate = arena->Take<T>(strand_size_ * units_);
      }
    }
  }

  void AddGroup(const Group& group, Schedule* schedule) const {
    const int64_t longest = group.strand->longest;
    const int64_t phases_per_step = PhasesPerStep();
    schedule->Add(1, 1, [this, &group](int64_t, int64_t) { Begin(group); });
    for (int64_t begin = 0; begin < longest;
         begin += group.layer->chunk_steps) {
      const int64_t end = std::min(begin + group.layer->chunk_steps, longest);
      AddInputs(group, begin, end, schedule);
      schedule->Add((end - begin) * phases_per_step, division_.parts,
                    [=, &group](int64_t phase, int64_t part) {
                      const Step step =
                          StepOf(group, begin, begin + phase / phases_per_step);
                      if (phase % phases_per_step == 0) {
                        RunUnits(group, step, part);
                      } else {
                        RunSecondPhase(group, step, part);
                      }
                    });
    }
    schedule->Add(1, 1, [this, &group](int64_t, int64_t) { End(group); });
  }

  // Copies the initial states to where the steps and the backward pass read
  // them.
  void Begin(const Group& group) const {
    const DestinationRows<T>& output = group.layer->outputs[0];
    if (has_recurrent_dropout()) {
      DrawMasks(group.layer->index, group, group.masks);
    }
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
      state += group.layer->index * dirs_ * batch_;
      const int64_t row = rows_.num_rows() + position;
      const bool is_anew = group.dir == 0 && rows_.StartsAnew(position, 0, 0);
      for (const int64_t parity : {0, 1}) {
        T* const h = group.h[parity] + r * h_stride_;
        first_h[state].Copy(out_, h);
        if (problem_.is_training && parity == 0) {
          output[row].From(group.dir * out_).Write(out_, h);
        }
        if (is_anew) std::fill_n(h, out_, T(0));
        PrepareState(group, parity, r, 0, out_);
      }
      if (!cell_.has_c) return;
      T* const c = group.c + r * units_;
      first_c[state].Copy(units_, c);
      if (problem_.is_training) {
        std::copy_n(c, units_, group.kept.cell + row * units_);
      }
    });
  }

  void End(const Group& group) const {
    const auto final_h = tensors_.States<T>(buffers_.output_h, out_);
    const auto final_c = tensors_.States<T>(buffers_.output_c, units_);
    ForEachState(group, [&](int64_t r, int64_t position, int64_t state) {
      state += group.layer->index * dirs_ * batch_;
      const int64_t steps =
          group.dir == 0 ? rows_.length(position) : group.strand->longest;
      final_h[state].Write(out_, group.h[steps % 2] + r * h_stride_);
      if (!cell_.has_c) return;
      final_c[state].Write(units_, group.c + r * units_);
    });
  }

  // Adds the products of the inputs of a chunk's steps.
  void AddInputs(const Group& group, int64_t first_step, int64_t last_step,
                 Schedule* schedule) const {
    const Strand& strand = *group.strand;
    const Layer& layer = *group.layer;
    const int64_t t =
        std::min(group.Time(first_step), group.Time(last_step - 1));
    const int64_t first = strand.first[t];
    const int64_t num_rows = strand.first[t + last_step - first_step] - first;
    const int64_t index = group.strand - strands_.data();
    const int64_t* const rows = layer.rows[index].data() + first;
    const Rows<T> gates = problem_.is_training
                              ? Rows<T>{group.kept.gates, gates_, rows}
                              : Rows<T>{group.gates, gates_};
    const int64_t* const input_rows =
        layer.input_rows.empty() ? rows
                                 : layer.input_rows[index].data() + first;
    const StoredRows<T> input(layer.input.numbers, layer.input.stride,
                              input_rows);
    const T* const bias = group.weights().bias;
    if (spec_.has_input_weights(layer.index)) {
      Product<T> product;
      product.rows = num_rows;
      product.a = input;
      product.b = group.weights().input;
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

  // Writes n numbers of a sequence's state in the form in which products read
  // them, masked or rounded. `parity` says which of the two states they are in.
  void PrepareState(const Group& group, int64_t parity, int64_t r,
                    int64_t first, int64_t n) const {
    const int64_t begin = r * h_stride_ + first;
    const T* const h = group.h[parity] + begin;
    if (KeepsRoundedStates()) {
      uint16_t* const to = group.rounded[parity] + begin;
      Destination<T>{to, &Simd().bfloat16}.Write(n, h);
      if (first + n == out_) std::fill_n(to + n, PaddedDepth(out_) - out_, 0);
    }
    if (!has_recurrent_dropout()) return;
    for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
      const T* const mask = OfGate(group.masks, gate) + begin;
      T* const to = OfGate(group.masked[parity], gate) + begin;
      for (int64_t j = 0; j < n; ++j) to[j] = h[j] * mask[j];
    }
  }

  // Writes n numbers of a sequence's h after a step to all places that outputs
  // go to, and prepares what the next step reads of them.
  void FinishState(const Group& group, const Step& step, int64_t r,
                   int64_t first, int64_t n) const {
    const int64_t next = (step.number + 1) % 2;
    T* const h = group.h[next] + r * h_stride_ + first;
    const int64_t row = group.strand->Row(step.time, r);
    for (int i = 0; i < group.layer->num_outputs; ++i) {
      group.layer->outputs[i][row].From(group.dir * out_ + first).Write(n, h);
    }
    if (rows_.StartsAnew(group.strand->Position(r), group.Time(step.number + 1),
                         group.dir)) {
      std::fill_n(h, n, T(0));
    }
    PrepareState(group, next, r, first, n);
  }

  // The gates of the steps from chunk_step on already hold the products with
  // the inputs.
  Step StepOf(const Group& group, int64_t chunk_step, int64_t number) const {
    const Strand& strand = *group.strand;
    const int64_t t = group.Time(number);
    Step step = {number, t, strand.Active(t), {}, {group.candidate, units_}};
    if (problem_.is_training) {
      step.gates = StepRows(group.kept.gates, gates_, strand, t);
      step.candidate = StepRows(group.kept.candidate, units_, strand, t);
      return step;
    }
    const int64_t chunk_end = chunk_step + group.layer->chunk_steps;
    const int64_t chunk_time =
        group.dir == 0 ? chunk_step
                       : std::max<int64_t>(0, strand.longest - chunk_end);
    step.gates = Rows<T>{group.gates, gates_}.From(strand.first[t] -
                                                   strand.first[chunk_time]);
    return step;
  }

  // Returns what a sequence's units from `unit` on read and write in a step.
  CellRow<T> RowOf(const Group& group, const Step& step, int64_t r,
                   int64_t unit) const {
    const int64_t begin = r * h_stride_ + unit, of_units = r * units_ + unit;
    CellRow<T> row = EmptyRow<T>();
    row.gates = step.gates[r] + unit;
    row.h_before = group.h[step.number % 2] + begin;
    row.h = spec_.num_proj > 0 ? group.unprojected + of_units
                               : group.h[(step.number + 1) % 2] + begin;
    if (cell_.num_slots > cell_.num_gates) {
      row.last_slot = step.candidate[r] + unit;
      row.last_bias = group.weights().candidate_bias + unit;
    }
    if (cell_.has_c) row.c = group.c + of_units;
    if (spec_.has_zoneout()) row.zones = group.zones + r * 2 * units_ + unit;
    if (cell_.num_vectors > 0) row.vectors = group.weights().vectors + unit;
    return row;
  }

  // Computes one step of the recurrence for one part of the units, or the first
  // phase of such a step.
  void RunUnits(const Group& group, const Step& step, int64_t part) const {
    const Range panels = PartPanels(units_, part);
    // Steps read the weights forwards and backwards by turns. If no cache holds
    // all of them, those that one step read last are still there when the next
    // step begins.
    const int64_t parity = step.number % 2;
    const bool from_the_end = parity == 1;
    const int64_t slices = NumSlices(panels);
    for (int64_t i = 0; i < slices; ++i) {
      const Range slice = Slice(panels, from_the_end ? slices - 1 - i : i);
      const auto [unit, n] = ColumnsOf(slice, units_);
      Product<T> product = StepProduct<T>();
      product.rows = step.active;
      product.a = {KeepsRoundedStates()
                       ? Stored<T>{group.rounded[parity], &Simd().bfloat16}
                       : Stored<T>{group.h[parity]},
                   h_stride_};
      for (int64_t j = 0; j < cell_.gates_of_h; ++j) {
        const int64_t gate = from_the_end ? cell_.gates_of_h - 1 - j : j;
        product.b = group.weights().recurrent[gate];
        if (has_recurrent_dropout()) {
          product.a.numbers = {OfGate(group.masked[parity], gate)};
        }
        if (gate >= cell_.joint_gates) {
          product.c = step.candidate;
          product.init = {};
        } else {
          product.c = step.gates.From(0, gate * units_);
          product.init = product.c;
        }
        product.RunPanels(slice.first, slice.last);
      }
      if (spec_.normalizes()) continue;
      for (int64_t r = 0; r < step.active; ++r) {
        if (!cell_.resets_before) {
          RunCells(group, step, r, unit, n);
          continue;
        }
        CellRow<T> at = RowOf(group, step, r, unit);
        if (has_recurrent_dropout()) {
          at.h_before = OfGate(group.masked[parity], cell_.joint_gates) +
                        r * h_stride_ + unit;
        }
        CellSteps<T>().reset_forward(n, at);
      }
    }
  }

  // Computes n cells of a sequence in a step, and writes their results to all
  // places that these go to; those of a projection's input are not h yet.
  void RunCells(const Group& group, const Step& step, int64_t r, int64_t unit,
                int64_t n) const {
    const Strand& strand = *group.strand;
    const int64_t row = strand.Row(step.time, r);
    const CellRow<T> at = RowOf(group, step, r, unit);
    if (cell_.has_c &&
        rows_.StartsAnew(strand.Position(r), step.time, group.dir)) {
      std::fill_n(at.c, n, T(0));
    }
    masks_.SetZones(group.pseudo_layer, row, unit, n, at.zones);
    CellSteps<T>().forward(n, at);
    if (problem_.is_training && cell_.has_c) {
      std::copy_n(at.c, n, group.kept.cell + row * units_ + unit);
    }
    if (has_cell_sequences(group.layer->index)) {
      tensors_.Sequences<T>(buffers_.cell_sequences, dirs_ * units_)[row]
          .From(group.dir * units_ + unit)
          .Write(n, at.c);
    }
    if (spec_.num_proj > 0) return;
    FinishState(group, step, r, unit, n);
  }

  // The second phase of a step: the cells of some sequences, if they normalise,
  // a projection, or the candidate of a GRU whose reset gate acts before the
  // product.
  void RunSecondPhase(const Group& group, const Step& step,
                      int64_t part) const {
    if (spec_.normalizes()) {
      const Range rows = PartRows(step.active, part);
      for (int64_t r = rows.first; r < rows.last; ++r) {
        RunCells(group, step, r, /*unit=*/0, units_);
      }
      return;
    }
    const bool projects = spec_.num_proj > 0;
    const int64_t cols = projects ? out_ : units_;
    const Range panels = PartPanels(cols, part);
    Product<T> product = StepProduct<T>();
    product.rows = step.active;
    if (projects) {
      product.a = {{group.unprojected}, units_};
      product.b = group.weights().projection;
      product.c = {group.h[(step.number + 1) % 2], h_stride_};
    } else {
      product.a = step.candidate;
      product.b = group.weights().recurrent[cell_.joint_gates];
      product.c = step.gates.From(0, cell_.joint_gates * units_);
      product.init = product.c;
    }
    product.RunPanels(panels.first, panels.last);
    const auto [first, n] = ColumnsOf(panels, cols);
    for (int64_t r = 0; r < step.active; ++r) {
      if (projects) {
        FinishState(group, step, r, first, n);
      } else {
        RunCells(group, step, r, first, n);
      }
    }
  }

  const RnnForwardBuffers& buffers_;
  const CpuForwardWeights<T>* const packed_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

template <typename T>
std::shared_ptr<const void> AddPass(const RnnProblem& problem,
                                    const PackedRows& rows,
                                    const RnnForwardBuffers& buffers,
                                    const CpuForwardWeights<T>* packed,
                                    const CpuReserve<T>& reserve, Arena* arena,
                                    Schedule* schedule) {
  const auto pass = std::make_shared<ForwardPass<T>>(
      problem, rows, buffers, packed, schedule->num_threads());
  pass->Add(reserve, arena, schedule);
  return pass;
}
#define CRNN_INSTANTIATE(T)                                           \
  template std::shared_ptr<const void> AddPass(                       \
      const RnnProblem&, const PackedRows&, const RnnForwardBuffers&, \
      const CpuForwardWeights<T>*, const CpuReserve<T>&, Arena*, Schedule*)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
