#include "kernels/gpu/persistent/step_loop.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/product.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

RnnStatus Check(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t of_sequence =
      spec.num_dirs() * Halves::Pitch(spec.num_gates() * spec.num_units);
  if (problem.batch_size > kMax / of_sequence ||
      problem.max_time > kMax / problem.batch_size) {
    return Unsupported("as many sequences at once, step by step");
  }
  if (problem.has_recurrent_dropout() && spec.num_proj > 0) {
    return Unsupported("projections with recurrent dropout");
  }
  return {};
}

}  // namespace

RnnStatus StepLoop::Get(const RnnProblem& problem, bool allow_tf32,
                        StepLoop* loop) {
  CRNN_RETURN_IF_ERROR(Check(problem));
  loop->problem_ = problem;
  loop->allows_tf32_ = allow_tf32;
  if (allow_tf32 && problem.has_bounded_floats()) {
    CRNN_RETURN_IF_ERROR(loop->halves_.emplace().Compile());
  }
  const RnnSpec& spec = problem.spec;
  std::vector<std::string> macros = CellMacros(spec, problem.dtype);
  const bool normalizes = spec.normalizes();
  if (normalizes) {
    macros.push_back("ROUNDS=" +
                     std::to_string(CeilDiv<int64_t>(
                         spec.num_units, loop->GridOfSequences().threads)));
  }
  const char* const file = normalizes ? "norm_steps.cu" : "steps.cu";
  CRNN_RETURN_IF_ERROR(loop->kernels_.Add(
      file, macros,
      {"draw_masks", "forward_step", "backward_step", "mask_states"}));
  if (spec.num_proj > 0) {
    CRNN_RETURN_IF_ERROR(loop->kernels_.Add(file, macros, {"project_step"}));
  }
  if (!spec.resets_before()) return {};
  return loop->kernels_.Add(file, macros, {"reset_forward", "reset_backward"});
}

StepLoop::Memory::Memory(const StepLoop& loop, bool is_backward, Arena* arena) {
  const RnnProblem& problem = loop.problem_;
  const RnnSpec& spec = problem.spec;
  const int64_t gates = spec.kind().gates_of_h, dirs = spec.num_dirs();
  const int64_t units = spec.num_units, outputs = spec.output_size();
  const int64_t sequences = dirs * problem.batch_size;
  const int64_t states = sequences * units;
  const auto item = static_cast<int64_t>(SizeOf(problem.dtype));
  const bool halves = loop.halves_.has_value();
  const auto sum = static_cast<int64_t>(SizeOf(SumType(problem.dtype)));
  const bool has_masks = problem.has_recurrent_dropout();
  const auto take = [&](int64_t count, int64_t rows, int64_t columns,
                        bool is_halved = false) -> Matrices {
    const int64_t pitch = is_halved ? Halves::Pitch(columns) : columns;
    const int64_t all_rows = is_halved ? Halves::Pitch(rows) : rows;
    const int64_t bytes = is_halved ? sizeof(uint16_t) : item;
    return {arena->Take<char>(count * all_rows * pitch * bytes),
            count,
            rows,
            columns,
            all_rows,
            pitch,
            is_halved ? arena->Take<float>(count * rows) : nullptr};
  };
  // Rows of operands or products.
  const auto take_rows = [&](int64_t width, int64_t bytes) {
    return arena->Take<char>(sequences * loop.PitchOf(width) * bytes);
  };
  if (halves) {
    buffers.sequence_powers = arena->Take<float>(sequences);
  }
  if (has_masks) buffers.masks = arena->Take<unsigned char>(states);
  buffers.operands = take_rows(gates * units, item);
  buffers.products = take_rows(gates * units, sum);
  const bool reads_both = spec.kind().has_c && spec.reads_h();
  buffers.carried = arena->Take<char>(states * sum * (reads_both ? 2 : 1));
  buffers.units = static_cast<int>(units);
  buffers.outputs = static_cast<int>(outputs);
  buffers.directions = static_cast<int>(dirs);
  // The numbers of a gate are a batch of products by themselves with masks, and
  // otherwise columns of one product.
  buffers.gate_stride =
      static_cast<int>(has_masks ? problem.batch_size * units : units);
  const int64_t of_sequence = loop.PitchOf(gates * units);
  buffers.sequence_stride = static_cast<int>(has_masks ? units : of_sequence);
  buffers.direction_stride = static_cast<int>(problem.batch_size * of_sequence);
  buffers.unit_pitch = static_cast<int>(loop.PitchOf(units));
  buffers.output_pitch = static_cast<int>(loop.PitchOf(outputs));
  buffers.cell_stride =
      units * (problem.time_major ? 1 : spec.num_pseudo_layers());
  buffers.clip = spec.cell_clip;
  buffers.rate = spec.recurrent_dropout;
  buffers.threshold = DropoutThreshold(spec.recurrent_dropout);
  buffers.is_training = problem.is_training;
  recurrent = has_masks ? take(dirs * gates, units, outputs)
                        : take(dirs, gates * units, outputs, halves);
  recurrent.operands = buffers.operands;
  buffers.row_powers = recurrent.row_powers;
  if (spec.resets_before()) {
    buffers.candidate_operands = arena->Take<char>(states * item);
    buffers.candidate_products = arena->Take<char>(states * sum);
    candidate = take(dirs, units, outputs);
    candidate.operands = buffers.candidate_operands;
  }
  if (spec.num_proj == 0) return;
  buffers.projected = take_rows(outputs, item);
  if (!is_backward) buffers.projected_sums = take_rows(outputs, sum);
  projection = take(dirs, outputs, units, halves && !is_backward);
  (is_backward ? projection : recurrent).operands = buffers.projected;
  if (!is_backward) projection.operands = buffers.operands;
  buffers.projection_powers = projection.row_powers;
}

