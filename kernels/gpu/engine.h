// An engine runs a network on a GPU in one of several ways.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_

#include <cstddef>
#include <string>

#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// An engine is made for one call. Its passes read and write the buffers that
// the call was given, in the problem's layout.
class Engine {
 public:
  virtual ~Engine() = default;

  // The algorithm that a backward pass must run after this one's forward pass.
  virtual RnnAlgorithm algorithm() const = 0;
  // Sizes in bytes. That of the reserve space is a multiple of Arena::kAlign.
  virtual size_t reserve_size() const = 0;
  virtual size_t forward_workspace_size() const = 0;
  virtual size_t backward_workspace_size() const = 0;

  // A key of everything that the passes depend on, besides the addresses of
  // buffers.
  virtual std::string Key() const = 0;
  // Tells whether Forward and Backward enqueue the same work each time that
  // they get the same addresses.
  virtual bool is_replayable() const = 0;

  // Enqueues the beginning of a forward pass, which changes from call to call.
  virtual RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& buffers) const = 0;
  virtual RnnStatus Forward(const Handles& handles,
                            const RnnForwardBuffers& buffers) const = 0;
  virtual RnnStatus Backward(const Handles& handles,
                             const RnnBackwardBuffers& buffers) const = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ENGINE_H_
