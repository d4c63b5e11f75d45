#ifndef CUDNN_RNN_TF_KERNELS_CEIL_DIV_H_
#define CUDNN_RNN_TF_KERNELS_CEIL_DIV_H_

#include <type_traits>

namespace cudnn_rnn_tf {

// Returns a / b, rounded up, for a >= 0 and b > 0.
template <typename A, typename B>
constexpr std::common_type_t<A, B> CeilDiv(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CEIL_DIV_H_
