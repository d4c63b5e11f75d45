#include "kernels/cpu/dropout.h"

#include <algorithm>
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

}  // namespace

template <typename T>
void ApplyDropout(const DropoutMask& mask, int64_t size, const T* from, T* to,
                  const ParallelFor& parallel_for) {
  const uint32_t threshold =
      static_cast<uint32_t>(static_cast<double>(mask.rate) * 4294967296.0);
  const T scale = T(1) / (T(1) - static_cast<T>(mask.rate));
  constexpr int64_t kTask = 4096;
  parallel_for(
      CeilDiv(size, kTask), 30.0 * kTask, [&](int64_t begin, int64_t end) {
        const int64_t last = std::min(end * kTask, size);
        for (int64_t e = begin * kTask; e < last; e += 4) {
          const uint64_t group = static_cast<uint64_t>(e) / 4;
          const Words words =
              Philox({static_cast<uint32_t>(group),
                      static_cast<uint32_t>(group >> 32) |
                          static_cast<uint32_t>(mask.layer) << 16,
                      static_cast<uint32_t>(mask.seed[1]),
                      static_cast<uint32_t>(mask.seed[1] >> 32)},
                     mask.seed[0]);
          for (int64_t w = 0; w < std::min<int64_t>(4, last - e); ++w) {
            to[e + w] = words[w] < threshold ? T(0) : from[e + w] * scale;
          }
        }
      });
}

template void ApplyDropout<float>(const DropoutMask&, int64_t, const float*,
                                  float*, const ParallelFor&);
template void ApplyDropout<double>(const DropoutMask&, int64_t, const double*,
                                   double*, const ParallelFor&);

}  // namespace cudnn_rnn_tf
