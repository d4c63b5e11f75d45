#include "kernels/gpu/gpu_backend.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/plan_cache.h"

namespace cudnn_rnn_tf {
namespace {

// A number of such bytes is NaN in every type.
constexpr unsigned char kNanByte = 0xFF;

// A device keeps this from call to call.
struct DeviceState {
  PlanCache plans;
  GraphCache graphs;
  SessionPool sessions;
};
DeviceState& StateOf(int device) {
  static auto* const mutex = new std::mutex;
  static auto* const states = new std::map<int, DeviceState>;
  const std::lock_guard<std::mutex> lock(*mutex);
  return (*states)[device];
}

}  // namespace

GpuBackend::GpuBackend(GpuResources resources, const GpuOptions& options)
    : resources_(std::move(resources)), options_(options) {
  // If there is no driver, the first call returns that error.
  if (LoadCudaDriver().ok()) relaxed_capture_.emplace();
}

GpuBackend::~GpuBackend() {
  if (session_ != nullptr) {
    StateOf(resources_.device).sessions.Return(std::move(session_));
  }
}

Session* GpuBackend::session() {
  if (session_ == nullptr) {
    session_ = StateOf(resources_.device).sessions.Take(stream());
  }
  return session_.get();
}

RnnStatus GpuBackend::Find(const RnnProblem& problem, int choice,
                           std::shared_ptr<const RnnPlan>* plan) {
  RnnProblem known = problem;
  if (choice != 0) known.algorithm = RnnAlgorithm::kAuto;
  const auto key_of = [&](int number) {
    std::string key = KeyOf(known);
    AppendTo(&key, options_.allow_tf32);
    AppendTo(&key, number);
    return key;
  };
  PlanCache& plans = StateOf(resources_.device).plans;
  const std::string key = key_of(choice);
  PlanCache::Made made;
  if (!plans.Find(key, &made)) {
    made = MakeGpuPlan(known, choice, options_, resources_, session());
    plans.Keep(key, made);
    if (made.plan != nullptr && choice == 0) {
      // A backward pass and XLA ask for the plan by its choice.
      known.algorithm = RnnAlgorithm::kAuto;
      plans.Keep(key_of(made.plan->choice), {{}, made.plan, false});
    }
  }
  *plan = std::move(made.plan);
  return made.status;
}

RnnStatus GpuBackend::Plan(const RnnProblem& given, int choice,
                           RnnLengths* lengths,
                           std::shared_ptr<const RnnPlan>* plan) {
  RnnProblem problem = given;
  if (!problem.has_sequence_lengths || lengths == nullptr) {
    return Find(problem, choice, plan);
  }
  GpuChoice chosen;
  if (lengths->on_host == nullptr) {
    if (!ChoiceOf(choice, &chosen)) {
      CRNN_RETURN_IF_ERROR(Find(problem, choice, plan));
      chosen = static_cast<const GpuPlan&>(**plan).chosen;
      if (chosen.engine != GpuEngine::kCudnn) return {};
      // If all sequences turn out to fill the time, cuDNN has better
      // algorithms.
      if (problem.algorithm == RnnAlgorithm::kAuto) {
        problem.algorithm = RnnAlgorithm::kCudnn;
      }
    }
    if (chosen.engine == GpuEngine::kCudnn) {
      CRNN_RETURN_IF_ERROR(FetchLengths(problem, lengths));
    }
  }
  if (lengths->on_host != nullptr) {
    CRNN_RETURN_IF_ERROR(CheckLengths(&problem, lengths));
  }
  return Find(problem, choice, plan);
}

RnnStatus GpuBackend::FetchLengths(const RnnProblem& problem,
                                   RnnLengths* lengths) {
  std::vector<int64_t> copied(problem.batch_size);
  CRNN_RETURN_IF_ERROR(CopyToHost(stream(), lengths->on_device, copied.data(),
                                  copied.size() * sizeof(copied[0])));
  host_lengths_.clear();
  // A length that does not fit 32 bits is clamped and then found out of range.
  for (const int64_t length : copied) {
    host_lengths_.push_back(static_cast<int32_t>(
        std::clamp<int64_t>(length, -1, std::numeric_limits<int32_t>::max())));
  }
  *lengths = {host_lengths_.data(), nullptr};
  return {};
}

void GpuBackend::Prepare(void* buffer, size_t bytes) {
  if (!options_.poison_scratch || bytes == 0) return;
  RnnStatus status = LoadCudaDriver();
  if (status.ok()) status = EnqueueFill(stream(), buffer, kNanByte, bytes);
  if (!status.ok()) resources_.log(status.message);
}

template <typename Buffers>
RnnStatus GpuBackend::Run(const GpuPlan& plan, const Buffers& buffers,
                          RnnStatus (Engine::*enqueue)(const Handles&,
                                                       const Buffers&) const) {
  if (options_.replay && plan.engine->is_replayable() &&
      Replay(plan, buffers, enqueue)) {
    return {};
  }
  return std::invoke(enqueue, *plan.engine, session_->handles(), buffers);
}

template <typename Buffers>
bool GpuBackend::Replay(const GpuPlan& plan, const Buffers& buffers,
                        RnnStatus (Engine::*enqueue)(const Handles&,
                                                     const Buffers&) const) {
  ReplayablePass pass;
  pass.addresses.reserve(16);
  pass.key.reserve(64);
  AppendTo(&pass.key, plan.id);
  AppendTo(&pass.key, std::is_same_v<Buffers, RnnBackwardBuffers>);
  AppendTo(&pass.key, stream());
  VisitTensors(buffers, [&](const void* tensor) {
    const auto address = reinterpret_cast<CUdeviceptr>(tensor);
    pass.addresses.push_back(address);
    AppendTo(&pass.key,
             static_cast<uint16_t>(address == 0 ? Graph::kMoveUnit
                                                : address % Graph::kMoveUnit));
  });
  pass.stream = stream();
  pass.may_make = !resources_.is_profiled();
  // cuDNN enqueues into streams of its own. Once a process has done so in two
  // streams, every node of every graph takes 0.18 µs longer until it ends, so
  // cuDNN's passes run as graphs from the beginning.
  if (!plan.is_ours()) pass.captured_use = 1;
  pass.record = [&](const Graph::Addresses& addresses, Recording* recording) {
    Handles handles;
    CRNN_RETURN_IF_ERROR(session_->MakeCaptureHandles(&handles));
    Buffers moved = buffers;
    auto address = addresses.begin();
    VisitTensors(moved, [&](auto& tensor) {
      tensor = reinterpret_cast<void*>(*address++);
    });
    return Recording::Make(
        handles.stream,
        [&] { return std::invoke(enqueue, *plan.engine, handles, moved); },
        recording);
  };
  pass.log = resources_.log;
  return StateOf(resources_.device).graphs.Replay(pass);
}

RnnStatus GpuBackend::MakeHandles(const GpuPlan& plan) {
  return plan.is_ours() ? session()->MakeBlas() : session()->MakeCudnn();
}

RnnStatus GpuBackend::Forward(const RnnPlan& plan,
                              const RnnForwardBuffers& buffers) {
  const auto& ours = static_cast<const GpuPlan&>(plan);
  CRNN_RETURN_IF_ERROR(MakeHandles(ours));
  CRNN_RETURN_IF_ERROR(
      ours.engine->StoreLengthsAndSeed(session_->handles(), buffers));
  return Run(ours, buffers, &Engine::Forward);
}

RnnStatus GpuBackend::Backward(const RnnPlan& plan,
                               const RnnBackwardBuffers& buffers) {
  const auto& ours = static_cast<const GpuPlan&>(plan);
  CRNN_RETURN_IF_ERROR(MakeHandles(ours));
  return Run(ours, buffers, &Engine::Backward);
}

RnnStatus GpuBackend::Copy(const void* from, void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return bytes == 0 ? RnnStatus() : EnqueueCopy(stream(), from, to, bytes);
}

RnnStatus GpuBackend::SetZero(void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return bytes == 0 ? RnnStatus() : EnqueueFill(stream(), to, 0, bytes);
}

}  // namespace cudnn_rnn_tf
