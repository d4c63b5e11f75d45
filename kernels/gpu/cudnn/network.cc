#include "kernels/gpu/cudnn/network.h"

#include <mutex>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/ceil_div.h"
#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/cudnn/transpose.h"
#include "kernels/gpu/enqueue_lock.h"
#include "kernels/gpu/reserve_size.h"

namespace cudnn_rnn_tf {
namespace {

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

std::string KeyOf(const RnnProblem& problem, const GpuOptions& options) {
  std::string key = KeyOf(problem);
  key.push_back(
      static_cast<char>(options.allow_tf32 | options.force_repack << 1));
  return key;
}

RnnStatus PlanFor(const RnnProblem& problem, RnnAlgorithm algorithm,
                  const GpuOptions& options, Session* session,
                  Session::Plans* plans, CudnnPlan** plan) {
  std::unique_ptr<CudnnPlan>& made = plans->made[static_cast<int>(algorithm)];
  if (made == nullptr) {
    CRNN_RETURN_IF_ERROR(CudnnPlan::Create(session->handles().cudnn, problem,
                                           algorithm, options, &made));
  }
  *plan = made.get();
  return {};
}

// Mixes two 64-bit seeds into one: each is added and then goes through the
// finalizer of splitmix64 (Steele et al., "Fast splittable pseudorandom number
// generators", 2014).
uint64_t MixSeeds(const uint64_t seed[2]) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  return mix(mix(seed[0] + 0x9E3779B97F4A7C15u) + seed[1]);
}

// Copies of arrays from the caller's order to cuDNN's, or back. An array is
// [rows, B, size] time-major, as cuDNN has it, and [B, rows, size] batch-major.
class Copies {
 public:
  explicit Copies(const RnnProblem& problem) : problem_(problem) {}

  // Returns where cuDNN finds an array of the caller's: there or, if the order
  // is another one, in memory from the arena, to which Enqueue then copies it.
  // An array without numbers is nowhere.
  const void* In(const void* callers, int64_t rows, int64_t size,
                 Arena* arena) {
    if (!AreNeeded(rows, size)) return size > 0 ? callers : nullptr;
    return InTo(callers, rows, size, Take(rows, size, arena));
  }
  // Does the same with memory of the array's size.
  const void* InTo(const void* callers, int64_t rows, int64_t size,
                   void* memory) {
    if (!AreNeeded(rows, size)) return callers;
    copies_.push_back({Address(callers), Address(memory), problem_.batch_size,
                       rows, RowBytes(size)});
    return memory;
  }
  // Returns where cuDNN leaves an array, from which Enqueue copies it to the
  // caller's place if that is another one.
  void* Out(void* callers, int64_t rows, int64_t size, Arena* arena) {
    if (!AreNeeded(rows, size)) return size > 0 ? callers : nullptr;
    void* const memory = Take(rows, size, arena);
    copies_.push_back({Address(memory), Address(callers), rows,
                       problem_.batch_size, RowBytes(size)});
    return memory;
  }
  RnnStatus Enqueue(CUstream stream) const {
    for (const auto& [from, to, outer, inner, row_bytes] : copies_) {
      CRNN_RETURN_IF_ERROR(
          EnqueueTranspose(stream, from, to, outer, inner, row_bytes));
    }
    return {};
  }

 private:
  struct Copy {
    CUdeviceptr from, to;
    int64_t outer, inner, row_bytes;
  };

  // If there is one sequence or one row only, both orders are the same.
  bool AreNeeded(int64_t rows, int64_t size) const {
    return !problem_.time_major && problem_.batch_size > 1 && rows > 1 &&
           size > 0;
  }
  int64_t RowBytes(int64_t size) const {
    return size * static_cast<int64_t>(SizeOf(problem_.dtype));
  }
  void* Take(int64_t rows, int64_t size, Arena* arena) const {
    return arena->Take<char>(rows * problem_.batch_size * RowBytes(size));
  }

