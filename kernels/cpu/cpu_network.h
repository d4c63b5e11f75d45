// The recurrent network on a CPU. Passes compute in T (float or double) on
// packed rows. CallerTensors bring tensors of other types and layouts into that
// form.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/caller_tensors.h"
#include "kernels/cpu/cpu_plan.h"
#include "kernels/cpu/masks.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Returns a stride, in numbers, for rows of `size` numbers. It is never a power
// of two: rows at multiples of one would compete for the same few places in a
// cache.
inline int64_t RowStride(int64_t size) {
  const int64_t stride = CeilDiv(size, 16) * 16 + 16;
  const bool is_power_of_two = (stride & (stride - 1)) == 0;
  return is_power_of_two ? stride + 16 : stride;
}

// The arrays that a forward pass in training keeps for its backward pass. They
// hold packed rows: N of them, T * B at most. In inference there are only the
// outputs that a next layer reads, and all layers share two arrays for them.
template <typename T>
struct CpuReserve {
  struct PseudoLayer {
    // [N, num_gates * H]: the activated gates. The backward pass overwrites
    // them with the gradients of their preactivations.
    T* gates;
    // [N + B, H], of a cell with c; the initial states come last, and with
    // resets a row of zeros.
    T* cell;
    // [N, H], the slot after the gates, if there is one. If it is a gate's
    // recurrent side, the backward pass overwrites it with its gradient; if it
    // is what a gate's matrix reads, the backward pass keeps it.
    T* candidate;
  };
  std::vector<PseudoLayer> pseudo_layers;  // [L * D]
  // [L]. In training each is [N + B, D * P], with the rows after N as above. In
  // inference each is [N, D * P], and the last layer's is null.
  std::vector<T*> outputs;

  CpuReserve(const RnnProblem& problem, Arena* arena);
};

// What the passes of a network have in common: sizes, how its sequences are
// divided into groups, weights, and masks.
class CpuNetwork {
 public:
  // Work is added to a schedule of the division's threads, since the size of
  // the working memory depends on it. All arguments must outlive this object.
  CpuNetwork(const CpuPlan& plan, const Division& division,
             const PackedRows& rows, const RnnBuffers& buffers);

 protected:
  using Strand = PackedRows::Strand;
  // A step of a pass. Those of a strand's sequences that have it are the first.
  struct Step {
    int64_t number, time, active;
  };
  // One direction of one strand of sequences. The groups of a layer go through
  // time independently of each other.
  struct Group {
    int64_t index;  // That of its pseudo-layer.
    int64_t dir;
    const Strand* strand;

    // The time of a step of a forward pass. A backward pass takes the steps in
    // reverse order.
    int64_t Time(int64_t step) const {
      return dir == 0 ? step : strand->longest - 1 - step;
    }
    Step BackwardStep(int64_t number) const {
      const int64_t time = Time(strand->longest - 1 - number);
      return {number, time, strand->Active(time)};
    }
  };
  std::vector<Group> GroupsOf(int64_t layer) const {
    std::vector<Group> groups;
    for (int64_t dir = 0; dir < dirs_; ++dir) {
      for (const Strand& strand : strands_) {
        groups.push_back({layer * dirs_ + dir, dir, &strand});
      }
    }
    return groups;
  }
  // What a part of a group does in each phase of a step. The second is null if
  // there is one phase.
  template <typename Pass, typename PassGroup, typename PassStep>
  using PhasesOf = std::array<
      void (Pass::*)(const PassGroup&, const PassStep&, int64_t part) const, 2>;
  // Adds `count` steps of a group, which step_of(number) returns. The parts
  // meet after each phase.
  template <typename Pass, typename PassGroup, typename PassStep,
            typename StepOf>
  void AddSteps(const PhasesOf<Pass, PassGroup, PassStep>& phases,
                const PassGroup& group, int64_t count, const StepOf& step_of,
                Schedule* schedule) const {
    const int64_t per_step = phases[1] == nullptr ? 1 : 2;
    schedule->Add(count * per_step, division_.parts,
                  [=, &group, pass = static_cast<const Pass*>(this)](
                      int64_t phase, int64_t part) {
                    (pass->*phases[phase % per_step])(
                        group, step_of(phase / per_step), part);
                  });
  }
  // Calls add(group, schedule) for every group of a layer, to add work that may
  // run at the same time as that of the other groups. If several threads share
  // a group, each group is a lane of the schedule; otherwise each is one chunk.
  template <typename Groups, typename Add>
  static void AddGroups(const Groups& groups, int64_t threads_per_group,
                        Schedule* schedule, const Add& add) {
    if (threads_per_group > 1) {
      std::vector<Schedule> lanes;
      for (const auto& group : groups) {
        lanes.emplace_back(threads_per_group);
        add(group, &lanes.back());
      }
      return schedule->AddLanes(std::move(lanes));
    }
    schedule->Add(1, groups.size(), [&groups, add](int64_t, int64_t index) {
      Schedule now = Schedule::Immediate();
      add(groups[index], &now);
    });
  }
  // Calls body(r, position, state) for every sequence of a group. `r` is its
  // number within the strand, `position` its place among all sequences, and
  // `state` the number of its state among all pseudo-layers'.
  template <typename Body>
  void ForEachState(const Group& group, const Body& body) const {
    for (int64_t r = 0; r < group.strand->num_sequences; ++r) {
      const int64_t position = group.strand->Position(r);
      body(r, position, group.index * batch_ + rows_.sequences()[position]);
    }
  }
  // Panels [first_panel, last_panel) of a matrix, which have n columns from
  // `first` on. A step computes slices one after the other. They have so many
  // columns that calls take little time, and so few that what one function of a
  // step has written is still in a near cache when the next one reads it.
  struct Slice {
    int64_t first_panel, last_panel, first, n;
  };
  static constexpr int64_t kSliceCols = 128;
  static_assert(kSliceCols >= kPackedCols<float>, "");
  // Calls body(slice) for the slices that a part computes of a matrix with
  // `cols` columns.
  template <typename Body>
  void ForSlices(int64_t cols, int64_t part, const Body& body,
                 bool from_the_end = false) const {
    const int64_t panels = CeilDiv(cols, plan_.core.panel_cols);
    const int64_t begin = part * panels / division_.parts;
    const int64_t end = (part + 1) * panels / division_.parts;
    const int64_t size = kSliceCols / plan_.core.panel_cols;
    const int64_t slices = CeilDiv(end - begin, size);
    for (int64_t i = 0; i < slices; ++i) {
      const int64_t panel = begin + (from_the_end ? slices - 1 - i : i) * size;
      const int64_t last = std::min(panel + size, end);
      const int64_t first = panel * plan_.core.panel_cols;
      body(Slice{panel, last, first,
                 std::min(last * plan_.core.panel_cols, cols) - first});
    }
  }
  // Computes a slice of a product of a step.
  template <typename T>
  void Multiply(const Slice& slice, int64_t rows, const StoredRows<T>& a,
                const RightMatrix<T>& b, Rows<const T> init, Rows<T> c) const {
    Product<T>{rows, a, b, forms_.rounds_steps, init, c}.RunPanels(
        slice.first_panel, slice.last_panel);
  }
  // Calls body(r) for those of the `active` sequences whose cells a part
  // computes, if cells normalise.
  template <typename Body>
  void ForRows(int64_t active, int64_t part, const Body& body) const {
    const int64_t end = active * (part + 1) / division_.parts;
    for (int64_t r = active * part / division_.parts; r < end; ++r) body(r);
  }
  // Returns the rows of a matrix that belong to a strand's sequences at time t.
  template <typename MatrixRows>
  static MatrixRows StepRows(MatrixRows matrix, const Strand& strand,
                             int64_t t) {
    matrix = matrix.From(strand.Row(t, 0));
    matrix.stride *= strand.stride;
    return matrix;
  }

