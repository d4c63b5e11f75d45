#include "kernels/gpu/cudnn/cudnn_backend.h"

#include <algorithm>
#include <utility>

#include "kernels/arena.h"
#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/reserve_size.h"

namespace cudnn_rnn_tf {
namespace {

size_t ReserveBytes(const CudnnPlan& plan, RnnAlgorithm algorithm) {
  return ReserveSize(CallBufferSizes(plan, Pass::kForward)[kReserveSpace],
                     algorithm);
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

// The parts of a call's workspace.
struct WorkspaceLayout {
  void* calls;
  void* dropout_states;
  void* params;  // In cuDNN's layout, where that differs.
  void* params_backprop;

  WorkspaceLayout(const CudnnPlan& plan, Pass pass, Arena* arena) {
    const auto sizes = CallBufferSizes(plan, pass);
    const bool repacks = !plan.repacked().empty();
    auto take = [&](bool wanted, CallBuffer buffer) -> void* {
      return wanted ? arena->Take<char>(sizes[buffer]) : nullptr;
    };
    calls = take(true, kWorkspace);
    dropout_states = take(plan.uses_dropout(), kDropoutStates);
    params = take(repacks, kParams);
    params_backprop = take(repacks && pass == Pass::kBackward, kParamsBackprop);
  }
};

}  // namespace

CudnnBackend::CudnnBackend(GpuResources resources, const GpuOptions& options)
    : resources_(std::move(resources)), options_(options) {
  // If there is no driver, the first call returns that error.
  if (LoadCudaDriver().ok()) relaxed_capture_.emplace();
}

CudnnBackend::~CudnnBackend() {
  if (session_ != nullptr) {
    ReturnSession(resources_.device, stream(), std::move(session_));
  }
}

RnnStatus CudnnBackend::Configure(const RnnProblem& problem) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (session_ == nullptr) {
    CRNN_RETURN_IF_ERROR(CudnnSessionPool::Instance().Take(
        resources_.device, stream(), &session_, resources_.memory_limit));
  }
  configuration_ = session_->Configuration(problem, options_);
  is_capturing_ = StreamIsCapturing(stream());
  return {};
}

size_t CudnnBackend::WorkspaceBytes(Pass pass) const {
  Arena arena(nullptr);
  const WorkspaceLayout workspace(*passes_->plan, pass, &arena);
  return arena.used();
}

RnnStatus CudnnBackend::ForwardBufferSizes(const RnnProblem& problem,
                                           RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Configure(problem));
  RnnAlgorithm algorithm = configuration_->algorithm;
  if (algorithm == RnnAlgorithm::kAuto) {
    algorithm = CudnnAlgorithmFor(problem);
    RnnStatus status;
    if (algorithm != problem.algorithm) {
      status = session_->Passes(configuration_, algorithm, &passes_);
    }
    // The network does not fit or, this time, there is no memory for it.
    if (!status.ok()) algorithm = RnnAlgorithm::kStandard;
    if (status.code != RnnStatus::Code::kResourceExhausted) {
      configuration_->algorithm = algorithm;
      resources_.log(Describe(problem) + ": " +
                     kRnnAlgorithmNames[static_cast<int>(algorithm)]);
    }
  }
  // The rule's `resident` leaves calls with unaligned buffers to standard.
  const bool is_left = algorithm == RnnAlgorithm::kResident &&
                       algorithm != problem.algorithm && !problem.is_aligned;
  CRNN_RETURN_IF_ERROR(session_->Passes(
      configuration_, is_left ? RnnAlgorithm::kStandard : algorithm, &passes_));
  if (problem.is_training) {
    sizes->reserve_space = ReserveBytes(*passes_->plan, algorithm);
  }
  sizes->forward_workspace = WorkspaceBytes(Pass::kForward);
  return {};
}

// In each step, cuDNN's persistent kernels read the output of the step before.
// On an H200, passes of float16 over one sequence take up to 6 % less time if
// rows of 1024 bytes begin 512 bytes past a multiple of 1024 (LSTM 512, T 100:
// 113 µs instead of 120), and none was seen to take more.
size_t CudnnBackend::OutputOffset(const RnnProblem& problem) const {
  const bool gains = problem.dtype == RnnDataType::kFloat16 &&
                     problem.batch_size == 1 && problem.max_time > 1;
  return gains ? kOutputPeriod / 2 : 0;
}

