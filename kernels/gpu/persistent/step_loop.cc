#include "kernels/gpu/persistent/step_loop.h"

#include <limits>
#include <string>

#include "kernels/gpu/persistent/launch.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// The numbers of [D, B, H].
int64_t NumStates(const RnnProblem& problem) {
  return problem.spec.num_dirs() * problem.batch_size * problem.spec.num_units;
}

// The gates of a direction whose recurrent matrices read h. They come first.
int64_t NumGatesOfH(const RnnSpec& spec) {
  return spec.resets_before() ? 2 : spec.num_gates();
}

RnnStatus Unsupported(const char* what) {
  return {RnnStatus::Code::kUnimplemented,
          std::string("the algorithm persistent cannot run ") + what};
}

}  // namespace

RnnStatus StepLoop::Check(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t of_sequence =
      spec.num_dirs() * spec.num_gates() * spec.num_units;
  if (problem.batch_size > kMax / of_sequence ||
      problem.max_time > kMax / problem.batch_size) {
    return Unsupported("as many sequences at once, step by step");
  }
  if (problem.has_recurrent_dropout() && spec.num_proj > 0) {
    return Unsupported("projections with recurrent dropout");
  }
  return {};
}

RnnStatus StepLoop::Get(const RnnProblem& problem, bool allow_tf32,
                        StepLoop* loop) {
  CRNN_RETURN_IF_ERROR(Check(problem));
  loop->problem_ = problem;
  loop->allows_tf32_ = allow_tf32;
  const RnnMode mode = problem.spec.rnn_mode;
  if (problem.spec.resets_before()) {
    CRNN_RETURN_IF_ERROR(
        GetKernels("steps.cu", problem.dtype, mode,
                   {{"reset_forward", &ResetKernels::forward},
                    {"reset_backward", &ResetKernels::backward}},
                   &loop->reset_kernels_));
  }
  return GetKernels("steps.cu", problem.dtype, mode,
                    {{"copy_weights", &Kernels::weights},
                     {"draw_masks", &Kernels::masks},
                     {"forward_step", &Kernels::forward},
                     {"backward_step", &Kernels::backward},
                     {"mask_states", &Kernels::states}},
                    &loop->kernels_);
}

StepLoop::Memory::Memory(const RnnProblem& problem, Arena* arena) {
  const RnnSpec& spec = problem.spec;
  const int64_t states = NumStates(problem), gates = NumGatesOfH(spec);
  const int64_t units = spec.num_units, outputs = spec.output_size();
  const auto item = static_cast<int64_t>(SizeOf(problem.dtype));
  const auto sum = static_cast<int64_t>(SizeOf(SumType(problem.dtype)));
  const bool has_masks = problem.has_recurrent_dropout();
  if (has_masks) buffers_.masks = arena->Take<unsigned char>(states);
  buffers_.operands = arena->Take<char>(states * gates * item);
  buffers_.products = arena->Take<char>(states * gates * sum);
  buffers_.carried = arena->Take<char>(states * sum);
  buffers_.units = static_cast<int>(units);
  buffers_.outputs = static_cast<int>(outputs);
  buffers_.directions = static_cast<int>(spec.num_dirs());
  // The numbers of a gate are a batch of products by themselves with masks, and
  // otherwise columns of one product.
  buffers_.gate_stride =
      static_cast<int>(has_masks ? problem.batch_size * units : units);
  buffers_.sequence_stride =
      static_cast<int>(has_masks ? units : gates * units);
  buffers_.cell_stride =
      units * (problem.time_major ? 1 : spec.num_pseudo_layers());
  buffers_.clip = spec.cell_clip;
  buffers_.rate = spec.recurrent_dropout;
  buffers_.threshold = DropoutThreshold(spec.recurrent_dropout);
  weights_ =
      arena->Take<char>(spec.num_dirs() * gates * units * outputs * item);
  if (spec.resets_before()) {
    buffers_.candidate_operands = arena->Take<char>(states * item);
    buffers_.candidate_products = arena->Take<char>(states * sum);
    candidate_weights_ =
        arena->Take<char>(spec.num_dirs() * units * outputs * item);
  }
  if (spec.num_proj == 0) return;
  buffers_.projected =
      arena->Take<char>(spec.num_dirs() * problem.batch_size * outputs * item);
  projections_ = arena->Take<char>(spec.num_dirs() * outputs * units * item);
}

