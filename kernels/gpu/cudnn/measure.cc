#include "kernels/gpu/cudnn/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

#include "kernels/arena.h"

namespace cudnn_rnn_tf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBudget(500);
// Trying a pass as a chain may take this much additional time.
constexpr std::chrono::milliseconds kChainBudget(125);
// A chain is taken if its time is less than this part of its graph's.
constexpr float kChainGains = 0.99f;
// The workspace of cuDNN's persistent algorithms is larger than standard's,
// often several times. In training it comes on top of everything that is kept
// for the backward pass, so it is not worth it unless they are this much
// faster.
constexpr float kWorthItsMemory = 1.05f;
// A candidate runs for this long before the first sample, so that kernels are
// loaded and clocks are up.
constexpr std::chrono::milliseconds kWarmUp(10);
constexpr int kSamples = 4;
// A candidate this many times slower than the best is not looked at further.
constexpr float kHopeless = 2.0f;
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

// The least time of a pass that was measured, in milliseconds.
struct PassTime {
  float least = kNever;
  bool is_chain = false;
};

struct Times {
  PassTime forward, backward;
  float sum() const { return forward.least + backward.least; }
};

// Runs one algorithm over scratch memory.
class Candidate {
 public:
  Candidate(CudnnSession* session, PlannedPasses* passes)
      : session_(*session),
        passes_(*passes),
        is_training_(passes->plan->problem().is_training) {}

  // Lays out every buffer in scratch memory and fills it with small numbers.
  RnnStatus Prepare(const AllocateMemory& allocate);
  // Captures the algorithm's passes, which are replayed from then on.
  RnnStatus Capture();
  // Runs the algorithm's passes once and notes their times.
  RnnStatus Sample(Times* times);
  // Turns a captured pass into a chain if that is faster.
  void TryChain(Pass pass, PassTime* time);

 private:
  RnnStatus SamplePass(Pass pass, Replay* replay, PassTime* time);
  RnnStatus Run(Pass pass, Replay* replay) {
    const CudnnHandles& handles = session_.handles();
    return replay != nullptr
               ? replay->Launch(handles.stream, addresses_)
               : EnqueuePass(pass, handles, passes_.plan.get(), addresses_);
  }

  CudnnSession& session_;
  PlannedPasses& passes_;
  const bool is_training_;
  std::shared_ptr<void> scratch_;
  CallAddresses addresses_ = {};
  Event begin_, end_;
};

RnnStatus Candidate::Prepare(const AllocateMemory& allocate) {
  const Pass last = is_training_ ? Pass::kBackward : Pass::kForward;
  const auto sizes = CallBufferSizes(*passes_.plan, last);
  size_t total = 0;
  for (int i = 0; i < kNumCallBuffers; ++i) {
    addresses_[i] = total;
    total += (sizes[i] + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
  }
  scratch_ = allocate(total + Replay::kRegionSlack);
  if (scratch_ == nullptr) {
    return {RnnStatus::Code::kResourceExhausted, "no memory for measuring"};
  }
  const auto base = reinterpret_cast<CUdeviceptr>(scratch_.get());
  for (int i = 0; i < kNumCallBuffers; ++i) {
    addresses_[i] = sizes[i] > 0 ? base + addresses_[i] : 0;
  }
  // These bytes make numbers of about 0.01 in float32 and bfloat16, and of
  // about 0.07 in float16.
  const bool half = passes_.plan->problem().dtype == RnnDataType::kFloat16;
  const CudnnHandles& handles = session_.handles();
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Cuda().cuMemsetD8Async(base, half ? 0x2C : 0x3C, total, handles.stream),
      "fill device memory"));
  if (passes_.plan->uses_dropout()) {
    return passes_.plan->SeedDropout(
        handles.handle, reinterpret_cast<void*>(addresses_[kDropoutStates]), 0);
  }
  return {};
}

RnnStatus Candidate::Capture() {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (pass == Pass::kBackward && !is_training_) break;
    std::unique_ptr<Replay>& replay = passes_.of(pass).replay;
    if (replay != nullptr) continue;
    CRNN_RETURN_IF_ERROR(session_.CaptureReplay(
        passes_.plan.get(), pass, scratch_.get(), /*as_chain=*/false, &replay));
  }
  return {};
}

RnnStatus Candidate::Sample(Times* times) {
  CRNN_RETURN_IF_ERROR(SamplePass(Pass::kForward, passes_.forward.replay.get(),
                                  &times->forward));
  if (is_training_) {
    return SamplePass(Pass::kBackward, passes_.backward.replay.get(),
                      &times->backward);
  }
  times->backward.least = 0;
  return {};
}

void Candidate::TryChain(Pass pass, PassTime* time) {
  std::unique_ptr<Replay>& replay = passes_.of(pass).replay;
  std::unique_ptr<Replay> chain;
  if (!session_
           .CaptureReplay(passes_.plan.get(), pass, scratch_.get(),
                          /*as_chain=*/true, &chain)
           .ok()) {
    return;
  }
  const Clock::time_point deadline = Clock::now() + kChainBudget;
  PassTime of_graph, of_chain;
  // The two are sampled by turns. There are at least two rounds, since the
  // first instantiates the graphs.
  for (int i = 0; i < 2 || (i <= kSamples && Clock::now() < deadline); ++i) {
    if (!SamplePass(pass, replay.get(), &of_graph).ok() ||
        !SamplePass(pass, chain.get(), &of_chain).ok()) {
      return;
    }
  }
  if (of_chain.least < kChainGains * of_graph.least) {
    replay = std::move(chain);
    *time = {of_chain.least, /*is_chain=*/true};
  }
}

