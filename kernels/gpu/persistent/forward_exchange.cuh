// What a block of the forward kernel has in shared memory, and what it
// exchanges with its team: h and, within a band, sums.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_EXCHANGE_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_EXCHANGE_CUH_

#include "exchange.cuh"
#include "powers.cuh"
#include "weights.cuh"

constexpr int kSumsPitch = kShape.forward_sums_pitch();

// The block's shared memory.
struct ForwardMemory : BlockMemory {
  float* const sequence_powers =
      reinterpret_cast<float*>(first + kRooms.sequence_powers);
  char* const states = first + kRooms.states;
  // [SPLITS][kRows], where a row has the sums by unit and then by slot; [kRows]
  // in a band.
  float* const sums = reinterpret_cast<float*>(first + kRooms.sums);

  // What a sequence's h is multiplied by before it is an operand.
  float ScaleOfH(int row) const {
    if (!kHasPowers) return 1.0f;
    return ScaleOf(kKeepsPowers ? sequence_powers[row] : 1.0f);
  }
};

// Returns a chunk to each of four lanes, which are `stride` lanes apart, and of
// which lane i has word i of each of the four chunks: lane i gets chunk i.
static Chunk ChunkOfLanes(const Word (&words)[4], int lane, int stride) {
  Chunk chunk;
#pragma unroll
  for (int other = 0; other < 4; ++other) {
    const int i = (lane / stride ^ other) % 4;
    const Word word = ShuffleFrom(i == 0   ? words[0]
                                  : i == 1 ? words[1]
                                  : i == 2 ? words[2]
                                           : words[3],
                                  lane ^ stride * other);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j == i) chunk.word[j] = word;
    }
  }
  return chunk;
}

// The h of a team's sequences, of which each block computes that of its units
// and sends it to all blocks of the team. Here is what does not depend on the
// kind of team.
class TeamStates {
 public:
  TeamStates(const Thread& me, const ForwardMemory& memory, TeamMemory&)
      : me_(me), memory_(memory) {}
  // Sets the states before the first step, [batch, stride]; `first` is null if
  // there are none. `bounds` are those by which sequences have their powers.
  void SetFirst(const Sequences& sequences, int first_row, const Item* bounds,
                const Item* first, long long stride) {
    // Places that stand for no unit stay zero.
    for (int i = me_.index; i < kShape.forward_h_bytes() / 16; i += kThreads) {
      reinterpret_cast<Chunk*>(memory_.states)[i] = {};
    }
    SynchronizeBlock();
    rows_ = Within(sequences.batch - first_row, kRows);
    if (kHasPowers) {
      const auto bound_of = [&](int row) -> const Item* {
        const int b = Sequence(sequences, first_row + row).b;
        return b < 0 ? nullptr : bounds + b * stride;
      };
      FindPowers<kRows>(me_, bound_of, kKeepsPowers ? 1.0f : 0.0f,
                        memory_.sequence_powers);
      SynchronizeBlock();
    }
    constexpr int kUnits = kHasBands ? kSliceUnits : NUM_UNITS;
    constexpr int kWords = (kUnits + kOperands - 1) / kOperands;
    for (int i = me_.index; i < kRows * kWords; i += kThreads) {
      const int row = i / kWords, word = i % kWords;
      const int b = Sequence(sequences, first_row + row).b;
      if (b < 0 || (IS_STACK && first == nullptr)) continue;
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        const int at = me_.slice * kSliceUnits + word * kOperands + e;
        values[e] = at < NUM_UNITS ? ToFloat(first[b * stride + at]) : 0.0f;
        if (kHasPowers) values[e] *= ScaleOf(memory_.sequence_powers[row]);
      }
      reinterpret_cast<Word*>(memory_.states + row * kPitch +
                              word / 4 * kColumn)[word % 4] =
          ToOperands(values);
    }
  }

 protected:
  // The units of 16 bytes of h.
  static constexpr int kUnits = kShape.chunk_units();
  // The lanes that have the same word of h, and the same 16 bytes.
  static constexpr int kOfWord = kNeighbours < kOperands ? kOperands : 1;
  static constexpr int kLanes = 4 * kOfWord;

  // Returns the 16 bytes of h that the lane of a cell, and perhaps of the next
  // round's neighbour, shares with other lanes. Lanes without a cell take part
  // in the shuffles, too.
  Chunk ChunkOf(const Cell& cell, const float* h) const {
    const float scale = cell.exists ? memory_.ScaleOfH(cell.row) : 1.0f;
    float pair[2] = {scale * h[0]};
    pair[1] =
        kOfWord == 2 ? ShuffleXor(pair[0], 1) : scale * h[kNeighbours - 1];
    const Word word = ToOperands(pair);
    Chunk chunk;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      chunk.word[j] =
          ShuffleFrom(word, me_.lane / kLanes * kLanes + j * kOfWord);
    }
    return chunk;
  }

  const Thread& me_;
  const ForwardMemory& memory_;
  int rows_ = 0;  // Those of sequences, in the share.
};

