// The text of the kernel that keeps weights resident, in CUDA C++.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_RESIDENT_SOURCE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_RESIDENT_SOURCE_H_

namespace cudnn_rnn_tf {

extern const char kResidentSource[];

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_RESIDENT_SOURCE_H_
