// Operands of products: the data's numbers as the tensor cores read them.
//
// Where TF32 is allowed and h has a bound, floats are multiplied in float16,
// which has as many bits of a fraction as TF32, but a narrow range. So before
// they are rounded, numbers are multiplied by powers of two, by which the sums
// of products are divided (docs/internals/gpu_kernels.md, TF32). Each row of
// the weights has a power of its own, and so has each sequence's h or, in the
// backward pass, the gradients of a block's gates in a step.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_POWERS_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_POWERS_CUH_

#include "exchange.cuh"
#include "scales.cuh"

constexpr bool kHasPowers = PRODUCTS == Shape::kHalves;
// The h of a cell that reads h, as a GRU or any with zoneout, is within its
// first h and 1. That of other cells with powers is within 1 after the first
// step.
constexpr bool kKeepsPowers = CellType::kReadsH;

// Tells whether rows, of which this is one, begin at multiples of 16 bytes.
static bool IsAligned(const void* row) {
  return NUM_UNITS * sizeof(Item) % 16 == 0 &&
         reinterpret_cast<unsigned long long>(row) % 16 == 0;
}

// Loads chunks of a row of the data's numbers, `stride` columns apart. What is
// past the last column, or in no row, is zero. All loads are under way at the
// same time and, if the row is known to be aligned, those of other calls, too.
template <bool kIsAligned, int kChunks>
static void LoadOfRow(const Item* row, int column, int stride,
                      Chunk (&chunks)[kChunks]) {
  if (kIsAligned || IsAligned(row)) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int at = column + i * stride;
      const bool exists = row != nullptr && at < NUM_UNITS;
      chunks[i] = LoadChunk(exists ? row + at : row, exists);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float values[kItems];
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const int at = column + i * stride + j * kItems + e;
        values[e] = row != nullptr && at < NUM_UNITS ? ToFloat(row[at]) : 0.0f;
      }
      chunks[i].word[j] = ToWord(values);
    }
  }
}

// The operands that a chunk of the data has.
struct alignas(16 * kItems / kOperands) Operands {
  Word word[4 * kItems / kOperands];

  Operands(const Chunk& data, float scale) {
#pragma unroll
    for (int j = 0; j < 4 * kItems / kOperands; ++j) {
      if (kItems == 2) {
        word[j] = data.word[j];
        continue;
      }
      float values[kOperands];
#pragma unroll
      for (int e = 0; e < kOperands; ++e) {
        values[e] = scale * __uint_as_float(data.word[j * kOperands + e]);
      }
      word[j] = ToOperands(values);
    }
  }
};

// Finds the powers of rows of floats, whose addresses `row_of` returns; null
// stands for zeros. What is infinite or no number counts for nothing. A power
// is at least that of `least`. All threads of the block call this together.
template <int kCount, typename RowOf>
static void FindPowers(const Thread& me, const RowOf& row_of, float least,
                       float* powers) {
  // As many lanes share a row as let the block's threads have all rows at once.
  constexpr int kLanes = kCount * 32 <= kThreads   ? 32
                         : kCount * 16 <= kThreads ? 16
                         : kCount * 8 <= kThreads  ? 8
                                                   : 4;
  constexpr int kChunk = 4 * kItems, kAtOnce = 8;
  for (int first = 0; first < kCount; first += kThreads / kLanes) {
    const int i = first + me.index / kLanes;
    const Item* const row = i < kCount ? row_of(i) : nullptr;
    // Compared as words, they change what registers zoneout's steps have.
    float largest = least;
    for (int column = me.index % kLanes * kChunk; column < NUM_UNITS;
         column += kAtOnce * kLanes * kChunk) {
      Chunk chunks[kAtOnce];
      LoadOfRow<false>(row, column, kLanes * kChunk, chunks);
#pragma unroll
      for (int j = 0; j < 4 * kAtOnce; ++j) {
        const Word word = chunks[j / 4].word[j % 4];
        const float magnitude = fabsf(__uint_as_float(word));
        const bool is_finite = magnitude < __uint_as_float(0xFFu << 23);
        largest = fmaxf(largest, is_finite ? magnitude : 0.0f);
      }
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      largest = fmaxf(largest, ShuffleXor(largest, lanes));
    }
    if (i < kCount && me.index % kLanes == 0) {
      powers[i] = PowerOf(__float_as_uint(largest));
    }
  }
}

// Finds the powers of the rows of the weights that a block multiplies. Each
// block of a band finds those of its own units' rows, and tells the others
// through the team's memory, in which all bits were set.
template <typename RowOf>
static void FindRowPowers(const Thread& me, const RowOf& row_of,
                          TeamMemory& of_team, float* powers) {
  constexpr int kOwnRows = BLOCK_UNITS * SLOTS, kChunks = kOwnRows / 4;
  const int first = me.slice * kOwnRows;
  FindPowers<kOwnRows>(
      me, [&](int i) { return row_of(first + i); }, 0.0f, powers + first);
  SynchronizeBlock();
  if (!kHasBands) return;
  Chunk* const chunks = reinterpret_cast<Chunk*>(powers);
  char* const of_band =
      of_team.Take(TEAM * kChunks * 16) + me.band * (SLICES * kChunks * 16);
  for (int i = me.index; i < kChunks; i += kThreads) {
    const int at = me.slice * kChunks + i;
    StoreForOthers(of_band + at * 16, chunks[at]);
  }
  for (int i = me.index; i < SLICES * kChunks; i += kThreads) {
    const char* const from[1] = {of_band + i * 16};
    Chunk sent[1];
    Receive(from, IsSent, sent);
    chunks[i] = sent[0];
  }
  SynchronizeBlock();
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_POWERS_CUH_
