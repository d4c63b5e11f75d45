// The gradients of gates as a step's products read them: those of a block's
// cells or, in a band, of the cells of all its blocks.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GATE_GRADIENTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GATE_GRADIENTS_CUH_

#include "gradient_parts.cuh"

constexpr int kLanesOfRow = kShape.backward_row_lanes();
constexpr bool kIsInWarp = kShape.backward_is_in_warp();
static_assert(kThreads >= kRows, "a thread clears the maxima of a row");

// Returns the largest of the numbers of these lanes, none of which is negative.
// With the words of MagnitudeOf instead, steps of 256 units took 2 % longer.
static float LargestOfRow(float number) {
  if (kLanesOfRow == 32) {
    return __uint_as_float(LargestOfWarp(__float_as_uint(number)));
  }
#pragma unroll
  for (int lanes = kLanesOfRow / 2; lanes > 0; lanes /= 2) {
    number = fmaxf(number, ShuffleXor(number, lanes));
  }
  return number;
}

// Stores the numbers of a chunk, two units with four slots each in 16 bits,
// with SLOTS slots to a unit.
static void StoreGates(const Chunk& chunk, char* to) {
  static_assert(SLOTS == 1 || SLOTS == 3 || SLOTS == 4, "no cell has others");
  const Word* const from = chunk.word;
  Word* const words = reinterpret_cast<Word*>(to);
  if (SLOTS == 4) {
    *reinterpret_cast<Chunk*>(to) = chunk;
  } else if (SLOTS == 3) {
    words[0] = from[0];
    words[1] = (from[1] & 0xFFFFu) | from[2] << 16;
    words[2] = from[2] >> 16 | from[3] << 16;
  } else {
    words[0] = (from[0] & 0xFFFFu) | from[2] << 16;
  }
}

// The gradients of the gates of a block's cells, as its rows of the weights are
// multiplied by them.
class BlockGates {
 public:
  BlockGates(const Thread& me, const BackwardMemory& memory, TeamMemory&)
      : me_(me), memory_(memory) {}
  void ClearMaxima() const {
    if (!kHasPowers) return;
    // Those of a band follow those of rows.
    for (int i = me_.index; i < (kHasBands ? 4 : 2) * kRows; i += kThreads) {
      memory_.largest_of_rows[i] = 0;
    }
    SynchronizeBlock();
  }
  // Finds the largest gradients of each sequence, of all cells of a block. The
  // gradients of cells are those of their slots, [kRounds].
  void FindPowers(int turn, const float (&of_slots)[kRounds][kSlots]) const {
    if (!kHasPowers) return;
#pragma unroll
    for (int round = 0; round < kRounds; round += kNeighbours) {
      const Cell cell(round, me_.index);
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < kNeighbours; ++i) {
        const Cell own(round + i, me_.index);
        float operands[4] = {};
        if (cell.exists) OperandsOf(own, of_slots[round + i], operands);
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          largest = fmaxf(largest, fabsf(operands[gate]));
        }
      }
      largest = LargestOfRow(largest);
      if (!cell.exists || me_.lane % kLanesOfRow > 0) continue;
      Word* const to = memory_.largest_of_rows + turn % 2 * kRows + cell.row;
      if (kIsInWarp) {
        *to = __float_as_uint(largest);
      } else {
        Raise(to, __float_as_uint(largest));
      }
    }
    if (kIsInWarp) {
      SynchronizeWarp();
    } else {
      SynchronizeBlock();
      if (me_.index < kRows) {
        memory_.largest_of_rows[(turn + 1) % 2 * kRows + me_.index] = 0;
      }
    }
  }
  const char* Numbers(int turn) const {
    return memory_.gradients + turn % 2 * kCopy;
  }
  // The power of the sums of products of a turn.
  float PowerOfSums(int turn, int row) const {
    return memory_.PowerOfRow(turn, row);
  }
  // Stores the gradients where they are multiplied, or sends them to the band.
  void Store(int turn, const float (&of_slots)[kRounds][kSlots]) const {
    // Two stores of pairs of cells would meet in the same banks.
    constexpr int kAtOnce = kShape.has_pairs_of_cells() ? 2 : 1;
#pragma unroll
    for (int round = kAtOnce - 1; round < kRounds; round += kAtOnce) {
      const Cell cell(round, me_.index);
      const Words words = WordsOf(turn, cell, of_slots[round]);
      if (!cell.exists) continue;
      char* const to = memory_.gradients + turn % 2 * kCopy +
                       cell.row * kPitch + cell.unit / kOperands * kColumn +
                       cell.unit % kOperands * (16 / kOperands);
      if constexpr (kAtOnce == 2) {
        const Words first =
            WordsOf(turn, Cell(round - 1, me_.index), of_slots[round - 1]);
        *reinterpret_cast<Chunk*>(to - 8) = {
            {first.of[0], first.of[1], words.of[0], words.of[1]}};
      } else {
#pragma unroll
        for (int j = 0; j < 4 / kOperands; ++j) {
          reinterpret_cast<Word*>(to)[j] = words.of[j];
        }
      }
    }
  }
  // Receives what others of the band have sent.
  void Receive(int) const {}
  void EndShare(int) {}

 protected:
  struct Words {
    Word of[4 / kOperands];
  };
  // Returns the gradients of a cell's gates as products read them.
  Words WordsOf(int turn, const Cell& cell, const float* of_slots) const {
    float operands[4] = {};
    if (cell.exists) OperandsOf(cell, of_slots, operands);
    const float scale = kHasPowers && cell.exists
                            ? ScaleOf(memory_.PowerOfRow(turn, cell.row))
                            : 1.0f;
    Words words;
#pragma unroll
    for (int j = 0; j < 4 / kOperands; ++j) {
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        values[e] = scale * operands[j * kOperands + e];
      }
      words.of[j] = ToOperands(values);
    }
    return words;
  }

  const Thread& me_;
  const BackwardMemory& memory_;

 private:
  // The gradients of the gates' recurrent sides. What the rows of the weights
  // were divided by, they are multiplied by.
  void OperandsOf(const Cell& cell, const float* of_slots,
                  float* operands) const {
    const float* const powers =
        memory_.row_powers + (me_.slice * BLOCK_UNITS + cell.unit) * SLOTS;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      operands[gate] = of_slots[CellType::RecurrentSlot(gate)];
      if (kHasPowers) operands[gate] *= powers[gate];
    }
  }
};

