// The cells of a thread in the forward pass.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_CELLS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_CELLS_CUH_

#include "stack.cuh"

using cudnn_rnn_tf::persistent::ForwardArguments;
using cudnn_rnn_tf::persistent::ForwardDirection;

#if NORMS
#include "norms.cuh"
using CellStep = NormedForwardStep;
#else
// How the cells of a step follow from their sums z: by one call of the cell.
// norms.cuh has what takes its place for cells that normalise.
class PlainForwardStep {
 public:
  static constexpr int kBarriers = 0;
  PlainForwardStep(const BlockMemory&, TeamMemory&) {}
  void Arm() const {}
  void EndShare(int) {}
  // Begins the step of all cells.
  template <typename Cells>
  void Begin(int, const Thread&, float, const Cells&) {}
  void Next(int round, const Functions& functions, const float* z, float* h,
            float* c) {
    CellType::Forward(functions, z, h, c, kept_[round]);
  }
  // What the backward pass reads.
  float Kept(int round, int slot) const { return kept_[round][slot]; }
  void StoreNorms(int, long long, void*) const {}

 private:
  float kept_[kRounds][kSlots];
};

using CellStep = PlainForwardStep;
#endif

// The number of steps by which the products of the input side are loaded ahead,
// since a step may be shorter than a load from memory takes.
constexpr int kAhead = kHasBands || WARPGROUPS ? 1 : 2;
class ForwardCells : public OwnCells {
 public:
  float h[kRounds], c[kRounds];

  // Reads the states before the first step, and all that is the same in each.
  ForwardCells(const Thread& me, const ForwardArguments& all,
               const Stage& stage, int first_row)
      : OwnCells{me,
                 all.sequences,
                 first_row,
                 stage.is_reversed,
                 {all, static_cast<int>(
                           all.direction[stage.direction].pseudo_layer)}},
        all_(all),
        my_(all.direction[stage.direction]),
        stage_(stage) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Sequence sequence = Begin(round, my_.vectors);
      h[round] = c[round] = 0.0f;
      if (sequence.b >= 0) {
        const long long at = sequence.b * all_.state_stride + unit_of[round];
        h[round] = ToFloat(static_cast<const Item*>(my_.first_h)[at]);
        if constexpr (CellType::kHasC) {
          c[round] = ToFloat(static_cast<const Item*>(my_.first_c)[at]);
        }
        if (sequence.is_invalid) h[round] = c[round] = InvalidValue();
      }
      if (round < kOwnUnits) ReadBiases(round);
    }
  }

  // Load the input side's products of a step, and of those from the first on
  // that are loaded ahead.
  void LoadFirstInputs() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) LoadInputs(i, i);
  }
  void LoadInputs(int step, int ahead) {
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      const int at = round / kTogether;
      resets_[ahead][at] = LoadReset(round, step);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        Together& numbers = inputs_[ahead][at][gate];
        numbers = {};
        if (!Has(round, step)) continue;
        Item* const from = &GateAt(round, step, gate);
        if (stage_.is_upper) {
          *reinterpret_cast<Item*>(&numbers) = LoadOfOthers(from);
        } else {
          numbers = *reinterpret_cast<const Together*>(from);
        }
      }
    }
  }
  // The loads that a step makes for those after it.
  void LoadNext(int step) { LoadInputs(step + kAhead, kAhead - 1); }
  // Begins the sums of a step with the biases and what was loaded for it.
  void TakeInputs(int step) {
    Draw(step);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int at = round / kTogether;
      is_anew_[round] = resets_[0][at] != 0;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        z_[round][slot] = bias_[round % kOwnUnits][slot];
      }
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        if (stage_.is_upper && Has(round, step)) {
          Receive(&GateAt(round, step, gate),
                  reinterpret_cast<Item*>(&inputs_[0][at][gate]));
        }
        z_[round][gate] += ToFloat(inputs_[0][at][gate].Of(round % kTogether));
      }
    }
