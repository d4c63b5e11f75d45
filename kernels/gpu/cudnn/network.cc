// Runs a network's passes with cuDNN.
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/cudnn/description.h"
#include "kernels/gpu/cudnn/time_major.h"
#include "kernels/gpu/engine.h"

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

// The sizes of arrays, as Copies takes them.
struct Sizes {
  const RnnProblem& problem;
  const RnnSpec& spec = problem.spec;
  const int64_t steps = problem.max_time, input = spec.input_size,
                output = spec.layer_output_size(),
                states = spec.num_pseudo_layers(), h = spec.output_size(),
                c = spec.has_c() ? spec.num_units : 0;
};

// The buffers of a pass as cuDNN sees them: the caller's own or, in the
// workspace, copies in time-major order. Without buffers, they are only laid
// out.
template <typename Buffers>
struct CudnnBuffers : Buffers {
  const Sizes all;
  Arena arena;
  Copies before, after;  // The copies before a pass and those after it.
  void* dropout_states = nullptr;

  CudnnBuffers(const CudnnDescription& described, const Buffers& callers)
      : Buffers(callers),
        all{described.problem()},
        arena(callers.workspace),
        before(described.problem()),
        after(described.problem()) {
    this->workspace = arena.Take<char>(described.workspace_size());
    if (described.uses_dropout()) {
      dropout_states = arena.Take<char>(described.dropout_states_size());
    }
  }
};

