#include "kernels/cudnn/cudnn_backend.h"

#include <utility>

#include "kernels/arena.h"
#include "kernels/cudnn/session.h"

namespace cudnn_rnn_tf {
namespace {

RnnStatus CheckCuda(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  Gpu().cuda.GetErrorString(result, &text);
  return {RnnStatus::Code::kInternal, std::string("CUDA failed to ") + what +
                                          ": " +
                                          (text != nullptr ? text : "unknown")};
}

// Numbers of such bytes are NaN, in every type.
constexpr unsigned char kNanByte = 0xFF;

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

size_t ItemSize(RnnDataType dtype) {
  return dtype == RnnDataType::kFloat64   ? 8
         : dtype == RnnDataType::kFloat32 ? 4
                                          : 2;
}

// One 64-bit seed from two: the finalizer of splitmix64 (Steele et al., "Fast
// splittable pseudorandom number generators", 2014) between additions.
uint64_t MixSeeds(const uint64_t seed[2]) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  return mix(mix(seed[0] + 0x9E3779B97F4A7C15u) + seed[1]);
}

// Whether callers' states, [B, L * D, n] in batch-major problems, must be
// brought into cuDNN's order, [L * D, B, n].
bool ExchangesStates(const RnnProblem& problem) {
  return !problem.time_major && problem.batch_size > 1 &&
         problem.spec.num_pseudo_layers() > 1;
}

// Where everything stands in a call's workspace.
struct Workspace {
  void* cudnn;
  void* dropout_states;
  void* params;  // In cuDNN's layout, where that differs.
  void* params_backprop;
  // In cuDNN's order: what comes in, what goes out, and, backward, the
  // gradients of the final states.
  void *input_h, *input_c, *output_h, *output_c, *h_backprop, *c_backprop;

  Workspace(const CudnnPlan& plan, bool backward, Arena* arena) {
    const RnnProblem& problem = plan.problem();
    const int64_t item = ItemSize(problem.dtype);
    const int64_t states =
        problem.spec.num_pseudo_layers() * problem.batch_size * item;
    auto take = [&](bool wanted, int64_t bytes) -> void* {
      return wanted ? arena->Take<char>(bytes) : nullptr;
    };
    const bool repacks = !plan.repacked().empty();
    const bool exchanges = ExchangesStates(problem);
    const bool lstm = exchanges && problem.spec.is_lstm();
    const int64_t h_bytes = states * problem.spec.output_size();
    const int64_t c_bytes = states * problem.spec.num_units;
    cudnn = take(true, plan.workspace_size());
    dropout_states = take(plan.uses_dropout(), plan.dropout_states_size());
    params = take(repacks, plan.weight_space_size());
    params_backprop = take(repacks && backward, plan.weight_space_size());
    input_h = take(exchanges, h_bytes);
    input_c = take(lstm, c_bytes);
    output_h = take(exchanges, h_bytes);
    output_c = take(lstm, c_bytes);
    h_backprop = take(exchanges && backward, h_bytes);
    c_backprop = take(lstm && backward, c_bytes);
  }
};

}  // namespace

CudnnBackend::CudnnBackend(int device, void* stream,
                           const CudnnOptions& options)
    : device_(device), stream_(stream), options_(options) {}

CudnnBackend::~CudnnBackend() {
  if (session_ != nullptr) {
    CudnnSessionPool::Instance().Return(device_, stream_, std::move(session_));
  }
}

RnnStatus CudnnBackend::Plan(const RnnProblem& problem, CudnnPlan** plan) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (session_ == nullptr) {
    CRNN_RETURN_IF_ERROR(
        CudnnSessionPool::Instance().Take(device_, stream_, &session_));
  }
  return session_->Plan(problem, options_, plan);
}

RnnStatus CudnnBackend::BufferSizes(const RnnProblem& problem,
                                    RnnBufferSizes* sizes) {
  CudnnPlan* plan;
  CRNN_RETURN_IF_ERROR(Plan(problem, &plan));
  for (const bool backward : {false, true}) {
    Arena arena(nullptr);
    const Workspace workspace(*plan, backward, &arena);
    (backward ? sizes->backward_workspace : sizes->forward_workspace) =
        arena.used();
  }
  sizes->reserve_space = problem.is_training ? plan->reserve_size() : 0;
  sizes->backward_consumes_reserve = true;
  return {};
}

RnnStatus CudnnBackend::Copy(const void* from, void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (bytes == 0) return {};
  return CheckCuda(Gpu().cuda.MemcpyAsync(Address(to), Address(from), bytes,
                                          static_cast<CUstream>(stream_)),
                   "copy device memory");
}

RnnStatus CudnnBackend::SetZero(void* to, size_t bytes) {
  return Fill(to, 0, bytes);
}

