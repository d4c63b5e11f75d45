// A configuration as cuDNN knows it: described once, then run many times.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_DESCRIPTION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_DESCRIPTION_H_

#include <cstddef>
#include <string>

#include "kernels/gpu/descriptors.h"
#include "kernels/gpu/engine.h"
#include "kernels/rnn_backend.h"

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

// Returns a failed cuDNN call as a status, with cuDNN's own account of it.
RnnStatus CudnnFailure(cudnnStatus_t status, const char* call,
                       const RnnProblem& problem);

#define CRNN_RETURN_IF_CUDNN_ERROR(call, problem)       \
  do {                                                  \
    const cudnnStatus_t crnn_status = (call);           \
    if (crnn_status != CUDNN_STATUS_SUCCESS) {          \
      return CudnnFailure(crnn_status, #call, problem); \
    }                                                   \
  } while (false)

// Not thread-safe: sequence lengths are set before each run.
class CudnnDescription {
 public:
  explicit CudnnDescription(const RnnProblem& problem) : problem_(problem) {}
  // Describes the problem to cuDNN, once and before anything else.
  RnnStatus Build(cudnnHandle_t handle, CudnnAlgorithm algorithm,
                  bool allow_tf32);

  // Describes the data anew. Sequences are full if `lengths` is null.
  RnnStatus SetSequenceLengths(const int32_t* lengths);
  // Starts the random numbers of dropout from `seed`. `states` is device memory
  // of dropout_states_size() bytes, which is written in the handle's stream.
  RnnStatus SeedDropout(cudnnHandle_t handle, void* states, uint64_t seed);
  // Describes dropout with `states` as they are. A forward pass needs
  // SeedDropout before. A backward pass takes the masks from the reserve space
  // and leaves `states` alone.
  RnnStatus AttachDropout(cudnnHandle_t handle, void* states);

  const RnnProblem& problem() const { return problem_; }
  bool uses_dropout() const { return dropout_states_size_ > 0; }
  size_t dropout_states_size() const { return dropout_states_size_; }
  size_t workspace_size() const { return workspace_size_; }
  size_t reserve_size() const { return reserve_size_; }
  size_t weight_space_size() const { return weight_space_size_; }

  cudnnRNNDescriptor_t rnn() const { return rnn_.get(); }
  cudnnRNNDataDescriptor_t input() const { return input_.get(); }
  cudnnRNNDataDescriptor_t output() const { return output_.get(); }
  cudnnTensorDescriptor_t h() const { return h_.get(); }
  cudnnTensorDescriptor_t c() const { return c_.get(); }

 private:
  RnnStatus DescribeNetwork(CudnnAlgorithm algorithm, bool allow_tf32);
  RnnStatus DescribeData(RnnDataDescriptor* descriptor, int64_t vector_size,
                         const int32_t* lengths);
  RnnStatus DescribeStates(TensorDescriptor* descriptor, int64_t size);
  // Returns an error unless cuDNN's layout of parameters is the opaque
  // buffer's.
  RnnStatus CheckLayout(cudnnHandle_t handle);

  const RnnProblem problem_;
  DropoutDescriptor dropout_;
  RnnDescriptor rnn_;
  RnnDataDescriptor input_, output_;
  TensorDescriptor h_, c_;
  size_t dropout_states_size_ = 0;
  size_t workspace_size_ = 0;
  size_t reserve_size_ = 0;
  size_t weight_space_size_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_DESCRIPTION_H_