template <typename Arguments>
RnnStatus StepLoop::Begin(const Handles& handles, const Memory& memory,
                          int64_t layer, const uint64_t* seed,
                          const Arguments& arguments) const {
  const RnnSpec& spec = problem_.spec;
  const auto item = static_cast<int64_t>(SizeOf(problem_.dtype));
  for (const Matrices* all : {&memory.recurrent, &memory.projection}) {
    if (all->all_rows == all->rows && all->pitch == all->columns) continue;
    const int64_t width = std::is_same_v<Arguments, BackwardArguments>
                              ? all->all_rows
                              : all->pitch;
    CRNN_RETURN_IF_ERROR(EnqueueFill(
        handles.stream, all->weights, 0,
        all->count * all->all_rows * all->pitch * sizeof(uint16_t)));
    CRNN_RETURN_IF_ERROR(EnqueueFill(
        handles.stream, all->operands, 0,
        all->count * problem_.batch_size * width * sizeof(uint16_t)));
  }
  for (int64_t d = 0; d < spec.num_dirs(); ++d) {
    const auto& direction = arguments.direction[d];
    const char* const weights =
        static_cast<const char*>(direction.recurrent_weights);
    const int64_t of_candidate =
        spec.kind().gates_of_h * spec.num_units * spec.output_size() * item;
    const std::pair<const Matrices*, const void*> copies[] = {
        {&memory.recurrent, weights},
        {&memory.candidate, weights + of_candidate},
        {&memory.projection, direction.projection}};
    for (const auto& [matrices, from] : copies) {
      const int64_t rows = matrices->rows, columns = matrices->columns;
      const int64_t bytes =
          matrices->count / spec.num_dirs() * rows * columns * item;
      if (bytes == 0) continue;
      if (matrices->row_powers != nullptr) {
        const int64_t all_rows = matrices->all_rows, pitch = matrices->pitch;
        uint16_t* const to =
            static_cast<uint16_t*>(matrices->weights) + d * all_rows * pitch;
        CRNN_RETURN_IF_ERROR(halves_->Rows(
            handles.stream, rows, columns, columns, from, /*least=*/0.0f, pitch,
            to, matrices->row_powers + d * rows));
        continue;
      }
      char* const to = static_cast<char*>(matrices->weights) + d * bytes;
      CRNN_RETURN_IF_ERROR(EnqueueCopy(handles.stream, from, to, bytes));
    }
  }
  if (!problem_.has_recurrent_dropout()) return {};
  return kernels_.Enqueue("draw_masks", handles.stream, GridOver(NumStates()),
                          memory.buffers, static_cast<int>(problem_.batch_size),
                          layer * spec.num_dirs() * spec.num_gates(),
                          static_cast<int>(RnnSpec::kRecurrentDropoutLayer),
                          seed);
}