StepLoop::Matrices StepLoop::Recurrent(const Memory& memory) const {
  const RnnSpec& spec = problem_.spec;
  const int64_t gates = NumGatesOfH(spec);
  const int64_t of_batch = problem_.has_recurrent_dropout() ? gates : 1;
  return {memory.weights_, spec.num_dirs() * of_batch,
          gates / of_batch * spec.num_units, spec.output_size()};
}

StepLoop::Matrices StepLoop::Candidate(const Memory& memory) const {
  const RnnSpec& spec = problem_.spec;
  return {memory.candidate_weights_, spec.num_dirs(), spec.num_units,
          spec.output_size()};
}

StepLoop::Matrices StepLoop::Projection(const Memory& memory) const {
  const RnnSpec& spec = problem_.spec;
  return {memory.projections_, spec.num_dirs(), spec.num_proj, spec.num_units};
}

RnnStatus StepLoop::CopyMatrix(CUstream stream, int64_t direction,
                               const void* from, const Matrices& matrices,
                               void* to) const {
  int64_t count = matrices.count / problem_.spec.num_dirs() * matrices.rows *
                  matrices.columns;
  void* of_direction =
      static_cast<char*>(to) +
      direction * count * static_cast<int64_t>(SizeOf(problem_.dtype));
  void* parameters[] = {&count, &from, &of_direction};
  return LaunchOver(kernels_.weights, stream, count, parameters);
}

template <typename Arguments>
RnnStatus StepLoop::Begin(const Handles& handles, const Memory& memory,
                          int64_t layer, const uint64_t* seed,
                          const Arguments& arguments) const {
  const RnnSpec& spec = problem_.spec;
  for (int64_t d = 0; d < spec.num_dirs(); ++d) {
    CRNN_RETURN_IF_ERROR(CopyMatrix(handles.stream, d,
                                    arguments.direction[d].recurrent_weights,
                                    Recurrent(memory), memory.weights_));
    if (spec.resets_before()) {
      const int64_t before = NumGatesOfH(spec) * spec.num_units *
                             spec.output_size() *
                             static_cast<int64_t>(SizeOf(problem_.dtype));
      CRNN_RETURN_IF_ERROR(CopyMatrix(
          handles.stream, d,
          static_cast<const char*>(arguments.direction[d].recurrent_weights) +
              before,
          Candidate(memory), memory.candidate_weights_));
    }
    if (spec.num_proj == 0) continue;
    CRNN_RETURN_IF_ERROR(CopyMatrix(handles.stream, d,
                                    arguments.direction[d].projection,
                                    Projection(memory), memory.projections_));
  }
  if (!problem_.has_recurrent_dropout()) return {};
  StepBuffers buffers = memory.buffers_;
  int batch = static_cast<int>(problem_.batch_size);
  int64_t first_gate = layer * spec.num_dirs() * spec.num_gates();
  int number = static_cast<int>(RnnSpec::kRecurrentDropoutLayer);
  void* parameters[] = {&buffers, &batch, &first_gate, &number, &seed};
  return LaunchOver(kernels_.masks, handles.stream, NumStates(problem_),
                    parameters);
}

