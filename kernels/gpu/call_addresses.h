// The addresses that a pass reads and writes. They are collected here so that a
// captured graph can be replayed with the addresses of another call.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_

#include <array>

#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

enum class Pass { kForward, kBackward };

// The buffers of a call, in the problem's layout. Each pass uses some of them.
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

// The address is 0 for a buffer that the pass does not use.
using CallAddresses = std::array<CUdeviceptr, kNumCallBuffers>;

inline CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnForwardBuffers& buffers);
CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnBackwardBuffers& buffers);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CALL_ADDRESSES_H_
