// The inner loops of matrix products: see SimdKernels. Only simd_kernels.cc
// includes this file.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_LOOPS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_LOOPS_H_

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/simd_math.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

constexpr int kPanelVectors = 2;
static_assert(sizeof(SimdMatrices::tile) / sizeof(SimdMatrices::Tile) >
                  kPanelVectors,
              "");
constexpr int kTileRows = SimdKernels<float>::kTileRows;
constexpr bool kIsAvx512 = CRNN_SIMD_BYTES == 64;

// Returns the most vectors of a tile with so many rows. A tile needs registers
// for its sums, a row of the panels, and one factor of its rows. 6 rows by 4
// vectors take 29 of AVX-512's 32 registers, and tall tiles of 12 rows by 2
// vectors take 27. 6 rows by 2 vectors take 15 of the 16 that AVX2 and SSE
// have. (Tiles that split pairs of the panel into floats take more.) A sum
// takes a new product every four cycles, in which a core computes eight vectors
// of products, so a tile of one or two rows has vectors until it has eight
// sums. With AVX-512, more than four gain nothing, since reading the panels
// takes as long.
constexpr int MostVectors(int rows) {
  if (kIsAvx512) return rows <= kTileRows ? 4 : 2;
  return rows == 1 ? 8 : rows == 2 ? 4 : rows <= kTileRows ? 2 : 0;
}

// The factor from A that a row of a panel is multiplied with. If the panel has
// pairs but A does not, it consists of two numbers of A.
template <typename Panel, typename A>
struct Factor {
  A number;
  Factor(const A* a, int64_t) : number(*a) {}
};
template <>
struct Factor<BfloatPair, float> {
  float even, odd = 0.0f;
  explicit Factor(const float* a) : even(*a) {}
  Factor(const float* a, int64_t stride) : even(*a), odd(a[stride]) {}
};

// Returns sum + x * b.
template <typename T>
inline Vector<T> AddProduct(Vector<T> sum, Factor<T, T> x, Vector<T> b) {
  return sum + x.number * b;
}
inline Floats AddProduct(Floats sum, Factor<BfloatPair, float> x, Words b) {
  // A bfloat16 number is the upper half of a float.
  sum += x.even * (Floats)(b << 16);
  return sum + x.odd * (Floats)(b & 0xffff0000u);
}
#ifdef __AVX512BF16__
inline Floats AddProduct(Floats sum, Factor<BfloatPair, BfloatPair> x,
                         Words b) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x.number, sizeof(bits));
  const Words pairs = Words{} + bits;
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pairs, (__m512bh)b);
}
#endif

template <typename T, typename A, typename Panel, int rows, int vectors>
void Tile(int64_t depth, const A* const* a, int64_t a_stride,
          const Panel* panel, int64_t panel_size, const T* const* init,
          T* const* c, int64_t col, int64_t cols) {
  Vector<T> sum[rows][vectors] = {};
  const A* row[rows];
  // A panel may be larger than the L1 cache. With much to multiply, fetching
  // its rows ahead costs nothing; with few rows of A, it would take the place
  // of other loads.
  constexpr bool kPrefetchesPanel = kIsAvx512 && rows >= 4;
  constexpr int64_t kNumbers = std::is_same<A, Panel>::value ? 1 : 2;
  constexpr int kRowVectors = vectors < kPanelVectors ? vectors : kPanelVectors;
  constexpr int64_t kPanelRow = kRowVectors * kWidth<T>;
  // Prefetches the places that the sums go to while the sums are computed.
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    row[r] = a[r];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      __builtin_prefetch(c[r] + col + v * kWidth<T>, /*for writing*/ 1);
    }
  }
  const auto add_row = [&](const auto& factor) __attribute__((always_inline)) {
    const auto address = [&](int v) {
      return panel + v / kRowVectors * panel_size + v % kRowVectors * kWidth<T>;
    };
    if constexpr (!kIsAvx512 && vectors > kPanelVectors) {
      // An array of so many vectors would take registers from the sums.
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        const auto b = Whole::Load(address(v));
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
          sum[r][v] = AddProduct(sum[r][v], factor(r), b);
        }
      }
      panel += kPanelRow;
      return;
    }
    decltype(Whole::Load(panel)) b[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      b[v] = Whole::Load(address(v));
      if constexpr (kPrefetchesPanel) {
        __builtin_prefetch(address(v) + 8 * kPanelRow);
      }
    }
    panel += kPanelRow;
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const auto x = factor(r);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        sum[r][v] = AddProduct(sum[r][v], x, b[v]);
      }
    }
  };
  int64_t offset = 0;
  for (int64_t k = 0; k + kNumbers <= depth; k += kNumbers) {
    add_row([&](int r) { return Factor<Panel, A>(row[r] + offset, a_stride); });
    offset += kNumbers * a_stride;
  }
  if constexpr (kNumbers == 2) {
    if (depth % 2 == 1) {
      add_row([&](int r) { return Factor<Panel, A>(row[r] + offset); });
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const int64_t first = col + v * kWidth<T>;
      const Rest rest = {cols - v * kWidth<T>};
      if (rest.count >= kWidth<T>) {
        if (init != nullptr) sum[r][v] += Whole::Load(init[r] + first);
        Whole::Store(c[r] + first, sum[r][v]);
      } else if (rest.count > 0) {
        if (init != nullptr) sum[r][v] += rest.Load(init[r] + first);
        rest.Store(c[r] + first, sum[r][v]);
      }
    }
  }
}