// A row of a matrix has the weights of one unit.
RnnStatus StepLoop::MultiplyAll(const Handles& handles,
                                const Matrices& matrices, bool is_backward,
                                bool adds, void* to,
                                RnnDataType to_type) const {
  const int64_t batch = problem_.batch_size;
  const int64_t n = is_backward ? matrices.pitch : matrices.all_rows;
  const int64_t k = is_backward ? matrices.all_rows : matrices.pitch;
  const int64_t n_pitch = PitchOf(n), k_pitch = PitchOf(k);
  return Multiply(
      handles.blas,
      matrices.row_powers != nullptr
          ? kHalfProducts
          : ProductType{problem_.dtype, allows_tf32_},
      batch, n, k, {matrices.operands, k_pitch, false, batch * k_pitch},
      {matrices.weights, matrices.pitch, !is_backward,
       matrices.all_rows * matrices.pitch},
      {to, to_type, n_pitch, adds, batch * n_pitch}, matrices.count);
}

Grid StepLoop::GridOfUnits() const {
  const int64_t units = problem_.spec.num_units;
  const int threads = std::min(Halves::ThreadsOfRow(units, /*numbers=*/1),
                               StepBuffers::kMostThreadsOfUnits);
  return {problem_.spec.num_dirs() * problem_.batch_size *
              CeilDiv<int64_t>(units, threads),
          threads};
}

Grid StepLoop::GridOfSequences() const {
  // Such blocks fill the GPU if there are many of them.
  constexpr int64_t kManyBlocks = 256;
  const int64_t blocks = problem_.spec.num_dirs() * problem_.batch_size;
  // Those that normalise hold all numbers of their units in registers.
  const bool normalizes = problem_.spec.normalizes();
  const int threads =
      Halves::ThreadsOfRow(problem_.spec.num_units, blocks < kManyBlocks ? 1
                                                    : normalizes         ? 2
                                                                         : 4);
  return {blocks, normalizes
                      ? std::min(threads, StepBuffers::kMostThreadsOfNorms)
                      : threads};
}

