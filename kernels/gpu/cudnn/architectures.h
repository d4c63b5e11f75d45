// The GPUs that a version of cuDNN has code for.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ARCHITECTURES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ARCHITECTURES_H_

#include <cstddef>
#include <string>

namespace cudnn_rnn_tf {

// Says which cuDNN to install if the `version` at hand has no code for GPUs of
// `architecture`, which is 10 * major + minor of the compute capability.
// Returns an empty text otherwise. Version 9.11 dropped those before 7.5.
inline std::string AdviceForArchitecture(int architecture, size_t version) {
  if (architecture >= 75 || version < 91100) return "";
  const std::string name = std::to_string(version / 10000) + "." +
                           std::to_string(version / 100 % 100);
  return "; cuDNN " + name +
         " has no code for this GPU of compute capability " +
         std::to_string(architecture / 10) + "." +
         std::to_string(architecture % 10) +
         "; cuDNN 9.10 has: pip install 'nvidia-cudnn-cu12<9.11'";
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_ARCHITECTURES_H_