RnnStatus CudnnBackend::Fill(void* to, unsigned char byte, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (bytes == 0) return {};
  return CheckCuda(Gpu().cuda.MemsetAsync(Address(to), byte, bytes,
                                          static_cast<CUstream>(stream_)),
                   "fill device memory");
}

// Between [B, L * D, size] and [L * D, B, size], a strided copy per row of
// L * D.
RnnStatus CudnnBackend::CopyStates(const RnnProblem& problem, int64_t size,
                                   const void* from, void* to, bool to_cudnn) {
  const size_t width = size * ItemSize(problem.dtype);
  const int64_t rows = problem.spec.num_pseudo_layers();
  for (int64_t row = 0; row < rows; ++row) {
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    const size_t spread_offset = row * width;
    const size_t dense_offset = row * problem.batch_size * width;
    copy.srcDevice = Address(from) + (to_cudnn ? spread_offset : dense_offset);
    copy.dstDevice = Address(to) + (to_cudnn ? dense_offset : spread_offset);
    copy.srcPitch = to_cudnn ? rows * width : width;
    copy.dstPitch = to_cudnn ? width : rows * width;
    copy.WidthInBytes = width;
    copy.Height = problem.batch_size;
    CRNN_RETURN_IF_ERROR(CheckCuda(
        Gpu().cuda.Memcpy2DAsync(&copy, static_cast<CUstream>(stream_)),
        "copy states"));
  }
  return {};
}

// A sequence of length 0 ends in the state it began with; cuDNN makes that
// zero. Between tensors in the caller's layout.
RnnStatus CudnnBackend::CopyStatesOfEmptySequences(const RnnProblem& problem,
                                                   const int32_t* lengths,
                                                   int64_t size,
                                                   const void* from, void* to) {
  const int64_t rows = problem.spec.num_pseudo_layers();
  const int64_t batch = problem.batch_size;
  const size_t item = size * ItemSize(problem.dtype);
  for (int64_t begin = 0, end; begin < batch; begin = end + 1) {
    end = begin;
    while (end < batch && lengths[end] == 0) ++end;
    if (end == begin) continue;
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    const size_t offset = begin * item * (problem.time_major ? 1 : rows);
    copy.srcDevice = Address(from) + offset;
    copy.dstDevice = Address(to) + offset;
    copy.srcPitch = copy.dstPitch = item * (problem.time_major ? batch : rows);
    copy.WidthInBytes = item * (problem.time_major ? end - begin : rows);
    copy.Height = problem.time_major ? rows : end - begin;
    CRNN_RETURN_IF_ERROR(CheckCuda(
        Gpu().cuda.Memcpy2DAsync(&copy, static_cast<CUstream>(stream_)),
        "copy states"));
  }
  return {};
}

RnnStatus CudnnBackend::Forward(const RnnProblem& problem,
                                const RnnForwardBuffers& buffers) {
  CudnnPlan* plan;
  CRNN_RETURN_IF_ERROR(Plan(problem, &plan));
  Arena arena(buffers.workspace);
  const Workspace workspace(*plan, /*backward=*/false, &arena);
  if (options_.poison_scratch) {
    CRNN_RETURN_IF_ERROR(Fill(buffers.workspace, kNanByte, arena.used()));
    if (problem.is_training) {
      CRNN_RETURN_IF_ERROR(
          Fill(buffers.reserve_space, kNanByte, plan->reserve_size()));
    }
  }
  const RnnSpec& spec = problem.spec;
  const bool exchanges = ExchangesStates(problem);
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(plan->SetSequenceLengths(buffers.sequence_lengths));
  }
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->SeedDropout(
        session_->handle(), workspace.dropout_states, MixSeeds(buffers.seed)));
  }
  const void* params = buffers.params;
  if (!plan->repacked().empty()) {
    params = workspace.params;
    for (const RepackedBlock& block : plan->repacked()) {
      CRNN_RETURN_IF_ERROR(
          Copy(static_cast<const char*>(buffers.params) + block.offset,
               static_cast<char*>(workspace.params) + block.cudnn_offset,
               block.size));
    }
  }
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    buffers.input_h, workspace.input_h, true));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, buffers.input_c,
                                      workspace.input_c, true));
    }
  }
  void* const output_h = exchanges ? workspace.output_h : buffers.output_h;
  void* const output_c = !lstm       ? nullptr
                         : exchanges ? workspace.output_c
                                     : buffers.output_c;
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNForward(
          session_->handle(), plan->rnn(),
          problem.is_training ? CUDNN_FWD_MODE_TRAINING
                              : CUDNN_FWD_MODE_INFERENCE,
          /*devSeqLengths=*/nullptr, plan->input(), buffers.input,
          plan->output(), buffers.output, plan->h(),
          exchanges ? workspace.input_h : buffers.input_h, output_h, plan->c(),
          !lstm       ? nullptr
          : exchanges ? workspace.input_c
                      : buffers.input_c,
          output_c, plan->weight_space_size(), params, plan->workspace_size(),
          workspace.cudnn, problem.is_training ? plan->reserve_size() : 0,
          problem.is_training ? buffers.reserve_space : nullptr),
      problem);
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(), output_h,
                                    buffers.output_h, false));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, output_c,
                                      buffers.output_c, false));
    }
  }
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
        problem, buffers.sequence_lengths, spec.output_size(), buffers.input_h,
        buffers.output_h));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
          problem, buffers.sequence_lengths, spec.num_units, buffers.input_c,
          buffers.output_c));
    }
  }
  return {};
}

