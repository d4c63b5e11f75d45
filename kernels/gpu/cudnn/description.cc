#include "kernels/gpu/cudnn/description.h"

#include <limits>
#include <regex>
#include <utility>

#include "kernels/gpu/device_limits.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace {

const CudnnLibrary& Cudnn() { return Gpu().cudnn; }

// cuDNN's numbers for the values of our enumerations, in their order.
constexpr cudnnRNNAlgo_t kAlgorithms[] = {
    CUDNN_RNN_ALGO_STANDARD, CUDNN_RNN_ALGO_PERSIST_STATIC,
    CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H};
constexpr cudnnRNNBiasMode_t kBiasModes[] = {
    CUDNN_RNN_NO_BIAS, CUDNN_RNN_SINGLE_INP_BIAS, CUDNN_RNN_SINGLE_REC_BIAS,
    CUDNN_RNN_DOUBLE_BIAS};

template <typename Number, size_t kCount, typename Enum>
Number Of(const Number (&numbers)[kCount], Enum value) {
  return numbers[static_cast<int>(value)];
}

cudnnMathType_t MathType(RnnDataType dtype, bool allow_tf32) {
  return SizeOf(dtype) == 2                              ? CUDNN_TENSOR_OP_MATH
         : dtype == RnnDataType::kFloat32 && !allow_tf32 ? CUDNN_FMA_MATH
                                                         : CUDNN_DEFAULT_MATH;
}

// Returns "cudnnRNNForward" for "Gpu().cudnn.cudnnRNNForward(…)".
std::string FunctionName(const std::string& call) {
  std::smatch found;
  const std::regex function("cudnn[A-Z]\\w*");
  return std::regex_search(call, found, function) ? found.str() : call;
}

// Stands for device memory in calls of cuDNN that only compute with addresses.
void* UnreadAddress() { return reinterpret_cast<void*>(uintptr_t{1} << 20); }

}  // namespace

RnnStatus CudnnFailure(cudnnStatus_t status, const char* call,
                       const RnnProblem& problem) {
  char details[512] = "";
  Cudnn().cudnnGetLastErrorString(details, sizeof(details));
  std::string message = std::string("cuDNN failed (") +
                        Cudnn().cudnnGetErrorString(status) + ") in " +
                        FunctionName(call) + " for " + problem.Text() +
                        (details[0] != '\0' ? ": " : "") + details;
  DeviceLimits limits;
  if (ReadLimits(&limits).ok()) {
    message +=
        AdviceForArchitecture(limits.architecture, Cudnn().cudnnGetVersion());
  }
  switch (status / 1000) {
    case CUDNN_STATUS_BAD_PARAM / 1000:
      return {RnnStatus::Code::kInvalidArgument, message};
    case CUDNN_STATUS_NOT_SUPPORTED / 1000:
      return {RnnStatus::Code::kUnimplemented, message};
    default:
      break;
  }
  const bool out_of_memory =
      status == CUDNN_STATUS_ALLOC_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  return {out_of_memory ? RnnStatus::Code::kResourceExhausted
                        : RnnStatus::Code::kInternal,
          message};
}

// Returns the failure of a call about the described problem.
#define CRNN_RETURN_IF_FAILED(call) CRNN_RETURN_IF_CUDNN_ERROR(call, problem_)

