#include "kernels/cudnn/cudnn_backend.h"

#include <algorithm>
#include <utility>

#include "kernels/arena.h"

namespace cudnn_rnn_tf {
namespace {

// The reserve space is a multiple of this and the algorithm's number, so that
// its size tells a backward pass what left it, wherever the tensor has been.
constexpr size_t kReserveMultiple = 256;

size_t ReserveBytes(const CudnnPlan& plan, RnnAlgorithm algorithm) {
  return (plan.reserve_size() + kReserveMultiple - 1) / kReserveMultiple *
             kReserveMultiple +
         static_cast<size_t>(algorithm);
}

// Numbers of such bytes are NaN, in every type.
constexpr unsigned char kNanByte = 0xFF;

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
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
    const int64_t item = SizeOf(problem.dtype);
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

CudnnBackend::CudnnBackend(CudnnResources resources,
                           const CudnnOptions& options)
    : resources_(std::move(resources)), options_(options) {}

CudnnBackend::~CudnnBackend() {
  if (session_ != nullptr) {
    CudnnSessionPool::Instance().Return(resources_.device, resources_.stream,
                                        std::move(session_));
  }
}

RnnStatus CudnnBackend::Configure(const RnnProblem& problem) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (session_ == nullptr) {
    CRNN_RETURN_IF_ERROR(CudnnSessionPool::Instance().Take(
        resources_.device, resources_.stream, &session_));
  }
  configuration_ = session_->Configuration(problem, options_);
  return {};
}

bool CudnnBackend::StreamIsCapturing() const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return Gpu().cuda.cuStreamIsCapturing(stream(), &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void CudnnBackend::Decide() {
  CudnnConfiguration& configuration = *configuration_;
  if (configuration.decided) return;
  const RnnProblem& problem = configuration.problem;
  Choice choice;
  const bool lengths = problem.has_sequence_lengths;
  const bool pinned = problem.algorithm != RnnAlgorithm::kAuto;
  if (pinned || lengths || options_.deterministic) {
    if (pinned) {
      choice.algorithm = problem.algorithm;
      choice.source = "pinned";
    }
    choice.replays_forward = choice.replays_backward =
        options_.replay && !lengths;
    Choices::Instance().Decide(configuration.name, choice);
  } else {
    if (StreamIsCapturing()) return;
    switch (Choices::Instance().Use(configuration.name, &choice)) {
      case Choices::State::kUndecided:
        return;
      case Choices::State::kToBeMeasured:
        choice =
            MeasureChoice(session_.get(), configuration_, resources_.allocate);
        Choices::Instance().Decide(configuration.name, choice);
        resources_.log(configuration.name + ": " + choice.Text());
        break;
      case Choices::State::kDecided:
        break;
    }
  }
  configuration.choice = choice;
  configuration.decided = true;
}

RnnStatus CudnnBackend::Sizes(bool backward, RnnBufferSizes* sizes) {
  const CudnnPlan& plan = *runs_->plan;
  Arena arena(nullptr);
  const Workspace workspace(plan, backward, &arena);
  (backward ? sizes->backward_workspace : sizes->forward_workspace) =
      arena.used();
  return {};
}

RnnStatus CudnnBackend::BufferSizes(const RnnProblem& problem,
                                    RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Configure(problem));
  Decide();
  Choice& choice = configuration_->choice;
  RnnStatus status = session_->Runs(configuration_, choice.algorithm, &runs_);
  if (!status.ok() && choice.source == "stored") {
    // Stored by another version, or for another GPU of that name.
    choice = Choice();
    status = session_->Runs(configuration_, choice.algorithm, &runs_);
  }
  CRNN_RETURN_IF_ERROR(status);
  if (problem.is_training) {
    sizes->reserve_space = ReserveBytes(*runs_->plan, choice.algorithm);
  }
  return Sizes(/*backward=*/false, sizes);
}

RnnStatus CudnnBackend::BackwardBufferSizes(const RnnProblem& problem,
                                            size_t reserve_space,
                                            RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Configure(problem));
  if (!configuration_->decided) {
    configuration_->decided =
        Choices::Instance().Find(configuration_->name, &configuration_->choice);
  }
  RnnAlgorithm algorithm = RnnAlgorithm::kStandard;
  const size_t number = reserve_space % kReserveMultiple;
  if (number > 0 && number < static_cast<size_t>(kNumRnnAlgorithms)) {
    algorithm = static_cast<RnnAlgorithm>(number);
  }
  CRNN_RETURN_IF_ERROR(session_->Runs(configuration_, algorithm, &runs_));
  sizes->reserve_space = ReserveBytes(*runs_->plan, algorithm);
  sizes->backward_consumes_reserve = true;
  return Sizes(/*backward=*/true, sizes);
}

