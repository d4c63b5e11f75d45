#include "kernels/cudnn/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

namespace cudnn_rnn_tf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBudget(500);
// Before the first sample, so that kernels are loaded and clocks are up.
constexpr std::chrono::milliseconds kWarmUp(10);
constexpr int kSamples = 4;
// A candidate this many times slower than the best is not looked at further.
constexpr float kHopeless = 2.0f;
// A replay that is slower by no more than this is still worth the time that it
// saves the CPU.
constexpr float kReplayMargin = 1.05f;
constexpr float kNever = std::numeric_limits<float>::infinity();

const CudaDriver& Cuda() { return Gpu().cuda; }

class Event {
 public:
  ~Event() {
    if (event_ != nullptr) Cuda().cuEventDestroy(event_);
  }
  RnnStatus Record(CUstream stream) {
    if (event_ == nullptr) {
      CRNN_RETURN_IF_ERROR(CudaStatus(
          Cuda().cuEventCreate(&event_, CU_EVENT_DEFAULT), "make an event"));
    }
    return CudaStatus(Cuda().cuEventRecord(event_, stream), "record an event");
  }
  RnnStatus Wait() {
    return CudaStatus(Cuda().cuEventSynchronize(event_), "wait for an event");
  }
  RnnStatus MillisecondsSince(const Event& begin, float* milliseconds) const {
    return CudaStatus(
        Cuda().cuEventElapsedTime(milliseconds, begin.event_, event_),
        "time events");
  }

 private:
  CUevent event_ = nullptr;
};

// The least milliseconds seen of a candidate's passes.
struct Times {
  float forward = kNever;
  float backward = kNever;
  float sum() const { return forward + backward; }
};

// One algorithm over scratch memory.
class Candidate {
 public:
  Candidate(CudnnSession* session, CudnnRuns* runs)
      : session_(*session),
        runs_(*runs),
        is_training_(runs->plan->problem().is_training) {}

  // Lays out every buffer in scratch memory and fills it with small numbers.
  RnnStatus Prepare(const AllocateScratch& allocate);
  // Captures its passes; those that cannot be replayed are not.
  void Capture();
  bool is_captured() const {
    return runs_.forward.replay != nullptr &&
           (!is_training_ || runs_.backward.replay != nullptr);
  }
  // Runs its passes once and notes their times.
  RnnStatus Sample(bool replayed, Times* times);

 private:
  RnnStatus SamplePass(Pass pass, bool replayed, float* least);
  RnnStatus Run(Pass pass, bool replayed) {
    const CudnnLane& lane = session_.lane();
    return replayed ? runs_.of(pass).replay->Launch(lane.stream, addresses_)
                    : EnqueuePass(pass, lane, runs_.plan.get(), addresses_);
  }

  CudnnSession& session_;
  CudnnRuns& runs_;
  const bool is_training_;
  std::shared_ptr<void> scratch_;
  CallAddresses addresses_ = {};
  Event begin_, end_;
};

RnnStatus Candidate::Prepare(const AllocateScratch& allocate) {
  constexpr size_t kAlign = 256;
  const Pass last = is_training_ ? Pass::kBackward : Pass::kForward;
  const auto sizes = CallBufferSizes(*runs_.plan, last);
  size_t total = 0;
  for (int i = 0; i < kNumCallBuffers; ++i) {
    addresses_[i] = total;
    total += (sizes[i] + kAlign - 1) / kAlign * kAlign;
  }
  scratch_ = allocate(total + Replay::kRegionSlack);
  if (scratch_ == nullptr) {
    return {RnnStatus::Code::kResourceExhausted, "no memory for measuring"};
  }
  const auto base = reinterpret_cast<CUdeviceptr>(scratch_.get());
  for (int i = 0; i < kNumCallBuffers; ++i) {
    addresses_[i] = sizes[i] > 0 ? base + addresses_[i] : 0;
  }
  // About 0.01 in float32 and bfloat16, 0.07 in float16.
  const bool half = runs_.plan->problem().dtype == RnnDataType::kFloat16;
  const CudnnLane& lane = session_.lane();
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuMemsetD8Async(base, half ? 0x2C : 0x3C, total, lane.stream),
      "fill device memory"));
  if (runs_.plan->uses_dropout()) {
    return runs_.plan->SeedDropout(
        lane.handle, reinterpret_cast<void*>(addresses_[kDropoutStates]), 0);
  }
  return {};
}

void Candidate::Capture() {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (pass == Pass::kBackward && !is_training_) break;
    const RnnStatus status =
        CapturePass(&session_, runs_.plan.get(), pass, scratch_.get(),
                    &runs_.of(pass).replay);
    runs_.of(pass).cannot_replay = !status.ok();
  }
}

RnnStatus Candidate::Sample(bool replayed, Times* times) {
  CRNN_RETURN_IF_ERROR(SamplePass(Pass::kForward, replayed, &times->forward));
  if (is_training_) {
    return SamplePass(Pass::kBackward, replayed, &times->backward);
  }
  times->backward = 0;
  return {};
}

// Each pass starts on an idle device, so that what it costs the CPU to launch
// is not hidden behind the pass before.
RnnStatus Candidate::SamplePass(Pass pass, bool replayed, float* least) {
  const CUstream stream = session_.lane().stream;
  CRNN_RETURN_IF_ERROR(begin_.Record(stream));
  CRNN_RETURN_IF_ERROR(Run(pass, replayed));
  CRNN_RETURN_IF_ERROR(end_.Record(stream));
  CRNN_RETURN_IF_ERROR(end_.Wait());
  float milliseconds;
  CRNN_RETURN_IF_ERROR(end_.MillisecondsSince(begin_, &milliseconds));
  *least = std::min(*least, milliseconds);
  return {};
}

