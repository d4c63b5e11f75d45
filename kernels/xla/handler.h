// What handlers on all devices share.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
#define CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_

#include <exception>
#include <memory>
#include <new>
#include <string>
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
  if (status.ok()) return ffi::Error::Success();
  return {static_cast<ffi::ErrorCode>(status.code), status.message};
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
  } catch (...) {
    return ffi::Error::Internal("an exception of an unknown type");
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

  // Checks that the memory of a pass, which was allocated for the plan by which
  // the function was compiled, does for this plan.
  RnnStatus CheckMemory(bool is_backward, const RnnPlan& plan) const {
    const RnnBufferSizes& sizes = plan.sizes;
    const size_t workspace =
        is_backward ? sizes.backward_workspace : sizes.forward_workspace;
    const size_t given_reserve_space =
        size(is_backward ? int{kUsedReserveSpace} : int{kReserveSpace});
    const size_t given_workspace =
        size(is_backward ? kBackwardWorkspace : WorkspaceOf(plan.problem));
    if (given_reserve_space == sizes.reserve_space &&
        given_workspace >= workspace) {
      return {};
    }
    const auto text = [](size_t reserve_space, size_t workspace) {
      return std::to_string(reserve_space) + " bytes of reserve space and " +
             std::to_string(workspace) + " of workspace";
    };
    return {RnnStatus::Code::kFailedPrecondition,
            "expected " + text(sizes.reserve_space, workspace) +
                ", but received " + text(given_reserve_space, given_workspace) +
                ": XLA compiled the function for another device, or for "
                "settings, such as the instruction set or TF32, that are not "
                "those of this call; compile it again, by another tf.function "
                "or without the cache that it was read from"};
  }
  // The arguments of a forward pass are Forward's inputs; the results are its
  // outputs and a workspace.
  RnnForwardBuffers OfForward(const XlaPass& pass) const {
    RnnForwardBuffers buffers = ForwardBuffersOf(
        pass.problem, [&](int i) { return arg(i); },
        static_cast<int>(kSeed + pass.num_seeds),
        [&](int i) { return result(i); });
    buffers.workspace = result(WorkspaceOf(pass.problem));
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
    std::vector<void*> tensors;
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
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
  static int WorkspaceOf(const RnnProblem& problem) {
    return kCellSequences + (problem.has_cell_sequences ? 1 : 0);
  }
  size_t size(int i) const {
    return results_.get<ffi::AnyBuffer>(i).value()->size_bytes();
  }

  const ffi::RemainingArgs& args_;
  const ffi::RemainingRets& results_;
};

// The handlers of all calls. A Place is where XLA runs them: it is made of the
// `context` that XLA gives, has a backend, and reads a call's lengths and seed,
// which may be in a device's memory.
template <typename Place, typename... Context>
struct Handlers {
  template <typename Call>
  static ffi::Error Run(Context... context, ffi::Span<const int64_t> integers,
                        ffi::RemainingArgs args, ffi::RemainingRets results) {
    return Handle([&] {
      const Place place(context...);
      return Buffers(args, results)
          .Run(XlaCallOf<Call>(integers.begin(), integers.size()),
               place.backend.get());
    });
  }

  template <bool is_backward>
  static ffi::Error RunPass(Context... context,
                            ffi::Span<const int64_t> integers,
                            ffi::RemainingArgs args,
                            ffi::RemainingRets results) {
    return Handle([&]() -> RnnStatus {
      const Buffers given(args, results);
      const auto pass = XlaCallOf<XlaPass>(integers.begin(), integers.size());
      Place place(context..., pass.num_threads);
      std::shared_ptr<const RnnPlan> plan;
      RnnLengths lengths;
      RnnStatus status = place.backend->Plan(pass.problem, pass.choice,
                                             /*lengths=*/nullptr, &plan);
      if (status.ok()) status = given.CheckMemory(is_backward, *plan);
      if (status.ok() && pass.problem.has_sequence_lengths) {
        status = place.ReadLengths(pass, *plan, given.arg(kSequenceLengths),
                                   &lengths);
      }
      const auto run = [&](auto buffers, auto run_pass) -> RnnStatus {
        if (pass.num_seeds > 0) {
          status = place.ReadSeed(*plan, given.arg(kSeed), &buffers);
          if (!status.ok()) return status;
        }
        buffers.sequence_lengths = lengths;
        return (place.backend.get()->*run_pass)(*plan, buffers);
      };
      if (!status.ok()) return status;
      return is_backward ? run(given.OfBackward(pass), &RnnBackend::Backward)
                         : run(given.OfForward(pass), &RnnBackend::Forward);
    });
  }
};

// Registers the handlers of a file's DeviceHandlers, whose binding of the
// context comes before what all calls have.
#define CRNN_REGISTER_HANDLERS(PLATFORM, CONTEXT)                         \
  CRNN_REGISTER_HANDLER(kXlaForward, RunPass<false>, PLATFORM, CONTEXT);  \
  CRNN_REGISTER_HANDLER(kXlaBackward, RunPass<true>, PLATFORM, CONTEXT);  \
  CRNN_REGISTER_HANDLER(kXlaKerasTensors, Run<XlaKerasTensors>, PLATFORM, \
                        CONTEXT);                                         \
  CRNN_REGISTER_HANDLER(kXlaReadMask, Run<RnnMask>, PLATFORM, CONTEXT);   \
  CRNN_REGISTER_HANDLER(kXlaMoveSteps, Run<StepMove>, PLATFORM, CONTEXT)
#define CRNN_REGISTER_HANDLER(NAME, FUNCTION, PLATFORM, CONTEXT)              \
  XLA_FFI_DEFINE_HANDLER(NAME##Handler, DeviceHandlers::FUNCTION,             \
                         ffi::Ffi::Bind()                                     \
                             CONTEXT.Attr<ffi::Span<const int64_t>>(kXlaCall) \
                                 .RemainingArgs()                             \
                                 .RemainingRets());                           \
  XLA_FFI_REGISTER_HANDLER(XLA_FFI_GetApi(), NAME, PLATFORM, NAME##Handler)

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_HANDLER_H_
