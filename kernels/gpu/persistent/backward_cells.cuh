// The cells of a thread in the backward pass.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_CELLS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_CELLS_CUH_

#include "gate_gradients.cuh"

using cudnn_rnn_tf::persistent::BackwardArguments;
using cudnn_rnn_tf::persistent::BackwardDirection;

#if NORMS
#include "norms.cuh"
using CellStep = NormedBackwardStep;
#else
// How the gradients of a step's gates follow from those of h and c: by one call
// of the cell. norms.cuh has what takes its place for cells that normalise.
class PlainBackwardStep {
 public:
  static constexpr int kBarriers = 0;
  // What is loaded for a cell besides CellInputs.
  struct Loaded {
    void Load(const void*, long long) {}
  };
  PlainBackwardStep(const BlockMemory&, TeamMemory&) {}
  void Arm() const {}
  void EndShare(int) {}
  void ClearSums(int, float) const {}
  void StoreSums(int, float*, int) const {}

  // The work that depends on what was loaded alone.
  void Prepare(int round, const CellInputs& in, const Loaded&,
               const Functions& functions) {
    factors_[round] = MakeFactors(in, functions);
    float* const factors = reinterpret_cast<float*>(factors_ + round);
#pragma unroll
    for (unsigned i = 0; i < sizeof(factors_[0]) / sizeof(float); ++i) {
      ComputeHere(factors + i);
    }
  }
  void Compute(int round, float dh, float* carry_h, float* carry_c,
               float* of_slots) const {
    CellType::Backward(factors_[round], dh, carry_h, carry_c, of_slots);
  }
  // Ends the step of all cells.
  template <typename IsActive>
  void Finish(int, const Thread&, const Functions*, const IsActive&, float*,
              float*, float (*)[kSlots]) const {}

 private:
  decltype(MakeFactors({}, {})) factors_[kRounds];
};
using CellStep = PlainBackwardStep;
#endif

// Returns the inputs of one of the cells that are together.
static CellInputs InputsOfCell(const InputsOf<Together>& all, int i) {
  CellInputs in;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    in.gates[slot] = all.gates[slot].Of(i);
  }
  in.h_before = all.h_before.Of(i);
  in.output_backprop = all.output_backprop.Of(i);
  in.c = all.c.Of(i);
  in.c_before = all.c_before.Of(i);
  in.c_backprop = all.c_backprop.Of(i);
  return in;
}