// Milliseconds of a candidate's passes, enqueued and replayed.
struct Measured {
  Times enqueued, replayed;

  bool replays(float Times::* pass) const {
    return replayed.*pass <= kReplayMargin * enqueued.*pass;
  }
  float best(float Times::* pass) const {
    return std::min(enqueued.*pass, replayed.*pass);
  }
  float sum() const { return best(&Times::forward) + best(&Times::backward); }
};

RnnStatus Measure(CudnnSession* session, CudnnRuns* runs, bool replays,
                  const AllocateScratch& allocate, float best_so_far,
                  Clock::time_point deadline, Measured* measured) {
  Candidate candidate(session, runs);
  CRNN_RETURN_IF_ERROR(candidate.Prepare(allocate));
  const Clock::time_point warm = Clock::now() + kWarmUp;
  Times ignored;
  do {
    ignored = Times();
    CRNN_RETURN_IF_ERROR(candidate.Sample(false, &ignored));
  } while (Clock::now() < warm);
  if (replays) candidate.Capture();
  for (const bool replayed : {false, true}) {
    // A replay's first launch instantiates its graph.
    if (replayed &&
        !(candidate.is_captured() && candidate.Sample(true, &ignored).ok())) {
      break;
    }
    Times& times = replayed ? measured->replayed : measured->enqueued;
    for (int i = 0; i < kSamples; ++i) {
      CRNN_RETURN_IF_ERROR(candidate.Sample(replayed, &times));
      if (times.sum() > kHopeless * best_so_far || Clock::now() > deadline) {
        break;
      }
    }
  }
  return {};
}

void AppendTimes(const char* algorithm, const char* way, const Times& times,
                 std::string* text) {
  if (times.sum() == kNever) return;
  char words[128];
  std::snprintf(words, sizeof(words), "%s%s %s %.3f + %.3f ms",
                text->empty() ? "" : "; ", algorithm, way, times.forward,
                times.backward);
  *text += words;
}

}  // namespace

RnnStatus CapturePass(CudnnSession* session, CudnnPlan* plan, Pass pass,
                      void* region, std::unique_ptr<Replay>* replay) {
  CudnnLane lane;
  CRNN_RETURN_IF_ERROR(session->CaptureLane(&lane));
  std::array<bool, kNumCallBuffers> used;
  const auto sizes = CallBufferSizes(*plan, pass);
  std::transform(sizes.begin(), sizes.end(), used.begin(),
                 [](size_t size) { return size > 0; });
  return Replay::Capture(
      lane.stream, reinterpret_cast<CUdeviceptr>(region), used,
      [&](const CallAddresses& addresses) {
        return EnqueuePass(pass, lane, plan, addresses);
      },
      replay);
}

Choice MeasureChoice(CudnnSession* session, CudnnConfiguration* configuration,
                     const AllocateScratch& allocate) {
  const Clock::time_point deadline = Clock::now() + kBudget;
  Choice choice;
  std::string timings;
  float best = kNever;
  // In float32, the persistent kernels' functions are exact to about 1e-5 only.
  // That is more than TF32 has, but less than was asked for without it.
  const bool exact = configuration->problem.dtype == RnnDataType::kFloat32 &&
                     !configuration->options.allow_tf32;
  const int end =
      exact ? static_cast<int>(RnnAlgorithm::kStandard) + 1 : kNumRnnAlgorithms;
  for (int i = static_cast<int>(RnnAlgorithm::kStandard);
       i < end && Clock::now() < deadline; ++i) {
    const auto algorithm = static_cast<RnnAlgorithm>(i);
    CudnnRuns* runs;
    // cuDNN has not every algorithm for every network.
    if (!session->Runs(configuration, algorithm, &runs).ok()) continue;
    Measured measured;
    if (!Measure(session, runs, configuration->options.replay, allocate, best,
                 deadline, &measured)
             .ok()) {
      continue;
    }
    AppendTimes(kRnnAlgorithmNames[i], "eager", measured.enqueued, &timings);
    AppendTimes(kRnnAlgorithmNames[i], "replay", measured.replayed, &timings);
    if (measured.sum() < best) {
      best = measured.sum();
      choice.algorithm = algorithm;
      choice.replays_forward = measured.replays(&Times::forward);
      choice.replays_backward = measured.replays(&Times::backward);
    }
  }
  if (!timings.empty()) {
    choice.source = "measured";
    choice.timings = timings;
  }
  for (int i = 0; i < kNumRnnAlgorithms; ++i) {
    std::unique_ptr<CudnnRuns>& runs = configuration->runs[i];
    if (i != static_cast<int>(choice.algorithm)) runs.reset();
    if (runs == nullptr) continue;
    if (!choice.replays_forward) runs->forward.replay.reset();
    if (!choice.replays_backward) runs->backward.replay.reset();
    // The scratch memory is gone.
    for (const auto* const pass : {&runs->forward, &runs->backward}) {
      if (pass->replay != nullptr) pass->replay->Forget();
    }
  }
  return choice;
}

}  // namespace cudnn_rnn_tf
