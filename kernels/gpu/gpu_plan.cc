#include "kernels/gpu/gpu_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/cudnn/description.h"
#include "kernels/gpu/persistent/network.h"

namespace cudnn_rnn_tf {
namespace {

// What is known of a problem while its plan is made.
struct Making {
  const RnnProblem& problem;
  const GpuOptions& options;
  Session* session;
  DeviceLimits limits = {};
  persistent::Estimate estimate = {};

  // Our own kernels multiply in TF32 only where the GPU, which may be an
  // imitated one, does.
  bool allow_tf32() const {
    return options.allow_tf32 && limits.known().has_tf32;
  }

  RnnStatus List(std::vector<GpuChoice>* choices) const {
    return Choices({problem, options.allow_tf32, limits}, estimate, choices);
  }

  RnnStatus Make(const GpuChoice& choice,
                 std::unique_ptr<const Engine>* engine) {
    switch (choice.engine) {
      case GpuEngine::kKernels:
        CRNN_RETURN_IF_ERROR(estimate.status);
        return persistent::Network::Create(problem, allow_tf32(), limits,
                                           &estimate, engine);
      case GpuEngine::kSteps:
        return persistent::Network::CreateOfSteps(problem, allow_tf32(),
                                                  engine);
      case GpuEngine::kCudnn:
        break;
    }
    CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
    CRNN_RETURN_IF_ERROR(session->MakeCudnn());
    return CreateCudnnNetwork(problem, choice.algorithm, options.allow_tf32,
                              session->handles().cudnn, engine);
  }
};

// Users are told why something slower runs than what could be expected.
void Warn(const GpuChoice& failed, const RnnStatus& why, const GpuChoice& runs,
          const GpuResources& resources) {
  const bool is_cudnn = runs.engine == GpuEngine::kCudnn;
  if (failed.engine == GpuEngine::kKernels) {
    resources.warn(
        why.message + ". So " +
        (is_cudnn ? "cuDNN runs" : "kernels of single steps run") +
        " what the persistent kernels would have run faster, sequences of "
        "different lengths several times as fast");
  } else if (failed.engine == GpuEngine::kSteps && is_cudnn) {
    resources.warn(
        why.message +
        ". So cuDNN runs; if sequences have different lengths, the host waits "
        "for the GPU in each call");
  }
}

// Tells whether something would fail again. A lack of memory passes, and so may
// an error of the driver; libraries that are missing may appear.
bool IsFinal(const RnnStatus& status) {
  return status.code == RnnStatus::Code::kUnimplemented;
}

}  // namespace

PlanCache::Made MakeGpuPlan(const RnnProblem& problem, int choice,
                            const GpuOptions& options,
                            const GpuResources& resources, Session* session) {
  Making making = {problem, options, session};
  RnnStatus status = LoadCudaDriver();
  if (status.ok()) status = ReadLimits(&making.limits);
  // A variable that is wrong must not pass unnoticed, even where it would make
  // no difference, as to cuDNN.
  if (!status.ok()) return {status, nullptr, /*is_provisional=*/true};
  making.estimate = persistent::Network::EstimateCycles(
      problem, making.allow_tf32(), making.limits);
  std::vector<GpuChoice> choices;
  GpuChoice given;
  const bool is_given = ChoiceOf(choice, &given);
  if (is_given) {
    choices = {given};
    making.estimate.is_stack =
        given.is_stack && making.estimate.stack.cycles > 0.0;
    if (given.engine == GpuEngine::kKernels) {
      choices.push_back({GpuEngine::kSteps});
    }
  } else {
    status = making.List(&choices);
    if (!status.ok()) return {status, nullptr, /*is_provisional=*/false};
  }
  bool is_provisional = false;
  GpuChoice first_failed;
  RnnStatus of_first;
  std::unique_ptr<const Engine> engine;
  while (!choices.empty()) {
    GpuChoice chosen = choices.front();
    choices.erase(choices.begin());
    const double expected = making.estimate.cycles;
    status = making.Make(chosen, &engine);
    if (!status.ok()) {
      is_provisional |= !IsFinal(status);
      if (of_first.ok()) {
        first_failed = chosen;
        of_first = status;
      }
      continue;
    }
    if (!is_given && chosen.engine == GpuEngine::kKernels) {
      // The device may grant kernels only that take longer.
      chosen.is_stack = making.estimate.is_stack;
      std::vector<GpuChoice> again;
      if (making.estimate.cycles > expected && making.List(&again).ok() &&
          again[0].engine != GpuEngine::kKernels) {
        choices = std::move(again);
        continue;
      }
    }
    auto plan = std::make_shared<GpuPlan>(problem);
    plan->chosen = chosen;
    plan->choice = is_given ? choice : NumberOf(chosen);
    plan->sizes = engine->sizes();
    if (problem.is_training) plan->sizes.reserve_space += plan->choice;
    plan->engine = std::move(engine);
    if (!of_first.ok()) Warn(first_failed, of_first, chosen, resources);
    resources.log(problem.Text() + ": " + NameOf(WishOf(chosen)));
    return {{}, std::move(plan), is_provisional};
  }
  if (!problem.is_in_cudnn()) {
    status.message += ". For " + problem.LackOfCudnn() +
                      ", a GPU has no other algorithm; run the op on the CPU";
  }
  return {status, nullptr, is_provisional};
}

}  // namespace cudnn_rnn_tf
