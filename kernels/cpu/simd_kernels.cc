// Compiled once per instruction set, with CRNN_SIMD_NAME (the namespace) and
// CRNN_SIMD_BYTES (the vector's width) set by the build.
#include "kernels/cpu/simd_kernels.h"

namespace cudnn_rnn_tf {
namespace CRNN_SIMD_NAME {
namespace {

// 3 vectors by 8 rows fill AVX-512's 32 registers and 3 by 4 AVX2's 16; SSE has
// 16 of its own but no fused multiply-add, hence needs temporaries.
constexpr int kVectors = CRNN_SIMD_BYTES > 16 ? 3 : 2;
constexpr int kRows = CRNN_SIMD_BYTES == 64 ? 8 : 4;
constexpr int kPanelBytes = 24 * 1024;

template <typename T>
struct VectorOf {
  typedef T Type
      __attribute__((vector_size(CRNN_SIMD_BYTES), aligned(alignof(T))));
};

template <typename T, int rows>
void Gemm(int64_t depth, const T* a, int64_t a_row_stride, int64_t a_col_stride,
          const T* panel, T* c, int64_t c_row_stride, int64_t cols,
          bool accumulate) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int kWidth = CRNN_SIMD_BYTES / sizeof(T);
  constexpr int kCols = kVectors * kWidth;
  Vector sum[rows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vector b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      b[v] = *reinterpret_cast<const Vector*>(panel + v * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const T x = a[r * a_row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * b[v];
    }
    a += a_col_stride;
    panel += kCols;
  }
  if (cols == kCols) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      Vector* out = reinterpret_cast<Vector*>(c + r * c_row_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        out[v] = accumulate ? out[v] + sum[r][v] : sum[r][v];
      }
    }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    T spilled[kCols];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Vector*>(spilled + v * kWidth) = sum[r][v];
    }
    T* out = c + r * c_row_stride;
    for (int64_t j = 0; j < cols; ++j) {
      out[j] = accumulate ? out[j] + spilled[j] : spilled[j];
    }
  }
}

// exp(x) by x = n ln 2 + r, |r| <= ln 2 / 2: a Taylor polynomial in r, whose
// remainder r^8 / 8! is below half a unit in the last place, times 2^n.
// Saturates at the ends of float's normal range; NaN passes through.
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts; the first has few enough bits that n times it is exact.
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  union {
    int32_t bits;
    float value;
  } power = {(static_cast<int32_t>(n) + 127) << 23};
  return p * power.value;
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Near 0, where 1 - 2 / (exp(2 x) + 1) would cancel, the Taylor series of tanh
// up to x^13: below 0.4 its remainder is under float's resolution.
inline float Tanh(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float z = x * x;
  float p = 21844.0f / 6081075.0f;
  p = p * z - 1382.0f / 155925.0f;
  p = p * z + 62.0f / 2835.0f;
  p = p * z - 17.0f / 315.0f;
  p = p * z + 2.0f / 15.0f;
  p = p * z - 1.0f / 3.0f;
  const float near = x + x * (z * p);
  const float far = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.4f ? near : (x < 0.0f ? -far : far);
}

inline double Sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
inline double Tanh(double x) { return __builtin_tanh(x); }

// A NaN stays a NaN: both comparisons are false.
template <typename T>
inline T Clip(T c, T clip) {
  const T low = clip > T(0) && c < -clip ? -clip : c;
  return clip > T(0) && low > clip ? clip : low;
}

// Whether the clipped state moves with the state.
template <typename T>
inline bool Moves(T c, T clip) {
  return !(clip > T(0)) || (c < clip && c > -clip);
}

template <typename T>
void LstmForward(int64_t n, T clip, T* gates, T* c, T* h) {
  T* __restrict i = gates;
  T* __restrict f = gates + n;
  T* __restrict g = gates + 2 * n;
  T* __restrict o = gates + 3 * n;
  T* __restrict cell = c;
  T* __restrict out = h;
  for (int64_t j = 0; j < n; ++j) {
    i[j] = Sigmoid(i[j]);
    f[j] = Sigmoid(f[j]);
    g[j] = Tanh(g[j]);
    o[j] = Sigmoid(o[j]);
  }
  for (int64_t j = 0; j < n; ++j) {
    const T next = f[j] * Clip(cell[j], clip) + i[j] * g[j];
    cell[j] = next;
    out[j] = o[j] * Tanh(Clip(next, clip));
  }
}

template <typename T>
void LstmOutput(int64_t n, T clip, const T* output_gate, const T* c, T* y) {
  T* __restrict out = y;
  for (int64_t j = 0; j < n; ++j) {
    out[j] = output_gate[j] * Tanh(Clip(c[j], clip));
  }
}