// In memory, numbers of a sequence lie side by side, which makes a column of
// what cuBLAS sees. A row of a matrix has the weights of one unit. cuBLAS sees
// it as a column, so the forward pass asks for the transposed matrix.
RnnStatus StepLoop::Multiply(const Handles& handles, const Matrices& matrices,
                             bool is_backward, const void* operands, bool adds,
                             void* to, RnnDataType to_type) const {
  const BlasFactor alpha(problem_.dtype, 1.0);
  const BlasFactor beta(problem_.dtype, adds ? 1.0 : 0.0);
  const cudaDataType_t type = CudaType(problem_.dtype);
  const cublasComputeType_t compute = ComputeType(problem_.dtype, allows_tf32_);
  const cublasOperation_t of_weights = is_backward ? CUBLAS_OP_N : CUBLAS_OP_T;
  const int64_t batch = problem_.batch_size;
  const int64_t m = is_backward ? matrices.columns : matrices.rows;
  const int64_t k = is_backward ? matrices.rows : matrices.columns;
  // cuBLAS divides the sums of a product that is not batched, if it has too few
  // numbers for all multiprocessors.
  return CublasStatus(
      matrices.count == 1
          ? Gpu().cublas.cublasGemmEx_64(
                handles.blas, of_weights, CUBLAS_OP_N, m, batch, k, alpha.get(),
                matrices.weights, type, matrices.columns, operands, type, k,
                beta.get(), to, CudaType(to_type), m, compute,
                CUBLAS_GEMM_DEFAULT)
          : Gpu().cublas.cublasGemmStridedBatchedEx_64(
                handles.blas, of_weights, CUBLAS_OP_N, m, batch, k, alpha.get(),
                matrices.weights, type, matrices.columns,
                matrices.rows * matrices.columns, operands, type, k, batch * k,
                beta.get(), to, CudaType(to_type), m, batch * m, matrices.count,
                compute, CUBLAS_GEMM_DEFAULT),
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

RnnStatus StepLoop::Forward(const Handles& handles, const Memory& memory,
                            int64_t layer, const uint64_t* seed,
                            ForwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  const bool projects = problem_.spec.num_proj > 0;
  const StepBuffers& buffers = memory.buffers_;
  const auto enqueue_cells = [&](int64_t step) {
    return EnqueueCells(kernels_.forward, handles.stream, memory, arguments,
                        step);
  };
  const auto enqueue_candidates = [&](int64_t step) {
    CRNN_RETURN_IF_ERROR(EnqueueCells(reset_kernels_.forward, handles.stream,
                                      memory, arguments, step));
    return Multiply(handles, Candidate(memory), /*is_backward=*/false,
                    buffers.candidate_operands, /*adds=*/false,
                    buffers.candidate_products, SumType(problem_.dtype));
  };
  CRNN_RETURN_IF_ERROR(enqueue_cells(-1));
  for (int64_t step = 0; step < problem_.max_time; ++step) {
    CRNN_RETURN_IF_ERROR(
        Multiply(handles, Recurrent(memory), /*is_backward=*/false,
                 projects ? buffers.projected : buffers.operands,
                 /*adds=*/false, buffers.products, SumType(problem_.dtype)));
    if (problem_.spec.resets_before()) {
      CRNN_RETURN_IF_ERROR(enqueue_candidates(step));
    }
    CRNN_RETURN_IF_ERROR(enqueue_cells(step));
    if (!projects) continue;
    CRNN_RETURN_IF_ERROR(Multiply(handles, Projection(memory),
                                  /*is_backward=*/false, buffers.operands,
                                  /*adds=*/false, buffers.projected,
                                  problem_.dtype));
  }
  return projects ? enqueue_cells(problem_.max_time) : RnnStatus();
}

RnnStatus StepLoop::Backward(const Handles& handles, const Memory& memory,
                             int64_t layer, const uint64_t* seed,
                             BackwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  const bool projects = problem_.spec.num_proj > 0;
  const StepBuffers& buffers = memory.buffers_;
  const auto enqueue_cells = [&](int64_t step) {
    return EnqueueCells(kernels_.backward, handles.stream, memory, arguments,
                        step);
  };
  const auto enqueue_resets = [&](int64_t step) {
    CRNN_RETURN_IF_ERROR(Multiply(
        handles, Candidate(memory),
        /*is_backward=*/true, buffers.candidate_operands, /*adds=*/false,
        buffers.candidate_products, SumType(problem_.dtype)));
    return EnqueueCells(reset_kernels_.backward, handles.stream, memory,
                        arguments, step);
  };
  if (projects) CRNN_RETURN_IF_ERROR(enqueue_cells(problem_.max_time));
  for (int64_t step = problem_.max_time - 1; step >= 0; --step) {
    if (projects) {
      CRNN_RETURN_IF_ERROR(Multiply(handles, Projection(memory),
                                    /*is_backward=*/true, buffers.projected,
                                    /*adds=*/false, buffers.products,
                                    SumType(problem_.dtype)));
    }
    CRNN_RETURN_IF_ERROR(enqueue_cells(step));
    if (problem_.spec.resets_before()) {
      CRNN_RETURN_IF_ERROR(enqueue_resets(step));
    }
    CRNN_RETURN_IF_ERROR(Multiply(
        handles, Recurrent(memory), /*is_backward=*/true, buffers.operands,
        /*adds=*/projects, projects ? buffers.projected : buffers.products,
        projects ? problem_.dtype : SumType(problem_.dtype)));
  }
  return enqueue_cells(-1);
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
