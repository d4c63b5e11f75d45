// A function that XLA compiled for a CPU calls these handlers at run time.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/op_backend.h"
#include "kernels/pool_threads.h"
#include "kernels/xla/buffer_sizes.h"
#include "kernels/xla/handler.h"
#include "kernels/xla/xla_call.h"
#include "tensorflow/core/platform/cpu_info.h"

namespace cudnn_rnn_tf {

absl::Status XlaCpuBufferSizes(bool /*is_backward*/, XlaPass* pass,
                               RnnBufferSizes* sizes) {
  pass->num_threads = tensorflow::port::MaxParallelism();
  CpuBackend backend(Threads{pass->num_threads, nullptr});
  std::shared_ptr<const RnnPlan> plan;
  TF_RETURN_IF_ERROR(ToTensorFlow(backend.Plan(pass->problem, /*choice=*/0,
                                               /*lengths=*/nullptr, &plan)));
  *sizes = plan->sizes;
  pass->reserve_space = static_cast<int64_t>(sizes->reserve_space);
  return absl::OkStatus();
}

namespace {

// At most as many threads of the pool run as the sizes of the buffers are for.
Threads ThreadsOf(ffi::ThreadPool pool, int64_t num_threads) {
  const auto run = [pool](int64_t members,
                          const std::function<void(int64_t)>& body) mutable {
    RunInPool(&pool,
              std::min(members, std::max<int64_t>(1, pool.num_threads())),
              body);
  };
  return {num_threads, run};
}

// A pass as a handler gets it.
struct Call {
  Call(ffi::Span<const int64_t> integers, const Buffers& buffers)
      : pass(XlaCallOf<XlaPass>(integers.begin(), integers.size())) {
    if (pass.num_seeds > 0) std::memcpy(seed, buffers.arg(kSeed), sizeof(seed));
  }

  // Finds the plan of the pass, for the lengths of the call.
  RnnStatus Plan(const void* data, CpuBackend* backend) {
    const RnnProblem& problem = pass.problem;
    if (problem.has_sequence_lengths && pass.has_int32_lengths) {
      lengths.on_host = static_cast<const int32_t*>(data);
    } else if (problem.has_sequence_lengths) {
      const RnnStatus status = NarrowLengths(static_cast<const int64_t*>(data),
                                             problem, &host_lengths);
      if (!status.ok()) return status;
      lengths.on_host = host_lengths.data();
    }
    return backend->Plan(problem, pass.choice, &lengths, &plan);
  }

  const XlaPass pass;
  std::shared_ptr<const RnnPlan> plan;
  uint64_t seed[2] = {0, 0};
  RnnLengths lengths;
  std::vector<int32_t> host_lengths;
};

template <bool is_backward>
ffi::Error RunPass(ffi::ThreadPool pool, ffi::Span<const int64_t> integers,
                   ffi::RemainingArgs args, ffi::RemainingRets results) {
  return Handle([&]() -> RnnStatus {
    const Buffers given(args, results);
    Call call(integers, given);
    CpuBackend backend(ThreadsOf(pool, call.pass.num_threads));
    const RnnStatus status = call.Plan(given.arg(kSequenceLengths), &backend);
    if (!status.ok()) return status;
    const auto run = [&](auto buffers, auto pass) {
      buffers.sequence_lengths = call.lengths;
      std::copy_n(call.seed, 2, buffers.seed);
      return (backend.*pass)(*call.plan, buffers);
    };
    return is_backward ? run(given.OfBackward(call.pass), &CpuBackend::Backward)
                       : run(given.OfForward(call.pass), &CpuBackend::Forward);
  });
}

std::unique_ptr<CpuBackend> BackendOf(ffi::ThreadPool pool) {
  return std::make_unique<CpuBackend>(
      ThreadsOf(pool, tensorflow::port::MaxParallelism()));
}
template <typename Call>
constexpr auto kHandle = HandleCall<Call, BackendOf, ffi::ThreadPool>;

CRNN_REGISTER_HANDLERS("Host", .Ctx<ffi::ThreadPool>());

}  // namespace
}  // namespace cudnn_rnn_tf
