#include "kernels/gpu/persistent/step_loop.h"

#include <limits>

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// The numbers of [D, B, H], and of the recurrent matrices of one direction.
int64_t NumStates(const RnnProblem& problem) {
  return problem.spec.num_dirs() * problem.batch_size * problem.spec.num_units;
}
int64_t NumWeights(const RnnSpec& spec) {
  return spec.num_gates() * spec.num_units * spec.num_units;
}

}  // namespace

RnnStatus StepLoop::Check(const RnnProblem& problem) {
  const int64_t of_sequence = problem.spec.num_dirs() *
                              problem.spec.num_gates() * problem.spec.num_units;
  if (problem.batch_size <= std::numeric_limits<int32_t>::max() / of_sequence) {
    return {};
  }
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm persistent cannot run as many sequences at once with "
          "recurrent dropout"};
}

RnnStatus StepLoop::Get(const RnnProblem& problem, bool allow_tf32,
                        StepLoop* loop) {
  loop->problem_ = problem;
  loop->allows_tf32_ = allow_tf32;
  return GetKernels("steps.cu", problem.dtype, problem.spec.rnn_mode,
                    {{"copy_weights", &Kernels::weights},
                     {"draw_masks", &Kernels::masks},
                     {"forward_step", &Kernels::forward},
                     {"backward_step", &Kernels::backward},
                     {"mask_states", &Kernels::states}},
                    &loop->kernels_);
}

StepLoop::Memory::Memory(const RnnProblem& problem, Arena* arena) {
  const RnnSpec& spec = problem.spec;
  const int64_t states = NumStates(problem), gates = spec.num_gates();
  const auto item = static_cast<int64_t>(SizeOf(problem.dtype));
  buffers_.masks = arena->Take<unsigned char>(states);
  buffers_.operands = arena->Take<char>(states * gates * item);
  buffers_.products = products_ = arena->Take<float>(states * gates);
  buffers_.carried = arena->Take<float>(states);
  buffers_.units = static_cast<int>(spec.num_units);
  buffers_.directions = static_cast<int>(spec.num_dirs());
  buffers_.scale = 1.0f / (1.0f - spec.recurrent_dropout);
  buffers_.threshold = DropoutThreshold(spec.recurrent_dropout);
  weights_ = arena->Take<char>(spec.num_dirs() * NumWeights(spec) * item);
}

template <typename Arguments>
RnnStatus StepLoop::Begin(const Handles& handles, const Memory& memory,
                          int64_t layer, const uint64_t* seed,
                          const Arguments& arguments) const {
  const RnnSpec& spec = problem_.spec;
  int64_t count = NumWeights(spec);
  for (int64_t d = 0; d < spec.num_dirs(); ++d) {
    const void* from = arguments.direction[d].recurrent_weights;
    void* to = static_cast<char*>(memory.weights_) +
               d * count * static_cast<int64_t>(SizeOf(problem_.dtype));
    void* parameters[] = {&count, &from, &to};
    CRNN_RETURN_IF_ERROR(
        LaunchOver(kernels_.weights, handles.stream, count, parameters));
  }
  StepBuffers buffers = memory.buffers_;
  int batch = static_cast<int>(problem_.batch_size);
  int64_t first_gate = layer * spec.num_dirs() * spec.num_gates();
  int number = static_cast<int>(RnnSpec::kRecurrentDropoutLayer);
  void* parameters[] = {&buffers, &batch, &first_gate, &number, &seed};
  return LaunchOver(kernels_.masks, handles.stream, NumStates(problem_),
                    parameters);
}

// In memory, numbers of a sequence lie side by side, which makes a column of
// what cuBLAS sees.
RnnStatus StepLoop::Multiply(const Handles& handles, const Memory& memory,
                             bool transposes_weights) const {
  const float one = 1.0f, zero = 0.0f;
  const int64_t units = problem_.spec.num_units, batch = problem_.batch_size;
  const cudaDataType_t type = CudaType(problem_.dtype);
  return CublasStatus(
      Gpu().cublas.cublasGemmStridedBatchedEx_64(
          handles.blas, transposes_weights ? CUBLAS_OP_T : CUBLAS_OP_N,
          CUBLAS_OP_N, units, batch, units, &one, memory.weights_, type, units,
          units * units, memory.buffers_.operands, type, units, batch * units,
          &zero, memory.products_, CUDA_R_32F, units, batch * units,
          problem_.spec.num_dirs() * problem_.spec.num_gates(),
          ComputeType(problem_.dtype, allows_tf32_), CUBLAS_GEMM_DEFAULT),
      "multiply");
}

template <typename Arguments>
RnnStatus StepLoop::EnqueueCells(CUkernel kernel, CUstream stream,
                                 const Memory& memory,
                                 const Arguments& arguments,
                                 int64_t step) const {
  StepBuffers buffers = memory.buffers_;
  int number = static_cast<int>(step);
  void* parameters[] = {const_cast<Arguments*>(&arguments), &buffers, &number};
  return LaunchOver(kernel, stream, NumStates(problem_), parameters);
}

// A row of a gate's matrix has the weights of one unit. cuBLAS sees it as a
// column, so the forward pass asks for the transposed matrix.
RnnStatus StepLoop::Forward(const Handles& handles, const Memory& memory,
                            int64_t layer, const uint64_t* seed,
                            ForwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  CRNN_RETURN_IF_ERROR(EnqueueCells(kernels_.forward, handles.stream, memory,
                                    arguments, /*step=*/-1));
  for (int64_t step = 0; step < problem_.max_time; ++step) {
    CRNN_RETURN_IF_ERROR(
        Multiply(handles, memory, /*transposes_weights=*/true));
    CRNN_RETURN_IF_ERROR(EnqueueCells(kernels_.forward, handles.stream, memory,
                                      arguments, step));
  }
  return {};
}

RnnStatus StepLoop::Backward(const Handles& handles, const Memory& memory,
                             int64_t layer, const uint64_t* seed,
                             BackwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  for (int64_t step = problem_.max_time - 1; step >= 0; --step) {
    CRNN_RETURN_IF_ERROR(EnqueueCells(kernels_.backward, handles.stream, memory,
                                      arguments, step));
    CRNN_RETURN_IF_ERROR(
        Multiply(handles, memory, /*transposes_weights=*/false));
  }
  return EnqueueCells(kernels_.backward, handles.stream, memory, arguments,
                      /*step=*/-1);
}

RnnStatus StepLoop::MaskStates(CUstream stream, const Memory& memory,
                               const Sequences& sequences, int64_t direction,
                               int64_t gate, const void* previous_h,
                               void* to) const {
  Sequences all = sequences;
  StepBuffers buffers = memory.buffers_;
  int of_direction = static_cast<int>(direction);
  int of_gate = static_cast<int>(gate);
  void* parameters[] = {&all,     &buffers,    &of_direction,
                        &of_gate, &previous_h, &to};
  return LaunchOver(
      kernels_.states, stream,
      problem_.max_time * problem_.batch_size * problem_.spec.num_units,
      parameters);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