  const RnnProblem& problem_;
  std::vector<Copy> copies_;
};

// The sizes of arrays, as Copies takes them.
struct Sizes {
  explicit Sizes(const RnnProblem& problem)
      : steps(problem.max_time),
        input(problem.spec.input_size),
        output(problem.spec.layer_output_size()),
        states(problem.spec.num_pseudo_layers()),
        h(problem.spec.output_size()),
        c(problem.spec.is_lstm() ? problem.spec.num_units : 0) {}

  int64_t steps, input, output, states, h, c;
};

// The buffers of a pass as cuDNN sees them: the caller's own or, in the
// workspace, copies in cuDNN's order and layout. Without buffers, they are only
// laid out.
template <typename Buffers>
struct CudnnBuffers : Buffers {
  const Sizes all;
  Arena arena;
  void* dropout_states = nullptr;
  // Those before and after cuDNN's first call.
  Copies before, after;

  CudnnBuffers(const CudnnPlan& plan, const Buffers& callers)
      : Buffers(callers),
        all(plan.problem()),
        arena(callers.workspace),
        before(plan.problem()),
        after(plan.problem()) {
    this->workspace = arena.Take<char>(plan.workspace_size());
    if (plan.uses_dropout()) {
      dropout_states = arena.Take<char>(plan.dropout_states_size());
    }
    if (!plan.repacked().empty()) {
      this->params = arena.Take<char>(plan.weight_space_size());
    }
  }
};

struct CudnnForward : CudnnBuffers<RnnForwardBuffers> {
  CudnnForward(const CudnnPlan& plan, const RnnForwardBuffers& callers)
      : CudnnBuffers(plan, callers) {
    input = before.In(input, all.steps, all.input, &arena);
    input_h = before.In(input_h, all.states, all.h, &arena);
    input_c = before.In(input_c, all.states, all.c, &arena);
    output = after.Out(output, all.steps, all.output, &arena);
    output_h = after.Out(output_h, all.states, all.h, &arena);
    output_c = after.Out(output_c, all.states, all.c, &arena);
  }
};

struct CudnnBackward : CudnnBuffers<RnnBackwardBuffers> {
  // Those before the gradients of parameters.
  Copies before_params;

  CudnnBackward(const CudnnPlan& plan, const RnnBackwardBuffers& callers)
      : CudnnBuffers(plan, callers), before_params(plan.problem()) {
    if (!plan.repacked().empty()) {
      params_backprop = arena.Take<char>(plan.weight_space_size());
    }
    output = before.In(output, all.steps, all.output, &arena);
    output_backprop = before.In(output_backprop, all.steps, all.output, &arena);
    input_h = before.In(input_h, all.states, all.h, &arena);
    input_c = before.In(input_c, all.states, all.c, &arena);
    output_h_backprop = before.In(output_h_backprop, all.states, all.h, &arena);
    output_c_backprop = before.In(output_c_backprop, all.states, all.c, &arena);
    input_backprop = after.Out(input_backprop, all.steps, all.input, &arena);
    input_h_backprop = after.Out(input_h_backprop, all.states, all.h, &arena);
    input_c_backprop = after.Out(input_c_backprop, all.states, all.c, &arena);
    // By then, the gradient has been copied to the caller.
    input = before_params.InTo(input, all.steps, all.input, input_backprop);
  }
};

RnnStatus Copy(CUstream stream, const void* from, void* to, size_t bytes) {
  return CudaStatus(
      Gpu().cuda.cuMemcpyDtoDAsync(Address(to), Address(from), bytes, stream),
      "copy parameters");
}

// Tells cuDNN what changes from call to call, and enqueues what comes before
// its first call: copies of parameters in another layout, and of arrays in
// another order.
template <typename Buffers>
RnnStatus Begin(const Handles& handles, const Buffers& callers,
                const CudnnBuffers<Buffers>& buffers, CudnnPlan* plan) {
  if (plan->problem().has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(
        plan->SetSequenceLengths(callers.sequence_lengths.on_host));
  }
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(
        plan->AttachDropout(handles.cudnn, buffers.dropout_states));
  }
  char* const params = static_cast<char*>(const_cast<void*>(buffers.params));
  for (const RepackedBlock& block : plan->repacked()) {
    CRNN_RETURN_IF_ERROR(Copy(
        handles.stream, static_cast<const char*>(callers.params) + block.offset,
        params + block.cudnn_offset, block.size));
  }
  return buffers.before.Enqueue(handles.stream);
}

}  // namespace

