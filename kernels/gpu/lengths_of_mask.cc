#include "kernels/gpu/lengths_of_mask.h"

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"

namespace cudnn_rnn_tf {

RnnStatus EnqueueLengthsOfMask(CUstream stream, const RnnMask& mask,
                               int64_t* lengths) {
  CUkernel kernel;
  CRNN_RETURN_IF_ERROR(
      CompileKernel("lengths_of_mask.cu", "lengths_of_mask", {}, &kernel));
  const void* values = mask.values;
  int batch = static_cast<int>(mask.batch_size);
  int steps = static_cast<int>(mask.max_time);
  int64_t batch_stride = mask.time_major ? 1 : mask.max_time;
  int64_t time_stride = mask.time_major ? mask.batch_size : 1;
  void* arguments[] = {&values,       &batch,       &steps,
                       &batch_stride, &time_stride, &lengths};
  constexpr unsigned int kThreads = 256, kSequences = kThreads / 32;
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(
          reinterpret_cast<CUfunction>(kernel),
          static_cast<unsigned int>(CeilDiv(mask.batch_size, kSequences)), 1, 1,
          kThreads, 1, 1, /*sharedMemBytes=*/0, stream, arguments,
          /*extra=*/nullptr),
      "launch a kernel");
}

}  // namespace cudnn_rnn_tf