template <typename T>
void LstmBackward(int64_t n, T clip, const T* gates, const T* c,
                  const T* c_prev, const T* dh, T* dc, T* dz) {
  const T* __restrict i = gates;
  const T* __restrict f = gates + n;
  const T* __restrict g = gates + 2 * n;
  const T* __restrict o = gates + 3 * n;
  T* __restrict di = dz;
  T* __restrict df = dz + n;
  T* __restrict dg = dz + 2 * n;
  T* __restrict d_o = dz + 3 * n;
  T* __restrict dcell = dc;
  for (int64_t j = 0; j < n; ++j) {
    const T tanh_c = Tanh(Clip(c[j], clip));
    const T through_h = dh[j] * o[j] * (T(1) - tanh_c * tanh_c);
    const T dnext = dcell[j] + (Moves(c[j], clip) ? through_h : T(0));
    d_o[j] = dh[j] * tanh_c * o[j] * (T(1) - o[j]);
    di[j] = dnext * g[j] * i[j] * (T(1) - i[j]);
    df[j] = dnext * Clip(c_prev[j], clip) * f[j] * (T(1) - f[j]);
    dg[j] = dnext * i[j] * (T(1) - g[j] * g[j]);
    dcell[j] = Moves(c_prev[j], clip) ? dnext * f[j] : T(0);
  }
}

template <typename T>
void GruForward(int64_t n, const T* recurrent, const T* candidate_bias,
                T* gates, T* candidate, T* h) {
  T* __restrict r = gates;
  T* __restrict z = gates + n;
  T* __restrict g = gates + 2 * n;
  T* __restrict rec = candidate;
  T* __restrict out = h;
  for (int64_t j = 0; j < n; ++j) {
    r[j] = Sigmoid(r[j] + recurrent[j]);
    z[j] = Sigmoid(z[j] + recurrent[n + j]);
    rec[j] = recurrent[2 * n + j] + candidate_bias[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    g[j] = Tanh(g[j] + r[j] * rec[j]);
    out[j] = (T(1) - z[j]) * g[j] + z[j] * out[j];
  }
}

template <typename T>
void GruBackward(int64_t n, const T* gates, const T* candidate, const T* h_prev,
                 T* dh, T* dz) {
  const T* __restrict r = gates;
  const T* __restrict z = gates + n;
  const T* __restrict g = gates + 2 * n;
  T* __restrict dr = dz;
  T* __restrict d_z = dz + n;
  T* __restrict dg_input = dz + 2 * n;
  T* __restrict dg_recurrent = dz + 3 * n;
  T* __restrict dout = dh;
  for (int64_t j = 0; j < n; ++j) {
    const T dg = dout[j] * (T(1) - z[j]) * (T(1) - g[j] * g[j]);
    dg_input[j] = dg;
    dg_recurrent[j] = dg * r[j];
    dr[j] = dg * candidate[j] * r[j] * (T(1) - r[j]);
    d_z[j] = dout[j] * (h_prev[j] - g[j]) * z[j] * (T(1) - z[j]);
    dout[j] = dout[j] * z[j];
  }
}

template <typename T>
void RnnTanhForward(int64_t n, T* gates, T* h) {
  T* __restrict z = gates;
  T* __restrict out = h;
  for (int64_t j = 0; j < n; ++j) out[j] = z[j] = Tanh(z[j]);
}

template <typename T>
void RnnReluForward(int64_t n, T* gates, T* h) {
  T* __restrict z = gates;
  T* __restrict out = h;
  // Written so that a NaN passes.
  for (int64_t j = 0; j < n; ++j) out[j] = z[j] = z[j] < T(0) ? T(0) : z[j];
}

template <typename T>
void RnnTanhBackward(int64_t n, const T* h, const T* dh, T* dz) {
  T* __restrict out = dz;
  for (int64_t j = 0; j < n; ++j) out[j] = dh[j] * (T(1) - h[j] * h[j]);
}

template <typename T>
void RnnReluBackward(int64_t n, const T* h, const T* dh, T* dz) {
  T* __restrict out = dz;
  for (int64_t j = 0; j < n; ++j) out[j] = h[j] > T(0) ? dh[j] : T(0);
}

void SigmoidArray(int64_t n, const float* x, float* y) {
  for (int64_t j = 0; j < n; ++j) y[j] = Sigmoid(x[j]);
}
void TanhArray(int64_t n, const float* x, float* y) {
  for (int64_t j = 0; j < n; ++j) y[j] = Tanh(x[j]);
}

// clang-format off
template <typename T>
constexpr SimdKernels<T> MakeKernels() {
  constexpr int kCols = kVectors * CRNN_SIMD_BYTES / sizeof(T);
  return {
      {nullptr, Gemm<T, 1>, Gemm<T, 2>, Gemm<T, 3>, Gemm<T, 4>,
       kRows > 4 ? Gemm<T, 5> : nullptr, kRows > 4 ? Gemm<T, 6> : nullptr,
       kRows > 4 ? Gemm<T, 7> : nullptr, kRows > 4 ? Gemm<T, 8> : nullptr},
      kCols, kRows, kPanelBytes / (kCols * static_cast<int>(sizeof(T))),
      LstmForward<T>, GruForward<T>, RnnTanhForward<T>, RnnReluForward<T>,
      LstmBackward<T>, GruBackward<T>, RnnTanhBackward<T>, RnnReluBackward<T>,
      LstmOutput<T>};
}
// clang-format on

}  // namespace

#define CRNN_STRING_(x) #x
#define CRNN_STRING(x) CRNN_STRING_(x)

extern const SimdTable kTable;
const SimdTable kTable = {CRNN_STRING(CRNN_SIMD_NAME),
                          MakeKernels<float>(),
                          MakeKernels<double>(),
                          {SigmoidArray, TanhArray}};

}  // namespace CRNN_SIMD_NAME
}  // namespace cudnn_rnn_tf