RnnStatus CudnnNetwork::CreateForward(
    const RnnProblem& problem, const GpuOptions& options, Session* session,
    const std::function<void(const std::string&)>& log,
    std::unique_ptr<Engine>* network) {
  CRNN_RETURN_IF_ERROR(session->MakeCudnn());
  const std::string key = KeyOf(problem, options);
  Session::Plans* const plans = session->PlansFor(key);
  RnnAlgorithm algorithm = plans->algorithm;
  CudnnPlan* plan = nullptr;
  if (algorithm == RnnAlgorithm::kAuto) {
    algorithm = CudnnAlgorithmFor(problem);
    RnnStatus status;
    if (algorithm != problem.algorithm) {
      status = PlanFor(problem, algorithm, options, session, plans, &plan);
    }
    // The network does not fit or, this time, there is no memory for it.
    if (!status.ok()) algorithm = RnnAlgorithm::kStandard;
    if (status.code != RnnStatus::Code::kResourceExhausted) {
      plans->algorithm = algorithm;
      log(Describe(problem) + ": " +
          kRnnAlgorithmNames[static_cast<int>(algorithm)]);
    }
  }
  // The rule's `resident` leaves calls with unaligned buffers to standard.
  if (algorithm == RnnAlgorithm::kResident && algorithm != problem.algorithm &&
      !problem.is_aligned) {
    algorithm = RnnAlgorithm::kStandard;
  }
  CRNN_RETURN_IF_ERROR(
      PlanFor(problem, algorithm, options, session, plans, &plan));
  network->reset(new CudnnNetwork(key, algorithm, plan));
  return {};
}

RnnStatus CudnnNetwork::CreateBackward(const RnnProblem& problem,
                                       const GpuOptions& options,
                                       size_t reserve_space, Session* session,
                                       std::unique_ptr<Engine>* network) {
  CRNN_RETURN_IF_ERROR(session->MakeCudnn());
  RnnAlgorithm algorithm = AlgorithmOf(reserve_space);
  // The algorithm resident, which is for inference, leaves no reserve space.
  if (algorithm == RnnAlgorithm::kAuto ||
      algorithm >= RnnAlgorithm::kResident) {
    algorithm = RnnAlgorithm::kStandard;
  }
  const std::string key = KeyOf(problem, options);
  CudnnPlan* plan = nullptr;
  CRNN_RETURN_IF_ERROR(PlanFor(problem, algorithm, options, session,
                               session->PlansFor(key), &plan));
  network->reset(new CudnnNetwork(key, algorithm, plan));
  return {};
}

size_t CudnnNetwork::reserve_size() const {
  return CeilDiv(plan_.reserve_size(), Arena::kAlign) * Arena::kAlign;
}

size_t CudnnNetwork::forward_workspace_size() const {
  return CudnnForward(plan_, {}).arena.used();
}

size_t CudnnNetwork::backward_workspace_size() const {
  return CudnnBackward(plan_, {}).arena.used();
}

std::string CudnnNetwork::Key() const {
  return key_ + kRnnAlgorithmNames[static_cast<int>(algorithm_)];
}

RnnStatus CudnnNetwork::StoreLengthsAndSeed(
    const Handles& handles, const RnnForwardBuffers& callers) const {
  if (!plan_.uses_dropout()) return {};
  const CudnnForward buffers(plan_, callers);
  return plan_.SeedDropout(handles.cudnn, buffers.dropout_states,
                           MixSeeds(buffers.seed));
}

// A sequence of length 0 ends in the state it began with, but cuDNN makes its
// last state zero, so the state is copied. Both tensors are in the caller's
// layout. Gradients of states are treated alike.
RnnStatus CudnnNetwork::CopyStatesOfEmptySequences(CUstream stream,
                                                   const int32_t* lengths,
                                                   int64_t size,
                                                   const void* from,
                                                   void* to) const {
  const RnnProblem& problem = plan_.problem();
  if (!problem.has_sequence_lengths || size == 0) return {};
  const int64_t rows = problem.spec.num_pseudo_layers();
  const int64_t batch = problem.batch_size;
  const size_t item = size * SizeOf(problem.dtype);
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
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuMemcpy2DAsync(&copy, stream), "copy states"));
  }
  return {};
}

