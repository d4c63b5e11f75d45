// A warp's share of its block's weights, and the products with it, forward and
// backward.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_

#if WARPGROUPS
#include "warpgroup_weights.cuh"
#else
#include "products.cuh"

// The share has kTiles tiles and kPairs pairs of each. Registers hold the first
// RESIDENT_PAIRS of these, and shared memory the others.
class Weights {
 public:
  static constexpr int kHeld = RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS : 1;
  static constexpr int kChains = kShape.Chains(kTiles);
  using Products = decltype(ProductsOfShape<kChains>());
  // A lane's operands in registers. The kernels keep them beside this object:
  // as a part of it, NVCC 13 spills more registers.
  using Held = Chunk[kHeld][kTiles][2];
  // A lane's sums for each group of 8 sequences and each tile.
  using Sums = Products[ROW_TILES][kTiles];
  // All tiles and pairs are multiplied at once, by one warp.
  static constexpr int kAtOnce = kTiles, kPieces = 1;

  // `memory` is shared memory for the weights of the block. The thread's number
  // comes as an int: with the unsigned one of threadIdx, NVCC 13 spills more
  // registers.
  Weights(void* memory, int thread)
      : shared_(static_cast<Chunk*>(memory) + thread / 32 * kTiles * 2 * 32 +
                thread % 32) {}

  // Adds the products to `sums`. Calls `meanwhile`.
  template <typename Meanwhile>
  void Multiply(const Held& held, const Multiplicand& by, Sums& sums,
                const Meanwhile& meanwhile) const {
    meanwhile();
#pragma unroll
    for (int position = 0; position < kPairs; ++position) {
      // Pairs in shared memory are spread among those in registers, so that the
      // products of one pair hide the loads of another.
      constexpr int kShared = kPairs - RESIDENT_PAIRS;
      const int before = position * kShared / kPairs;
      const bool is_shared = (position + 1) * kShared / kPairs > before;
      const int pair = is_shared ? RESIDENT_PAIRS + before : position - before;
      Products::Columns of_sequences[ROW_TILES];
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) {
        of_sequences[n].Load(by.numbers + n * 8 * kPitch + pair * 64,
                             by.lane / 4, by.lane % 4);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Chunk chunks[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          chunks[half] = is_shared ? SharedAt(pair, i, half)
                                   : held[pair < kHeld ? pair : 0][i][half];
        }
        if (!kStoresArranged || !is_shared) Products::Arrange(chunks);
        const Products::Tile of_tile(chunks);
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
          sums[n][i].Add(of_tile, of_sequences[n], position);
        }
      }
    }
  }

  // Stores a lane's operands in a tile's two rows of a pair that registers do
  // not hold.
  void StoreShared(int pair, int i, Chunk (&rows)[2]) const {
    if (kStoresArranged) Products::Arrange(rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) SharedAt(pair, i, half) = rows[half];
  }
  // Brings loaded operands into the order of products.
  static void Arrange(Held&) {}

 private:
  // Whether shared memory has arranged operands: what is loaded at once lies in
  // neighbouring registers, and to arrange it takes as many instructions as
  // products do. In clusters, where registers hold most weights, such backward
  // steps of 512 units and 32 sequences took 6 % longer.
  static constexpr bool kStoresArranged = !IS_CLUSTER;
  Chunk& SharedAt(int pair, int i, int half) const {
    return shared_[(((pair - RESIDENT_PAIRS) * WARPS * kTiles + i) * 2 + half) *
                   32];
  }

  Chunk* const shared_;
};
#endif

// Loads the operands of all weights. `load(pair, tile, half)` returns those of
// a lane in the upper eight rows of a tile or, if `half` is 1, in the lower
// ones. While it waits for memory, it takes a register for each number, or for
// each word if it loads whole chunks.
//
// The loads of several chunks are under way at the same time, since the
// compiler moves no load before a store. So an LSTM of 256 units, 2048
// sequences and 30 steps runs forward in 262 µs in float16 on an H200, where it
// took 297. As there are most registers before these hold weights, those of
// shared memory come first.
template <bool kLoadsChunks, typename Function>
static void LoadAll(const Function& load, const Weights& weights,
                    Weights::Held& held) {
  constexpr int kRegisters = 4 * kOperands / (kLoadsChunks ? kItems : 1);
  constexpr int kMost = 64 / kRegisters, kOfPair = 2 * kTiles;
  constexpr int kPairsAtOnce =
      (kPairs - RESIDENT_PAIRS) % 2 == 0 && 2 * kOfPair <= kMost ? 2 : 1;
#pragma unroll 1
  for (int pair = RESIDENT_PAIRS; pair < kPairs; pair += kPairsAtOnce) {
#pragma unroll
    for (int first = 0; first < kPairsAtOnce * kOfPair; first += kMost) {
      Chunk chunks[kMost / 2][2];
#pragma unroll
      for (int i = first; i < first + kMost; ++i) {
        if (i >= kPairsAtOnce * kOfPair) continue;
        chunks[(i - first) / 2][i % 2] =
            load(pair + i / kOfPair, i % kOfPair / 2, i % 2);
      }
#pragma unroll
      for (int i = first; i < first + kMost; i += 2) {
        if (i >= kPairsAtOnce * kOfPair) continue;
        weights.StoreShared(pair + i / kOfPair, i % kOfPair / 2,
                            chunks[(i - first) / 2]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < RESIDENT_PAIRS * kOfPair; ++i) {
    held[i / kOfPair][i % kOfPair / 2][i % 2] =
        load(i / kOfPair, i % kOfPair / 2, i % 2);
  }
  weights.Arrange(held);
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_
