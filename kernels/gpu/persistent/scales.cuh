// Powers of two that bring floats into the range of float16, as powers.cuh
// says.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SCALES_CUH_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SCALES_CUH_

#include "items.cuh"

// Returns the power of two that is the greatest one within a positive float,
// which comes as its bits, but at least 2^-98: no power overflows below.
static float PowerOf(Word largest) {
  constexpr Word kLeast = 29u << 23, kMost = 254u << 23;
  const Word exponent = largest & 0xFFu << 23;
  return __uint_as_float(exponent < kLeast  ? kLeast
                         : exponent > kMost ? kMost
                                            : exponent);
}
// Returns what numbers are multiplied by, 2^14 divided by their power.
static float ScaleOf(float power) {
  return __uint_as_float((268u << 23) - __float_as_uint(power));
}
// What the product of numbers with the powers 1 is multiplied by.
constexpr float kOfProduct = 1.0f / (1 << 28);

// Returns a float's magnitude as its bits, which have the order of the numbers.
// What is infinite or no number counts for nothing.
static Word MagnitudeOf(float value) {
  const Word bits = __float_as_uint(value) & 0x7FFFFFFFu;
  return bits < 0xFFu << 23 ? bits : 0u;
}
// Returns a product of numbers with these powers as it is without them. The
// smaller factor comes first, so nothing overflows on the way to a float.
static float Unscaled(float product, float power, float other) {
  const float factor = kOfProduct * power;
  return product * fminf(factor, other) * fmaxf(factor, other);
}

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SCALES_CUH_