RnnStatus CudnnBackend::BackwardBufferSizes(const RnnProblem& problem,
                                            size_t reserve_space,
                                            RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Configure(problem));
  RnnAlgorithm algorithm = AlgorithmOf(reserve_space);
  // The algorithm resident, which is for inference, leaves no reserve space.
  if (algorithm == RnnAlgorithm::kAuto ||
      algorithm >= RnnAlgorithm::kResident) {
    algorithm = RnnAlgorithm::kStandard;
  }
  CRNN_RETURN_IF_ERROR(session_->Passes(configuration_, algorithm, &passes_));
  sizes->reserve_space = ReserveBytes(*passes_->plan, algorithm);
  sizes->backward_workspace = WorkspaceBytes(Pass::kBackward);
  return {};
}

// Nearly all nodes of a replay hold addresses in the workspace, so fewer are
// rewritten if it stays in its place. Memory that is allocated while the stream
// is being captured may belong to that capture, so it is not kept.
std::shared_ptr<void> CudnnBackend::Workspace(size_t bytes,
                                              const AllocateMemory& allocate) {
  const bool keeps = options_.replay && Gpu().has_graphs && !is_capturing_;
  return keeps ? session_->Workspace(bytes, allocate) : allocate(bytes);
}

RnnStatus CudnnBackend::Enqueue(Pass pass, const CallAddresses& addresses) {
  // cuDNN chooses its kernels by the sequence lengths, so a pass with lengths
  // cannot be replayed.
  if (options_.replay && Replay::Fits(addresses) &&
      !configuration_->problem.has_sequence_lengths) {
    bool done = false;
    CRNN_RETURN_IF_ERROR(TryReplay(&passes_->of(pass), pass, addresses, &done));
    if (done) return {};
  }
  return EnqueuePass(pass, session_->handles(), passes_->plan.get(), addresses);
}

// On an H200, work that cuDNN enqueues itself, partly in streams of its own,
// makes every kernel of every graph 0.18 µs slower until the process ends. So
// the first use is captured as well, and its nodes are launched one by one,
// once. If there is no room for more replays, cuDNN enqueues the pass, since
// otherwise every use would have to be captured.
RnnStatus CudnnBackend::TryReplay(PassReplay* run, Pass pass,
                                  const CallAddresses& addresses, bool* done) {
  // If the caller is capturing the stream, its capture gets cuDNN's kernels
  // themselves, not a graph.
  if (is_capturing_ || !run->IsDue()) return {};
  CudnnPlan* const plan = passes_->plan.get();
  const bool may_make = !resources_.is_profiled();
  const bool was_used = run->uses++ > 0;
  if (run->replay == nullptr ? !was_used || !may_make
                             : !may_make && !run->replay->was_launched()) {
    CapturedGraph graph;
    // If this fails, the next use finds out whether the pass can be captured at
    // all.
    if (!session_->Capture(plan, pass, addresses, &graph).ok()) return {};
    bool has_begun;
    const RnnStatus status = graph.LaunchNodes(stream(), &has_begun);
    *done = status.ok();
    // A pass that has begun is not begun again, since a backward pass
    // overwrites what it reads.
    return has_begun ? status : RnnStatus();
  }
  if (run->replay == nullptr && !session_->MakeRoomForReplay()) return {};
  const auto capture = [&](std::unique_ptr<Replay>* replay) -> RnnStatus {
    const auto sizes = CallBufferSizes(*plan, pass);
    const std::shared_ptr<void> region = resources_.allocate(
        *std::max_element(sizes.begin(), sizes.end()) + Replay::kRegionSlack);
    if (region == nullptr) {
      return {RnnStatus::Code::kResourceExhausted, "no memory"};
    }
    return session_->CaptureReplay(plan, pass, region.get(), replay);
  };
  const RnnStatus status = run->Launch(stream(), addresses, may_make, capture);
  *done = status.ok();
  if (!*done)
    resources_.log(Describe(configuration_->problem) + ": " + status.message);
  return {};
}

RnnStatus CudnnBackend::Copy(const void* from, void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (bytes == 0) return {};
  return CudaStatus(
      Gpu().cuda.cuMemcpyDtoDAsync(Address(to), Address(from), bytes, stream()),
      "copy device memory");
}