  template <typename T>
  const CellKernels<T>& CellSteps() const {
    const SimdKernels<T>& kernels = Kernels<T>();
    return (spec_.has_zoneout() ? kernels.zoneout_cells
            : spec_.has_own_activations()
                ? kernels.cells
                : kernels.chosen_cells)[static_cast<int>(spec_.rnn_mode)];
  }
  // Returns what all rows have in common.
  template <typename T>
  CellRow<T> EmptyRow() const {
    CellRow<T> row = {};
    row.stride = units_;
    row.clip = static_cast<T>(spec_.cell_clip);
    row.epsilon = static_cast<T>(spec_.layer_norm_epsilon);
    row.activation = static_cast<int>(spec_.candidate_activation());
    row.recurrent_activation = static_cast<int>(spec_.gate_activation());
    return row;
  }
  // Returns what a layer reads, to which this adds dropout.
  template <typename T>
  StoredRows<T> InputOf(int64_t layer, const CpuReserve<T>& reserve,
                        Arena* arena, Schedule* schedule) const {
    if (layer == 0) return tensors_.Sequences<T>(input_, spec_.input_size);
    const T* numbers = reserve.outputs[layer - 1];
    if (masks_.DropsInput(layer)) {
      T* const dropped = arena->Take<T>(max_rows_ * layer_out_);
      masks_.DropInput(layer, numbers, dropped, schedule);
      numbers = dropped;
    }
    return {{numbers}, layer_out_};
  }
  // Returns whether callers have the c of all steps of a layer.
  bool has_cell_sequences(int64_t layer) const {
    return problem_.has_cell_sequences && layer + 1 == spec_.num_layers;
  }
  bool has_recurrent_dropout() const {
    return problem_.has_recurrent_dropout();
  }
  // Takes an array [num_gates, strand_size, h_stride] for a group: either its
  // masks of recurrent dropout or its states multiplied by these masks.
  template <typename T>
  T* TakeMasks(Arena* arena) const {
    return arena->Take<T>(cell_.num_gates * strand_size_ * h_stride_);
  }
  template <typename T>
  void DrawMasks(const Group& group, T* masks) const {
    if (!has_recurrent_dropout()) return;
    ForEachState(group, [&](int64_t r, int64_t position, int64_t) {
      for (int64_t gate = 0; gate < cell_.num_gates; ++gate) {
        masks_.DrawRecurrent(group.index, gate, rows_.sequences()[position],
                             OfGate(masks, gate) + r * h_stride_);
      }
    });
  }
  // Returns where a gate's part of an array from TakeMasks begins.
  template <typename T>
  T* OfGate(T* masks, int64_t gate) const {
    return masks + gate * strand_size_ * h_stride_;
  }

  const CpuPlan& plan_;
  const RnnProblem& problem_;
  const RnnSpec& spec_;
  const CellKind& cell_;
  const PackedRows& rows_;
  const CallerTensors tensors_;
  const Masks masks_;
  const Division& division_;
  const FactorForms& forms_;
  const void* const input_;
  const std::vector<Strand> strands_;
  const int64_t batch_, max_rows_, gates_, units_, out_, layer_out_, dirs_;
  const bool has_slot_ = cell_.num_slots > cell_.num_gates;  // After the gates.
  const int64_t h_stride_;     // Numbers from one row of states to the next.
  const int64_t strand_size_;  // The most sequences of a strand.
  // The shares of zoneout that a group has, [strand, 2, H].
  const int64_t zones_size_ =
      spec_.has_zoneout() ? 2 * strand_size_ * units_ : 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
