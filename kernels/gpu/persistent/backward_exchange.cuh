// What a block of the backward kernel has in shared memory, and what it
// exchanges with its team: parts of gradients of h and, within a band,
// gradients of gates.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_EXCHANGE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_EXCHANGE_CUH_

#include "exchange.cuh"
#include "powers.cuh"
#include "weights.cuh"

constexpr int kGroups = kShape.backward_warp_groups();
constexpr int kPartItems = kRows * BLOCK_UNITS;
constexpr int kAdders = kShape.backward_adders();
// The units whose sums a lane has at once.
constexpr int kLaneUnits = kShape.data_chunk_units();
// Whether the slice has all units of the warps' tiles.
constexpr bool kFillsSlice = WARPS * kGroups * 4 * kLaneUnits <= kSliceUnits;
constexpr int kLanesOfRow = kShape.backward_row_lanes();
constexpr bool kIsInWarp = kShape.backward_is_in_warp();
// Where two blocks share a multiprocessor, the compiler would take a few
// registers too many.
constexpr bool kSharesMultiprocessor =
    kShape.backward_has_few_cells() && WARPS == 8 && RESIDENT_PAIRS == 0;
static_assert(kThreads >= kRows, "a thread clears the maxima of a row");

// The block's shared memory.
struct BackwardMemory : BlockMemory {
  // [2][kRows], the largest gradients.
  Word* const largest_of_rows =
      reinterpret_cast<Word*>(first + kRooms.sequence_powers);
  // [2][kRows], the largest powers in the band; then [SLICES][kRows], all.
  Word* const largest_of_band =
      reinterpret_cast<Word*>(first + kRooms.band_powers);
  Word* const powers_of_band = largest_of_band + 2 * kRows;
  // In a cluster, this is [2][TEAM][kPartItems]. In another team, it is
  // [kAdders][kRows][BLOCK_UNITS] floats.
  Item* const parts = reinterpret_cast<Item*>(first + kRooms.parts);
  // [2][kRows], where a row has the block's gradients by unit and then by slot;
  // [kRows] in a band, with the gradients of all its blocks.
  char* const gradients = first + kRooms.gradients;

  // What the gradients of a row's gates in a turn are multiplied by.
  float PowerOfRow(int turn, int row) const {
    return PowerOf(largest_of_rows[turn % 2 * kRows + row]);
  }
  Word& LargestOfBand(int turn, int row) const {
    return largest_of_band[turn % 2 * kRows + row];
  }
};

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

// The parts of the gradient of h, which each block computes for all units, or
// for those of its slice, and sends to the units' owners, who add them. A
// turn's parts are received in the next one. Here is what does not depend on
// the kind of team.
class PartsOfWarp {
 public:
  PartsOfWarp(const Thread& me, const BackwardMemory& memory, TeamMemory&)
      : me_(me), memory_(memory) {}
  // The rows of a group's tiles are dealt so that a pair of lanes, each with
  // the rows g and g + 8, has consecutive units of the slice, four of each
  // tile.
  int FirstUnitOf(int group, int quad) const {
    return ((me_.warp * kGroups + group) * 4 + quad) * kLaneUnits;
  }

 protected:
  // Calls send(group, row, unit, chunk) with what a lane sends.
  template <typename PowerOfSums, typename SendChunk>
  void ForChunks(int first, const Weights::Sums& sums,
                 const PowerOfSums& power_of, const SendChunk& send) const {
    // Without the comparison, the compiler would gather all stores of a grid
    // team behind the last shuffle.
    constexpr bool kSendsAll = IS_CLUSTER && kFillsSlice;
    const int is_odd = me_.g % 2, quad = me_.g / 2;
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
      const int row = n * 8 + 2 * me_.t + is_odd;
#pragma unroll
      for (int i = 0; i < Weights::kAtOnce / kItems; ++i) {
        const int group = first / kItems + i;
        if (group >= kGroups) continue;
        Chunk chunk;
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          float sum[4];
          sums[n][i * kItems + j].Total(me_.lane, sum);
          // An even lane gets the first sequence's sums of the odd lane's
          // units.
          const float of_first[2] = {sum[0], sum[2]};
          const float of_second[2] = {sum[1], sum[3]};
          constexpr int kWords = 2 / kItems;
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            const Word first = ToWord(of_first + k * kItems);
            const Word second = ToWord(of_second + k * kItems);
            const Word other = ShuffleXor(is_odd ? first : second, 4);
            Word* const to = chunk.word + j * 2 * kWords + k;
            to[0] = is_odd ? other : first;
            to[kWords] = is_odd ? second : other;
          }
        }
#pragma unroll
        for (int k = 0; kHasPowers && k < 4; ++k) {
          chunk.word[k] = __float_as_uint(__uint_as_float(chunk.word[k]) *
                                          (kOfProduct * power_of(row)));
        }
        const int unit =
            FirstUnitOf(group, kHasPowers ? Recomputed(quad) : quad);
        if (kSendsAll || unit < kSliceUnits) send(group, row, unit, chunk);
      }
    }
  }

  const Thread& me_;
  const BackwardMemory& memory_;
};