RnnStatus CudnnBackend::Backward(const RnnProblem& problem,
                                 const RnnBackwardBuffers& buffers) {
  CudnnPlan* plan;
  CRNN_RETURN_IF_ERROR(Plan(problem, &plan));
  Arena arena(buffers.workspace);
  const Workspace workspace(*plan, /*backward=*/true, &arena);
  if (options_.poison_scratch) {
    CRNN_RETURN_IF_ERROR(Fill(buffers.workspace, kNanByte, arena.used()));
  }
  const RnnSpec& spec = problem.spec;
  const bool exchanges = ExchangesStates(problem);
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(plan->SetSequenceLengths(buffers.sequence_lengths));
  }
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(
        plan->AttachDropout(session_->handle(), workspace.dropout_states));
  }
  const void* params = buffers.params;
  void* params_backprop = buffers.params_backprop;
  if (!plan->repacked().empty()) {
    params = workspace.params;
    params_backprop = workspace.params_backprop;
    for (const RepackedBlock& block : plan->repacked()) {
      CRNN_RETURN_IF_ERROR(
          Copy(static_cast<const char*>(buffers.params) + block.offset,
               static_cast<char*>(workspace.params) + block.cudnn_offset,
               block.size));
    }
  }
  const void* input_h = buffers.input_h;
  const void* input_c = lstm ? buffers.input_c : nullptr;
  const void* h_backprop = buffers.output_h_backprop;
  const void* c_backprop = lstm ? buffers.output_c_backprop : nullptr;
  void* input_h_backprop = buffers.input_h_backprop;
  void* input_c_backprop = lstm ? buffers.input_c_backprop : nullptr;
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(), input_h,
                                    workspace.input_h, true));
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(), h_backprop,
                                    workspace.h_backprop, true));
    input_h = workspace.input_h;
    h_backprop = workspace.h_backprop;
    input_h_backprop = workspace.output_h;
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, input_c,
                                      workspace.input_c, true));
      CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, c_backprop,
                                      workspace.c_backprop, true));
      input_c = workspace.input_c;
      c_backprop = workspace.c_backprop;
      input_c_backprop = workspace.output_c;
    }
  }
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardData_v8(
          session_->handle(), plan->rnn(), /*devSeqLengths=*/nullptr,
          plan->output(), buffers.output, buffers.output_backprop,
          plan->input(), buffers.input_backprop, plan->h(), input_h, h_backprop,
          input_h_backprop, plan->c(), input_c, c_backprop, input_c_backprop,
          plan->weight_space_size(), params, plan->workspace_size(),
          workspace.cudnn, plan->reserve_size(), buffers.reserve_space),
      problem);
  CRNN_RETURN_IF_ERROR(SetZero(params_backprop, plan->weight_space_size()));
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardWeights_v8(
          session_->handle(), plan->rnn(), CUDNN_WGRAD_MODE_ADD,
          /*devSeqLengths=*/nullptr, plan->input(), buffers.input, plan->h(),
          input_h, plan->output(), buffers.output, plan->weight_space_size(),
          params_backprop, plan->workspace_size(), workspace.cudnn,
          plan->reserve_size(), buffers.reserve_space),
      problem);
  for (const RepackedBlock& block : plan->repacked()) {
    CRNN_RETURN_IF_ERROR(
        Copy(static_cast<const char*>(params_backprop) + block.cudnn_offset,
             static_cast<char*>(buffers.params_backprop) + block.offset,
             block.size));
  }
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    input_h_backprop, buffers.input_h_backprop,
                                    false));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, input_c_backprop,
                                      buffers.input_c_backprop, false));
    }
  }
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
        problem, buffers.sequence_lengths, spec.output_size(),
        buffers.output_h_backprop, buffers.input_h_backprop));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
          problem, buffers.sequence_lengths, spec.num_units,
          buffers.output_c_backprop, buffers.input_c_backprop));
    }
  }
  return {};
}

}  // namespace cudnn_rnn_tf
