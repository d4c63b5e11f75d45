// The sums of products with h on their way to the threads that compute cells:
// through registers, through shared memory or, within a band, between blocks.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BLOCK_SUMS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BLOCK_SUMS_CUH_

#include "states.cuh"

constexpr int kSumsPitch = kShape.forward_sums_pitch();

// The slots of a unit, which are loaded as 16 bytes if they are as many.
struct alignas(SLOTS == 4 ? 16 : 4) Slots {
  float of[SLOTS];
};

// Products are added to the sums that a step begins with, which takes no
// registers beside them, unless they have powers, or are left out where a
// sequence starts anew.
constexpr bool kBeginsSums = kHoldsCells && !kHasPowers && !kHasResets;

// The sums of the products of a block's rows of the weights. Here is what does
// not depend on where they go.
class WarpSums {
 public:
  WarpSums(const Thread& me, const ForwardMemory& memory, TeamMemory&)
      : me_(me), memory_(memory) {}
  // A warp's tiles, and the first of its pairs. Warps that multiply together
  // have neighbouring tiles.
  int TileOf(int i) const {
    const int group = me_.warp / kJointWarps / SPLITS;
    return (group * kTiles + i) * kJointWarps + me_.warp % kJointWarps;
  }
  int split() const { return me_.warp / kJointWarps % SPLITS; }
  int first_pair() const { return split() * kPairs; }
  void Begin(const float (&)[kRounds][kSlots], Weights::Sums&) const {}

 protected:
  // Multiplies the sums for a cell by the powers that were divided by: those of
  // rows and, if what was multiplied has them, of sequences.
  void Scale(const Cell& cell, bool has_powers, float* of_cell) const {
    if (!kHasPowers) return;
    const Slots of_rows = *reinterpret_cast<const Slots*>(
        memory_.row_powers + (me_.slice * BLOCK_UNITS + cell.unit) * SLOTS);
    const float of_sequence =
        has_powers ? memory_.sequence_powers[cell.row] : 1.0f;
#pragma unroll
    for (int slot = 0; slot < kGates; ++slot) {
      const float of_row = kOfProduct * of_rows.of[slot];
      // With the smaller one first, only what is too large overflows.
      of_cell[slot] *= has_powers ? fminf(of_row, of_sequence) : of_row;
      if (has_powers) of_cell[slot] *= fmaxf(of_row, of_sequence);
    }
  }

  const Thread& me_;
  const ForwardMemory& memory_;
};

// A warp's lanes have the sums of their own cells.
class HeldSums : public WarpSums {
 public:
  using WarpSums::WarpSums;
  // Hands on the sums of a warp.
  void Share(int, const Weights::Sums&) const {}
  // Waits until those of a thread's cells can be read.
  void Receive(int) const {}
  // Begins the sums with the cells' z, if they can be.
  template <typename Sums>
  void Begin(const float (&z)[kRounds][kSlots], Sums& sums) const {
#pragma unroll
    for (int i = 0; kBeginsSums && i < kRounds * kGates; ++i) {
      const int round = i / kGates, gate = i % kGates;
      SumOf(sums, round, gate) = z[round][CellType::RecurrentSlot(gate)];
    }
  }
  // Adds the sums for one of a thread's cells to `of_cell`. `has_powers` tells
  // whether what was multiplied has the sequences' powers.
  template <typename Sums>
  void Add(const Sums& sums, int round, bool has_powers, float* of_cell) const {
    const Cell cell(round, me_.index);
    if (!cell.exists) return;
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      of_cell[slot] = SumOf(sums, round, slot);
    }
    Scale(cell, has_powers, of_cell);
  }
  void EndShare(int) {}

 private:
  // The sum for a slot of one of a thread's cells.
  template <typename Sums>
  static auto& SumOf(Sums& sums, int round, int slot) {
    const int tile = kHasTileOfSlot ? slot : slot / 2;
    const int half = kHasTileOfSlot ? round % 2 : slot % 2;
    return sums[round / (2 * kNeighbours)][tile]
        .sums[half * 2 + round / kNeighbours % 2];
  }
};

