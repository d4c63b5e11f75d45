// What handlers on all devices share.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
#define CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_

#include <exception>
#include <new>
#include <vector>

#include "kernels/rnn_backend.h"
#include "kernels/xla/xla_call.h"
#include "xla/ffi/api/c_api.h"
// After the C interface.
#include "xla/ffi/api/ffi.h"

namespace cudnn_rnn_tf {

namespace ffi = xla::ffi;

inline ffi::Error ToXla(const RnnStatus& status) {
  switch (status.code) {
    case RnnStatus::Code::kOk:
      return ffi::Error::Success();
    case RnnStatus::Code::kInvalidArgument:
      return ffi::Error::InvalidArgument(status.message);
    default:
      return ffi::Error::Internal(status.message);
  }
}

// An exception must not pass through XLA's functions.
template <typename Body>
ffi::Error Handle(const Body& body) {
  try {
    return ToXla(body());
  } catch (const std::bad_alloc&) {
    return {ffi::ErrorCode::kResourceExhausted, "out of memory"};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

class Buffers {
 public:
  Buffers(const ffi::RemainingArgs& args, const ffi::RemainingRets& results)
      : args_(args), results_(results) {}

  void* arg(int i) const {
    return args_.get<ffi::AnyBuffer>(i).value().untyped_data();
  }
  void* result(int i) const {
    return results_.get<ffi::AnyBuffer>(i).value()->untyped_data();
  }

  // The arguments of a forward pass are Forward's inputs; the results are its
  // outputs and a workspace.
  RnnForwardBuffers OfForward() const {
    RnnForwardBuffers buffers;
    buffers.input = arg(0);
    buffers.input_h = arg(1);
    buffers.input_c = arg(2);
    buffers.params = arg(3);
    buffers.output = result(0);
    buffers.output_h = result(1);
    buffers.output_c = result(2);
    buffers.reserve_space = result(3);
    buffers.workspace = result(4);
    return buffers;
  }
  // The arguments of a backward pass are Backward's inputs; the results are its
  // outputs, the reserve space (in its argument's memory) and a workspace.
  RnnBackwardBuffers OfBackward() const {
    const int last = static_cast<int>(args_.size()) - 1;
    RnnBackwardBuffers buffers;
    buffers.input = arg(0);
    buffers.input_h = arg(1);
    buffers.input_c = arg(2);
    buffers.params = arg(3);
    buffers.output = arg(last - 6);
    buffers.output_backprop = arg(last - 3);
    buffers.output_h_backprop = arg(last - 2);
    buffers.output_c_backprop = arg(last - 1);
    buffers.reserve_space = result(4);
    buffers.input_backprop = result(0);
    buffers.input_h_backprop = result(1);
    buffers.input_c_backprop = result(2);
    buffers.params_backprop = result(3);
    buffers.workspace = result(5);
    return buffers;
  }
  RnnStatus MoveKerasTensors(const XlaKerasTensors& call,
                             RnnBackend* backend) const {
    const KerasLayout layout(call.spec);
    const size_t count = layout.weights().size() + layout.biases().size();
    std::vector<void*> tensors;
    for (size_t i = 0; i < count; ++i) {
      tensors.push_back(call.to_params ? arg(i) : result(i));
    }
    return backend->MoveKerasTensors(layout, call.item_bytes, call.to_params,
                                     tensors,
                                     call.to_params ? result(0) : arg(0));
  }
  // LengthsFromMask has one result, and ReadMask three.
  RnnStatus ReadMask(RnnMask mask, RnnBackend* backend) const {
    mask.values = static_cast<const bool*>(arg(0));
    int64_t* found[3] = {};
    for (size_t i = 0; i < results_.size(); ++i) {
      found[i] = static_cast<int64_t*>(result(i));
    }
    return backend->ReadMask(mask, {found[0], found[1], found[2]});
  }
  RnnStatus MoveSteps(StepMove move, RnnBackend* backend) const {
    move.from = arg(0);
    move.places = static_cast<const int64_t*>(arg(1));
    move.steps = static_cast<const int64_t*>(arg(2));
    move.to = result(0);
    return backend->MoveSteps(move);
  }

 private:
  const ffi::RemainingArgs& args_;
  const ffi::RemainingRets& results_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
