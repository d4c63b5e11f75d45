// The forward and the backward kernel share this file, which has the constants
// of the one that defines IS_BACKWARD.
//
// Whoever compiles sets the macros of CRNN_SHAPE_FIELDS and those of
// cell_functions.cuh, and IS_TRAINING, HAS_RESETS and CELL_SEQUENCES: the
// number of directions, or 0 if the c of all steps are not asked for.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_COMMON_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_COMMON_CUH_

#include "cell_functions.cuh"
#include "sequences.cuh"
#include "shape.h"

using cudnn_rnn_tf::persistent::PassArguments;

#define CRNN_VALUE(name, macro) macro,
constexpr Shape kShape = {CRNN_SHAPE_FIELDS(CRNN_VALUE)};
#undef CRNN_VALUE
// The numbers in a word: of the data, and of what products read.
constexpr int kItems = sizeof(Word) / sizeof(Item),
              kOperands = kShape.word_operands;

// What the kernels trust. The host counts four slots of a unit, and a unit's
// rows have as many.
static_assert(kGates <= SLOTS && kSlots <= 4 && SLOTS <= 4);
static_assert(kOperands == 2 || PRODUCTS != Shape::kHalves);
static_assert(BLOCK_UNITS % kShape.chunk_units() == 0, "blocks send chunks");
static_assert(TEAM * BLOCK_UNITS >= NUM_UNITS, "each unit has a block");
static_assert(WARPS % SPLITS == 0 && TEAM % SLICES == 0);
static_assert(IS_CLUSTER || !IS_STACK, "stages are clusters");
static_assert(SLICES == 1 || (!IS_CLUSTER && kOperands == 2 &&
                              BLOCK_UNITS * SLOTS % 16 == 0),
              "blocks of a band send each other whole tiles");
static_assert(!WARPGROUPS ||
                  (kOperands == 2 && SPLITS == 1 && SLOTS == 4 &&
                   WARPS % 4 == 0 && ROW_TILES >= 2 && ROW_TILES <= 5),
              "the shapes of wide products");
constexpr bool kHasResets = HAS_RESETS;
constexpr long long kCellSequencesPitch = CELL_SEQUENCES * NUM_UNITS;

constexpr bool kIsBackward = IS_BACKWARD;
constexpr int kThreads = kShape.threads();
constexpr int kRows = kShape.rows();
constexpr bool kHasBands = kShape.has_bands();
constexpr int kSliceUnits = kShape.slice_units();
// Of a warp's weights, and of what they are multiplied by.
constexpr int kPairs = kShape.pairs(kIsBackward);
constexpr int kTiles = kShape.warp_tiles(kIsBackward);
constexpr int kPitch = kShape.operand_pitch(kPairs * SPLITS);
constexpr int kColumn = kShape.column_pitch();
constexpr int kCopy = kShape.operand_bytes(kPairs * SPLITS);
// What a lane's weights are multiplied by at once: h or gradients of gates, of
// all sequences in shared memory, from the first pair of the first sequence on.
// Warpgroups multiply only some of a warp's tiles, from `first_tile` on, or
// only a piece of a sum's pairs.
struct Multiplicand {
  const char* numbers;
  int lane, first_tile = 0, piece = 0;
};
// With warpgroups, a backward pass, or a forward pass of a team that is no
// cluster, loads what a step reads only after its wait, for want of registers
// before.
constexpr bool kLoadsLate = WARPGROUPS && (kIsBackward || !IS_CLUSTER);
// Warps that multiply together have neighbouring tiles.
constexpr int kJointWarps = WARPGROUPS ? 4 : 1;
// What a block receives in a step.
constexpr int kStepBytes = kShape.step_bytes(kIsBackward);
constexpr Shape::Rooms kRooms = kShape.rooms(kIsBackward);

// All threads call this after they have stored what is multiplied next, before
// any of them multiplies it. Warpgroups read it on their own.
static void SynchronizeOperands() {
  if (WARPGROUPS) ShowOperands();
  SynchronizeBlock();
}

// Who a thread is: a lane of a warp, of a block, of a team. The tensor cores
// deal a tile out to lanes by the numbers g and t, as MultiplyAdd in device.cuh
// says. `rank` is the block's number in its team; `slice` is its number in its
// band, whose rows it has a slice of.
struct Thread {
  const int index = threadIdx.x, warp = index / 32, lane = index % 32;
  const int g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % TEAM;
  const int band = rank / SLICES, slice = rank % SLICES;
};