RnnStatus CudnnBackend::Run(Pass pass, const CallAddresses& addresses) {
  const Choice& choice = configuration_->choice;
  const bool replays =
      pass == Pass::kForward ? choice.replays_forward : choice.replays_backward;
  // With sequence lengths, what runs depends on them.
  if (replays && options_.replay && Replay::Fits(addresses) &&
      !configuration_->problem.has_sequence_lengths) {
    bool done = false;
    CRNN_RETURN_IF_ERROR(TryReplay(&runs_->of(pass), pass, addresses, &done));
    if (done) return {};
  }
  return EnqueuePass(pass, session_->lane(), runs_->plan.get(), addresses);
}

// Not where that would cost more than it gains, nor where it cannot be.
RnnStatus CudnnBackend::TryReplay(CudnnRuns::PassRuns* runs, Pass pass,
                                  const CallAddresses& addresses, bool* done) {
  // A configuration that is seen once must not pay for a capture.
  if (runs->cannot_replay) return {};
  if (runs->replay == nullptr && ++runs->uses < 2) return {};
  if (runs->replay == nullptr) {
    // Of the caller's own capture, cuDNN's kernels become a part, not a graph.
    if (StreamIsCapturing()) return {};
    const auto sizes = CallBufferSizes(*runs_->plan, pass);
    const std::shared_ptr<void> region = resources_.allocate(
        *std::max_element(sizes.begin(), sizes.end()) + Replay::kRegionSlack);
    if (region == nullptr) return {};
    const RnnStatus status = CapturePass(session_.get(), runs_->plan.get(),
                                         pass, region.get(), &runs->replay);
    if (!status.ok()) {
      runs->cannot_replay = true;
      resources_.log(configuration_->name + ": " + status.message);
      return {};
    }
  } else if (StreamIsCapturing()) {
    return {};
  }
  const size_t bytes = runs->replay->bytes();
  const RnnStatus status = runs->replay->Launch(stream(), addresses);
  *done = status.ok();
  if (!*done) {
    runs->replay.reset();
    runs->cannot_replay = true;
    resources_.log(configuration_->name + ": " + status.message);
  } else if (runs->replay->bytes() > bytes) {
    session_->TrimReplays();
  }
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
  return Fill(to, 0, bytes);
}

RnnStatus CudnnBackend::Fill(void* to, unsigned char byte, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  if (bytes == 0) return {};
  return CudaStatus(
      Gpu().cuda.cuMemsetD8Async(Address(to), byte, bytes, stream()),
      "fill device memory");
}

// Between [B, L * D, size] and [L * D, B, size], a strided copy per row of
// L * D.
RnnStatus CudnnBackend::CopyStates(const RnnProblem& problem, int64_t size,
                                   const void* from, void* to, bool to_cudnn) {
  const size_t width = size * SizeOf(problem.dtype);
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
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuMemcpy2DAsync(&copy, stream()), "copy states"));
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
  for (const RepackedBlock& block : runs_->plan->repacked()) {
    CRNN_RETURN_IF_ERROR(Copy(static_cast<const char*>(from) + block.offset,
                              static_cast<char*>(to) + block.cudnn_offset,
                              block.size));
  }
  return {};
}