RnnStatus CudnnDescription::DescribeNetwork(CudnnAlgorithm algorithm,
                                            bool allow_tf32) {
  const RnnSpec& spec = problem_.spec;
  CRNN_RETURN_IF_FAILED(rnn_.Create());
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnSetRNNDescriptor_v8(
      rnn_.get(), Of(kAlgorithms, algorithm),
      static_cast<cudnnRNNMode_t>(spec.kind().cudnn_mode),
      Of(kBiasModes, spec.bias_mode),
      spec.num_dirs() == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
      spec.input_mode == InputMode::kSkip ? CUDNN_SKIP_INPUT
                                          : CUDNN_LINEAR_INPUT,
      TypeOf(problem_.dtype).cudnn,
      problem_.dtype == RnnDataType::kFloat64 ? CUDNN_DATA_DOUBLE
                                              : CUDNN_DATA_FLOAT,
      MathType(problem_.dtype, allow_tf32),
      static_cast<int32_t>(spec.input_size),
      static_cast<int32_t>(spec.num_units),
      static_cast<int32_t>(spec.output_size()),
      static_cast<int32_t>(spec.num_layers), dropout_.get(),
      problem_.has_sequence_lengths ? CUDNN_RNN_PADDED_IO_ENABLED
                                    : CUDNN_RNN_PADDED_IO_DISABLED));
  if (spec.cell_clip > 0.0f) {
    CRNN_RETURN_IF_FAILED(Cudnn().cudnnRNNSetClip_v9(
        rnn_.get(), CUDNN_RNN_CLIP_MINMAX, -static_cast<double>(spec.cell_clip),
        static_cast<double>(spec.cell_clip)));
  }
  return {};
}

RnnStatus CudnnDescription::DescribeData(RnnDataDescriptor* descriptor,
                                         int64_t vector_size,
                                         const int32_t* lengths) {
  const int num_steps = static_cast<int>(problem_.max_time);
  // cuDNN sets padded outputs to this, whose bytes are zero in every type.
  double padding = 0.0;
  std::vector<int> full;
  if (lengths == nullptr) {
    full.assign(problem_.batch_size, num_steps);
    lengths = full.data();
  }
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnSetRNNDataDescriptor(
      descriptor->get(), TypeOf(problem_.dtype).cudnn,
      CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, num_steps,
      static_cast<int>(problem_.batch_size), static_cast<int>(vector_size),
      lengths, &padding));
  return {};
}

RnnStatus CudnnDescription::DescribeStates(TensorDescriptor* descriptor,
                                           int64_t size) {
  const int rows = static_cast<int>(problem_.spec.num_pseudo_layers());
  const int batch = static_cast<int>(problem_.batch_size);
  const int n = static_cast<int>(size);
  const int dims[] = {rows, batch, n};
  const int strides[] = {batch * n, n, 1};
  CRNN_RETURN_IF_FAILED(descriptor->Create());
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnSetTensorNdDescriptor(
      descriptor->get(), TypeOf(problem_.dtype).cudnn, 3, dims, strides));
  return {};
}

RnnStatus CudnnDescription::SetSequenceLengths(const int32_t* lengths) {
  CRNN_RETURN_IF_ERROR(
      DescribeData(&input_, problem_.spec.input_size, lengths));
  return DescribeData(&output_, problem_.spec.layer_output_size(), lengths);
}

RnnStatus CudnnDescription::SeedDropout(cudnnHandle_t handle, void* states,
                                        uint64_t seed) {
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnSetDropoutDescriptor(
      dropout_.get(), handle, problem_.spec.dropout, states,
      dropout_states_size_, seed));
  return {};
}

RnnStatus CudnnDescription::AttachDropout(cudnnHandle_t handle, void* states) {
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnRestoreDropoutDescriptor(
      dropout_.get(), handle, problem_.spec.dropout, states,
      dropout_states_size_, 0));
  return {};
}

