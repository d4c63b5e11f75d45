// Lets threads use at the same time what a process keeps for all of them. This
// is for ThreadSanitizer, which sees where a lock is missing. The fakes do
// nothing that orders threads.
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/session.h"
#include "kernels/plan_cache.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  CudaDriver& cuda = libraries.cuda;
  NvrtcLibrary& nvrtc = libraries.nvrtc;
  FakeCompiler(&nvrtc);
  Succeed(&cuda.cuLibraryLoadData, &cuda.cuLibraryGetKernel,
          &nvrtc.nvrtcVersion, &nvrtc.nvrtcCreateProgram,
          &nvrtc.nvrtcDestroyProgram);
  nvrtc.nvrtcCompileProgram = [](nvrtcProgram, int, const char* const*) {
    // Others compile meanwhile.
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    return NVRTC_SUCCESS;
  };
  nvrtc.nvrtcGetProgramLog =
      nvrtc.nvrtcGetCUBIN = [](nvrtcProgram, char* text) {
        *text = '\0';
        return NVRTC_SUCCESS;
      };
  return libraries;
}

// This takes the place of plan.cc's. No session makes a handle here.
RnnStatus CudnnFailure(cudnnStatus_t, const char*, const RnnProblem&) {
  return {RnnStatus::Code::kInternal, "the fake cuDNN failed"};
}

namespace {

void GetPersistentKernels(int use) {
  persistent::Kernel kernel;
  persistent::KernelRequest request = {{}, /*allow_tf32=*/true, false};
  request.problem.dtype = RnnDataType::kFloat16;
  request.problem.spec.num_units = 64;
  request.problem.batch_size = 1 + use % 50;
  persistent::Division division;
  Check(persistent::Kernel::Divide(request, device_limits, &division).ok() &&
            persistent::Kernel::Get(request, device_limits, &division, &kernel)
                .ok(),
        "a kernel");
  Check(!persistent::KernelsText().empty(), "the kernels' text");
}

void Compile(int use) {
  CompiledKernel kernel;
  Check(
      CompileKernel("fill.cu", "fill", {"USE=" + std::to_string(use)}, &kernel)
          .ok(),
      "a file");
}

void UseSessions(int use) {
  const CUstream stream = reinterpret_cast<CUstream>(uintptr_t{1} + use % 2);
  static SessionPool pool;
  pool.Return(pool.Take(stream));
}

void UsePlans(int use) {
  static PlanCache plans;
  const std::string key = std::to_string(use);
  PlanCache::Made made;
  if (plans.Find(key, &made)) {
    Check(made.plan->problem.max_time == use, "a plan");
    return;
  }
  RnnProblem problem;
  problem.max_time = use;
  plans.Keep(key, {{}, std::make_shared<const RnnPlan>(problem), use % 2 == 0});
}

void LoadOnce(int) {
  static Loading loading;
  static int times = 0;
  Check(loading
            .Once([&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
              ++times;
              return RnnStatus();
            })
            .ok(),
        "loading");
  Check(times == 1, "it is loaded once");
}

void InManyThreads(const std::function<void(int)>& use) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int number = 0; number < 100; ++number) {
        use((number + 25 * i) % 100);
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  has_kernel_libraries = true;
  device_limits = {80, 108, 166912, 65536};
  for (const auto use :
       {GetPersistentKernels, Compile, UseSessions, UsePlans, LoadOnce}) {
    InManyThreads(use);
  }
  std::printf("well\n");
}
