#include "kernels/op_backend.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/pool_threads.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace cudnn_rnn_tf {

std::unique_ptr<RnnBackend> MakeBackend(
    CpuDevice, tensorflow::OpKernelContext* context,
    std::shared_ptr<const CpuPackedParams> packed) {
  tensorflow::thread::ThreadPool* const pool =
      context->device()->tensorflow_cpu_worker_threads()->workers;
  const auto run = [pool](int64_t members,
                          const std::function<void(int64_t)>& body) {
    RunInPool(pool, members, body);
  };
  return std::make_unique<CpuBackend>(Threads{pool->NumThreads(), run},
                                      std::move(packed));
}

std::shared_ptr<void> AllocateTemp(tensorflow::OpKernelContext* context,
                                   size_t bytes, absl::Status* status) {
  auto tensor = std::make_shared<tensorflow::Tensor>();
  *status = context->allocate_temp(
      tensorflow::DT_UINT8,
      tensorflow::TensorShape({static_cast<int64_t>(bytes)}), tensor.get());
  if (!status->ok()) return nullptr;
  return {tensor, DataOf(*tensor)};
}

absl::Status ToTensorFlow(const RnnStatus& status) {
  static_assert(HasNumbersOfCodes<absl::StatusCode>());
  return {static_cast<absl::StatusCode>(status.code), status.message};
}

}  // namespace cudnn_rnn_tf
