// Runs a network's passes with cuDNN.
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/arena.h"
#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/cudnn/plan.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/session.h"
#include "kernels/gpu/time_major.h"

namespace cudnn_rnn_tf {
namespace {

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

// The buffers of a pass as cuDNN sees them.
template <typename Buffers>
struct CudnnBuffers : TimeMajorBuffers<Buffers> {
  void* dropout_states = nullptr;

  CudnnBuffers(const CudnnPlan& plan, const Buffers& callers)
      : TimeMajorBuffers<Buffers>(plan.problem(), callers) {
    this->workspace = this->arena.template Take<char>(plan.workspace_size());
    if (plan.uses_dropout()) {
      dropout_states =
          this->arena.template Take<char>(plan.dropout_states_size());
    }
  }
};

struct CudnnForward : CudnnBuffers<RnnForwardBuffers> {
  CudnnForward(const CudnnPlan& plan, const RnnForwardBuffers& callers)
      : CudnnBuffers(plan, callers) {
    LayOut(this);
  }
};

struct CudnnBackward : CudnnBuffers<RnnBackwardBuffers> {
  // Those before the gradients of parameters.
  Copies before_params;

  CudnnBackward(const CudnnPlan& plan, const RnnBackwardBuffers& callers)
      : CudnnBuffers(plan, callers), before_params(plan.problem()) {
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

// Tells cuDNN what changes from call to call, and enqueues the copies of arrays
// in another order, which come before its first call.
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
  return buffers.before.Enqueue(handles.stream);
}

class CudnnNetwork : public Engine {
 public:
  CudnnNetwork(std::string key, RnnAlgorithm algorithm, CudnnPlan* plan)
      : key_(std::move(key)), algorithm_(algorithm), plan_(*plan) {}