// Tells whether a unit is past the layer's, which not all shapes have.
static bool IsPastLayer(int unit) {
  return TEAM * BLOCK_UNITS > NUM_UNITS && unit >= NUM_UNITS;
}

// The rows of the weights that a band's blocks have are in the order of units
// and then of slots. Tells whether row i is one of zeros.
static bool IsZeroRow(int band, unsigned i) {
  return i % SLOTS >= kGates ||
         IsPastLayer(band * (SLICES * BLOCK_UNITS) + i / SLOTS);
}
// Returns such a row; null stands for zeros.
static const Item* RowOfWeights(const void* weights, int band, unsigned i) {
  const int unit = band * (SLICES * BLOCK_UNITS) + i / SLOTS, gate = i % SLOTS;
  if (IsZeroRow(band, i)) return nullptr;
  return static_cast<const Item*>(weights) +
         static_cast<long long>(gate * NUM_UNITS + unit) * NUM_UNITS;
}

// The numbers of neighbouring units, which a thread loads and stores together.
template <int kCount>
struct alignas(kCount * sizeof(Item)) Neighbours {
  Item item[kCount] = {};
  Neighbours() = default;
  explicit Neighbours(const float* values) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) item[i] = FromFloat(values[i]);
  }
  Item Of(int i) const { return item[i]; }
};
#if !defined(IS_FLOAT)
// To take them apart where they are loaded would be to wait for the load.
template <>
struct Neighbours<2> {
  Word word = 0;
  Neighbours() = default;
  explicit Neighbours(const float* values) : word(ToWord(values)) {}
  Item Of(int i) const { return static_cast<Item>(word >> 16 * i); }
};
#endif

// A block's cells, one for each unit and sequence, are dealt to its threads in
// rounds, so that the threads of a warp have consecutive units, of which each
// has kNeighbours, or, if kHoldsCells, to those that have the sums: lane 4 g +
// t has neighbours g of a warp's eight then and, of each eight sequences, 2 t
// and 2 t + 1.
constexpr bool kHoldsCells = !kIsBackward && kShape.forward_holds_cells();
constexpr bool kHasTileOfSlot =
    !kIsBackward && kShape.forward_has_tile_of_slot();
constexpr int kNeighbours = kShape.neighbours(kIsBackward);
constexpr int kCells = BLOCK_UNITS * kRows, kOfRound = kThreads * kNeighbours;
constexpr int kRounds =
    (kHoldsCells ? 2 * ROW_TILES : (kCells + kOfRound - 1) / kOfRound) *
    kNeighbours;
constexpr bool kHasWholeRows = kShape.has_whole_rows(kIsBackward);
// A thread's cells are of so many different units.
constexpr int kOwnUnits = kHoldsCells || kHasWholeRows ? kNeighbours : kRounds;
// The cells whose numbers are loaded and stored together.
constexpr int kTogether = NUM_UNITS % kNeighbours == 0 ? kNeighbours : 1;
using Together = Neighbours<kTogether>;

struct Cell {
  bool exists;    // In the block, not necessarily in the layer.
  int row, unit;  // In the block.

  Cell(int round, int thread) {
    if (kHoldsCells) {
      row = round / (2 * kNeighbours) * 8 + thread % 4 * 2 +
            round / kNeighbours % 2;
      unit = thread / 4 * kNeighbours + round % kNeighbours;
      exists = unit < BLOCK_UNITS;
      return;
    }
    // If rounds differ by whole rows, places in memory differ by constants.
    const int first = thread * kNeighbours + round % kNeighbours;
    const int of_round = round / kNeighbours * kOfRound;
    const int in_rows = kHasWholeRows ? first : first + of_round;
    exists = of_round + kOfRound <= kCells || first + of_round < kCells;
    row = in_rows / BLOCK_UNITS + (kHasWholeRows ? of_round / BLOCK_UNITS : 0);
    unit = in_rows % BLOCK_UNITS;
  }
};

// What both passes know of a thread's cells, for a share of the batch.
struct OwnCells {
  // With zoneout, each cell has functions of its own.
  static constexpr int kFunctions = CellType::kZones ? kRounds : kOwnUnits;

  const Thread& me;
  const Sequences& sequences;
  const int first_row;
  const bool is_reversed;
  const ZoneoutMasks masks;
  // Sequences are ordered by their lengths, so the first row's is the longest.
  const int steps = Sequence(sequences, first_row).length;
  const int row_step =
      is_reversed ? -sequences.time_stride : sequences.time_stride;
  int unit_of[kRounds], length[kRounds], row_of[kRounds];
  int row_of_masks[kRounds];
  Word drawn[kRounds];
  Functions functions[kFunctions];

