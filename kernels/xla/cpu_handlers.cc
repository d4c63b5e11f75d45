// What a function that XLA compiled for a CPU calls at run time.
#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/mask_shapes.h"
#include "kernels/op_backend.h"
#include "kernels/pool_threads.h"
#include "kernels/xla/buffer_sizes.h"
#include "kernels/xla/xla_call.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "xla/ffi/api/c_api.h"
// After the C interface.
#include "xla/ffi/api/ffi.h"

namespace cudnn_rnn_tf {

absl::Status XlaBufferSizes(bool is_backward, XlaPass* pass,
                            RnnBufferSizes* sizes) {
  pass->num_threads = tensorflow::port::MaxParallelism();
  CpuBackend backend(Threads{pass->num_threads, nullptr});
  RnnProblem problem = pass->problem;
  // If all sequences turn out to be full, the pass has no lengths.
  for (const bool has_lengths : {false, pass->problem.has_sequence_lengths}) {
    problem.has_sequence_lengths = has_lengths;
    RnnBufferSizes found;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        is_backward
            ? backend.BackwardBufferSizes(problem, /*reserve_space=*/0, &found)
            : backend.ForwardBufferSizes(problem, &found)));
    sizes->reserve_space = std::max(sizes->reserve_space, found.reserve_space);
    sizes->forward_workspace =
        std::max(sizes->forward_workspace, found.forward_workspace);
    sizes->backward_workspace =
        std::max(sizes->backward_workspace, found.backward_workspace);
  }
  pass->reserve_space = static_cast<int64_t>(sizes->reserve_space);
  return absl::OkStatus();
}

size_t XlaPackedParamsSize(const XlaPackParams& call) {
  return CpuPackedParams::BytesOf(call.spec, call.dtype);
}

namespace {

namespace ffi = xla::ffi;

ffi::Error ToXla(const RnnStatus& status) {
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

  int num_args() const { return static_cast<int>(args_.size()); }
  void* arg(int i) const {
    return args_.get<ffi::AnyBuffer>(i).value().untyped_data();
  }
  void* result(int i) const {
    return results_.get<ffi::AnyBuffer>(i).value()->untyped_data();
  }

 private:
  const ffi::RemainingArgs& args_;
  const ffi::RemainingRets& results_;
};

// At most as many threads of the pool run as the sizes of the buffers are for.
CpuBackend BackendOn(ffi::ThreadPool* pool, int64_t num_threads,
                     std::shared_ptr<const CpuPackedParams> packed = nullptr) {
  const auto run = [pool](int64_t members,
                          const std::function<void(int64_t)>& body) {
    RunInPool(pool,
              std::min(members, std::max<int64_t>(1, pool->num_threads())),
              body);
  };
  return CpuBackend(Threads{num_threads, run}, std::move(packed));
}

// A pass as a handler gets it.
struct Call {
  Call(ffi::Span<const int64_t> integers, const Buffers& buffers)
      : pass(XlaCallOf<XlaPass>(integers.begin(), integers.size())),
        problem(pass.problem) {
    if (pass.num_seeds > 0) std::memcpy(seed, buffers.arg(5), sizeof(seed));
  }

  RnnStatus ReadLengths(const void* data, CpuBackend* backend) {
    if (!problem.has_sequence_lengths) return {};
    if (pass.has_int32_lengths) {
      lengths.on_host = static_cast<const int32_t*>(data);
    } else {
      const RnnStatus status = NarrowLengths(static_cast<const int64_t*>(data),
                                             problem, &host_lengths);
      if (!status.ok()) return status;
      lengths.on_host = host_lengths.data();
    }
    return backend->ReadSequenceLengths(0, &problem, &lengths);
  }

  const XlaPass pass;
  RnnProblem problem;
  uint64_t seed[2] = {0, 0};
  RnnLengths lengths;
  std::vector<int32_t> host_lengths;
};

// The arguments are Forward's inputs; the results are its outputs and a
// workspace.
ffi::Error Forward(ffi::ThreadPool pool, ffi::Span<const int64_t> integers,
                   ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    Call call(integers, given);
    std::shared_ptr<const CpuPackedParams> packed;
    if (call.pass.has_packed_params) {
      packed = std::make_shared<const CpuPackedParams>(
          call.problem.spec, call.problem.dtype, /*params=*/nullptr,
          given.arg(given.num_args() - 1));
    }
    CpuBackend backend = BackendOn(&pool, call.pass.num_threads, packed);
    const RnnStatus status = call.ReadLengths(given.arg(4), &backend);
    if (!status.ok()) return status;
    RnnForwardBuffers buffers;
    buffers.input = given.arg(0);
    buffers.input_h = given.arg(1);
    buffers.input_c = given.arg(2);
    buffers.params = given.arg(3);
    buffers.sequence_lengths = call.lengths;
    std::copy_n(call.seed, 2, buffers.seed);
    buffers.output = given.result(0);
    buffers.output_h = given.result(1);
    buffers.output_c = given.result(2);
    buffers.reserve_space = given.result(3);
    buffers.workspace = given.result(4);
    return backend.Forward(call.problem, buffers);
  });
}

ffi::Error PackParams(ffi::Span<const int64_t> integers,
                      ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    const auto call =
        XlaCallOf<XlaPackParams>(integers.begin(), integers.size());
    CpuPackedParams(call.spec, call.dtype, given.arg(0), given.result(0));
    return {};
  });
}

