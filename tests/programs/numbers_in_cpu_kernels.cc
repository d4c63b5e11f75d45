// Checks arithmetic of the CPU kernels that must hold for all numbers. The
// program is compiled with UndefinedBehaviorSanitizer, which ends it on a
// failure.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CRNN_SIMD_NAME baseline
#define CRNN_SIMD_BYTES 16
#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/simd_math.h"

namespace {

using cudnn_rnn_tf::baseline::Floats;

void Check(bool holds, const char* what, uint32_t bits) {
  if (holds) return;
  std::printf("failed: %s of %08x\n", what, bits);
  std::exit(1);
}

}  // namespace

int main() {
  for (uint32_t size = 1; size < 5000; ++size) {
    const int64_t stride = cudnn_rnn_tf::RowStride(size);
    Check(stride >= size && stride < size + 48, "the stride", size);
    Check((stride & (stride - 1)) != 0, "a power of two as the stride", size);
  }
  // The loop takes every 4099th float, with NaNs of both signs among them.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const uint32_t word = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, sizeof(x));
    const float sigmoid = cudnn_rnn_tf::baseline::Sigmoid(Floats{} + x)[0];
    const float tanh = cudnn_rnn_tf::baseline::Tanh(Floats{} + x)[0];
    const bool is_nan = x != x;
    Check((sigmoid != sigmoid) == is_nan, "the sigmoid", word);
    Check((tanh != tanh) == is_nan, "the tanh", word);
    Check(is_nan || (sigmoid >= 0 && sigmoid <= 1), "the sigmoid", word);
    Check(is_nan || (tanh >= -1 && tanh <= 1), "the tanh", word);
  }
  std::printf("well\n");
  return 0;
}
