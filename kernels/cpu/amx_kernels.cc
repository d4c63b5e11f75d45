// Products of bfloat16 numbers with Intel's AMX. Its registers hold matrices of
// 16 rows by 64 bytes, and one instruction multiplies two such matrices. The
// build compiles this file with the flags and definitions of simd_kernels.cc
// for AVX-512 with BF16, but with another CRNN_SIMD_NAME.
#include "kernels/cpu/simd_kernels.h"

#ifdef CRNN_HAS_AMX
#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace avx512bf16 {
const SimdTable& Table();
}
namespace CRNN_SIMD_NAME {
namespace {

// Only these functions use the instructions, so no flag of the compiler is
// needed, which an older one might not know.
#define CRNN_AMX __attribute__((target("amx-tile,amx-bf16")))

constexpr int64_t kRegisterRows = 16;
constexpr int64_t kPairs = 16;
// A tile of two registers' rows reads each part of a panel once for both.
constexpr int64_t kMaxRows = 2 * kRegisterRows;

CRNN_AMX void Configure() {
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Configuration configuration;
  _tile_loadconfig(&configuration);
}

CRNN_AMX void Release() { _tile_release(); }

// A panel has one or two vectors.
template <int vectors>
constexpr int64_t kPanelRow = vectors * kWidth<float>;
template <int vectors>
constexpr int64_t kPanelBytes = kPanelRow<vectors> * sizeof(float);

// Writes the products of so many registers of rows of A with the panel's
// vectors to `sums`. The sums are in registers 0 to 3. Loads and products come
// by turns, and the rows of the panel are fetched two steps ahead, because in
// the slow state that docs/internals/cpu.md describes, loads that follow each
// other or miss the L1 cache keep products waiting.
template <int registers, int vectors>
CRNN_AMX void Multiply(int64_t depth, const BfloatPair* a, int64_t a_stride,
                       const BfloatPair* panel, float* sums) {
  constexpr int64_t kStep = kPairs * kPanelRow<vectors>;
  // Each product fetches its share of a step's cache lines.
  constexpr int kFetched = kPairs / registers;
  const int64_t a_bytes = a_stride * static_cast<int64_t>(sizeof(BfloatPair));
  _tile_zero(0);
  if constexpr (registers > 1) _tile_zero(1);
  if constexpr (vectors > 1) _tile_zero(2);
  if constexpr (registers > 1 && vectors > 1) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kPairs) {
    const BfloatPair* ahead = panel + 2 * kStep;
    const auto fetch = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < kFetched; ++i, ahead += kWidth<float>) {
        __builtin_prefetch(ahead);
      }
    };
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, panel, kPanelBytes<vectors>);
    fetch();
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (registers > 1) {
      _tile_loadd(5, a + kRegisterRows * a_stride + k, a_bytes);
      fetch();
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (vectors > 1) {
      _tile_loadd(7, panel + kWidth<float>, kPanelBytes<vectors>);
      fetch();
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (registers > 1 && vectors > 1) {
      fetch();
      _tile_dpbf16ps(3, 5, 7);
    }
    panel += kStep;
  }
  float* const second_sums = sums + kRegisterRows * kPanelRow<vectors>;
  _tile_stored(0, sums, kPanelBytes<vectors>);
  if constexpr (registers > 1) {
    _tile_stored(1, second_sums, kPanelBytes<vectors>);
  }
  if constexpr (vectors > 1) {
    _tile_stored(2, sums + kWidth<float>, kPanelBytes<vectors>);
  }
  if constexpr (registers > 1 && vectors > 1) {
    _tile_stored(3, second_sums + kWidth<float>, kPanelBytes<vectors>);
  }
}

template <int vectors>
void Tile(int64_t rows, int64_t depth, const BfloatPair* a, int64_t a_stride,
          const BfloatPair* panel, const float* const* init, float* const* c,
          int64_t col, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      __builtin_prefetch(c[r] + col + v * kWidth<float>, /*for writing*/ 1);
    }
  }
  alignas(64) float sums[kMaxRows * kPanelRow<vectors>];
  if (rows <= kRegisterRows) {
    Multiply<1, vectors>(depth, a, a_stride, panel, sums);
  } else {
    Multiply<2, vectors>(depth, a, a_stride, panel, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = sums + r * kPanelRow<vectors>;
    ForVectors<float>(cols, [&](auto memory, int64_t j) {
      Floats sum = Whole::Load(row + j);
      if (init != nullptr) sum += memory.Load(init[r] + col + j);
      memory.Store(c[r] + col + j, sum);
    });
  }
}

}  // namespace

const SimdTable& Table() {
  static const SimdTable table = [] {
    SimdTable table = avx512bf16::Table();
    table.name = "amx";
    table.bfloat16_rows = kRegisterRows;
    table.bfloat16_depth = 2 * kPairs;
    table.matrices = {
        Configure, Release, kMaxRows, {nullptr, Tile<1>, Tile<2>}};
    return table;
  }();
  return table;
}

}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CRNN_HAS_AMX
