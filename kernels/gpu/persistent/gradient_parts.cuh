// What a block of the backward kernel has in shared memory, and the parts of
// gradients of h that it exchanges with its team.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GRADIENT_PARTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GRADIENT_PARTS_CUH_

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
// Where two blocks share a multiprocessor, the compiler would take a few
// registers too many.
constexpr bool kSharesMultiprocessor =
    kShape.backward_has_few_cells() && WARPS == 8 && RESIDENT_PAIRS == 0;

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
      const auto& sums = *reinterpret_cast<const SumsOfCells*>(
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
  struct alignas(4 * kNeighbours) SumsOfCells {
    float of[kNeighbours];
  };
  // The sums of the adders.
  float* Sums() const { return reinterpret_cast<float*>(memory_.parts); }

  MarkedRing<kStepBytes> ring_;
};

using GradientParts = Choice<IS_CLUSTER, ClusterParts, GridParts>::Type;

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_GRADIENT_PARTS_CUH_
