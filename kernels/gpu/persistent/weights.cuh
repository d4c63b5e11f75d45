// A warp's share of its block's weights, and the products with it, forward and
// backward.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_

#include "common.cuh"

// The share has kTiles tiles and kPairs pairs of each. Registers hold the first
// RESIDENT_PAIRS of these, and shared memory the others.
template <int kPairs, int kTiles>
class WarpWeights {
 public:
  static constexpr int kHeld = RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS : 1;
  static constexpr int kChains = kShape.Chains(kTiles);
  // A lane's operands in registers. The kernels keep them beside this object:
  // as a part of it, NVCC 13 spills more registers.
  using Held = Chunk[kHeld][kTiles][2];
  // A lane's sums, as those of MultiplyAdd, for each group of 8 sequences, each
  // tile and each chain.
  using Sums = float[ROW_TILES][kTiles][kChains][4];

  // `memory` is shared memory for the weights of the block. The thread's number
  // comes as an int: with the unsigned one of threadIdx, NVCC 13 spills more
  // registers.
  __device__ WarpWeights(void* memory, int thread)
      : shared_(static_cast<Chunk*>(memory) + thread / 32 * kTiles * 2 * 32 +
                thread % 32) {}

  // `load(pair, tile, half)` returns the lane's operands in the upper eight
  // rows of a tile or, if `half` is 1, in the lower ones. Those of `kAtOnce`
  // pairs are loaded for shared memory at the same time.
  template <int kAtOnce, typename Function>
  __device__ void Load(const Function& load, Held& held) const {
#pragma unroll
    for (int pair = 0; pair < RESIDENT_PAIRS; ++pair) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        held[pair][i][0] = load(pair, i, 0);
        held[pair][i][1] = load(pair, i, 1);
      }
    }
#pragma unroll kAtOnce
    for (int pair = RESIDENT_PAIRS; pair < kPairs; ++pair) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        SharedAt(pair, i, 0) = load(pair, i, 0);
        SharedAt(pair, i, 1) = load(pair, i, 1);
      }
    }
  }

  // Multiplies the weights by numbers in shared memory, and adds the products
  // to `sums`. `numbers` is where the lane reads the first pair of the first
  // group of sequences, which are `pitch` bytes apart.
  __device__ void Multiply(const Held& held, const char* numbers, int pitch,
                           Sums& sums) const {
#pragma unroll
    for (int position = 0; position < kPairs; ++position) {
      // Pairs in shared memory are spread among those in registers, so that the
      // products of one pair hide the loads of another.
      constexpr int kShared = kPairs - RESIDENT_PAIRS;
      const int before = position * kShared / kPairs;
      const bool is_shared = (position + 1) * kShared / kPairs > before;
      const int pair = is_shared ? RESIDENT_PAIRS + before : position - before;
      Chunk of_sequences[ROW_TILES];
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n) {
        of_sequences[n] = *reinterpret_cast<const Chunk*>(
            numbers + n * 8 * pitch + pair * 64);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Chunk upper, lower;
        if (is_shared) {
          upper = SharedAt(pair, i, 0);
          lower = SharedAt(pair, i, 1);
        } else {
          upper = held[pair < kHeld ? pair : 0][i][0];
          lower = held[pair < kHeld ? pair : 0][i][1];
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            // Products that follow one another go to different chains.
            const int chain = (2 * position + half) % kChains, w = 2 * half;
            MultiplyAdd(sums[n][i][chain], upper.word[w], lower.word[w],
                        upper.word[w + 1], lower.word[w + 1],
                        of_sequences[n].word[w], of_sequences[n].word[w + 1]);
          }
        }
      }
    }
  }

 private:
  __device__ Chunk& SharedAt(int pair, int i, int half) const {
    return shared_[(((pair - RESIDENT_PAIRS) * WARPS * kTiles + i) * 2 + half) *
                   32];
  }

  Chunk* const shared_;
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WEIGHTS_CUH_
