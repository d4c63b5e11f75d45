// An engine runs a network on a GPU in one of several ways.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_

#include <cstddef>
#include <string>

#include "kernels/arena.h"
#include "kernels/gpu/libraries.h"
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

// An engine is made for one call. Its passes read and write the buffers that
// the call was given, in the problem's layout.
class Engine {
 public:
  virtual ~Engine() = default;

  // The algorithm that a backward pass must run after this one's forward pass.
  virtual RnnAlgorithm algorithm() const = 0;
  // Sizes in bytes. That of the reserve space is a multiple of Arena::kAlign.
  // Only training needs a reserve space and a backward pass.
  virtual size_t reserve_size() const { return 0; }
  virtual size_t forward_workspace_size() const = 0;
  virtual size_t backward_workspace_size() const { return 0; }

  // A key of everything that the passes depend on, besides the addresses of
  // buffers.
  virtual std::string Key() const = 0;
  // Tells whether Forward and Backward enqueue the same work each time that
  // they get the same addresses.
  virtual bool is_replayable() const = 0;

  // Enqueues the beginning of a forward pass, which changes from call to call.
  virtual RnnStatus StoreLengthsAndSeed(
      const Handles& /*handles*/, const RnnForwardBuffers& /*buffers*/) const {
    return {};
  }
  virtual RnnStatus Forward(const Handles& handles,
                            const RnnForwardBuffers& buffers) const = 0;
  virtual RnnStatus Backward(const Handles& handles,
                             const RnnBackwardBuffers& buffers) const = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
