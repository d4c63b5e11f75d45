// The interface of a backend, which is all that the OpKernels know of it.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/keras_layout.h"
#include "kernels/masked_steps.h"
#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// The outcome of a backend call, without TensorFlow's types.
struct [[nodiscard]] RnnStatus {
  enum class Code {
    kOk,
    kInvalidArgument,
    kUnimplemented,
    kFailedPrecondition,
    kResourceExhausted,
    kInternal
  };
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
};

// The ways to run a network on a GPU; other backends have one way only.
// `standard` and the `persist_static` ones are algorithms of cuDNN. `resident`,
// for inference with a few sequences, and `persistent` are kernels of this
// package. `auto` lets the backend choose among all of these, `cudnn` among
// those of cuDNN.
enum class RnnAlgorithm {
  kAuto,
  kStandard,
  kPersistStatic,
  kPersistStaticSmallH,
  kResident,
  kPersistent,
  kCudnn
};
inline constexpr int kNumRnnAlgorithms = 7;
// cuDNN runs only algorithms whose numbers are below this.
inline constexpr int kNumCudnnAlgorithms = 4;
inline constexpr const char* kRnnAlgorithmNames[kNumRnnAlgorithms] = {
    "auto",     "standard",   "persist_static", "persist_static_small_h",
    "resident", "persistent", "cudnn"};
// Returns false if no algorithm has this name.
inline bool ParseRnnAlgorithm(std::string_view name, RnnAlgorithm* algorithm) {
  for (int i = 0; i < kNumRnnAlgorithms; ++i) {
    if (name == kRnnAlgorithmNames[i]) {
      *algorithm = static_cast<RnnAlgorithm>(i);
      return true;
    }
  }
  return false;
}

// One configuration applied to one shape of data.
struct RnnProblem {
  RnnSpec spec;
  RnnDataType dtype = RnnDataType::kFloat32;
  int64_t max_time = 0;
  int64_t batch_size = 0;
  bool time_major = true;
  bool has_sequence_lengths = false;
  // In training, dropout is active, and the forward pass leaves a reserve space
  // for a backward pass.
  bool is_training = true;
  RnnAlgorithm algorithm = RnnAlgorithm::kAuto;
  // True if the parameters and the initial hidden states begin at multiples of
  // kAlignment bytes, as nearly all tensors do. It may differ from call to
  // call.
  bool is_aligned = true;
  static constexpr size_t kAlignment = 16;

  bool has_dropout_between_layers() const {
    return is_training && spec.dropout > 0.0f && spec.num_layers > 1;
  }
  bool has_recurrent_dropout() const {
    return is_training && spec.recurrent_dropout > 0.0f;
  }
};

// A key that tells problems apart. It leaves out `is_aligned`, which varies
// from call to call.
std::string KeyOf(const RnnProblem& problem);

// The sizes in bytes of the buffers that a backend asks for.
struct RnnBufferSizes {
  size_t reserve_space = 0;  // 0 in inference.
  size_t forward_workspace = 0;
  size_t backward_workspace = 0;
};

// The sequences' lengths, [B], each in [0, T]. They are in host memory or in
// device memory; both pointers are null if all sequences fill T.
struct RnnLengths {
  const int32_t* on_host = nullptr;
  const int64_t* on_device = nullptr;
};

// Puts the lengths of a problem, which are in host memory, into `narrowed`.
// Fails if one does not fit 32 bits.
RnnStatus NarrowLengths(const int64_t* lengths, const RnnProblem& problem,
                        std::vector<int32_t>* narrowed);

// Addresses of tensors, in the problem's data type unless said otherwise. T is
// the number of time steps, B the batch size, I the input size, P the output
// size, H the number of units, L the number of layers and D the number of
// directions. Time-major sequences are [T, B, n] and states [L * D, B, n];
// batch-major sequences are [B, T, n] and states [B, L * D, n].
struct RnnForwardBuffers {
  const void* input = nullptr;    // n = I
  const void* input_h = nullptr;  // n = P
  const void* input_c = nullptr;  // n = H; LSTM only.
  const void* params = nullptr;
  RnnLengths sequence_lengths;
  // Dropout masks are a function of these two numbers and of a number's place.
  // cuDNN's function is another than everybody else's.
  uint64_t seed[2] = {0, 0};
  // The seed in device memory, for the persistent kernels; null if it is above.
  const void* device_seed = nullptr;