#pragma unroll
    for (int at = 0; at < kRounds / kTogether; ++at) {
#pragma unroll
      for (int ahead = 1; ahead < kAhead; ++ahead) {
        resets_[ahead - 1][at] = resets_[ahead][at];
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          inputs_[ahead - 1][at][gate] = inputs_[ahead][at][gate];
        }
      }
    }
  }
  // Adds the products with h. Where a sequence starts anew, h and c are zero.
  void AddProducts(const BlockSums& block_sums, const Weights::Sums& sums,
                   int step, int round) {
    float of_cell[SLOTS] = {};
    block_sums.Add(sums, round, kKeepsPowers || step == 0, of_cell);
    if (is_anew_[round]) {
      h[round] = c[round] = 0.0f;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) of_cell[gate] = 0.0f;
    }
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      float& z = z_[round][CellType::RecurrentSlot(gate)];
      z = kBeginsSums ? of_cell[gate] : z + of_cell[gate];
    }
  }
  // Computes the states after a step, if the sequence has it.
  void Compute(CellStep& cell_step, int step, int round) {
    float new_h = h[round], new_c = c[round];
    cell_step.Next(round, functions[round % kFunctions], z_[round], &new_h,
                   &new_c);
    if (!Has(round, step)) return;
    h[round] = new_h;
    c[round] = new_c;
  }
  const float (&z() const)[kRounds][kSlots] { return z_; }

  // Stores the results of a step. No block of the team waits for these, but the
  // next stage of a stack does.
  void Store(const CellStep& cell_step, int step) const {
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      if (!Has(round, step)) continue;
      const long long row = RowAt(round, step);
      const int unit = unit_of[round];
      Item* const output =
          static_cast<Item*>(my_.output) + row * all_.output_stride + unit;
      if (stage_.is_awaited) {
        StoreForOthers(output, FromFloat(h[round]));
      } else {
        *reinterpret_cast<Together*>(output) = Together(h + round);
      }
      if (StoresC()) {
        *reinterpret_cast<Together*>(&CAt(row, unit)) = Together(c + round);
      }
      if (!IS_TRAINING) continue;
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        float kept[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          kept[i] = cell_step.Kept(round + i, slot);
        }
        *reinterpret_cast<Together*>(&GateAt(round, step, slot)) =
            Together(kept);
      }
      if (unit == 0) cell_step.StoreNorms(round, row, my_.norms);
      if constexpr (CellType::kHasC) {
        *reinterpret_cast<Together*>(static_cast<Item*>(my_.cells) +
                                     row * NUM_UNITS + unit) =
            Together(c + round);
      }
    }
  }
  // Stores the last states, and fills what is past the sequences' ends with
  // zeros. A sequence whose length was out of range has no steps, so all its
  // outputs are set here, to NaN, which its states have been from the start.
  void StoreLast() const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      // To keep it would take a register.
      const int b = SequenceOf(round).b;
      if (b < 0) continue;
      const long long at = b * all_.state_stride + unit_of[round];
      static_cast<Item*>(my_.last_h)[at] = FromFloat(h[round]);
      if constexpr (CellType::kHasC) {
        static_cast<Item*>(my_.last_c)[at] = FromFloat(c[round]);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      const Sequence sequence(sequences, first_row + row);
      if (sequence.b < 0) continue;
      const Item fill = FromFloat(sequence.is_invalid ? InvalidValue() : 0.0f);
      const int count = (sequences.steps - sequence.length) * BLOCK_UNITS;
      for (int i = me.index; i < count; i += kThreads) {
        const int unit = me.rank * BLOCK_UNITS + i % BLOCK_UNITS;
        if (unit >= NUM_UNITS) continue;
        const long long to =
            RowOfTime(sequences, sequence.length + i / BLOCK_UNITS, sequence.b);
        static_cast<Item*>(my_.output)[to * all_.output_stride + unit] = fill;
        if (StoresC()) CAt(to, unit) = fill;
      }
    }
  }

  // Of a stage that only multiplies, stores the products of a step.
  void StoreProducts(const BlockSums& block_sums, const Weights::Sums& sums,
                     int step) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!Has(round, step)) continue;
      float products[SLOTS] = {};
      block_sums.Add(sums, round, kKeepsPowers, products);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        StoreForOthers(&GateAt(round, step, gate), FromFloat(products[gate]));
      }
    }
  }

 private:
  // A GRU's candidate has its biases in two slots.
  void ReadBiases(int round) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) bias_[round][slot] = 0.0f;
    if (unit_of[round] >= NUM_UNITS) return;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const Item* const of_input = static_cast<const Item*>(my_.input_bias);
      const Item* const of_recurrent =
          static_cast<const Item*>(my_.recurrent_bias);
      const int at = gate * NUM_UNITS + unit_of[round];
      if (of_recurrent != nullptr) {
        bias_[round][CellType::RecurrentSlot(gate)] +=
            ToFloat(of_recurrent[at]);
      }
      if (of_input != nullptr) bias_[round][gate] += ToFloat(of_input[at]);
    }
  }
  Item& GateAt(int round, int step, int slot) const {
    // With the pointer in registers, a step of a grid team took 7.7 µs instead
    // of 8.1. Lanes that hold their cells' sums have none to spare.
    Item* const gates = kHoldsCells ? static_cast<Item*>(my_.gates) : gates_;
    return gates[(RowAt(round, step) * kSlots + slot) * NUM_UNITS +
                 unit_of[round]];
  }
  // Only the last layer has the caller's cell states.
  bool StoresC() const {
    return kCellSequencesPitch > 0 && my_.all_c != nullptr;
  }
  Item& CAt(long long row, int unit) const {
    return static_cast<Item*>(my_.all_c)[row * kCellSequencesPitch + unit];
  }

  const ForwardArguments& all_;
  const ForwardDirection& my_;
  const Stage& stage_;
  Item* const gates_ = static_cast<Item*>(my_.gates);
  float bias_[kOwnUnits][kSlots], z_[kRounds][kSlots];
  bool is_anew_[kRounds];
  // Of this step and of the next ones.
  Together inputs_[kAhead][kRounds / kTogether][kGates];
  char resets_[kAhead][kRounds / kTogether];
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_CELLS_CUH_
