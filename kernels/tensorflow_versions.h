// Hides the differences between the versions of TensorFlow that this package is
// built for. No other file depends on the version.
#ifndef CUDNN_RNN_TF_KERNELS_TENSORFLOW_VERSIONS_H_
#define CUDNN_RNN_TF_KERNELS_TENSORFLOW_VERSIONS_H_

// The build defines CRNN_TENSORFLOW_VERSION, for example as 2021 for TensorFlow
// 2.21.
#ifndef CRNN_TENSORFLOW_VERSION
#error "CRNN_TENSORFLOW_VERSION is not defined"
#endif

#if CRNN_TENSORFLOW_VERSION < 2020
// TensorFlow 2.19's tma_metadata.h includes headers of LLVM that TensorFlow's
// package lacks, although only declarations name its class. Defining that
// header's guard and the class here replaces it, so this file must be included
// before the stream executor.
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {};
}  // namespace stream_executor::gpu
#endif

#endif  // CUDNN_RNN_TF_KERNELS_TENSORFLOW_VERSIONS_H_