RnnStatus CudnnBackend::SetZero(void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (bytes == 0) return {};
  return CudaStatus(Gpu().cuda.cuMemsetD8Async(Address(to), 0, bytes, stream()),
                    "fill device memory");
}

// A sequence of length 0 ends in the state it began with, but cuDNN makes its
// last state zero, so the state is copied. Both tensors are in the caller's
// layout. Gradients of states are treated alike.
RnnStatus CudnnBackend::CopyStatesOfEmptySequences(const RnnProblem& problem,
                                                   const int32_t* lengths,
                                                   int64_t size,
                                                   const void* from, void* to) {
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
        CudaStatus(Gpu().cuda.cuMemcpy2DAsync(&copy, stream()), "copy states"));
  }
  return {};
}

RnnStatus CudnnBackend::RepackParams(const void* from, void* to) {
  for (const RepackedBlock& block : passes_->plan->repacked()) {
    CRNN_RETURN_IF_ERROR(Copy(static_cast<const char*>(from) + block.offset,
                              static_cast<char*>(to) + block.cudnn_offset,
                              block.size));
  }
  return {};
}

RnnStatus CudnnBackend::Forward(const RnnProblem& problem,
                                const RnnForwardBuffers& buffers) {
  CudnnPlan* const plan = passes_->plan.get();
  Arena arena(buffers.workspace);
  const WorkspaceLayout workspace(*plan, Pass::kForward, &arena);
  const RnnSpec& spec = problem.spec;
  const bool repacks = !plan->repacked().empty();
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(
        plan->SetSequenceLengths(buffers.sequence_lengths.on_host));
  }
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->SeedDropout(session_->handles().handle,
                                           workspace.dropout_states,
                                           MixSeeds(buffers.seed)));
  }
  if (repacks) {
    CRNN_RETURN_IF_ERROR(RepackParams(buffers.params, workspace.params));
  }
  CallAddresses addresses = AddressesOf(problem, buffers);
  if (repacks) addresses[kParams] = Address(workspace.params);
  addresses[kWorkspace] = Address(workspace.calls);
  addresses[kDropoutStates] = Address(workspace.dropout_states);
  CRNN_RETURN_IF_ERROR(Enqueue(Pass::kForward, addresses));
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
        problem, buffers.sequence_lengths.on_host, spec.output_size(),
        buffers.input_h, buffers.output_h));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
          problem, buffers.sequence_lengths.on_host, spec.num_units,
          buffers.input_c, buffers.output_c));
    }
  }
  return {};
}

RnnStatus CudnnBackend::Backward(const RnnProblem& problem,
                                 const RnnBackwardBuffers& buffers) {
  CudnnPlan* const plan = passes_->plan.get();
  Arena arena(buffers.workspace);
  const WorkspaceLayout workspace(*plan, Pass::kBackward, &arena);
  const RnnSpec& spec = problem.spec;
  const bool repacks = !plan->repacked().empty();
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(
        plan->SetSequenceLengths(buffers.sequence_lengths.on_host));
  }
  if (repacks) {
    CRNN_RETURN_IF_ERROR(RepackParams(buffers.params, workspace.params));
  }
  CallAddresses addresses = AddressesOf(problem, buffers);
  if (repacks) {
    addresses[kParams] = Address(workspace.params);
    addresses[kParamsBackprop] = Address(workspace.params_backprop);
  }
  addresses[kWorkspace] = Address(workspace.calls);
  addresses[kDropoutStates] = Address(workspace.dropout_states);
  CRNN_RETURN_IF_ERROR(Enqueue(Pass::kBackward, addresses));
  for (const RepackedBlock& block : plan->repacked()) {
    CRNN_RETURN_IF_ERROR(
        Copy(static_cast<const char*>(workspace.params_backprop) +
                 block.cudnn_offset,
             static_cast<char*>(buffers.params_backprop) + block.offset,
             block.size));
  }
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
        problem, buffers.sequence_lengths.on_host, spec.output_size(),
        buffers.output_h_backprop, buffers.input_h_backprop));
    if (lstm) {
      CRNN_RETURN_IF_ERROR(CopyStatesOfEmptySequences(
          problem, buffers.sequence_lengths.on_host, spec.num_units,
          buffers.output_c_backprop, buffers.input_c_backprop));
    }
  }
  return {};
}

}  // namespace cudnn_rnn_tf