// The blocks of a band send each other the gradients of their cells' gates, and
// multiply those of all.
class BandGates : public BlockGates {
 public:
  BandGates(const Thread& me, const BackwardMemory& memory, TeamMemory& of_team)
      : BlockGates(me, memory, of_team), ring_(of_team) {}
  const char* Numbers(int) const { return memory_.gradients; }
  float PowerOfSums(int turn, int row) const {
    return __uint_as_float(memory_.LargestOfBand(turn, row));
  }
  void Store(int turn, const float (&of_slots)[kRounds][kSlots]) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Cell cell(round, me_.index);
      const Words words = WordsOf(turn, cell, of_slots[round]);
      // An even lane sends those of the next one, too.
      const Word first = words.of[0], second = words.of[2 / kOperands];
      const Chunk chunk = {
          {first, second, ShuffleXor(first, 1), ShuffleXor(second, 1)}};
      if (!cell.exists || me_.lane % 2 == 1) continue;
      const int of_block = me_.rank * kBytes;
      ring_.Send(
          turn,
          of_block + (cell.row * BLOCK_UNITS + cell.unit) * (16 / kOperands),
          chunk);
      if (kHasPowers && cell.unit == 0) {
        const float power = memory_.PowerOfRow(turn, cell.row);
        ring_.Send(turn, of_block + (kOfBlock + cell.row) * 16,
                   {{__float_as_uint(power)}});
      }
    }
    ring_.EndStep(turn);
  }
  // Receives the gradients of the band's gates and, before that, the powers by
  // which its blocks have divided them, so that all are divided by the largest
  // one. A chunk has the gradients of kOperands units.
  void Receive(int turn) const {
    if (kHasPowers) {
      ReceivePowers(turn);
      SynchronizeBlock();
      if (me_.index < kRows) memory_.LargestOfBand(turn + 1, me_.index) = 0;
    }
    constexpr int kAll = SLICES * kOfBlock;
    constexpr int kOfRow = BLOCK_UNITS / kOperands;
    constexpr int kOfThread = (kAll + kThreads - 1) / kThreads;
    constexpr int kAtOnce = kOfThread < 8 ? kOfThread : 8;
    const char* const place = ring_.PlaceOf(turn) + me_.band * SLICES * kBytes;
#pragma unroll 1
    for (int first = me_.index; first < kAll; first += kAtOnce * kThreads) {
      const char* from[kAtOnce];
      Chunk chunks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        from[i] = at < kAll
                      ? place + at / kOfBlock * kBytes + at % kOfBlock * 16
                      : nullptr;
      }
      ::Receive(from, IsSent, chunks);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        if (from[i] == nullptr) continue;
        const int block = at / kOfBlock, row = at % kOfBlock / kOfRow;
        const int unit = block * BLOCK_UNITS + at % kOfRow * kOperands;
        Chunk gates = chunks[i];
        if (kHasPowers) {
          const int one = __float_as_uint(1.0f);
          const int power = memory_.powers_of_band[block * kRows + row] -
                            memory_.LargestOfBand(turn, row) + one;
          MultiplyHalves(&gates, __uint_as_float(Within(power, one)));
        }
        const int at_byte = unit * SLOTS * 2;
        StoreGates(gates, memory_.gradients + row * kPitch +
                              at_byte / 16 * kColumn + at_byte % 16);
      }
    }
  }
  void EndShare(int steps) { ring_.EndShare(steps); }

 private:
  static constexpr int kBytes = kShape.backward_gates_step_bytes();
  static constexpr int kOfBlock = kShape.backward_gates_chunks();

  void ReceivePowers(int turn) const {
    for (int at = me_.index; at < SLICES * kRows; at += kThreads) {
      const int block = at / kRows, row = at % kRows;
      const char* const from[1] = {ring_.PlaceOf(turn) +
                                   (me_.band * SLICES + block) * kBytes +
                                   (kOfBlock + row) * 16};
      Chunk chunk[1];
      ::Receive(from, IsSent, chunk);
      const Word power = chunk[0].word[0];
      memory_.powers_of_band[block * kRows + row] = power;
      Raise(&memory_.LargestOfBand(turn, row), power);
    }
  }

  ClearedRing<TEAM * kBytes> ring_;
};

using GateGradients = Choice<kHasBands, BandGates, BlockGates>::Type;

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GATE_GRADIENTS_CUH_
