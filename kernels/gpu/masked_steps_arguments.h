// What the host and the kernels that move masked steps tell each other.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_ARGUMENTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_ARGUMENTS_H_

namespace cudnn_rnn_tf {

// The rows of sequences in memory: of `time` in sequence `b`.
struct MaskedRows {
  // Blocks have as many rows at a time, each of a warp, and, if they do not
  // have whole ones, so many columns.
  static constexpr int kOfBlock = 8, kColumns = 128;

  long long batch_stride, time_stride, max_time;
  bool is_reversed;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_MASKED_STEPS_ARGUMENTS_H_
