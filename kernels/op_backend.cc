#include "kernels/op_backend.h"

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/pool_threads.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace cudnn_rnn_tf {

template <>
std::unique_ptr<RnnBackend> MakeBackend<CpuDevice>(
    tensorflow::OpKernelContext* context,
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
  switch (status.code) {
    case RnnStatus::Code::kOk:
      return absl::OkStatus();
    case RnnStatus::Code::kInvalidArgument:
      return absl::InvalidArgumentError(status.message);
    case RnnStatus::Code::kUnimplemented:
      return absl::UnimplementedError(status.message);
    case RnnStatus::Code::kFailedPrecondition:
      return absl::FailedPreconditionError(status.message);
    case RnnStatus::Code::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message);
    case RnnStatus::Code::kInternal:
      break;
  }
  return absl::InternalError(status.message);
}

}  // namespace cudnn_rnn_tf
