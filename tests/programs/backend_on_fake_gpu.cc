// Runs the backend on a GPU that is none, with an algorithm that was chosen or
// pinned, and fails. Tells, without a GPU, what runs from then on.
//
//   backend_on_fake_gpu SEEDS
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kernels/gpu/cudnn/cudnn_backend.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

RnnAlgorithm measured, broken;
size_t last_run;  // The algorithm's number.

}  // namespace

RnnStatus LoadCudaDriver() { return {}; }
RnnStatus LoadGpuLibraries() { return {}; }

// In place of plan.cc and calls.cc: an algorithm's number is its plans'
// workspace.

std::string Describe(const RnnProblem& problem) {
  return std::to_string(problem.batch_size) + " sequences";
}

RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}

RnnStatus CudnnPlan::Create(cudnnHandle_t, const RnnProblem& problem,
                            const CudnnOptions& options,
                            std::unique_ptr<CudnnPlan>* plan) {
  plan->reset(new CudnnPlan(problem));
  (*plan)->workspace_size_ = static_cast<size_t>(options.algorithm);
  return {};
}

RnnStatus CudnnPlan::SetSequenceLengths(const int32_t*) { return {}; }
RnnStatus CudnnPlan::SeedDropout(cudnnHandle_t, void*, uint64_t) { return {}; }

std::array<size_t, kNumCallBuffers> CallBufferSizes(const CudnnPlan& plan,
                                                    Pass) {
  std::array<size_t, kNumCallBuffers> sizes = {};
  sizes[kWorkspace] = plan.workspace_size();
  return sizes;
}

RnnStatus EnqueuePass(Pass, const CudnnLane&, CudnnPlan* plan,
                      const CallAddresses&) {
  last_run = plan->workspace_size();
  if (last_run == static_cast<size_t>(broken)) {
    return {RnnStatus::Code::kInternal, "the fake GPU failed"};
  }
  return {};
}

// In place of measure.cc.
Choice MeasureChoice(CudnnSession*, CudnnConfiguration*,
                     const std::vector<RnnAlgorithm>&, const AllocateMemory&) {
  Choice choice;
  choice.algorithm = measured;
  choice.source = "measured";
  return choice;
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  cuda.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) {
    return CUDA_SUCCESS;
  };
  cuda.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  return libraries;
}

namespace {

RnnStatus Run(const RnnProblem& problem, int stream) {
  CudnnResources resources;
  resources.stream = reinterpret_cast<void*>(uintptr_t{1} + stream);
  resources.is_profiled = [] { return false; };
  resources.memory_limit = [] { return size_t{0}; };
  resources.log = [](const std::string&) {};
  CudnnOptions options;
  options.replay = false;
  CudnnBackend backend(resources, options);
  RnnBufferSizes sizes;
  CRNN_RETURN_IF_ERROR(backend.BufferSizes(problem, &sizes));
  if (problem.is_training && Draw(0, 1) == 1) {
    const size_t reserve_space = sizes.reserve_space;
    CRNN_RETURN_IF_ERROR(
        backend.BackwardBufferSizes(problem, reserve_space, &sizes));
    return backend.Backward(problem, RnnBackwardBuffers());
  }
  return backend.Forward(problem, RnnForwardBuffers());
}

void CheckFailures(unsigned seed) {
  generator.seed(seed);
  RnnProblem problem;
  problem.batch_size = 1 + seed;  // A configuration of its own.
  problem.is_training = Draw(0, 1) == 1;
  // Of training there is no algorithm resident.
  const int most = kNumCudnnAlgorithms - (problem.is_training ? 2 : 1);
  const bool is_pinned = Draw(0, 2) == 0;
  measured = static_cast<RnnAlgorithm>(Draw(1, most));
  if (is_pinned) problem.algorithm = measured;
  const int stream = Draw(0, 2);
  // The first use only counts, and may fail; the second measures.
  broken = RnnAlgorithm::kStandard;
  const RnnAlgorithm first = is_pinned ? measured : broken;
  Check(Run(problem, stream).ok() == (first != broken), "the first use");
  broken = RnnAlgorithm::kAuto;  // None.
  for (int use = 0; use < 2; ++use) {
    const RnnStatus status = Run(problem, stream);
    Check(status.ok(), status.message);
  }
  Check(last_run == static_cast<size_t>(measured), "the one that was chosen");
  if (measured == RnnAlgorithm::kResident && !is_pinned) {
    RnnProblem unaligned = problem;
    unaligned.is_aligned = false;
    broken = RnnAlgorithm::kStandard;
    Check(!Run(unaligned, stream).ok(), "a failure of another algorithm");
    Check(Run(problem, stream).ok(), "a choice that did not fail");
    Check(last_run == static_cast<size_t>(measured), "it runs no longer");
  }

  broken = measured;
  Check(!Run(problem, stream).ok(), "a failure that is hidden");
  const bool is_given_up = !is_pinned && measured != RnnAlgorithm::kStandard;
  Check(Run(problem, stream).ok() == is_given_up, "the call after a failure");
  broken = RnnAlgorithm::kAuto;
  for (const int any : {stream, stream + 1}) {
    Check(Run(problem, any).ok(), "a call when all works again");
    Check(last_run == static_cast<size_t>(is_given_up ? RnnAlgorithm::kStandard
                                                      : measured),
          "what runs after a failure");
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckFailures);
}
