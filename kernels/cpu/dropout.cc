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

// Calls body(i, whether element `first` + i is dropped) for n elements.
template <typename Body>
void ForEachElement(const DropoutMask& mask, int64_t first, int64_t n,
                    const Body& body) {
  const uint32_t threshold = DropoutThreshold(mask.rate);
  for (int64_t i = 0; i < n;) {
    const uint64_t e = static_cast<uint64_t>(first + i);
    const Words words = MaskWords(mask, e / 4);
    for (uint64_t w = e % 4; w < 4 && i < n; ++w, ++i) {
      body(i, words[w] < threshold);
    }
  }
}

}  // namespace

template <typename T>
void ApplyDropout(const DropoutMask& mask, int64_t step, const T* from, T* to) {
  const T scale = T(1) / (T(1) - static_cast<T>(mask.rate));
  ForEachElement(mask, step * mask.width, mask.width,
                 [=](int64_t i, bool is_dropped) {
                   to[i] = is_dropped ? T(0) : from[i] * scale;
                 });
}

template <typename T>
void DrawDropped(const DropoutMask& mask, int64_t first, int64_t n, T* to) {
  ForEachElement(mask, first, n, [=](int64_t i, bool is_dropped) {
    to[i] = static_cast<T>(is_dropped);
  });
}

#define CRNN_INSTANTIATE(T)                                                 \
  template void ApplyDropout<T>(const DropoutMask&, int64_t, const T*, T*); \
  template void DrawDropped<T>(const DropoutMask&, int64_t, int64_t, T*)
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