// In a cluster, blocks store parts to their owners' shared memory.
class ClusterParts : public PartsOfWarp {
 public:
  using PartsOfWarp::PartsOfWarp;
  // From here on peers may store to this block.
  void Join() {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int unit = FirstUnitOf(group, me_.g / 2);
      peers_[group] =
          MemoryOfPeer(unit < kShape.all_units() ? unit / BLOCK_UNITS : 0);
    }
    SynchronizeCluster();
  }
  // Waits for the parts of the turn before.
  void Receive(int turn) const { memory_.AwaitPeers(turn, me_.index); }
  // Adds the parts for a cell and its neighbours to `dh`, in the senders'
  // order.
  void Add(int turn, const Cell& cell, float* dh) const {
    const Item* const part = memory_.parts + turn % 2 * TEAM * kPartItems +
                             PlaceInPart(cell.row, cell.unit);
#pragma unroll
    for (int peer = 0; peer < TEAM; ++peer) {
      const auto& of_cells = *reinterpret_cast<const Neighbours<kNeighbours>*>(
          part + peer * kPartItems);
#pragma unroll
      for (int i = 0; i < kNeighbours; ++i) dh[i] += ToFloat(of_cells.Of(i));
    }
  }
  // Sends a turn's parts, of the tiles from the first one on. `power_of(row)`
  // is what the row's gradients were divided by.
  template <typename PowerOfSums>
  void Send(int turn, int first, const Weights::Sums& sums,
            const PowerOfSums& power_of) const {
    ForChunks(first, sums, power_of,
              [&](int group, int row, int unit, Chunk& chunk) {
                const int next = (turn + 1) % 2;
                Item* const to = memory_.parts +
                                 (next * TEAM + me_.rank) * kPartItems +
                                 PlaceInPart(row, unit % BLOCK_UNITS);
                StoreToPeer(peers_[group], to, memory_.barriers + next, chunk);
              });
  }
  void EndShare(int) {}

 private:
  static int PlaceInPart(unsigned row, unsigned unit) {
    constexpr unsigned kUnits = kShape.backward_part_units();
    const unsigned tile = row / 8 * (BLOCK_UNITS / kUnits) + unit / kUnits;
    return (tile * 8 + row % 8) * kUnits + unit % kUnits;
  }

  PeerMemory peers_[kGroups];
};

// Blocks of another team send parts through a ring, and the owners' threads add
// the same chunk of some senders each, of which there is one in each band.
class GridParts : public PartsOfWarp {
 public:
  GridParts(const Thread& me, const BackwardMemory& memory, TeamMemory& of_team)
      : PartsOfWarp(me, memory, of_team), ring_(of_team) {}
  void Join() const {}
  void Receive(int turn) const {
    if (turn == 0) return;
    constexpr int kChunks = kShape.backward_sender_chunks();
    constexpr int kSenders = (kShape.bands() + kAdders - 1) / kAdders;
    constexpr int kAtOnce = kSenders < 8 ? kSenders : 8;
    const char* const place = ring_.PlaceOf(turn - 1, me_.rank);
    const auto is_there = [&](const Chunk& chunk) {
      return ring_.HasMark(turn - 1, chunk);
    };
#pragma unroll 1
    for (int at = me_.index; at < kChunks * kAdders; at += kThreads) {
      const int chunk_of_sender = at % kChunks;
      const int adder = at / kChunks, first_sender = adder * kSenders;
      float sums[kLaneUnits] = {};
#pragma unroll 1
      for (int first = 0; first < kSenders; first += kAtOnce) {
        const char* from[kAtOnce];
        Chunk chunks[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int sender = first_sender + first + i;
          from[i] = first + i < kSenders && sender < kShape.bands()
                        ? place + (sender * kChunks + chunk_of_sender) * 16
                        : nullptr;
        }
        ::Receive(from, is_there, chunks);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (from[i] == nullptr) continue;
          const Chunk part = Unmarked(chunks[i]);
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            float values[kItems];
            FromWord(part.word[word], values);
#pragma unroll
            for (int e = 0; e < kItems; ++e) {
              sums[word * kItems + e] += values[e];
            }
          }
        }
      }
      // The chunks of a sender are in order, row by row.
#pragma unroll
      for (int i = 0; i < kLaneUnits; i += 2) {
        StorePair(Sums() + (adder * kChunks + chunk_of_sender) * kLaneUnits + i,
                  sums[i], sums[i + 1]);
      }
    }
    SynchronizeBlock();
  }

  void Add(int, const Cell& cell, float* dh) const {
#pragma unroll
    for (int adder = 0; adder < kAdders; ++adder) {
      const auto& sums = *reinterpret_cast<const Pair*>(
          Sums() + (adder * kRows + cell.row) * BLOCK_UNITS + cell.unit);
#pragma unroll
      for (int i = 0; i < kNeighbours; ++i) dh[i] += sums.of[i];
    }
  }
  template <typename PowerOfSums>
  void Send(int turn, int first, const Weights::Sums& sums,
            const PowerOfSums& power_of) const {
    ForChunks(first, sums, power_of, [&](int, int row, int unit, Chunk& chunk) {
      ring_.Mark(turn, &chunk);
      const int owner = me_.slice * kShape.bands() + unit / BLOCK_UNITS;
      StoreForOthers(reinterpret_cast<Item*>(ring_.PlaceOf(turn, owner)) +
                         (me_.band * kRows + row) * BLOCK_UNITS +
                         unit % BLOCK_UNITS,
                     chunk);
    });
  }
  void EndShare(int steps) { ring_.EndShare(steps); }

 private:
  struct alignas(4 * kNeighbours) Pair {
    float of[kNeighbours];
  };
  // The sums of the adders.
  float* Sums() const { return reinterpret_cast<float*>(memory_.parts); }

  MarkedRing<kStepBytes> ring_;
};

using GradientParts = Choice<IS_CLUSTER, ClusterParts, GridParts>::Type;

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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BACKWARD_EXCHANGE_CUH_