struct CudnnForward : CudnnBuffers<RnnForwardBuffers> {
  CudnnForward(const CudnnDescription& described,
               const RnnForwardBuffers& callers)
      : CudnnBuffers(described, callers) {
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

  CudnnBackward(const CudnnDescription& described,
                const RnnBackwardBuffers& callers)
      : CudnnBuffers(described, callers), before_params(described.problem()) {
    output = before.In(output, all.steps, all.output, &arena);
    output_backprop = before.In(output_backprop, all.steps, all.output, &arena);
    input_h = before.In(input_h, all.states, all.h, &arena);
    input_c = before.In(input_c, all.states, all.c, &arena);
    output_h_backprop = before.In(output_h_backprop, all.states, all.h, &arena);
    output_c_backprop = before.In(output_c_backprop, all.states, all.c, &arena);
    // cuDNN computes it in any case.
    input_backprop =
        described.problem().has_input_backprop
            ? after.Out(input_backprop, all.steps, all.input, &arena)
            : after.Take(all.steps, all.input, &arena);
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
                const CudnnBuffers<Buffers>& buffers,
                CudnnDescription* described) {
  if (described->problem().has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(
        described->SetSequenceLengths(callers.sequence_lengths.on_host));
  }
  if (described->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(
        described->AttachDropout(handles.cudnn, buffers.dropout_states));
  }
  return buffers.before.Enqueue(handles.stream);
}

class CudnnNetwork : public Engine {
 public:
  CudnnNetwork(const RnnProblem& problem, CudnnAlgorithm algorithm,
               bool allow_tf32)
      : problem_(problem), algorithm_(algorithm), allow_tf32_(allow_tf32) {}

  // Describes the problem, which may fail.
  RnnStatus Build(cudnnHandle_t cudnn) {
    CRNN_RETURN_IF_ERROR(described_.Build(cudnn, algorithm_, allow_tf32_));
    sizes_.forward_workspace = CudnnForward(described_, {}).arena.used();
    if (!problem_.is_training) return {};
    sizes_.reserve_space = Arena::Rounded(described_.reserve_size());
    sizes_.backward_workspace = CudnnBackward(described_, {}).arena.used();
    return {};
  }
  RnnBufferSizes sizes() const override { return sizes_; }
  // cuDNN chooses its kernels by the sequence lengths.
  bool is_replayable() const override { return !problem_.has_sequence_lengths; }
  RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& callers) const override {
    if (!problem_.has_dropout_between_layers()) return {};
    const std::lock_guard<std::mutex> uses(mutex_);
    const CudnnForward buffers(described_, callers);
    return described_.SeedDropout(handles.cudnn, buffers.dropout_states,
                                  MixSeeds(buffers.seed));
  }
  // Batch-major data are copied into cuDNN's order and back, in the workspace:
  // cuDNN's own way with them takes several times as long.
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& callers) const override {
    const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
    const std::lock_guard<std::mutex> uses(mutex_);
    const CudnnForward buffers(described_, callers);
    const CUstream stream = handles.stream;
    CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &described_));
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNForward(
            handles.cudnn, described_.rnn(),
            problem_.is_training ? CUDNN_FWD_MODE_TRAINING
                                 : CUDNN_FWD_MODE_INFERENCE,
            /*devSeqLengths=*/nullptr, described_.input(), buffers.input,
            described_.output(), buffers.output, described_.h(),
            buffers.input_h, buffers.output_h, described_.c(), buffers.input_c,
            buffers.output_c, described_.weight_space_size(), buffers.params,
            described_.workspace_size(), buffers.workspace,
            problem_.is_training ? described_.reserve_size() : 0,
            problem_.is_training ? buffers.reserve_space : nullptr),
        problem_);
    CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
    return CopyStatesOfEmptySequences(
        stream, callers.sequence_lengths.on_host,
        {{buffers.all.h, callers.input_h, callers.output_h},
         {buffers.all.c, callers.input_c, callers.output_c}});
  }
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& callers) const override {
    const std::lock_guard<std::mutex> lock(EnqueueLock(handles.stream));
    const std::lock_guard<std::mutex> uses(mutex_);
    const CudnnBackward buffers(described_, callers);
    const CUstream stream = handles.stream;
    CRNN_RETURN_IF_ERROR(Begin(handles, callers, buffers, &described_));
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardData_v8(
            handles.cudnn, described_.rnn(), /*devSeqLengths=*/nullptr,
            described_.output(), buffers.output, buffers.output_backprop,
            described_.input(), buffers.input_backprop, described_.h(),
            buffers.input_h, buffers.output_h_backprop,
            buffers.input_h_backprop, described_.c(), buffers.input_c,
            buffers.output_c_backprop, buffers.input_c_backprop,
            described_.weight_space_size(), buffers.params,
            described_.workspace_size(), buffers.workspace,
            described_.reserve_size(), buffers.reserve_space),
        problem_);
    CRNN_RETURN_IF_ERROR(buffers.after.Enqueue(stream));
    CRNN_RETURN_IF_ERROR(buffers.before_params.Enqueue(stream));
    CRNN_RETURN_IF_ERROR(EnqueueFill(stream, buffers.params_backprop, 0,
                                     described_.weight_space_size()));
    CRNN_RETURN_IF_CUDNN_ERROR(
        Gpu().cudnn.cudnnRNNBackwardWeights_v8(
            handles.cudnn, described_.rnn(), CUDNN_WGRAD_MODE_ADD,
            /*devSeqLengths=*/nullptr, described_.input(), buffers.input,
            described_.h(), buffers.input_h, described_.output(),
            buffers.output, described_.weight_space_size(),
            buffers.params_backprop, described_.workspace_size(),
            buffers.workspace, described_.reserve_size(),
            buffers.reserve_space),
        problem_);
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
    if (!problem_.has_sequence_lengths) return {};
    const int64_t rows = problem_.spec.num_pseudo_layers();
    const int64_t batch = problem_.batch_size;
    for (int64_t begin = 0, end; begin < batch; begin = end + 1) {
      end = begin;
      while (end < batch && lengths[end] == 0) ++end;
      for (const auto& [size, from, to] : kinds) {
        if (end == begin || size == 0) continue;
        const size_t item = size * SizeOf(problem_.dtype);
        const size_t offset = begin * item * (problem_.time_major ? 1 : rows);
        CUDA_MEMCPY2D copy = {};
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = reinterpret_cast<CUdeviceptr>(from) + offset;
        copy.dstDevice = reinterpret_cast<CUdeviceptr>(to) + offset;
        copy.srcPitch = copy.dstPitch =
            item * (problem_.time_major ? batch : rows);
        copy.WidthInBytes = item * (problem_.time_major ? end - begin : rows);
        copy.Height = problem_.time_major ? rows : end - begin;
        CRNN_RETURN_IF_ERROR(CudaStatus(
            Gpu().cuda.cuMemcpy2DAsync(&copy, stream), "copy states"));
      }
    }
    return {};
  }

  const RnnProblem problem_;
  const CudnnAlgorithm algorithm_;
  const bool allow_tf32_;
  RnnBufferSizes sizes_;
  // One pass uses the description at a time, since each describes its lengths
  // anew.
  mutable std::mutex mutex_;
  mutable CudnnDescription described_{problem_};
};

}  // namespace

RnnStatus CreateCudnnNetwork(const RnnProblem& problem,
                             CudnnAlgorithm algorithm, bool allow_tf32,
                             cudnnHandle_t cudnn,
                             std::unique_ptr<const Engine>* network) {
  auto made = std::make_unique<CudnnNetwork>(problem, algorithm, allow_tf32);
  CRNN_RETURN_IF_ERROR(made->Build(cudnn));
  *network = std::move(made);
  return {};
}

}  // namespace cudnn_rnn_tf