class BackwardCells : public OwnCells {
 public:
  BackwardCells(const Thread& me, const BackwardArguments& all, int direction,
                int first_row, CellStep& cell_step)
      : OwnCells{
            me,
            all.sequences,
            first_row,
            direction == 1,
            {all, static_cast<int>(all.direction[direction].pseudo_layer)}},
        all_(all),
        my_(all.direction[direction]),
        cell_step_(cell_step) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Sequence sequence = Begin(round, my_.vectors);
      carry_h_[round] = carry_c_[round] = 0.0f;
      is_anew_[round] = false;
      if (round < kOwnUnits) ClearSums(round, 0.0f);
      if (sequence.b < 0) continue;
      const long long at = sequence.b * all_.state_stride + unit_of[round];
      carry_h_[round] =
          ToFloat(static_cast<const Item*>(my_.last_h_backprop)[at]);
      if constexpr (CellType::kHasC) {
        carry_c_[round] =
            ToFloat(static_cast<const Item*>(my_.last_c_backprop)[at]);
      }
      if (!sequence.is_invalid) continue;
      carry_h_[round] = carry_c_[round] = InvalidValue();
      ClearSums(round % kOwnUnits, InvalidValue());
    }
  }
  const float (&of_slots() const)[kRounds][kSlots] { return of_slots_; }

  void LoadInputs(int step) {
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      // Backward, the padding comes first, for which the inputs are still the
      // zeros that they begin with.
      if (step < 0 || !Has(round, step)) continue;
      InputsOf<Together>& in = inputs_[round / kTogether];
      const int row = RowAt(round, step);
      const auto load = [&](auto... place) {
        return *UnitsOf(round, place...);
      };
      resets_[round / kTogether] = LoadReset(round, step);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        in.gates[slot] =
            load(gates_, row, kSlots * NUM_UNITS, slot * NUM_UNITS);
      }
      loaded_[round].Load(my_.norms, row);
      in.output_backprop = load(my_.output_backprop, row, output_stride_);
      if constexpr (CellType::kHasC) {
        in.c = load(my_.cells, row, NUM_UNITS);
        if (step > 0) in.c_before = load(my_.cells, row - row_step, NUM_UNITS);
        // Only the last layer has the caller's cell states.
        if (kCellSequencesPitch > 0 && my_.all_c_backprop != nullptr) {
          in.c_backprop = load(my_.all_c_backprop, row, kCellSequencesPitch);
        }
      }
      if constexpr (CellType::kReadsH) {
        if (step > 0) {
          in.h_before = load(my_.output, row - row_step, output_stride_);
        }
      }
    }
    if (step == 0) LoadFirstStates();
  }
  // The work of a step that depends on what was loaded for it alone.
  void Prepare(int turn) {
    Draw(turn);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      CellInputs in =
          InputsOfCell(inputs_[round / kTogether], round % kTogether);
      is_next_anew_[round] = is_anew_[round];
      is_anew_[round] = resets_[round / kTogether] != 0;
      if (is_anew_[round]) in.h_before = in.c_before = FromFloat(0.0f);
      cell_step_.Prepare(round, in, loaded_[round],
                         functions[round % kFunctions]);
      output_backprop_[round] = ToFloat(in.output_backprop);
      ComputeHere(output_backprop_ + round);
      c_backprop_[round] = ToFloat(in.c_backprop);
    }
  }
  // Adds the parts of the turn before to the gradients of h.
  void AddParts(const GradientParts& parts, int turn) {
#pragma unroll
    for (int round = 0; round < kRounds; round += kNeighbours) {
      const Cell cell(round, me.index);
      if (cell.exists && turn > 0) parts.Add(turn, cell, carry_h_ + round);
#pragma unroll
      for (int i = round; i < round + kNeighbours; ++i) {
        if (is_next_anew_[i]) carry_h_[i] = carry_c_[i] = 0.0f;
      }
    }
  }
  // Computes the gradients of a step's gates.
  void Compute(int turn, int step) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      // With branches, a thread would compute one cell after the other.
      float h = 0.0f, c = carry_c_[round], of_slots[kSlots] = {};
      if (kCellSequencesPitch > 0) c += c_backprop_[round];
      cell_step_.Compute(round, carry_h_[round] + output_backprop_[round], &h,
                         &c, of_slots);
      const bool has = Has(round, step);
      carry_h_[round] = has ? h : carry_h_[round];
      carry_c_[round] = has ? c : carry_c_[round];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        of_slots_[round][slot] = has ? of_slots[slot] : 0.0f;
      }
    }
    cell_step_.Finish(
        turn, me, functions, [&](int round) { return Has(round, step); },
        carry_h_, carry_c_, of_slots_);
  }
  // Stores the gradients of a step's gates. No block waits for these.
  void Store(int step) {
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      if (!Has(round, step)) continue;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        float numbers[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          numbers[i] = of_slots_[round + i][slot];
          bias_sums_[(round + i) % kOwnUnits][slot] += numbers[i];
        }
        *UnitsOf(round, gates_, RowAt(round, step), kSlots * NUM_UNITS,
                 slot * NUM_UNITS) = Together(numbers);
      }
    }
  }
  // Stores the sums over all steps and the gradients of the first states. Steps
  // past a sequence's end have no gradient. Of a sequence whose length was out
  // of range, all gradients are NaN, and through the products that follow so
  // are those of the weights.
  void StoreLast() const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Cell cell(round, me.index);
      const int unit = unit_of[round];
      if (!cell.exists || unit >= NUM_UNITS) continue;
      const long long row = first_row + cell.row;
      float* const sums = my_.bias_sums + row * (kSlots * NUM_UNITS) + unit;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        sums[slot * NUM_UNITS] =
            round < kOwnUnits ? bias_sums_[round % kOwnUnits][slot] : 0.0f;
      }
      cell_step_.StoreSums(
          round, my_.vector_sums + row * (kVectors * NUM_UNITS), unit);
      const int b = SequenceOf(round).b;
      if (b < 0) continue;
      const long long at = b * all_.state_stride + unit;
      static_cast<Item*>(my_.first_h_backprop)[at] = FromFloat(carry_h_[round]);
      if constexpr (CellType::kHasC) {
        static_cast<Item*>(my_.first_c_backprop)[at] =
            FromFloat(carry_c_[round]);
      }
    }
    // If units fill chunks, so do gates, which begin at multiples of 16 bytes.
    constexpr int kOfChunk = sizeof(Chunk) / sizeof(Item);
    constexpr int kAtOnce =
        NUM_UNITS % kOfChunk == 0 && BLOCK_UNITS % kOfChunk == 0 ? kOfChunk : 1;
    for (int row = 0; row < kRows; ++row) {
      const Sequence sequence(sequences, first_row + row);
      if (sequence.b < 0) continue;
      Neighbours<kAtOnce> fill;
#pragma unroll
      for (Item& item : fill.item) {
        item = FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      }
      constexpr int kOfStep = kSlots * BLOCK_UNITS;
      const int end = (sequences.steps - sequence.length) * kOfStep;
      for (int i = me.index * kAtOnce; i < end; i += kThreads * kAtOnce) {
        const int unit = me.rank * BLOCK_UNITS + i % BLOCK_UNITS;
        if (unit >= NUM_UNITS) continue;
        const long long row =
            RowOfTime(sequences, sequence.length + i / kOfStep, sequence.b);
        const int slot = i / BLOCK_UNITS % kSlots;
        *reinterpret_cast<Neighbours<kAtOnce>*>(
            gates_ + (row * kSlots + slot) * NUM_UNITS + unit) = fill;
      }
    }
  }

 private:
  void ClearSums(int own_unit, float to) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) bias_sums_[own_unit][slot] = to;
    cell_step_.ClearSums(own_unit, to);
  }
  // Returns the place of the numbers of a cell and its neighbours among units
  // that begin with number `at` of a row.
  Together* UnitsOf(int round, const void* items, int row, int pitch,
                    int at = 0) const {
    const long long first = static_cast<long long>(row) * pitch;
    return reinterpret_cast<Together*>(
        const_cast<Item*>(static_cast<const Item*>(items)) + first +
        unit_of[round] + at);
  }
  // Loads the states before the first step.
  void LoadFirstStates() {
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      if (!Has(round, 0)) continue;
      InputsOf<Together>& in = inputs_[round / kTogether];
      const int b = SequenceOf(round).b;
      const int pitch = static_cast<int>(all_.state_stride);
      if (CellType::kHasC) in.c_before = *UnitsOf(round, my_.first_c, b, pitch);
      if (CellType::kReadsH) {
        in.h_before = *UnitsOf(round, my_.first_h, b, pitch);
      }
    }
  }

  const BackwardArguments& all_;
  const BackwardDirection& my_;
  CellStep& cell_step_;
  const int output_stride_ = static_cast<int>(all_.output_stride);
  Item* const gates_ = static_cast<Item*>(my_.gates);
  // The gradients of the states before a step that pass no matrix, and, of the
  // thread's units, the sums of their gates' gradients.
  float carry_h_[kRounds], carry_c_[kRounds], bias_sums_[kOwnUnits][kSlots];
  InputsOf<Together> inputs_[kRounds / kTogether] = {};
  char resets_[kRounds / kTogether] = {};
  // Of the step that is computed, and of the one after it.
  bool is_anew_[kRounds], is_next_anew_[kRounds];
  CellStep::Loaded loaded_[kRounds] = {};
  float output_backprop_[kRounds], c_backprop_[kRounds];
  float of_slots_[kRounds][kSlots];
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_CELLS_CUH_
