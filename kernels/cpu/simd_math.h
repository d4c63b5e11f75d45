// Vectors and the gates' functions on them. Only what simd_kernels.cc and
// amx_kernels.cc include uses this file, whose contents live in the namespace
// of the instruction set that it is compiled for.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_SIMD_MATH_H_
#define CUDNN_RNN_TF_KERNELS_CPU_SIMD_MATH_H_

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

template <typename T>
constexpr int64_t kWidth = CRNN_SIMD_BYTES / sizeof(T);

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(CRNN_SIMD_BYTES),
                                    aligned(alignof(float)), may_alias));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(CRNN_SIMD_BYTES),
                                     aligned(alignof(double)), may_alias));
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

using Floats = Vector<float>;
using Doubles = Vector<double>;
typedef int32_t Ints __attribute__((vector_size(CRNN_SIMD_BYTES)));
typedef uint32_t Words __attribute__((vector_size(CRNN_SIMD_BYTES),
                                      aligned(alignof(uint32_t)), may_alias));
// A Halves has as many elements as a Words.
typedef uint16_t Halves __attribute__((vector_size(CRNN_SIMD_BYTES / 2),
                                       aligned(alignof(uint16_t)), may_alias));
template <>
struct VectorOf<uint16_t> {
  using Type = Halves;
};
template <>
struct VectorOf<BfloatPair> {
  using Type = Words;
};

// A vector that is a variable. It has its natural alignment, which functions
// expect of pointers: the alignment of a Vector is no part of a template's
// argument.
template <typename T>
struct RegisterOf {
  typedef T Type __attribute__((vector_size(CRNN_SIMD_BYTES)));
};
template <typename T>
using Register = typename RegisterOf<T>::Type;

// Whole reads and writes a whole vector. Rest reads and writes only the `count`
// elements that are left at the end of a row.
struct Whole {
  template <typename T>
  static Vector<T> Load(const T* from) {
    return *reinterpret_cast<const Vector<T>*>(from);
  }
  template <typename T>
  static void Store(T* to, Vector<T> value) {
    *reinterpret_cast<Vector<T>*>(to) = value;
  }
  template <typename V>
  static V Only(V value) {
    return value;
  }
};
struct Rest {
  int64_t count;

  template <typename T>
  Vector<T> Load(const T* from) const {
    Vector<T> value = {};
    __builtin_memcpy(&value, from, count * sizeof(T));
    return value;
  }
  template <typename T>
  void Store(T* to, Vector<T> value) const {
    __builtin_memcpy(to, &value, count * sizeof(T));
  }
  // Returns zeros for the elements that are not read.
  template <typename V>
  V Only(V value) const {
    V only = {};
    __builtin_memcpy(&only, &value, count * sizeof(value[0]));
    return only;
  }
};

// Calls body(memory, j) for every vector of n units. `j` is the vector's first
// unit, and `memory` is the Whole or Rest to read and write it with.
template <typename T, typename Body>
inline __attribute__((always_inline)) void ForVectors(int64_t n,
                                                      const Body& body) {
  int64_t j = 0;
  for (; j + kWidth<T> <= n; j += kWidth<T>) body(Whole(), j);
  if (j < n) body(Rest{n - j}, j);
}

// Computes exp(x) as scale + scale * rest, for |x| up to 88. With x = n ln 2 +
// r and |r| <= ln 2 / 2, scale is 2^n and rest is exp(r) - 1, which keeps its
// digits if x is small. NaN passes through.
struct SplitExp {
  Floats scale, rest;

  explicit SplitExp(Floats x) {
    constexpr float kLog2E = 1.44269504f;
    // ln 2 is given in two parts. The first has so few bits that n times it is
    // exact.
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
    constexpr float kRound = 12582912.0f;
    const Floats shifted = x * kLog2E + kRound;
    const Floats n = shifted - kRound;
    const Floats r = (x - n * kLn2High) - n * kLn2Low;
    // This polynomial, which begins with r + r^2 / 2, is the one with the least
    // relative error: a quarter of a unit in the last place.
    Floats p = r * 1.38982247e-3f + 8.36604078e-3f;
    p = p * r + 0.0416668542f;
    p = p * r + 0.166665487f;
    p = p * r + 0.5f;
    rest = p * (r * r) + r;
    // Shifts n to the place of a float's exponent and adds it to the exponent
    // of 1. This is done in unsigned integers because it overflows if x is NaN,
    // which signed integers must not do.
    scale = (Floats)(((Words)shifted << 23) + (127u << 23));
  }
};

// AtMost returns the smaller one of x and a limit, AtLeast the larger one. If a
// number is NaN, the instructions return their second operand, so x comes
// second and NaN passes through. A comparison and a choice would take two
// instructions.
inline Floats AtMost(Floats x, float limit) {
#ifdef __AVX512F__
  return (Floats)_mm512_min_ps(_mm512_set1_ps(limit), (__m512)x);
#elif defined(__F16C__)
  return (Floats)_mm256_min_ps(_mm256_set1_ps(limit), (__m256)x);
#else
  return x > limit ? Floats{} + limit : x;
#endif
}
inline Floats AtLeast(Floats x, float limit) {
#ifdef __AVX512F__
  return (Floats)_mm512_max_ps(_mm512_set1_ps(limit), (__m512)x);
#elif defined(__F16C__)
  return (Floats)_mm256_max_ps(_mm256_set1_ps(limit), (__m256)x);
#else
  return x < limit ? Floats{} + limit : x;
#endif
}

