// The addresses that a pass reads and writes: graphs are replayed with those of
// another call.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_

#include <array>

#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

enum class Pass { kForward, kBackward };

// In the problem's layout. A pass uses a part of these.
enum CallBuffer {
  kInput,
  kInputH,
  kInputC,
  kParams,
  kOutput,
  kOutputH,
  kOutputC,
  kReserveSpace,
  kWorkspace,
  kDropoutStates,
  kOutputBackprop,
  kOutputHBackprop,
  kOutputCBackprop,
  kInputBackprop,
  kInputHBackprop,
  kInputCBackprop,
  kParamsBackprop,
  kNumCallBuffers
};

// 0 for a buffer that a pass does not use.
using CallAddresses = std::array<CUdeviceptr, kNumCallBuffers>;

CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnForwardBuffers& buffers);
CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnBackwardBuffers& buffers);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_
