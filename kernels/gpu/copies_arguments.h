// What the host tells the kernel that copies several arrays at once.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_COPIES_ARGUMENTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_COPIES_ARGUMENTS_H_

namespace cudnn_rnn_tf {

struct ArrayCopy {
  const void* from;
  void* to;
  long long bytes;
};

// A pass reads, or writes, at most this many arrays.
constexpr int kMostArrayCopies = 9;

struct ArrayCopies {
  ArrayCopy of[kMostArrayCopies];
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_COPIES_ARGUMENTS_H_