RnnStatus StepLoop::Forward(const Handles& handles, const Memory& memory,
                            int64_t layer, const uint64_t* seed,
                            ForwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  const bool projects = problem_.spec.num_proj > 0;
  const StepBuffers& buffers = memory.buffers;
  const Grid grid =
      problem_.spec.normalizes() ? GridOfSequences() : GridOfUnits();
  const auto enqueue = [&](const char* kernel, int64_t step) {
    return kernels_.Enqueue(kernel, handles.stream, grid, arguments, buffers,
                            static_cast<int>(step));
  };
  const auto multiply = [&](const Matrices& matrices, void* to) {
    return MultiplyAll(handles, matrices, /*is_backward=*/false, /*adds=*/false,
                       to, SumType(problem_.dtype));
  };
  if (buffers.row_powers != nullptr) {
    // The h of such a cell, as a GRU, is within its first h and 1.
    const bool keeps = problem_.spec.reads_h();
    const int64_t batch = problem_.batch_size;
    for (int64_t d = 0; d < problem_.spec.num_dirs(); ++d) {
      CRNN_RETURN_IF_ERROR(
          halves_->Rows(handles.stream, batch, problem_.spec.output_size(),
                        arguments.state_stride, arguments.direction[d].first_h,
                        /*least=*/keeps ? 1.0f : 0.0f, 0, nullptr,
                        buffers.sequence_powers + d * batch));
    }
  }
  CRNN_RETURN_IF_ERROR(enqueue("forward_step", -1));
  for (int64_t step = 0; step < problem_.max_time; ++step) {
    CRNN_RETURN_IF_ERROR(multiply(memory.recurrent, buffers.products));
    if (problem_.spec.resets_before()) {
      CRNN_RETURN_IF_ERROR(enqueue("reset_forward", step));
      CRNN_RETURN_IF_ERROR(
          multiply(memory.candidate, buffers.candidate_products));
    }
    CRNN_RETURN_IF_ERROR(enqueue("forward_step", step));
    if (!projects) continue;
    CRNN_RETURN_IF_ERROR(multiply(memory.projection, buffers.projected_sums));
    const Grid of_sequences = {
        problem_.spec.num_dirs() * problem_.batch_size,
        Halves::ThreadsOfRow(problem_.spec.num_proj, /*numbers=*/1)};
    CRNN_RETURN_IF_ERROR(kernels_.Enqueue("project_step", handles.stream,
                                          of_sequences, arguments, buffers,
                                          static_cast<int>(step)));
  }
  return {};
}

RnnStatus StepLoop::Backward(const Handles& handles, const Memory& memory,
                             int64_t layer, const uint64_t* seed,
                             BackwardArguments arguments) const {
  arguments.sequences.order = nullptr;  // Row b of all buffers is sequence b's.
  CRNN_RETURN_IF_ERROR(Begin(handles, memory, layer, seed, arguments));
  const bool projects = problem_.spec.num_proj > 0;
  const StepBuffers& buffers = memory.buffers;
  const Grid grid = buffers.row_powers != nullptr || problem_.spec.normalizes()
                        ? GridOfSequences()
                        : GridOfUnits();
  const auto enqueue = [&](const char* kernel, int64_t step) {
    return kernels_.Enqueue(kernel, handles.stream, grid, arguments, buffers,
                            static_cast<int>(step));
  };
  const auto multiply = [&](const Matrices& matrices, void* to) {
    return MultiplyAll(handles, matrices, /*is_backward=*/true, /*adds=*/false,
                       to, SumType(problem_.dtype));
  };
  if (projects) {
    CRNN_RETURN_IF_ERROR(enqueue("backward_step", problem_.max_time));
  }
  for (int64_t step = problem_.max_time - 1; step >= 0; --step) {
    if (projects) {
      CRNN_RETURN_IF_ERROR(multiply(memory.projection, buffers.products));
    }
    CRNN_RETURN_IF_ERROR(enqueue("backward_step", step));
    if (problem_.spec.resets_before()) {
      CRNN_RETURN_IF_ERROR(
          multiply(memory.candidate, buffers.candidate_products));
      CRNN_RETURN_IF_ERROR(enqueue("reset_backward", step));
    }
    CRNN_RETURN_IF_ERROR(
        projects ? MultiplyAll(handles, memory.recurrent, /*is_backward=*/true,
                               /*adds=*/true, buffers.projected, problem_.dtype)
                 : multiply(memory.recurrent, buffers.products));
  }
  return enqueue("backward_step", -1);
}

RnnStatus StepLoop::MaskStates(CUstream stream, const Memory& memory,
                               const Sequences& sequences, int64_t direction,
                               int64_t gate, const void* previous_h,
                               void* to) const {
  const int64_t count =
      problem_.max_time * problem_.batch_size * problem_.spec.num_units;
  return kernels_.Enqueue("mask_states", stream, GridOver(count), sequences,
                          memory.buffers, static_cast<int>(direction),
                          static_cast<int>(gate), previous_h, to);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