// Each pass starts on an idle device, so that the time in which the CPU
// launches it is not hidden behind the pass before.
RnnStatus Candidate::SamplePass(Pass pass, Replay* replay, PassTime* time) {
  const CUstream stream = session_.handles().stream;
  CRNN_RETURN_IF_ERROR(begin_.Record(stream));
  CRNN_RETURN_IF_ERROR(Run(pass, replay));
  CRNN_RETURN_IF_ERROR(end_.Record(stream));
  CRNN_RETURN_IF_ERROR(end_.Wait());
  float milliseconds;
  CRNN_RETURN_IF_ERROR(end_.MillisecondsSince(begin_, &milliseconds));
  time->least = std::min(time->least, milliseconds);
  return {};
}

bool MayGainAsChain(const PassReplay& pass) {
  return pass.replay != nullptr && pass.replay->is_nearly_chain();
}

// Captures and times one algorithm. One that is alone is timed only if a chain
// may be faster, to be compared with it.
RnnStatus Measure(CudnnSession* session, PlannedPasses* passes, bool replays,
                  bool is_alone, const AllocateMemory& allocate,
                  float best_so_far, Clock::time_point deadline, Times* times) {
  Candidate candidate(session, passes);
  CRNN_RETURN_IF_ERROR(candidate.Prepare(allocate));
  if (replays) CRNN_RETURN_IF_ERROR(candidate.Capture());
  if (is_alone && !MayGainAsChain(passes->forward) &&
      !MayGainAsChain(passes->backward)) {
    return {};
  }
  const Clock::time_point warm = Clock::now() + kWarmUp;
  Times ignored;
  do {
    CRNN_RETURN_IF_ERROR(candidate.Sample(&ignored));
  } while (Clock::now() < warm);
  for (int i = 0; i < kSamples; ++i) {
    CRNN_RETURN_IF_ERROR(candidate.Sample(times));
    if (times->sum() > kHopeless * best_so_far || Clock::now() > deadline) {
      break;
    }
  }
  return {};
}

// Tries the passes of a measured algorithm as chains. Where that fails, the
// pass stays a graph.
void TryChains(CudnnSession* session, PlannedPasses* passes,
               const AllocateMemory& allocate, Times* times) {
  const bool forward = MayGainAsChain(passes->forward);
  const bool backward = MayGainAsChain(passes->backward);
  Candidate candidate(session, passes);
  if (!(forward || backward) || !candidate.Prepare(allocate).ok()) return;
  if (forward) candidate.TryChain(Pass::kForward, &times->forward);
  if (backward) candidate.TryChain(Pass::kBackward, &times->backward);
}

void AppendTimes(const char* algorithm, const Times& times, std::string* text) {
  char words[128];
  std::snprintf(words, sizeof(words), "%s%s %.3f + %.3f ms",
                text->empty() ? "" : "; ", algorithm, times.forward.least,
                times.backward.least);
  *text += words;
}

}  // namespace

Choice MeasureChoice(CudnnSession* session, CudnnConfiguration* configuration,
                     const std::vector<RnnAlgorithm>& algorithms,
                     const AllocateMemory& allocate) {
  // Not every algorithm runs every network.
  std::vector<std::pair<RnnAlgorithm, PlannedPasses*>> candidates;
  for (const RnnAlgorithm algorithm : algorithms) {
    PlannedPasses* passes;
    if (session->Passes(configuration, algorithm, &passes).ok()) {
      candidates.emplace_back(algorithm, passes);
    }
  }
  const Clock::time_point deadline = Clock::now() + kBudget;
  Choice choice;
  std::array<Times, kNumMeasuredAlgorithms> times;
  Times* best = &times[static_cast<int>(choice.algorithm)];
  const bool replays = configuration->options.replay && Gpu().has_graphs;
  for (const auto& [algorithm, passes] : candidates) {
    // Standard is always timed, so that the chosen algorithm is known not to be
    // slower.
    if (algorithm != RnnAlgorithm::kStandard && Clock::now() > deadline) {
      continue;
    }
    Times* const measured = &times[static_cast<int>(algorithm)];
    if (!Measure(session, passes, replays, candidates.size() == 1, allocate,
                 best->sum(), deadline, measured)
             .ok()) {
      *measured = {};
      passes->forward.replay.reset();
      passes->backward.replay.reset();
    } else if (measured->sum() < best->sum()) {
      best = measured;
    }
  }
  Times* const standard = &times[static_cast<int>(RnnAlgorithm::kStandard)];
  if (configuration->problem.is_training &&
      standard->sum() < kWorthItsMemory * best->sum()) {
    best = standard;
  }
  if (best->sum() < kNever) {
    choice.algorithm = static_cast<RnnAlgorithm>(best - times.data());
    choice.source = "measured";
    TryChains(session, configuration->passes[best - times.data()].get(),
              allocate, best);
    choice.forward_is_chain = best->forward.is_chain;
    choice.backward_is_chain = best->backward.is_chain;
    for (int i = 0; i < kNumMeasuredAlgorithms; ++i) {
      if (times[i].sum() < kNever) {
        AppendTimes(kRnnAlgorithmNames[i], times[i], &choice.timings);
      }
    }
  }
  for (int i = 0; i < kNumMeasuredAlgorithms; ++i) {
    std::unique_ptr<PlannedPasses>& passes = configuration->passes[i];
    if (i != static_cast<int>(choice.algorithm)) passes.reset();
    if (passes == nullptr) continue;
    // The scratch memory is freed, so graphs over its addresses are of no use.
    for (const auto* const pass : {&passes->forward, &passes->backward}) {
      if (pass->replay != nullptr) pass->replay->Forget();
    }
  }
  return choice;
}

}  // namespace cudnn_rnn_tf