// Sums go through shared memory to the threads with the cells, each in parts of
// different warps.
class StoredSums : public WarpSums {
 public:
  using WarpSums::WarpSums;
  void Share(int, const Weights::Sums& sums) const {
    ForTiles(sums, [&](int tile, const auto& total) {
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) Store(split(), n, tile, total[n]);
    });
  }
  void Receive(int) const { SynchronizeBlock(); }
  void Add(const Weights::Sums&, int round, bool has_powers,
           float* of_cell) const {
    const Cell cell(round, me_.index);
    if (!cell.exists) return;
#pragma unroll
    for (int i = 0; i < (kHasBands ? 1 : SPLITS); ++i) {
      const auto* const of_row = reinterpret_cast<const Slots*>(
          memory_.sums + (i * kRows + cell.row) * kSumsPitch);
      // Of pairs of cells, every second four lanes read the second one first:
      // the first ones of eight lanes lie in half of the banks.
      const int neighbour = round % kNeighbours;
      const int is_first = neighbour == me_.lane / 4 % kNeighbours;
      const Slots pair[] = {
          of_row[cell.unit - neighbour + me_.lane / 4 % kNeighbours],
          of_row[cell.unit - neighbour + (me_.lane / 4 + 1) % kNeighbours]};
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        of_cell[slot] += is_first ? pair[0].of[slot] : pair[1].of[slot];
      }
    }
    Scale(cell, has_powers, of_cell);
  }
  void EndShare(int) {}

 protected:
  // Calls hand_on(tile, sums) with a lane's sums of each of its tiles.
  template <typename HandOn>
  void ForTiles(const Weights::Sums& sums, const HandOn& hand_on) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = TileOf(i);
      if (tile * 16 + 2 * me_.g >= kShape.band_rows()) continue;
      float total[ROW_TILES][4];
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) sums[n][i].Total(me_.lane, total[n]);
      hand_on(tile, total);
    }
  }
  void Store(int part, int n, int tile, const float* sums) const {
    float* const to = memory_.sums +
                      (part * kRows + n * 8 + 2 * me_.t) * kSumsPitch +
                      tile * 16 + 2 * me_.g;
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      StorePair(to + column * kSumsPitch, sums[column], sums[2 + column]);
    }
  }
};

// Within a band, sums are sent to the blocks whose units they are of, and added
// there.
class BandSums : public StoredSums {
 public:
  BandSums(const Thread& me, const ForwardMemory& memory, TeamMemory& of_team)
      : StoredSums(me, memory, of_team), ring_(of_team) {}
  void Share(int step, const Weights::Sums& sums) const {
    ForTiles(sums, [&](int tile, const auto& total) {
      const int owner = tile / kOwnTiles, own_tile = tile - owner * kOwnTiles;
      const int sender = me_.slice * SPLITS + split();
      char* const place = ring_.PlaceOf(step, me_.band * SLICES + owner) +
                          (sender * kChunks + own_tile * 32 + me_.lane) * 16;
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) {
        Chunk chunk;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          chunk.word[j] = __float_as_uint(total[n][j]);
        }
        ring_.Mark(step, &chunk);
        StoreForOthers(place + n * (kOwnTiles * 512), chunk);
      }
    });
  }
  // Receives what the band's blocks have sent to this one.
  void Receive(int step) const {
    constexpr int kSenders = SLICES * SPLITS;
    constexpr int kOfThread = (kChunks + kThreads - 1) / kThreads;
    constexpr int kMost = kSenders > 8 ? 1 : 8 / kSenders;
    constexpr int kAtOnce = kOfThread < kMost ? kOfThread : kMost;
    const char* const place = ring_.PlaceOf(step, me_.rank);
    const auto is_there = [&](const Chunk& chunk) {
      return ring_.HasMark(step, chunk);
    };
#pragma unroll 1
    for (int first = me_.index; first < kChunks; first += kAtOnce * kThreads) {
      const char* from[kAtOnce * kSenders];
      Chunk chunks[kAtOnce * kSenders];
#pragma unroll
      for (int i = 0; i < kAtOnce * kSenders; ++i) {
        const int at = first + i / kSenders * kThreads;
        from[i] =
            at < kChunks ? place + (i % kSenders * kChunks + at) * 16 : nullptr;
      }
      ::Receive(from, is_there, chunks);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        float sums[4] = {};
        if (at >= kChunks) continue;
#pragma unroll
        for (int sender = 0; sender < kSenders; ++sender) {
          const Chunk sent = Unmarked(chunks[i * kSenders + sender]);
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[j] += __uint_as_float(sent.word[j]);
        }
        Store(0, at / (32 * kOwnTiles), at / 32 % kOwnTiles, sums);
      }
    }
    SynchronizeBlock();
  }
  void EndShare(int steps) { ring_.EndShare(steps); }

 private:
  // The tiles of a block's own units. A sender's chunks are those of lanes,
  // [ROW_TILES][kOwnTiles][32].
  static constexpr int kOwnTiles = BLOCK_UNITS * SLOTS / 16;
  static constexpr int kChunks = kShape.forward_sums_chunks();

  MarkedRing<kShape.forward_sums_step_bytes()> ring_;
};

using BlockSums = Choice<kHoldsCells, HeldSums,
                         Choice<kHasBands, BandSums, StoredSums>::Type>::Type;

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_BLOCK_SUMS_CUH_