// Limits x to the range of SplitExp; beyond it, the result no longer changes.
inline Floats Sigmoid(Floats x) {
  const SplitExp exp(-AtLeast(AtMost(x, 88.0f), -88.0f));
  return 1.0f / (exp.scale * exp.rest + (exp.scale + 1.0f));
}

// Computes (1 - exp(-2 |x|)) / (1 + exp(-2 |x|)) and gives it the sign of x.
inline Floats Tanh(Floats x) {
  constexpr int32_t kSign = INT32_MIN;
  const Floats y = 2.0f * (Floats)((Ints)x | kSign);
  const SplitExp exp(AtLeast(y, -20.0f));
  const Floats magnitude = ((1.0f - exp.scale) - exp.scale * exp.rest) /
                           ((1.0f + exp.scale) + exp.scale * exp.rest);
  return (Floats)((Ints)magnitude | ((Ints)x & kSign));
}

// Computes exp(x) - 1, for x up to 0.
inline Floats ExpMinus1(Floats x) {
  const SplitExp exp(AtLeast(x, -88.0f));
  return exp.scale * exp.rest + (exp.scale - 1.0f);
}

inline Doubles Sigmoid(Doubles x) {
  for (int64_t i = 0; i < kWidth<double>; ++i) {
    x[i] = 1.0 / (1.0 + __builtin_exp(-x[i]));
  }
  return x;
}
inline Doubles Tanh(Doubles x) {
  for (int64_t i = 0; i < kWidth<double>; ++i) x[i] = __builtin_tanh(x[i]);
  return x;
}
inline Doubles ExpMinus1(Doubles x) {
  for (int64_t i = 0; i < kWidth<double>; ++i) x[i] = __builtin_expm1(x[i]);
  return x;
}

// The half types are converted by arithmetic on bits or, with AVX2 and AVX-512,
// by instructions for float16. Neither depends on whether the thread treats
// denormal floats as zeros.

#ifdef __AVX512F__
inline Floats FromFloat16(Halves half) {
  return (Floats)_mm512_cvtph_ps((__m256i)half);
}
inline Halves ToFloat16(Floats x) {
  return (Halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__)
inline Floats FromFloat16(Halves half) {
  return (Floats)_mm256_cvtph_ps((__m128i)half);
}
inline Halves ToFloat16(Floats x) {
  return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
}
#else
// Converts the magnitude and adds the sign at the end. Once a float16's
// exponent is shifted to a float's place, the number is 2^-112 of its value, so
// 112 is added to the exponent. A denormal float16 is a multiple of 2^-24. It
// is computed by a subtraction that has no denormal float in it, since a thread
// may treat these as zeros.
inline Floats FromFloat16(Halves half) {
  const Words bits = __builtin_convertvector(half, Words);
  const Words magnitude = (bits & 0x7fff) << 13;
  Words normal = magnitude + (112u << 23);
  // Infinity and NaN get the largest exponent of a float.
  normal += magnitude >= (31u << 23) ? Words{} + (112u << 23) : Words{};
  const Floats tiny = (Floats)(magnitude + (113u << 23)) - 6.103515625e-05f;
  const Words value = magnitude < (1u << 23) ? (Words)tiny : normal;
  return (Floats)(value | (bits & 0x8000) << 16);
}

inline Halves ToFloat16(Floats x) {
  const Words bits = (Words)x;
  const Words magnitude = bits & 0x7fffffff;
  // To round to the nearest float16, and a tie to the even one, this adds half
  // a unit of float16's last place, less one, plus the last place's bit.
  const Words rounded =
      magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1);
  Words half = rounded >> 13;
  // Below float16's normal numbers, adding 0.5 rounds to a multiple of 2^-24.
  const Words tiny = (Words)((Floats)magnitude + 0.5f) - (126u << 23);
  half = magnitude < (113u << 23) ? tiny : half;
  half = magnitude >= (143u << 23) ? Words{} + 0x7c00 : half;
  half = magnitude > (255u << 23) ? Words{} + 0x7e00 : half;
  return __builtin_convertvector(half | (bits >> 16 & 0x8000), Halves);
}
#endif

inline Floats FromBfloat16(Halves half) {
  return (Floats)(__builtin_convertvector(half, Words) << 16);
}

inline Words RoundToBfloat16(Floats x) {
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Words nan = (bits >> 16 & 0x8000) | 0x7fc0;
  return (bits & 0x7fffffff) > (255u << 23) ? nan : rounded;
}
inline Halves ToBfloat16(Floats x) {
  return __builtin_convertvector(RoundToBfloat16(x), Halves);
}

}  // namespace
}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_SIMD_MATH_H_