// The arguments are Backward's inputs; the results are its outputs, the reserve
// space, which is its argument's memory, and a workspace.
ffi::Error Backward(ffi::ThreadPool pool, ffi::Span<const int64_t> integers,
                    ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    Call call(integers, given);
    CpuBackend backend = BackendOn(&pool, call.pass.num_threads);
    const RnnStatus status = call.ReadLengths(given.arg(4), &backend);
    if (!status.ok()) return status;
    const int own = 5 + static_cast<int>(call.pass.num_seeds);
    RnnBackwardBuffers buffers;
    buffers.input = given.arg(0);
    buffers.input_h = given.arg(1);
    buffers.input_c = given.arg(2);
    buffers.params = given.arg(3);
    buffers.sequence_lengths = call.lengths;
    std::copy_n(call.seed, 2, buffers.seed);
    buffers.output = given.arg(own);
    buffers.output_backprop = given.arg(own + 3);
    buffers.output_h_backprop = given.arg(own + 4);
    buffers.output_c_backprop = given.arg(own + 5);
    buffers.reserve_space = given.result(4);
    if (given.arg(own + 6) != buffers.reserve_space) {
      std::memcpy(buffers.reserve_space, given.arg(own + 6),
                  call.pass.reserve_space);
    }
    buffers.input_backprop = given.result(0);
    buffers.input_h_backprop = given.result(1);
    buffers.input_c_backprop = given.result(2);
    buffers.params_backprop = given.result(3);
    buffers.workspace = given.result(5);
    return backend.Backward(call.problem, buffers);
  });
}

ffi::Error KerasTensors(ffi::ThreadPool pool, ffi::Span<const int64_t> integers,
                        ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    const auto call =
        XlaCallOf<XlaKerasTensors>(integers.begin(), integers.size());
    const KerasLayout layout(call.spec);
    const size_t count = layout.weights().size() + layout.biases().size();
    std::vector<void*> tensors;
    for (size_t i = 0; i < count; ++i) {
      tensors.push_back(call.to_params ? given.arg(i) : given.result(i));
    }
    return BackendOn(&pool, tensorflow::port::MaxParallelism())
        .MoveKerasTensors(layout, call.item_bytes, call.to_params, tensors,
                          call.to_params ? given.result(0) : given.arg(0));
  });
}

// LengthsFromMask has one result, and ReadMask three.
ffi::Error ReadMask(ffi::Span<const int64_t> integers, ffi::RemainingArgs args,
                    ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    std::string owner;
    auto mask = XlaCallOf<RnnMask>(integers.begin(), integers.size(), &owner);
    mask.values = static_cast<const bool*>(given.arg(0));
    int64_t* found[3] = {};
    for (size_t i = 0; i < results.size(); ++i) {
      found[i] = static_cast<int64_t*>(given.result(i));
    }
    return WithOwner(
        CpuBackend(Threads()).ReadMask(mask, {found[0], found[1], found[2]}),
        owner);
  });
}

ffi::Error MoveSteps(ffi::ThreadPool pool, ffi::Span<const int64_t> integers,
                     ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&] {
    const Buffers given(args, results);
    auto move = XlaCallOf<StepMove>(integers.begin(), integers.size());
    move.from = given.arg(0);
    move.places = static_cast<const int64_t*>(given.arg(1));
    move.steps = static_cast<const int64_t*>(given.arg(2));
    move.to = given.result(0);
    return BackendOn(&pool, tensorflow::port::MaxParallelism()).MoveSteps(move);
  });
}

#define CRNN_BINDING                            \
  ffi::Ffi::Bind()                              \
      .Ctx<ffi::ThreadPool>()                   \
      .Attr<ffi::Span<const int64_t>>(kXlaCall) \
      .RemainingArgs()                          \
      .RemainingRets()
XLA_FFI_DEFINE_HANDLER(kForward, Forward, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kBackward, Backward, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kKerasTensors, KerasTensors, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kMoveSteps, MoveSteps, CRNN_BINDING);
#undef CRNN_BINDING
#define CRNN_BINDING                            \
  ffi::Ffi::Bind()                              \
      .Attr<ffi::Span<const int64_t>>(kXlaCall) \
      .RemainingArgs()                          \
      .RemainingRets()
XLA_FFI_DEFINE_HANDLER(kPackParams, PackParams, CRNN_BINDING);
XLA_FFI_DEFINE_HANDLER(kReadMask, ReadMask, CRNN_BINDING);
#undef CRNN_BINDING

}  // namespace
}  // namespace cudnn_rnn_tf

#define CRNN_REGISTER(name, handler)                                     \
  XLA_FFI_REGISTER_HANDLER(XLA_FFI_GetApi(), cudnn_rnn_tf::name, "Host", \
                           cudnn_rnn_tf::handler)
CRNN_REGISTER(kXlaForward, kForward);
CRNN_REGISTER(kXlaPackParams, kPackParams);
CRNN_REGISTER(kXlaBackward, kBackward);
CRNN_REGISTER(kXlaKerasTensors, kKerasTensors);
CRNN_REGISTER(kXlaReadMask, kReadMask);
CRNN_REGISTER(kXlaMoveSteps, kMoveSteps);
#undef CRNN_REGISTER