  Sequence SequenceOf(int round) const {
    const Cell cell(round, me.index);
    Sequence sequence(sequences, first_row + cell.row);
    const int unit = cell.unit / kTogether * kTogether;
    if (!cell.exists || me.rank * BLOCK_UNITS + unit >= NUM_UNITS) {
      sequence.Clear();
    }
    return sequence;
  }
  // Sets what is known of a cell, and returns its sequence.
  Sequence Begin(int round, const void* vectors) {
    const Sequence sequence = SequenceOf(round);
    unit_of[round] = me.rank * BLOCK_UNITS + Cell(round, me.index).unit;
    length[round] = sequence.length;
    row_of[round] = sequence.RowAt(sequences, 0, is_reversed);
    row_of_masks[round] =
        sequence.TimeOf(0, is_reversed) * sequences.batch + sequence.b;
    if (round < kFunctions && unit_of[round] < NUM_UNITS) {
      functions[round].ReadVectors(vectors, NUM_UNITS, unit_of[round]);
    }
    return sequence;
  }
  // Draws the zoneout of the step that a pass runs at this turn. If units are a
  // multiple of four, lanes have four neighbouring ones of a sequence, whose
  // numbers are drawn together. So for each of these, one of the states is
  // drawn at one of the next turns for all four: an LSTM of 256 units, 64
  // sequences and 100 steps trains in 0.39 ms on an H200, and takes 0.43 if all
  // lanes draw.
  void Draw(int turn) {
    static_assert(!CellType::kZones || !WARPGROUPS, "lanes are neighbours");
    if constexpr (CellType::kZones) {
      constexpr int kStates = 1 + CellType::kHasC, kTurns = 4 / kStates;
      const int place = turn % kTurns * kStates;
      const auto row_at = [&](int round, int turn) {
        const int step = kIsBackward ? steps - 1 - turn : turn;
        return row_of_masks[round] +
               (is_reversed ? -step : step) * sequences.batch;
      };
      constexpr int kLanes = 4 / kNeighbours;
      const auto number_of = [&](int round) {  // Of four units.
        return me.lane % kLanes * kNeighbours + round % kNeighbours;
      };
      const bool is_by_four = NUM_UNITS % 4 == 0 && masks.draws();
#pragma unroll
      for (int round = 0; round < kRounds && is_by_four && place == 0;
           ++round) {
        const int number = number_of(round);
        drawn[round] = masks.FourStay(number % kStates,
                                      row_at(round, turn + number / kStates),
                                      NUM_UNITS, unit_of[round]);
      }
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        Sum* const zones = functions[round].zones;
        if (!is_by_four) {
          masks.SetShares(row_at(round, turn), NUM_UNITS, unit_of[round],
                          zones);
          continue;
        }
#pragma unroll
        for (int state = 0; state < kStates; ++state) {
          const int from = place + state, first = round - round % kNeighbours;
          const Word bits = from % kNeighbours == 0
                                ? drawn[first]
                                : drawn[first + kNeighbours - 1];
          const int lane = me.lane / kLanes * kLanes + from / kNeighbours;
          zones[state] = ShuffleFrom(bits, lane) >> number_of(round) & 1;
        }
      }
    }
  }
  bool Has(int round, int step) const { return step < length[round]; }
  long long RowAt(int round, int step) const {
    return row_of[round] + step * row_step;
  }
  // Loads whether a cell starts anew at a step. It is to be read a step later:
  // each step's barrier empties the nearest cache, so a load takes long.
  char LoadReset(int round, int step) const {
    return kHasResets && Has(round, step)
               ? StartsAnew(sequences, step, RowAt(round, step), is_reversed)
               : 0;
  }
};

// The first row of one of a team's shares of the batch. If the teams are no
// clusters, a launch may have too few of them for the batch, and a team then
// runs several shares, one after the other. Sequences are ordered by their
// lengths, so every second round of shares is dealt in the opposite order,
// which gives all teams about the same number of steps.
static int FirstRowOf(int share) {
  const int teams = gridDim.x / TEAM, team = blockIdx.x / TEAM;
  return (share * teams + (share % 2 == 0 ? team : teams - 1 - team)) * kRows;
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_COMMON_CUH_