// In a cluster, blocks store to the peers' copy of h for the next step while
// these read the other one.
class ClusterStates : public TeamStates {
 public:
  using TeamStates::TeamStates;
  // What a step's products read.
  char* Numbers(int step) const { return memory_.states + step % 2 * kCopy; }
  // From here on peers may store to this block.
  void Join() {
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      const int peer = i * kLanes + me_.lane % kLanes;
      peers_[i] = MemoryOfPeer(peer < TEAM ? peer : 0);
    }
    if (WARPGROUPS) ShowOperands();
    SynchronizeCluster();
  }
  // Waits for a piece of the h that a step's products read.
  void Receive(int step, int) const {
    memory_.AwaitPeers(step, me_.index);
    if (WARPGROUPS) ShowOperands();
  }
  // Sends the h of a thread's cells after a step.
  void Send(int step, const float* h) const {
    if (kHoldsCells) {
      SendHeld(step, h);
      return;
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Cell cell(round, me_.index);
      const Chunk chunk = ChunkOf(cell, h + round);
      const int unit = me_.rank * BLOCK_UNITS + cell.unit;
      char* const to =
          Numbers(step + 1) + cell.row * kPitch + unit / kUnits * kColumn;
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        if (cell.exists && i * kLanes + me_.lane % kLanes < TEAM) {
          StoreToPeer(peers_[i], to, memory_.barriers + (step + 1) % 2, chunk);
        }
      }
    }
  }
  void EndStep(int) const {}
  void EndShare(int) {}

 private:
  // Lanes with the same h divide the peers among themselves.
  static constexpr int kPeers = (TEAM + kLanes - 1) / kLanes;

  void SendHeld(int step, const float* h) const {
    // Eight units of a sequence are a chunk. A lane has two sequences of a
    // unit, or two units of a sequence.
    constexpr int kStride = kHasTileOfSlot ? 4 : 1;
#pragma unroll
    for (int first = 0; first < kRounds; first += 8) {
      Word words[4] = {};
#pragma unroll
      for (int i = first; i < kRounds && i < first + 8; i += 2) {
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pair[e] = h[i + e] * memory_.ScaleOfH(Cell(i + e, me_.index).row);
        }
        const Word word = ToOperands(pair);
        words[(i - first) / 2] = kHasTileOfSlot ? word : Transposed(word);
      }
      const Chunk chunk = ChunkOfLanes(words, me_.lane, kStride);
      const int round = first + me_.lane / kStride % 4 * 2;
      const int row =
          kHasTileOfSlot ? Cell(round, me_.index).row : round / 2 * 8 + me_.g;
      const int column = kHasTileOfSlot ? me_.warp * 2 + me_.g / 4 : me_.warp;
      if (round >= kRounds || column * 8 >= BLOCK_UNITS) continue;
      char* const to = Numbers(step + 1) + row * kPitch +
                       (me_.rank * (BLOCK_UNITS / 8) + column) * kColumn;
#pragma unroll
      for (int peer = 0; peer < TEAM; ++peer) {
        StoreToPeer(MemoryOfPeer(peer), to, memory_.barriers + (step + 1) % 2,
                    chunk);
      }
    }
  }

  PeerMemory peers_[kPeers];
};

// Blocks of another team fetch what others have sent through a ring.
class GridStates : public TeamStates {
 public:
  GridStates(const Thread& me, const ForwardMemory& memory, TeamMemory& of_team)
      : TeamStates(me, memory, of_team), ring_(of_team) {}
  char* Numbers(int) const { return memory_.states; }
  void Join() const { SynchronizeOperands(); }
  // Fetches a piece of the slice of the h that a step's products read, of
  // [kRows, all units]. Other rows than those of sequences stay zero.
  void Receive(int step, int piece) const {
    if (step == 0) return;
    constexpr int kInRow = kSliceUnits / kUnits;
    constexpr int kOfRow =
        Weights::kPieces == 1 ? kInRow : kPairs / Weights::kPieces * 4;
    constexpr int kOfThread = (kRows * kOfRow + kThreads - 1) / kThreads;
    // Beside the weights, the registers have room for this many chunks.
    constexpr int kMost = kItems == 1 ? 4 : 8;
    constexpr int kAtOnce = kOfThread < kMost ? kOfThread : kMost;
    const int end = rows_ * kOfRow;
    const char* const place =
        ring_.PlaceOf(step - 1) + me_.slice * (kInRow * 16);
#pragma unroll 1
    for (int first = me_.index; first < end; first += kAtOnce * kThreads) {
      const char* from[kAtOnce];
      Chunk chunks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        const int column = piece * kOfRow + at % kOfRow;
        const int chunk = kOfRow == kInRow && !kHasBands
                              ? at
                              : at / kOfRow * (SLICES * kInRow) + column;
        from[i] = at < end && column < kInRow ? place + chunk * 16 : nullptr;
      }
      ::Receive(from, IsSent, chunks);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * kThreads;
        if (from[i] == nullptr) continue;
        *reinterpret_cast<Chunk*>(memory_.states + at / kOfRow * kPitch +
                                  (piece * kOfRow + at % kOfRow) * kColumn) =
            chunks[i];
      }
    }
    SynchronizeOperands();
  }
  void Send(int step, const float* h) const {
#pragma unroll
    for (int round = 0; round < kRounds; round += kNeighbours) {
      const Cell cell(round, me_.index);
      const Chunk chunk = ChunkOf(cell, h + round);
      const int unit = me_.rank * BLOCK_UNITS + cell.unit;
      if (!cell.exists || me_.lane % kLanes != 0 || cell.row >= rows_) continue;
      ring_.Send(
          step,
          (cell.row * kShape.all_units() + unit) * kShape.operand_item_bytes(),
          chunk);
    }
  }
  void EndStep(int step) const { ring_.EndStep(step); }
  void EndShare(int steps) { ring_.EndShare(steps > 0 ? steps - 1 : 0); }

 private:
  ClearedRing<kStepBytes> ring_;
};

using States = Choice<IS_CLUSTER, ClusterStates, GridStates>::Type;

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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_FORWARD_EXCHANGE_CUH_