  void* output = nullptr;    // n = D * P
  void* output_h = nullptr;  // n = P
  void* output_c = nullptr;  // n = H; LSTM only.
  void* reserve_space = nullptr;
  void* workspace = nullptr;
};

struct RnnBackwardBuffers {
  const void* input = nullptr;
  const void* input_h = nullptr;
  const void* input_c = nullptr;
  const void* params = nullptr;
  RnnLengths sequence_lengths;
  uint64_t seed[2] = {0, 0};
  const void* output = nullptr;
  const void* output_backprop = nullptr;
  const void* output_h_backprop = nullptr;
  const void* output_c_backprop = nullptr;
  void* reserve_space = nullptr;

  void* input_backprop = nullptr;
  void* input_h_backprop = nullptr;
  void* input_c_backprop = nullptr;
  void* params_backprop = nullptr;
  void* workspace = nullptr;
};

// A backend is made for one call and uses the device resources of that call.
// Callers ask for the sizes of the buffers before they run a pass.
class RnnBackend {
 public:
  virtual ~RnnBackend() = default;

  // Checks the lengths of a problem that has sequence lengths, and puts them
  // where the passes read them. A backend may leave lengths in device memory
  // unchecked, so that the host need not wait for the device. If all sequences
  // are found to fill the time, the problem has no lengths from then on.
  // `reserve_space` is the size in bytes of what a forward pass has left, and 0
  // before a forward pass.
  virtual RnnStatus ReadSequenceLengths(size_t /*reserve_space*/,
                                        RnnProblem* problem,
                                        RnnLengths* lengths) {
    return CheckSequenceLengths(problem, lengths);
  }
  // Computes the sizes of a forward pass's buffers.
  virtual RnnStatus ForwardBufferSizes(const RnnProblem& problem,
                                       RnnBufferSizes* sizes) = 0;
  // Computes the sizes of a backward pass's buffers. `reserve_space` is the
  // size in bytes of what the forward pass left, which may tell the algorithm
  // it used; `sizes->reserve_space` is the size it should have.
  virtual RnnStatus BackwardBufferSizes(const RnnProblem& problem,
                                        size_t reserve_space,
                                        RnnBufferSizes* sizes) = 0;
  // The caller passes every large buffer that it has allocated for a pass to
  // write to, before the pass. A CPU asks for its memory in large pages then,
  // and tests have a GPU fill it with NaN.
  virtual void Prepare(void* /*buffer*/, size_t /*bytes*/) {}
  virtual RnnStatus Forward(const RnnProblem& problem,
                            const RnnForwardBuffers& buffers) = 0;
  // Overwrites the reserve space. A caller who may need it again must pass a
  // copy.
  virtual RnnStatus Backward(const RnnProblem& problem,
                             const RnnBackwardBuffers& buffers) = 0;
  // Finds the steps that a mask selects. If a sequence is wrong, the call fails
  // or, where the host does not wait for the device, its length is -1.
  virtual RnnStatus ReadMask(const RnnMask& /*mask*/,
                             const MaskedSteps& /*found*/) {
    return {RnnStatus::Code::kUnimplemented, "the backend reads no masks"};
  }
  virtual RnnStatus MoveSteps(const StepMove& /*move*/) {
    return {RnnStatus::Code::kUnimplemented, "the backend moves no steps"};
  }
  // Copies within the device's memory, in order with the other work that is
  // enqueued there.
  virtual RnnStatus Copy(const void* from, void* to, size_t bytes) = 0;
  virtual RnnStatus SetZero(void* to, size_t bytes) = 0;
  // Copies the tensors of Keras's layers, the layout's weights and then its
  // biases, to their places in the parameters, or from there if `to_params` is
  // false. Their numbers have `item_bytes` bytes each.
  virtual RnnStatus MoveKerasTensors(const KerasLayout& /*layout*/,
                                     size_t /*item_bytes*/, bool /*to_params*/,
                                     const std::vector<void*>& /*tensors*/,
                                     void* /*params*/) {
    return {RnnStatus::Code::kUnimplemented, "the backend moves no tensors"};
  }

 protected:
  // ReadSequenceLengths for lengths in host memory.
  static RnnStatus CheckSequenceLengths(RnnProblem* problem,
                                        RnnLengths* lengths);
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
