#include "kernels/cpu/dropout.h"

#include <array>

namespace cudnn_rnn_tf {
namespace {

using Words = std::array<uint32_t, 4>;

Words Philox(Words counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// Returns the random words of elements 4 * group to 4 * group + 3.
Words MaskWords(const DropoutMask& mask, uint64_t group) {
  return Philox({static_cast<uint32_t>(group),
                 static_cast<uint32_t>(group >> 32) |
                     static_cast<uint32_t>(mask.layer) << 16,
                 static_cast<uint32_t>(mask.seed[1]),
                 static_cast<uint32_t>(mask.seed[1] >> 32)},
                mask.seed[0]);
}

}  // namespace

template <typename T>
void ApplyDropout(const DropoutMask& mask, int64_t step, const T* from, T* to) {
  const uint32_t threshold = DropoutThreshold(mask.rate);
  const T scale = T(1) / (T(1) - static_cast<T>(mask.rate));
  const uint64_t first = static_cast<uint64_t>(step * mask.width);
  const uint64_t last = first + static_cast<uint64_t>(mask.width);
  for (uint64_t e = first; e < last;) {
    const Words words = MaskWords(mask, e / 4);
    for (uint64_t w = e % 4; w < 4 && e < last; ++w, ++e) {
      *to++ = words[w] < threshold ? T(0) : *from * scale;
      ++from;
    }
  }
}

template void ApplyDropout<float>(const DropoutMask&, int64_t, const float*,
                                  float*);
template void ApplyDropout<double>(const DropoutMask&, int64_t, const double*,
                                   double*);

}  // namespace cudnn_rnn_tf