template <int vectors, int rows, typename T, typename A, typename Panel>
void SetTile(typename SimdKernels<T>::template Tiles<A, Panel>& tiles) {
  if constexpr (vectors <= MostVectors(rows)) {
    tiles[rows][vectors] = Tile<T, A, Panel, rows, vectors>;
  }
}

template <typename T, typename A, typename Panel, int... i>
void SetTiles(typename SimdKernels<T>::template Tiles<A, Panel>& tiles,
              std::integer_sequence<int, i...>) {
  (SetTile<1, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<2, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<4, i + 1, T, A, Panel>(tiles), ...);
  (SetTile<8, i + 1, T, A, Panel>(tiles), ...);
}

template <typename T>
struct ShuffleIndex;
template <>
struct ShuffleIndex<float> {
  using Type = Ints;
};
template <>
struct ShuffleIndex<double> {
  typedef int64_t Type __attribute__((vector_size(CRNN_SIMD_BYTES)));
};

// Interleaves the elements of one half of a and of b: the first half if `half`
// is 0, the second if it is 1.
template <typename T>
inline Vector<T> InterleaveHalf(int half, Vector<T> a, Vector<T> b) {
  typename ShuffleIndex<T>::Type index = {};
  for (int i = 0; i < kWidth<T>; ++i) {
    index[i] = (half * kWidth<T> + i) / 2 + i % 2 * kWidth<T>;
  }
  return __builtin_shuffle(a, b, index);
}

// Adds up the elements of each vector. Interleaving vector i with vector
// i + n / 2 halves the number of vectors; after the last round, the sums are in
// order.
template <typename T>
inline Vector<T> SumOfEach(Vector<T> (&v)[kWidth<T>]) {
#pragma GCC unroll 4
  for (int half = kWidth<T> / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      v[i] = InterleaveHalf<T>(0, v[i], v[i + half]) +
             InterleaveHalf<T>(1, v[i], v[i + half]);
    }
  }
  return v[0];
}

// Returns the sums over k of a[k] * column(j)[k], for as many columns j as a
// vector has elements.
template <typename T, typename Column>
inline Vector<T> ProductsWithColumns(int64_t depth, const T* a,
                                     const Column& column) {
  constexpr int kN = kWidth<T>;
  Vector<T> sum[kN] = {};
  const auto add = [&](int64_t k, const auto& load)
                       __attribute__((always_inline)) {
                         const Vector<T> x = load(a + k);
#pragma GCC unroll 16
                         for (int j = 0; j < kN; ++j)
                           sum[j] += x * load(column(j) + k);
                       };
  int64_t k = 0;
  for (; k + kN <= depth; k += kN) add(k, Whole::Load<T>);
  if (k == depth) return SumOfEach<T>(sum);
  if (depth < kN) {
    const Rest rest = {depth};
    add(0, [&](const T* from) { return rest.Load(from); });
  } else {
    // The last whole vector begins with elements that were added before.
    using Bits = typename ShuffleIndex<T>::Type;
    Bits is_new = {};
    for (int i = 0; i < kN; ++i) is_new[i] = depth - kN + i < k ? 0 : -1;
    add(depth - kN, [&](const T* from) {
      return (Vector<T>)((Bits)Whole::Load(from) & is_new);
    });
  }
  return SumOfEach<T>(sum);
}

template <typename T>
void Dots(int64_t depth, const T* a, const T* b, int64_t b_stride, int64_t cols,
          const T* init, T* c) {
  constexpr int kHalf = kWidth<T> / 2;
  if (cols == kWidth<T>) {
    // Two addresses and few multiples of the stride are few enough for
    // registers.
    const T* const halves[] = {b, b + kHalf * b_stride};
    Vector<T> sums = ProductsWithColumns<T>(
        depth, a, [&](int j) __attribute__((always_inline)) {
          return halves[j / kHalf] + j % kHalf * b_stride;
        });
    if (init != nullptr) sums += Whole::Load(init);
    return Whole::Store(c, sums);
  }
  const Rest rest = {cols};
  Vector<T> sums = ProductsWithColumns<T>(depth, a, [&](int j) {
    return b + (j < cols ? j : cols - 1) * b_stride;
  });
  if (init != nullptr) sums += rest.Load(init);
  rest.Store(c, sums);
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_PRODUCT_LOOPS_H_
