#include "kernels/cpu/masks.h"

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

// Calls body(i, whether element `first` + i of a layer's masks is dropped) for
// n elements.
template <typename Body>
void ForEachElement(const uint64_t seed[2], int64_t layer, float rate,
                    int64_t first, int64_t n, const Body& body) {
  const uint32_t threshold = DropoutThreshold(rate);
  for (int64_t i = 0; i < n;) {
    const uint64_t e = static_cast<uint64_t>(first + i), group = e / 4;
    const Words words = Philox(
        {static_cast<uint32_t>(group),
         static_cast<uint32_t>(group >> 32) | static_cast<uint32_t>(layer)
                                                  << 16,
         static_cast<uint32_t>(seed[1]), static_cast<uint32_t>(seed[1] >> 32)},
        seed[0]);
    for (uint64_t w = e % 4; w < 4 && i < n; ++w, ++i) {
      body(i, words[w] < threshold);
    }
  }
}

// Writes to = from * mask / (1 - rate) for elements of a layer's masks.
template <typename T>
void Drop(const uint64_t seed[2], int64_t layer, float rate, int64_t first,
          int64_t n, const T* from, T* to) {
  const T scale = T(1) / (T(1) - static_cast<T>(rate));
  ForEachElement(seed, layer, rate, first, n, [=](int64_t i, bool is_dropped) {
    to[i] = is_dropped ? T(0) : from[i] * scale;
  });
}

}  // namespace

Masks::Masks(const RnnProblem& problem, const PackedRows& rows,
             const uint64_t seed[2])
    : problem_(problem), seed_{seed[0], seed[1]} {
  if (problem.has_dropout_between_layers() || problem.draws_zones()) {
    steps_ = rows.CallerRows(/*time_major=*/true);
  }
}

template <typename T>
void Masks::DropInput(int64_t layer, const T* from, T* to,
                      Schedule* schedule) const {
  const int64_t n = problem_.spec.layer_output_size();
  const auto num_rows = static_cast<int64_t>(steps_.size());
  schedule->AddRanges(num_rows, 16, [=](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      Drop(seed_, layer - 1, problem_.spec.dropout, steps_[row] * n, n,
           from + row * n, to + row * n);
    }
  });
}

template <typename T>
void Masks::DrawRecurrent(int64_t pseudo_layer, int64_t gate, int64_t sequence,
                          T* mask) const {
  const RnnSpec& spec = problem_.spec;
  const int64_t n = spec.output_size();
  const int64_t before =
      (pseudo_layer * spec.num_gates() + gate) * problem_.batch_size + sequence;
  std::fill_n(mask, n, T(1));
  Drop(seed_, RnnSpec::kRecurrentDropoutLayer, spec.recurrent_dropout,
       before * n, n, mask, mask);
}

template <typename T>
void Masks::SetZones(int64_t pseudo_layer, int64_t row, int64_t unit, int64_t n,
                     T* zones) const {
  const RnnSpec& spec = problem_.spec;
  if (!spec.has_zoneout()) return;
  for (const int64_t state : {0, 1}) {
    T* const to = zones + state * spec.num_units;
    const float rate = state == 0 ? spec.zoneout : spec.cell_zoneout;
    if (!problem_.draws_zones()) {
      std::fill_n(to, n, static_cast<T>(rate));
      continue;
    }
    const int64_t step =
        (2 * pseudo_layer + state) * problem_.max_time * problem_.batch_size +
        steps_[row];
    ForEachElement(seed_, RnnSpec::kZoneoutLayer, rate,
                   step * spec.num_units + unit, n,
                   [=](int64_t i, bool stays) { to[i] = T(stays); });
  }
}

#define CRNN_INSTANTIATE(T)                                                \
  template void Masks::DropInput(int64_t, const T*, T*, Schedule*) const;  \
  template void Masks::DrawRecurrent(int64_t, int64_t, int64_t, T*) const; \
  template void Masks::SetZones(int64_t, int64_t, int64_t, int64_t, T*) const
CRNN_INSTANTIATE(float);
CRNN_INSTANTIATE(double);
#undef CRNN_INSTANTIATE

}  // namespace cudnn_rnn_tf