RnnStatus CudnnBackend::Forward(const RnnProblem& problem,
                                const RnnForwardBuffers& buffers) {
  CudnnPlan* const plan = runs_->plan.get();
  Arena arena(buffers.workspace);
  const Workspace workspace(*plan, /*backward=*/false, &arena);
  if (options_.poison_scratch) {
    CRNN_RETURN_IF_ERROR(Fill(buffers.workspace, kNanByte, arena.used()));
    if (problem.is_training) {
      CRNN_RETURN_IF_ERROR(
          Fill(buffers.reserve_space, kNanByte,
               ReserveBytes(*plan, configuration_->choice.algorithm)));
    }
  }
  const RnnSpec& spec = problem.spec;
  const bool exchanges = ExchangesStates(problem);
  const bool repacks = !plan->repacked().empty();
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(plan->SetSequenceLengths(buffers.sequence_lengths));
  }
  if (plan->uses_dropout()) {
    CRNN_RETURN_IF_ERROR(plan->SeedDropout(session_->lane().handle,
                                           workspace.dropout_states,
                                           MixSeeds(buffers.seed)));
  }
  if (repacks) {
    CRNN_RETURN_IF_ERROR(RepackParams(buffers.params, workspace.params));
  }
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    buffers.input_h, workspace.input_h, true));
  }
  if (exchanges && lstm) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, buffers.input_c,
                                    workspace.input_c, true));
  }
  CallAddresses addresses = {};
  addresses[kInput] = Address(buffers.input);
  addresses[kParams] = Address(repacks ? workspace.params : buffers.params);
  addresses[kInputH] = Address(exchanges ? workspace.input_h : buffers.input_h);
  addresses[kOutputH] =
      Address(exchanges ? workspace.output_h : buffers.output_h);
  if (lstm) {
    addresses[kInputC] =
        Address(exchanges ? workspace.input_c : buffers.input_c);
    addresses[kOutputC] =
        Address(exchanges ? workspace.output_c : buffers.output_c);
  }
  addresses[kOutput] = Address(buffers.output);
  if (problem.is_training) {
    addresses[kReserveSpace] = Address(buffers.reserve_space);
  }
  addresses[kWorkspace] = Address(workspace.cudnn);
  addresses[kDropoutStates] = Address(workspace.dropout_states);
  CRNN_RETURN_IF_ERROR(Run(Pass::kForward, addresses));
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    workspace.output_h, buffers.output_h,
                                    false));
  }
  if (exchanges && lstm) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, workspace.output_c,
                                    buffers.output_c, false));
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
  CudnnPlan* const plan = runs_->plan.get();
  Arena arena(buffers.workspace);
  const Workspace workspace(*plan, /*backward=*/true, &arena);
  if (options_.poison_scratch) {
    CRNN_RETURN_IF_ERROR(Fill(buffers.workspace, kNanByte, arena.used()));
  }
  const RnnSpec& spec = problem.spec;
  const bool exchanges = ExchangesStates(problem);
  const bool repacks = !plan->repacked().empty();
  const bool lstm = spec.is_lstm();
  if (problem.has_sequence_lengths) {
    CRNN_RETURN_IF_ERROR(plan->SetSequenceLengths(buffers.sequence_lengths));
  }
  if (repacks) {
    CRNN_RETURN_IF_ERROR(RepackParams(buffers.params, workspace.params));
  }
  CallAddresses addresses = {};
  addresses[kInput] = Address(buffers.input);
  addresses[kParams] = Address(repacks ? workspace.params : buffers.params);
  addresses[kOutput] = Address(buffers.output);
  addresses[kOutputBackprop] = Address(buffers.output_backprop);
  addresses[kReserveSpace] = Address(buffers.reserve_space);
  addresses[kWorkspace] = Address(workspace.cudnn);
  addresses[kDropoutStates] = Address(workspace.dropout_states);
  addresses[kInputBackprop] = Address(buffers.input_backprop);
  addresses[kParamsBackprop] =
      Address(repacks ? workspace.params_backprop : buffers.params_backprop);
  addresses[kInputH] = Address(buffers.input_h);
  addresses[kOutputHBackprop] = Address(buffers.output_h_backprop);
  addresses[kInputHBackprop] = Address(buffers.input_h_backprop);
  if (lstm) {
    addresses[kInputC] = Address(buffers.input_c);
    addresses[kOutputCBackprop] = Address(buffers.output_c_backprop);
    addresses[kInputCBackprop] = Address(buffers.input_c_backprop);
  }
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    buffers.input_h, workspace.input_h, true));
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    buffers.output_h_backprop,
                                    workspace.h_backprop, true));
    addresses[kInputH] = Address(workspace.input_h);
    addresses[kOutputHBackprop] = Address(workspace.h_backprop);
    addresses[kInputHBackprop] = Address(workspace.output_h);
  }
  if (exchanges && lstm) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, buffers.input_c,
                                    workspace.input_c, true));
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units,
                                    buffers.output_c_backprop,
                                    workspace.c_backprop, true));
    addresses[kInputC] = Address(workspace.input_c);
    addresses[kOutputCBackprop] = Address(workspace.c_backprop);
    addresses[kInputCBackprop] = Address(workspace.output_c);
  }
  CRNN_RETURN_IF_ERROR(Run(Pass::kBackward, addresses));
  for (const RepackedBlock& block : plan->repacked()) {
    CRNN_RETURN_IF_ERROR(
        Copy(static_cast<const char*>(workspace.params_backprop) +
                 block.cudnn_offset,
             static_cast<char*>(buffers.params_backprop) + block.offset,
             block.size));
  }
  if (exchanges) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.output_size(),
                                    workspace.output_h,
                                    buffers.input_h_backprop, false));
  }
  if (exchanges && lstm) {
    CRNN_RETURN_IF_ERROR(CopyStates(problem, spec.num_units, workspace.output_c,
                                    buffers.input_c_backprop, false));
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