  RnnAlgorithm algorithm() const override { return algorithm_; }
  size_t reserve_size() const override {
    return CeilDiv(plan_.reserve_size(), Arena::kAlign) * Arena::kAlign;
  }
  size_t forward_workspace_size() const override {
    return CudnnForward(plan_, {}).arena.used();
  }
  size_t backward_workspace_size() const override {
    return CudnnBackward(plan_, {}).arena.used();
  }
  std::string Key() const override {
    return key_ + kRnnAlgorithmNames[static_cast<int>(algorithm_)];
  }
  // cuDNN chooses its kernels by the sequence lengths.
  bool is_replayable() const override {
    return !plan_.problem().has_sequence_lengths;
  }
  RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& callers) const override {
    if (!plan_.uses_dropout()) return {};
    const CudnnForward buffers(plan_, callers);
    return plan_.SeedDropout(handles.cudnn, buffers.dropout_states,
                             MixSeeds(buffers.seed));
  }
  // Batch-major data are copied into cuDNN's order and back, in the workspace:
  // cuDNN's own way with them takes several times as long.
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& callers) const override {
    const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
    const CudnnForward buffers(plan_, callers);
    const CUstream stream = handles.stream;
    const RnnProblem& problem = plan_.problem();
    CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &plan_));
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
    CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
    return CopyStatesOfEmptySequences(
        stream, callers.sequence_lengths.on_host,
        {{buffers.all.h, callers.input_h, callers.output_h},
         {buffers.all.c, callers.input_c, callers.output_c}});
  }
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& callers) const override {
    const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
    const CudnnBackward buffers(plan_, callers);
    const CUstream stream = handles.stream;
    const RnnProblem& problem = plan_.problem();
    CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &plan_));
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardData_v8(
            handles.cudnn, plan_.rnn(), /*devSeqLengths=*/nullptr,
            plan_.output(), buffers.output, buffers.output_backprop,
            plan_.input(), buffers.input_backprop, plan_.h(), buffers.input_h,
            buffers.output_h_backprop, buffers.input_h_backprop, plan_.c(),
            buffers.input_c, buffers.output_c_backprop,
            buffers.input_c_backprop, plan_.weight_space_size(), buffers.params,
            plan_.workspace_size(), buffers.workspace, plan_.reserve_size(),
            buffers.reserve_space),
        problem);
    CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
    CRNN_RETURN_IF_ERROR(buffers.before_params.Enqueue(stream));
    CRNN_RETURN_IF_ERROR(EnqueueFill(stream, buffers.params_backprop, 0,
                                     plan_.weight_space_size()));
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardWeights_v8(
            handles.cudnn, plan_.rnn(), CUDNN_WGRAD_MODE_ADD,
            /*devSeqLengths=*/nullptr, plan_.input(), buffers.input, plan_.h(),
            buffers.input_h, plan_.output(), buffers.output,
            plan_.weight_space_size(), buffers.params_backprop,
            plan_.workspace_size(), buffers.workspace, plan_.reserve_size(),
            buffers.reserve_space),
        problem);
    return CopyStatesOfEmptySequences(
        stream, callers.sequence_lengths.on_host,
        {{buffers.all.h, callers.output_h_backprop, callers.input_h_backprop},
         {buffers.all.c, callers.output_c_backprop, callers.input_c_backprop}});
  }

 private:
  // States of one kind and where they go, in the caller's layout.
  struct States {
    int64_t size;
    const void* from;
    void* to;
  };
  // A sequence of length 0 ends in the state it began with, but cuDNN makes its
  // last state zero, so the state is copied. Gradients of states are treated
  // alike.
  RnnStatus CopyStatesOfEmptySequences(CUstream stream, const int32_t* lengths,
                                       const States (&kinds)[2]) const {
    const RnnProblem& problem = plan_.problem();
    if (!problem.has_sequence_lengths) return {};
    const int64_t rows = problem.spec.num_pseudo_layers();
    const int64_t batch = problem.batch_size;
    for (int64_t begin = 0, end; begin < batch; begin = end + 1) {
      end = begin;
      while (end < batch && lengths[end] == 0) ++end;
      for (const auto& [size, from, to] : kinds) {
        if (end == begin || size == 0) continue;
        const size_t item = size * SizeOf(problem.dtype);
        const size_t offset = begin * item * (problem.time_major ? 1 : rows);
        CUDA_MEMCPY2D copy = {};
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = reinterpret_cast<CUdeviceptr>(from) + offset;
        copy.dstDevice = reinterpret_cast<CUdeviceptr>(to) + offset;
        copy.srcPitch = copy.dstPitch =
            item * (problem.time_major ? batch : rows);
        copy.WidthInBytes = item * (problem.time_major ? end - begin : rows);
        copy.Height = problem.time_major ? rows : end - begin;
        CRNN_RETURN_IF_ERROR(CudaStatus(
            Gpu().cuda.cuMemcpy2DAsync(&copy, stream), "copy states"));
      }
    }
    return {};
  }

  const std::string key_;
  const RnnAlgorithm algorithm_;
  CudnnPlan& plan_;
};

}  // namespace

RnnStatus CreateCudnnNetwork(const RnnProblem& problem, RnnAlgorithm algorithm,
                             const GpuOptions& options, Session* session,
                             std::unique_ptr<Engine>* network) {
  CRNN_RETURN_IF_ERROR(session->MakeCudnn());
  Session::Plans* const plans = session->PlansFor(problem, options);
  std::unique_ptr<CudnnPlan>& made = plans->made[static_cast<int>(algorithm)];
  if (made == nullptr) {
    auto plan = std::make_unique<CudnnPlan>(problem);
    CRNN_RETURN_IF_ERROR(
        plan->Build(session->handles().cudnn, algorithm, options.allow_tf32));
    made = std::move(plan);
  }
  *network = std::make_unique<CudnnNetwork>(Session::KeyOf(problem, options),
                                            algorithm, made.get());
  return {};
}

}  // namespace cudnn_rnn_tf
