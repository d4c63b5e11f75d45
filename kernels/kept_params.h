// Weights that ops on CPUs keep from call to call, in the form that they read.
#ifndef CUDNN_RNN_TF_KERNELS_KEPT_PARAMS_H_
#define CUDNN_RNN_TF_KERNELS_KEPT_PARAMS_H_

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/rnn_spec.h"
#include "tensorflow/core/framework/tensor.h"

namespace cudnn_rnn_tf {

// Packed parameters of networks that were called lately. Each entry holds the
// tensor that it was packed from. While somebody else holds a tensor,
// TensorFlow's variables do not write to its memory but take new memory. So a
// call that gets the same memory again gets the same numbers. (Reference
// variables of TensorFlow 1 do not keep to this; the ops' attribute
// may_keep_params is false for them.)
//
// All functions may be called by several threads at the same time.
class KeptParams {
 public:
  static KeptParams& Instance();

  // Returns the packed form of `params`, of the network `spec`. If it is not
  // kept from an earlier call, it is made, and kept for later calls.
  std::shared_ptr<const CpuPackedParams> Packed(
      const tensorflow::Tensor& params, const RnnSpec& spec, RnnDataType dtype);

 private:
  struct Entry {
    tensorflow::Tensor params;
    RnnSpec spec;
    std::shared_ptr<const CpuPackedParams> packed;
  };
  static constexpr size_t kMostEntries = 64;

  std::shared_ptr<const CpuPackedParams> Find(const tensorflow::Tensor& params,
                                              const RnnSpec& spec);

  std::mutex mutex_;
  std::list<Entry> entries_;  // The most recently used come first.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_KEPT_PARAMS_H_
