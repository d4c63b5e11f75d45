// What handlers on all devices share.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
#define CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_

#include <exception>
#include <new>
#include <vector>

#include "kernels/op_tensors.h"
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
  RnnForwardBuffers OfForward(const XlaPass& pass) const {
    RnnForwardBuffers buffers = ForwardBuffersOf(
        pass.problem, [&](int i) { return arg(i); },
        static_cast<int>(kSeed + pass.num_seeds),
        [&](int i) { return result(i); });
    buffers.workspace =
        result(kCellSequences + (pass.problem.has_cell_sequences ? 1 : 0));
    return buffers;
  }
  // The arguments of a backward pass are Backward's inputs; the results are its
  // outputs, the reserve space (in its argument's memory) and a workspace.
  RnnBackwardBuffers OfBackward(const XlaPass& pass) const {
    RnnBackwardBuffers buffers = BackwardBuffersOf(
        pass.problem, [&](int i) { return arg(i); },
        static_cast<int>(kSeed + pass.num_seeds),
        [&](int i) { return result(i); });
    buffers.reserve_space = result(kUsedReserveSpace);
    buffers.workspace = result(kBackwardWorkspace);
    return buffers;
  }
  RnnStatus Run(const XlaKerasTensors& call, RnnBackend* backend) const {
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
  RnnStatus Run(RnnMask mask, RnnBackend* backend) const {
    mask.values = static_cast<const bool*>(arg(kMask));
    const auto found = [&](int i) { return static_cast<int64_t*>(result(i)); };
    return backend->ReadMask(
        mask, {found(kMaskLengths), found(kMaskPlaces), found(kMaskSteps)});
  }
  RnnStatus Run(StepMove move, RnnBackend* backend) const {
    move.from = arg(kUnmoved);
    move.places = static_cast<const int64_t*>(arg(kPlaces));
    move.steps = static_cast<const int64_t*>(arg(kSteps));
    move.to = result(0);
    return backend->MoveSteps(move);
  }

 private:
  const ffi::RemainingArgs& args_;
  const ffi::RemainingRets& results_;
};

// The handler of a call that is no pass. `make_backend` makes the backend of
// the place where XLA runs it.
template <typename Call, auto make_backend, typename... Place>
ffi::Error HandleCall(Place... place, ffi::Span<const int64_t> integers,
                      ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&] {
    const auto backend = make_backend(place...);
    return Buffers(args, results)
        .Run(XlaCallOf<Call>(integers.begin(), integers.size()), backend.get());
  });
}

// Registers the handlers of all calls: a file's RunPass and kHandle.
// The binding of the place comes before what all calls have.
#define CRNN_REGISTER_HANDLERS(PLATFORM, PLACE)                               \
  CRNN_REGISTER_HANDLER(kXlaForward, RunPass<false>, PLATFORM, PLACE);        \
  CRNN_REGISTER_HANDLER(kXlaBackward, RunPass<true>, PLATFORM, PLACE);        \
  CRNN_REGISTER_HANDLER(kXlaKerasTensors, kHandle<XlaKerasTensors>, PLATFORM, \
                        PLACE);                                               \
  CRNN_REGISTER_HANDLER(kXlaReadMask, kHandle<RnnMask>, PLATFORM, PLACE);     \
  CRNN_REGISTER_HANDLER(kXlaMoveSteps, kHandle<StepMove>, PLATFORM, PLACE)
#define CRNN_REGISTER_HANDLER(NAME, FUNCTION, PLATFORM, PLACE)              \
  XLA_FFI_DEFINE_HANDLER(NAME##Handler, FUNCTION,                           \
                         ffi::Ffi::Bind()                                   \
                             PLACE.Attr<ffi::Span<const int64_t>>(kXlaCall) \
                                 .RemainingArgs()                           \
                                 .RemainingRets());                         \
  XLA_FFI_REGISTER_HANDLER(XLA_FFI_GetApi(), NAME, PLATFORM, NAME##Handler)

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
