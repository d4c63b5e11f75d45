// What a block of the forward kernel has in shared memory, and the h that it
// exchanges with its team.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STATES_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STATES_CUH_

#include "exchange.cuh"
#include "powers.cuh"
#include "weights.cuh"

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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_STATES_CUH_
