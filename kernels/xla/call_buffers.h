// The buffers of the calls that XLA makes of handlers.
#ifndef CUDNN_RNN_TF_KERNELS_XLA_CALL_BUFFERS_H_
#define CUDNN_RNN_TF_KERNELS_XLA_CALL_BUFFERS_H_

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/keras_layout.h"
#include "kernels/op_tensors.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"
#include "kernels/xla/xla_call.h"
#include "xla/ffi/api/c_api.h"
// After the C interface.
#include "xla/ffi/api/ffi.h"

namespace cudnn_rnn_tf {

namespace ffi = xla::ffi;

inline ffi::Error ToXla(const RnnStatus& status) {
  static_assert(HasNumbersOfCodes<ffi::ErrorCode>());
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
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  } catch (...) {
    return ffi::Error::Internal("an exception of an unknown type");
  }
}

// The sizes in bytes that a call's buffers have by what it says of itself.
struct CallSizes {
  std::vector<int64_t> args, results;
};
// That of the memory of a pass, which its plan tells.
inline constexpr int64_t kAnyBytes = -1;

// Returns the product of sizes, or more than any buffer has where it overflows.
inline int64_t BytesOf(std::initializer_list<int64_t> sizes) {
  double bytes = 1;
  for (const int64_t size : sizes) bytes *= static_cast<double>(size);
  return static_cast<int64_t>(std::min(bytes, 1e18));
}
inline int64_t BytesOf(const TensorForm& tensor, const RnnProblem& problem) {
  int64_t bytes = tensor.item_bytes > 0
                      ? tensor.item_bytes
                      : static_cast<int64_t>(SizeOf(problem.dtype));
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.axes[i] == kAnySize) return kAnyBytes;
    bytes = BytesOf({bytes, SizeOfAxis(tensor.axes[i], problem)});
  }
  return bytes;
}

inline void Check(const std::string& error) {
  if (!error.empty()) throw std::invalid_argument("XLA's call: " + error);
}

inline CallSizes SizesOf(const XlaPass& pass, bool is_backward) {
  const RnnProblem& problem = pass.problem;
  const RnnSpec& spec = problem.spec;
  Check(problem.Error());
  const int64_t steps = problem.max_time * problem.batch_size;
  Check(steps > 0 ? "" : "expected steps");
  Check(problem.is_training || !is_backward ? "" : "expected training");
  Check(pass.num_threads >= 1 && pass.num_threads <= XlaPass::kMostThreads
            ? ""
            : "expected threads, but received " +
                  std::to_string(pass.num_threads));
  const PassForms forms =
      FormsOf(problem, spec.input_size, ParamLayout(spec).size(), is_backward);
  CallSizes sizes;
  const auto add = [&](const std::vector<TensorForm>& tensors,
                       std::vector<int64_t>* to) {
    for (const TensorForm& tensor : tensors) {
      to->push_back(BytesOf(tensor, problem));
    }
  };
  add(forms.inputs, &sizes.args);
  add(forms.outputs, &sizes.results);
  // The memory of the pass: a reserve space that is used up, and a workspace.
  sizes.results.insert(sizes.results.end(), is_backward ? 2 : 1, kAnyBytes);
  return sizes;
}
inline CallSizes SizesOf(const XlaKerasTensors& call) {
  Check(call.spec.Error());
  const auto item_bytes = static_cast<int64_t>(SizeOf(call.dtype));
  const KerasLayout layout(call.spec);
  CallSizes sizes;
  for (const KerasTensor& tensor : layout.tensors()) {
    sizes.args.push_back(BytesOf({item_bytes, tensor.size()}));
  }
  sizes.results.push_back(BytesOf({item_bytes, layout.size()}));
  if (!call.to_params) std::swap(sizes.args, sizes.results);
  return sizes;
}
// Lengths, places and steps are integers of 8 bytes.
inline CallSizes SizesOf(const RnnMask& mask) {
  const int64_t batch = mask.batch_size, time = mask.max_time;
  const int64_t steps = BytesOf({8, batch, time});
  return {{BytesOf({mask.is_shared ? 1 : batch, time})},
          {BytesOf({8, batch}), steps, steps}};
}
inline CallSizes SizesOf(const StepMove& move) {
  const int64_t batch = move.batch_size, time = move.max_time;
  const int64_t steps = BytesOf({8, batch, time});
  const int64_t rows = BytesOf(
      {static_cast<int64_t>(SizeOf(move.dtype)), batch, time, move.width});
  return {{rows, steps, steps}, {rows}};
}

class CallBuffers {
 public:
  // Throws std::invalid_argument if the buffers have other sizes. Otherwise a
  // call in a damaged file would write past them.
  CallBuffers(const ffi::RemainingArgs& args, const ffi::RemainingRets& results,
              const CallSizes& sizes)
      : args_(args), results_(results) {
    const auto check = [](const std::string& kind, const auto& expected,
                          size_t count, const auto& size) {
      if (count != expected.size()) {
        throw std::invalid_argument(
            "expected " + std::to_string(expected.size()) + " " + kind +
            "s of XLA's call, but received " + std::to_string(count));
      }
      for (size_t i = 0; i < count; ++i) {
        if (expected[i] == kAnyBytes || expected[i] == size(i)) continue;
        throw std::invalid_argument(
            "expected " + kind + " " + std::to_string(i) +
            " of XLA's call of " + std::to_string(expected[i]) +
            " bytes, but received " + std::to_string(size(i)));
      }
    };
    check("argument", sizes.args, args.size(), [&](size_t i) {
      return static_cast<int64_t>(args.get<ffi::AnyBuffer>(i)->size_bytes());
    });
    check("result", sizes.results, results.size(),
          [&](size_t i) { return static_cast<int64_t>(size(i)); });
  }

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
  // The arguments of a pass are its op's inputs; the results are its outputs,
  // of a backward pass the reserve space (in its argument's memory), and a
  // workspace.
  template <typename Buffers>
  Buffers Of(const RnnProblem& problem) const {
    auto buffers = BuffersOf<Buffers>(
        problem, [&](int i) { return arg(i); },
        kSeed + (problem.has_seed ? 1 : 0), [&](int i) { return result(i); });
    if (!kIsForward<Buffers>) buffers.reserve_space = result(kUsedReserveSpace);
    buffers.workspace =
        result(kIsForward<Buffers> ? WorkspaceOf(problem) : kBackwardWorkspace);
    return buffers;
  }
  RnnStatus Run(const XlaKerasTensors& call, RnnBackend* backend) const {
    const KerasLayout layout(call.spec);
    std::vector<void*> tensors;
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      tensors.push_back(call.to_params ? arg(i) : result(i));
    }
    return backend->MoveKerasTensors(layout, call.dtype, call.to_params,
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

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_XLA_CALL_BUFFERS_H_
