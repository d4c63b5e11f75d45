// The interface of a backend: the OpKernels know no more of one.
#ifndef CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
#define CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

// The outcome of a backend call, without TensorFlow's types.
struct RnnStatus {
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

enum class RnnDataType { kFloat64, kFloat32, kFloat16, kBfloat16 };
// Bytes of a number.
inline size_t SizeOf(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat64   ? 8
         : dtype == RnnDataType::kFloat32 ? 4
                                          : 2;
}

// On GPUs: cuDNN's algorithms and our own, `resident` for inference with a few
// sequences and `persistent`; `cudnn` leaves the choice among cuDNN's to the
// backend, `auto` all choices. Other backends have one way.
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
// The first of them are those that the cuDNN backend chooses among.
inline constexpr int kNumCudnnAlgorithms = 5;
inline constexpr const char* kRnnAlgorithmNames[kNumRnnAlgorithms] = {
    "auto",     "standard",   "persist_static", "persist_static_small_h",
    "resident", "persistent", "cudnn"};
// False where `name` names no algorithm.
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
  // Training runs dropout and leaves a reserve space for a backward pass.
  bool is_training = true;
  RnnAlgorithm algorithm = RnnAlgorithm::kAuto;
  // Whether parameters and initial states begin at multiples of kAlignment
  // bytes, as nearly all tensors do. Varies from call to call.
  bool is_aligned = true;
  static constexpr size_t kAlignment = 16;
};

// Bytes that tell problems apart; `is_aligned`, which varies from call to call,
// is no part of them.
std::string KeyOf(const RnnProblem& problem);

// Which steps of the sequences are to be read: bool [batch_size, max_time], or
// [max_time, batch_size] time-major.
struct RnnMask {
  const bool* values = nullptr;
  int64_t max_time = 0;
  int64_t batch_size = 0;
  bool time_major = true;
};

// Bytes of the buffers whose size a backend decides.
struct RnnBufferSizes {
  size_t reserve_space = 0;  // 0 in inference.
  size_t forward_workspace = 0;
  size_t backward_workspace = 0;
  // Whether a backward pass uses the reserve space up, so that a caller who
  // wants to run another one must hand it a copy.
  bool backward_consumes_reserve = false;
};

// Sequences' lengths, [B], each in [0, T], in the host's memory or the
// device's; none where all sequences fill T.
struct RnnLengths {
  const int32_t* on_host = nullptr;
  const int64_t* on_device = nullptr;
};

// Tensors in the problem's data type unless said otherwise. With T time steps,
// B batch, I input size, P output size, H units, L layers, D directions:
// sequences are [T, B, n] time-major, [B, T, n] batch-major; states are
// [L * D, B, n] and [B, L * D, n].
struct RnnForwardBuffers {
  const void* input = nullptr;    // n = I
  const void* input_h = nullptr;  // n = P
  const void* input_c = nullptr;  // n = H; LSTM only.
  const void* params = nullptr;
  RnnLengths sequence_lengths;
  // Dropout masks are a pure function of these two.
  uint64_t seed[2] = {0, 0};

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

// The device's memory, which other work in the order of the device's may use
// once the last holder lets go of it; null where there is none to be had.
using AllocateMemory = std::function<std::shared_ptr<void>(size_t bytes)>;

// A backend is made for one call, over the device resources of that call. The
// sizes of its buffers are asked for before it runs.
class RnnBackend {
 public:
  virtual ~RnnBackend() = default;

  // For a problem with sequence lengths: checks them, as far as they can be
  // known without waiting for the device, and leaves them where the passes want
  // them. Where all sequences fill the time, the problem has none from then on.
  // `reserve_space` is what a forward pass has left, in bytes; 0 before one.
  virtual RnnStatus ReadSequenceLengths(size_t /*reserve_space*/,
                                        RnnProblem* problem,
                                        RnnLengths* lengths) {
    return CheckSequenceLengths(problem, lengths);
  }
  // Sizes of a forward pass's buffers.
  virtual RnnStatus BufferSizes(const RnnProblem& problem,
                                RnnBufferSizes* sizes) = 0;
  // At how many bytes past a multiple of kOutputPeriod the output best begins;
  // 0 also where one place is as good as another.
  virtual size_t OutputOffset(const RnnProblem& /*problem*/) const { return 0; }
  static constexpr size_t kOutputPeriod = 1024;
  // The number of bytes that the forward pass left may tell how it ran; `sizes`
  // says how many there should be.
  virtual RnnStatus BackwardBufferSizes(const RnnProblem& problem,
                                        size_t reserve_space,
                                        RnnBufferSizes* sizes) = 0;
  // The workspace of a pass: `allocate`'s, or what a backend has kept of that.
  virtual std::shared_ptr<void> Workspace(size_t bytes,
                                          const AllocateMemory& allocate) {
    return allocate(bytes);
  }
  // Called with every large buffer that was allocated for a call to write to.
  virtual void Prepare(void* /*buffer*/, size_t /*bytes*/) {}
  virtual RnnStatus Forward(const RnnProblem& problem,
                            const RnnForwardBuffers& buffers) = 0;
  virtual RnnStatus Backward(const RnnProblem& problem,
                             const RnnBackwardBuffers& buffers) = 0;
  // [B], the sequences' lengths. In a mask, true values must all be at a
  // sequence's beginning; where that is not known without waiting for the
  // device, a sequence for which it does not hold has the length -1.
  virtual RnnStatus LengthsOfMask(const RnnMask& mask, int64_t* lengths) {
    const int64_t wrong = ReadMask(mask, lengths);
    if (wrong < 0) return {};
    return {RnnStatus::Code::kInvalidArgument,
            "in sequence " + std::to_string(wrong) +
                ", a true value follows a false one"};
  }
  // Copies within the device's memory, in the order of its work.
  virtual RnnStatus Copy(const void* from, void* to, size_t bytes) = 0;
  virtual RnnStatus SetZero(void* to, size_t bytes) = 0;

 protected:
  // The same for lengths in host memory.
  static RnnStatus CheckSequenceLengths(RnnProblem* problem,
                                        RnnLengths* lengths);
  // LengthsOfMask for host memory: the first sequence of length -1, or -1.
  static int64_t ReadMask(const RnnMask& mask, int64_t* lengths);
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_RNN_BACKEND_H_