RnnStatus CudnnDescription::Build(cudnnHandle_t handle,
                                  CudnnAlgorithm algorithm, bool allow_tf32) {
  const RnnSpec& spec = problem_.spec;
  const int64_t largest = std::numeric_limits<int32_t>::max();
  for (const int64_t size :
       {spec.num_pseudo_layers(), problem_.batch_size * spec.num_units,
        problem_.batch_size * spec.output_size(), spec.input_size,
        spec.layer_output_size()}) {
    if (size > largest) {
      return {RnnStatus::Code::kUnimplemented,
              "cuDNN's sizes are 32-bit integers, too small for " +
                  problem_.Text()};
    }
  }
  CRNN_RETURN_IF_FAILED(dropout_.Create());
  const bool drops = problem_.has_dropout_between_layers();
  if (drops) {
    CRNN_RETURN_IF_FAILED(
        Cudnn().cudnnDropoutGetStatesSize(handle, &dropout_states_size_));
    // The sizes below depend on the rate. The states are set before each run;
    // until then, cuDNN only notes this address.
    CRNN_RETURN_IF_ERROR(AttachDropout(handle, UnreadAddress()));
  } else {
    CRNN_RETURN_IF_FAILED(Cudnn().cudnnSetDropoutDescriptor(
        dropout_.get(), handle, 0.0f, nullptr, 0, 0));
  }
  CRNN_RETURN_IF_ERROR(DescribeNetwork(algorithm, allow_tf32));
  CRNN_RETURN_IF_ERROR(DescribeStates(&h_, spec.output_size()));
  CRNN_RETURN_IF_ERROR(DescribeStates(&c_, spec.num_units));
  CRNN_RETURN_IF_FAILED(input_.Create());
  CRNN_RETURN_IF_FAILED(output_.Create());
  CRNN_RETURN_IF_ERROR(SetSequenceLengths(nullptr));
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnGetRNNTempSpaceSizes(
      handle, rnn_.get(),
      problem_.is_training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
      input_.get(), &workspace_size_, &reserve_size_));
  CRNN_RETURN_IF_FAILED(Cudnn().cudnnGetRNNWeightSpaceSize(
      handle, rnn_.get(), &weight_space_size_));
  return CheckLayout(handle);
}

RnnStatus CudnnDescription::CheckLayout(cudnnHandle_t handle) {
  const ParamLayout layout(problem_.spec);
  // Our blocks leave no gaps. So blocks that begin where ours do, in a buffer
  // of our size, have our sizes.
  const auto check = [&](const std::string& what, uintptr_t its,
                         int64_t ours) -> RnnStatus {
    const uintptr_t expected = ours * SizeOf(problem_.dtype);
    if (its == expected) return {};
    return {RnnStatus::Code::kUnimplemented,
            "cuDNN " + std::to_string(Cudnn().cudnnGetVersion()) +
                " has another layout of parameters than the opaque buffer: " +
                what + " is " + std::to_string(its) + ", but expected " +
                std::to_string(expected) + " for " + problem_.Text()};
  };
  CRNN_RETURN_IF_ERROR(
      check("its size in bytes", weight_space_size_, layout.size()));
  TensorDescriptor matrix, bias;
  CRNN_RETURN_IF_FAILED(matrix.Create());
  CRNN_RETURN_IF_FAILED(bias.Create());
  for (const ParamBlock& block : layout.tensors()) {
    void* matrix_address = nullptr;
    void* bias_address = nullptr;
    CRNN_RETURN_IF_FAILED(Cudnn().cudnnGetRNNWeightParams(
        handle, rnn_.get(),
        static_cast<int32_t>(block.layer * problem_.spec.num_dirs() +
                             block.dir),
        weight_space_size_, UnreadAddress(),
        static_cast<int32_t>(block.linear_layer_id), matrix.get(),
        &matrix_address, bias.get(), &bias_address));
    const void* const address = block.is_bias ? bias_address : matrix_address;
    if (address == nullptr) {
      return {RnnStatus::Code::kUnimplemented, "cuDNN knows no parameter " +
                                                   block.Name() + " for " +
                                                   problem_.Text()};
    }
    CRNN_RETURN_IF_ERROR(check("the first byte of " + block.Name(),
                               reinterpret_cast<uintptr_t>(address) -
                                   reinterpret_cast<uintptr_t>(UnreadAddress()),
                               block.offset));
  }
  return {};
}

}  // namespace cudnn_rnn_tf
