#include "kernels/op_backend.h"

#include <algorithm>
#include <functional>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/threadpool.h"

namespace cudnn_rnn_tf {

template <>
std::unique_ptr<RnnBackend> MakeBackend<CpuDevice>(
    tensorflow::OpKernelContext* context) {
  tensorflow::thread::ThreadPool* const pool =
      context->device()->tensorflow_cpu_worker_threads()->workers;
  return std::make_unique<CpuBackend>(
      [pool](int64_t tasks, double flops_per_task,
             const std::function<void(int64_t, int64_t)>& body) {
        // Waking a thread costs about as much as this many operations.
        constexpr double kWorthAThread = 2e5;
        if (tasks <= 1 || tasks * flops_per_task < kWorthAThread) {
          if (tasks > 0) body(0, tasks);
          return;
        }
        const int64_t block = std::max<int64_t>(
            1, static_cast<int64_t>(kWorthAThread / 2 / flops_per_task));
        pool->ParallelFor(
            tasks,
            tensorflow::thread::ThreadPool::SchedulingParams::Fixed(block),
            body);
      });
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
