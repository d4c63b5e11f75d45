// As weights.cuh, where four warps, a warpgroup, multiply 64 rows of the
// weights together, by all sequences. The tensor cores then read the operands
// in shared memory on their own, once for all sequences.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WARPGROUP_WEIGHTS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WARPGROUP_WEIGHTS_CUH_

#include "common.cuh"

// Each warp has 16 rows of its warpgroup's tiles, and a lane has those rows and
// sums of them that it has in weights.cuh. In shared memory, operands lie in
// columns of 16 bytes, in which rows follow one another.
//
// A sum's pairs are multiplied in kPieces parts, so that one part's products
// hide the wait for the next part's numbers.
class Weights {
 public:
  static constexpr int kHeld = RESIDENT_PAIRS > 0 ? RESIDENT_PAIRS : 1;
  using Held = Chunk[kHeld][kTiles][2];
  static constexpr int kPieces =
      !kIsBackward && !IS_CLUSTER && kPairs % 2 == 0 ? 2 : 1;
  // In a backward pass, there are too few registers for the sums of more tiles.
  static constexpr int kAtOnce = kIsBackward && kTiles > 2 ? 2 : kTiles;
  struct Products {
    float sums[4] = {};
    void Total(int, float* total) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] = sums[j];
    }
  };
  using Sums = Products[ROW_TILES][kAtOnce];

  Weights(void* memory, int thread)
      : tiles_(static_cast<Chunk*>(memory) + thread / 128 * kTiles * 256),
        lane_(thread % 32),
        place_(lane_ % 4 * 64 + thread / 32 % 4 * 16 + lane_ / 4) {}

  void StoreShared(int pair, int i, const Chunk (&rows)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      TileAt(pair, i)[place_ + 8 * half] = rows[half];
    }
  }
  // Lane t of a quad gets the words t of all four lanes' chunks.
  void Arrange(Held& held) const {
#pragma unroll
    for (int i = 0; i < RESIDENT_PAIRS * kTiles * 2; ++i) {
      Chunk& own = held[i / (2 * kTiles)][i / 2 % kTiles][i % 2];
      const Chunk loaded = own;
#pragma unroll
      for (int from = 0; from < 4; ++from) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const Word word = ShuffleFrom(loaded.word[t], lane_ / 4 * 4 + from);
          if (lane_ % 4 == t) own.word[from] = word;
        }
      }
    }
  }

  // Multiplies kAtOnce tiles. The sums are there once the last piece is done.
  // Calls `meanwhile`.
  template <typename Meanwhile>
  void Multiply(const Held& held, const Multiplicand& by, Sums& sums,
                const Meanwhile& meanwhile) const {
    constexpr int kColumnOfTile = 64 * 16;
    const WideOperand columns(by.numbers, kColumn);
    const WideOperand of_tiles(TileAt(RESIDENT_PAIRS, 0), kColumnOfTile);
    BeginWide(sums);
#pragma unroll
    for (int i = 0; i < kPairs / kPieces * 2; ++i) {
      const int pair = by.piece * (kPairs / kPieces) + i / 2, half = i % 2;
      const WideOperand b(columns, (pair * 4 + half * 2) * kColumn);
#pragma unroll
      for (int tile = by.first_tile; tile < by.first_tile + kAtOnce; ++tile) {
        if (tile >= kTiles) continue;
        if (pair >= RESIDENT_PAIRS) {
          const int at = (pair - RESIDENT_PAIRS) * kTilesOfBlock + tile;
          const WideOperand a(of_tiles, (at * 4 + half * 2) * kColumnOfTile);
          MultiplyWide(sums, tile - by.first_tile, a, b);
        } else {
          const Chunk(&own)[2] = held[pair < kHeld ? pair : 0][tile];
          MultiplyWide(sums, tile - by.first_tile, own[0].word[2 * half],
                       own[1].word[2 * half], own[0].word[2 * half + 1],
                       own[1].word[2 * half + 1], b);
        }
      }
    }
    EndWide();
    meanwhile();
    if (by.piece == kPieces - 1) WaitForWide(sums);
  }

 private:
  static constexpr int kTilesOfBlock = WARPS / 4 * kTiles;
  Chunk* TileAt(int pair, int i) const {
    return tiles_ + ((pair - RESIDENT_PAIRS) * kTilesOfBlock + i) * 256;
  }

  Chunk* const tiles_;
  const int lane_, place_;
};

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_WARPGROUP_WEIGHTS_CUH_
