#include "kernels/gpu/call_addresses.h"

namespace cudnn_rnn_tf {
CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnForwardBuffers& buffers) {
  CallAddresses addresses = {};
  addresses[kInput] = Address(buffers.input);
  addresses[kInputH] = Address(buffers.input_h);
  addresses[kParams] = Address(buffers.params);
  addresses[kOutput] = Address(buffers.output);
  addresses[kOutputH] = Address(buffers.output_h);
  addresses[kWorkspace] = Address(buffers.workspace);
  if (problem.spec.is_lstm()) {
    addresses[kInputC] = Address(buffers.input_c);
    addresses[kOutputC] = Address(buffers.output_c);
  }
  if (problem.is_training) {
    addresses[kReserveSpace] = Address(buffers.reserve_space);
  }
  return addresses;
}

CallAddresses AddressesOf(const RnnProblem& problem,
                          const RnnBackwardBuffers& buffers) {
  CallAddresses addresses = {};
  addresses[kInput] = Address(buffers.input);
  addresses[kInputH] = Address(buffers.input_h);
  addresses[kParams] = Address(buffers.params);
  addresses[kOutput] = Address(buffers.output);
  addresses[kReserveSpace] = Address(buffers.reserve_space);
  addresses[kWorkspace] = Address(buffers.workspace);
  addresses[kOutputBackprop] = Address(buffers.output_backprop);
  addresses[kOutputHBackprop] = Address(buffers.output_h_backprop);
  addresses[kInputBackprop] = Address(buffers.input_backprop);
  addresses[kInputHBackprop] = Address(buffers.input_h_backprop);
  addresses[kParamsBackprop] = Address(buffers.params_backprop);
  if (problem.spec.is_lstm()) {
    addresses[kInputC] = Address(buffers.input_c);
    addresses[kOutputCBackprop] = Address(buffers.output_c_backprop);
    addresses[kInputCBackprop] = Address(buffers.input_c_backprop);
  }
  return addresses;
}

}  // namespace cudnn_rnn_tf
