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
#include "tensorflow/core/platform/cpu_info.h"

namespace cudnn_rnn_tf {

absl::Status XlaCpuBufferSizes(XlaPass* pass, RnnBufferSizes* sizes) {
  pass->num_threads = tensorflow::port::MaxParallelism();
  CpuBackend backend(Threads{pass->num_threads, nullptr});
  std::shared_ptr<const RnnPlan> plan;
  TF_RETURN_IF_ERROR(ToTensorFlow(backend.Plan(pass->problem, /*choice=*/0,
                                               /*lengths=*/nullptr, &plan)));
  *sizes = plan->sizes;
  return absl::OkStatus();
}

namespace {

class CpuPlace {
 public:
  // At most as many threads of the pool run as the sizes of a pass's buffers
  // are for.
  explicit CpuPlace(ffi::ThreadPool pool,
                    int64_t num_threads = tensorflow::port::MaxParallelism()) {
    const auto run = [pool](int64_t members,
                            const std::function<void(int64_t)>& body) mutable {
      RunInPool(&pool,
                std::min(members, std::max<int64_t>(1, pool.num_threads())),
                body);
    };
    backend = std::make_unique<CpuBackend>(
        Threads{std::max<int64_t>(1, num_threads), run});
  }

  RnnStatus ReadLengths(const XlaPass& pass, const RnnPlan&, const void* data,
                        RnnLengths* lengths) {
    RnnProblem checked = pass.problem;
    const RnnStatus status = NarrowLengths(static_cast<const int64_t*>(data),
                                           checked, &host_lengths_);
    if (!status.ok()) return status;
    lengths->on_host = host_lengths_.data();
    return CheckLengths(&checked, lengths);
  }
  template <typename Buffers>
  RnnStatus ReadSeed(const RnnPlan&, const void* seed, Buffers* buffers) const {
    std::memcpy(buffers->seed, seed, sizeof(buffers->seed));
    return {};
  }

  std::unique_ptr<CpuBackend> backend;

 private:
  std::vector<int32_t> host_lengths_;
};

using DeviceHandlers = Handlers<CpuPlace, ffi::ThreadPool>;
CRNN_REGISTER_HANDLERS("Host", .Ctx<ffi::ThreadPool>());

}  // namespace
}  // namespace cudnn_rnn_tf
