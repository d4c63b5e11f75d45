// The version of the package, as pyproject.toml has it.
#ifndef CUDNN_RNN_TF_KERNELS_VERSION_H_
#define CUDNN_RNN_TF_KERNELS_VERSION_H_

namespace cudnn_rnn_tf {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_VERSION_H_
