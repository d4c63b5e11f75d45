// Apart from op_backend.cc, since it needs TensorFlow's stream executor.
#include <cstdlib>

#include "kernels/cudnn/cudnn_backend.h"
#include "kernels/op_backend.h"
#include "tensorflow/core/framework/device_base.h"
#include "tsl/platform/tensor_float_32_utils.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace cudnn_rnn_tf {

template <>
std::unique_ptr<RnnBackend> MakeBackend<GpuDevice>(
    tensorflow::OpKernelContext* context) {
  stream_executor::Stream* const stream =
      context->op_device_context()->stream();
  // TensorFlow then loads its cuDNN, from where it knows to look.
  stream->parent()->AsDnn();
  static const bool force_repack =
      std::getenv("CUDNN_RNN_TF_FORCE_REPACK") != nullptr;
  static const bool poison_scratch =
      std::getenv("CUDNN_RNN_TF_POISON_SCRATCH") != nullptr;
  CudnnOptions options;
  options.allow_tf32 = tsl::tensor_float_32_execution_enabled();
  options.force_repack = force_repack;
  options.poison_scratch = poison_scratch;
  return std::make_unique<CudnnBackend>(
      stream->parent()->device_ordinal(),
      stream->platform_specific_handle().stream, options);
}

}  // namespace cudnn_rnn_tf
