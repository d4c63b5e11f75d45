#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESERVE_SIZE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESERVE_SIZE_H_

#include <cstddef>

#include "kernels/arena.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// The size of a reserve space tells a backward pass what algorithm left it,
// wherever the tensor has been. `bytes` is what the algorithm needs, a multiple
// of Arena::kAlign.
inline size_t ReserveSize(size_t bytes, RnnAlgorithm algorithm) {
  return bytes + static_cast<size_t>(algorithm);
}
// Returns the algorithm that such a size tells. A caller may have made up a
// size that tells none.
inline RnnAlgorithm AlgorithmOf(size_t reserve_space) {
  return static_cast<RnnAlgorithm>(reserve_space % Arena::kAlign);
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESERVE_SIZE_H_