RnnStatus CudnnNetwork::Forward(const Handles& handles,
                                const RnnForwardBuffers& callers) const {
  const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
  const CudnnForward buffers(plan_, callers);
  const CUstream stream = handles.stream;
  const RnnProblem& problem = plan_.problem();
  CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &plan_));
  if (plan_.resident() != nullptr) {
    CRNN_RETURN_IF_ERROR(plan_.resident()->Enqueue(handles, buffers));
  } else {
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNForward(
            handles.cudnn, plan_.rnn(),
            problem.is_training ? CUDNN_FWD_MODE_TRAINING
                                : CUDNN_FWD_MODE_INFERENCE,
            /*devSeqLengths=*/nullptr, plan_.input(), buffers.input,
            plan_.output(), buffers.output, plan_.h(), buffers.input_h,
            buffers.output_h, plan_.c(), buffers.input_c, buffers.output_c,
            plan_.weight_space_size(), buffers.params, plan_.workspace_size(),
            buffers.workspace, problem.is_training ? plan_.reserve_size() : 0,
            problem.is_training ? buffers.reserve_space : nullptr),
        problem);
  }
  CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
  const int32_t* const lengths = callers.sequence_lengths.on_host;
  CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
      stream, lengths, buffers.all.h, callers.input_h, callers.output_h));
  return CopyStatesOfEmptySequences(stream, lengths, buffers.all.c,
                                    callers.input_c, callers.output_c);
}

RnnStatus CudnnNetwork::Backward(const Handles& handles,
                                 const RnnBackwardBuffers& callers) const {
  const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
  const CudnnBackward buffers(plan_, callers);
  const CUstream stream = handles.stream;
  const RnnProblem& problem = plan_.problem();
  CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &plan_));
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardData_v8(
          handles.cudnn, plan_.rnn(), /*devSeqLengths=*/nullptr, plan_.output(),
          buffers.output, buffers.output_backprop, plan_.input(),
          buffers.input_backprop, plan_.h(), buffers.input_h,
          buffers.output_h_backprop, buffers.input_h_backprop, plan_.c(),
          buffers.input_c, buffers.output_c_backprop, buffers.input_c_backprop,
          plan_.weight_space_size(), buffers.params, plan_.workspace_size(),
          buffers.workspace, plan_.reserve_size(), buffers.reserve_space),
      problem);
  CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
  CRNN_RETURN_IF_ERROR(buffers.before_params.Enqueue(stream));
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuMemsetD8Async(Address(buffers.params_backprop), 0,
                                            plan_.weight_space_size(), stream),
                 "fill device memory"));
  CRNN_RETURN_IF_CUDNN_ERROR(
      Gpu().cudnn.cudnnRNNBackwardWeights_v8(
          handles.cudnn, plan_.rnn(), CUDNN_WGRAD_MODE_ADD,
          /*devSeqLengths=*/nullptr, plan_.input(), buffers.input, plan_.h(),
          buffers.input_h, plan_.output(), buffers.output,
          plan_.weight_space_size(), buffers.params_backprop,
          plan_.workspace_size(), buffers.workspace, plan_.reserve_size(),
          buffers.reserve_space),
      problem);
  for (const RepackedBlock& block : plan_.repacked()) {
    CRNN_RETURN_IF_ERROR(Copy(
        stream,
        static_cast<const char*>(buffers.params_backprop) + block.cudnn_offset,
        static_cast<char*>(callers.params_backprop) + block.offset,
        block.size));
  }
  const int32_t* const lengths = callers.sequence_lengths.on_host;
  CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
      stream, lengths, buffers.all.h, callers.output_h_backprop,
      callers.input_h_backprop));
  return CopyStatesOfEmptySequences(stream, lengths, buffers.all.c,
                                    callers.output_c_backprop,
                                    callers.input_c_backprop);
}

}  // namespace cudnn_rnn_tf
