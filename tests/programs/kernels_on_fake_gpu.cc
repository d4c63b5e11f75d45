// Chooses persistent kernels for random layers on a fake Hopper GPU, or on what
// the environment says it imitates, where compiling may fail. With an argument,
// it prints instead up to how many units the known GPUs have room for.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/persistent/network.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

int most_granted = 16;  // Blocks of a cluster.
std::vector<CUlaunchAttributeID> launched;

unsigned ClusterOf(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      return config.attrs[i].value.clusterDim.x;
    }
  }
  return 1;
}

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  libraries.has_graphs = false;  // As with a driver older than that of 12.4.
  CudaDriver& cuda = libraries.cuda;
  cuda.cuOccupancyMaxActiveClusters = [](int* clusters, CUfunction,
                                         const CUlaunchConfig* config) {
    const int blocks = static_cast<int>(ClusterOf(*config));
    if (blocks > most_granted) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *clusters = 132 / blocks;
    return CUDA_SUCCESS;
  };
  Give<2>(&cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor);
  cuda.cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction, void**,
                             void**) {
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      launched.push_back(config->attrs[i].id);
    }
    return CUDA_SUCCESS;
  };
  return libraries;
}

RnnStatus CompileKernel(const std::string&, const std::string& entry,
                        const std::vector<std::string>&,
                        CompiledKernel* kernel) {
  return CudaStatus(
      Gpu().cuda.cuLibraryGetKernel(&kernel->handle, {}, entry.c_str()),
      "find a kernel");
}

namespace {

using persistent::Kernel;
using persistent::KernelRequest;

// Each request is of another size, so that nothing is known of it.
KernelRequest NextRequest() {
  static int batch_size = 0;
  ++batch_size;
  being_checked = std::to_string(batch_size) + " sequences";
  KernelRequest request = {{}, /*allow_tf32=*/true, batch_size % 2 == 0};
  request.problem.dtype = RnnDataType::kFloat16;
  request.problem.spec.activation = Activation::kElu;
  request.problem.spec.num_units = 256;
  request.problem.batch_size = batch_size;
  return request;
}

void CheckClusters(const DeviceLimits& limits) {
  for (const int granted : {16, 8, 2, 1}) {
    most_granted = granted;
    const KernelRequest request = NextRequest();
    Kernel kernel;
    persistent::Division division;
    Check(Kernel::Divide(request, limits, &division).ok(), "a division");
    const double cycles = division.cycles;
    const RnnStatus status = Kernel::Get(request, limits, &division, &kernel);
    Check(status.ok() && kernel.fits(), "a kernel: " + status.message);
    Check(persistent::KernelsText().find("lstm elu, 256 units, float16") !=
              std::string::npos,
          "the kernels' text");
    Check(!kernel.shape().is_cluster ||
              kernel.shape().team <=
                  std::min(granted, limits.known().largest_cluster),
          "a cluster is no larger than what is granted");
    Check(
        division.shape.team == kernel.shape().team && division.cycles >= cycles,
        "the division is that of the kernel");
    launched.clear();
    persistent::BackwardArguments backward = {};
    persistent::ForwardArguments forward = {};
    Check((request.is_backward ? kernel.Enqueue(nullptr, nullptr, &backward)
                               : kernel.Enqueue(nullptr, nullptr, &forward))
              .ok(),
          "a launch");
    const std::vector<CUlaunchAttributeID> expected =
        !kernel.shape().is_cluster
            ? std::vector{CU_LAUNCH_ATTRIBUTE_COOPERATIVE}
        : limits.has_clusters()
            ? std::vector{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}
            : std::vector<CUlaunchAttributeID>();
    Check(launched == expected, "the attributes of a launch");
  }
  most_granted = 16;
}

void CheckParameters() {
  CompiledKernel kernel;
  Check(CheckArguments(kernel, {1}).ok(), "what an old driver does not tell");
  kernel.parameters =
      std::make_shared<const std::vector<size_t>>(std::vector<size_t>{8, 4});
  Check(CheckArguments(kernel, {8, 4}).ok(), "the right arguments");
  Check(!CheckArguments(kernel, {8}).ok() &&
            !CheckArguments(kernel, {8, 8}).ok() &&
            !CheckArguments(kernel, {8, 4, 4}).ok(),
        "arguments that a kernel does not take");
}

// If a stack's clusters are refused, its layers run one after the other. The
// memory that a network asks for tells whether they run at the same time.
void CheckStackedNetwork(const DeviceLimits& limits) {
  RnnProblem problem;
  problem.spec.num_layers = 3;
  problem.spec.input_size = problem.spec.num_units = 512;
  problem.dtype = RnnDataType::kFloat16;
  problem.is_training = false;
  problem.max_time = 100;
  problem.batch_size = 17;
  has_kernel_libraries = true;
  for (most_granted = 16; most_granted > 0; most_granted -= 15) {
    being_checked = std::to_string(most_granted) + " blocks of a stack";
    persistent::Estimate estimate =
        persistent::Network::EstimateCycles(problem, true, limits);
    Check(estimate.status.ok(), "an estimate");
    if (!estimate.is_stack) {
      Check(limits.known().largest_cluster < 16, "room for a stack");
      break;
    }
    const auto bytes = [&] {
      std::unique_ptr<const Engine> network;
      const RnnStatus status = persistent::Network::Create(
          problem, /*allow_tf32=*/true, limits, &estimate, &network);
      Check(status.ok(), "a network: " + status.message);
      return network->sizes().forward_workspace;
    };
    const double cycles = estimate.cycles;
    const size_t of_stack = bytes();
    const bool is_refused =
        std::min(most_granted, limits.known().largest_cluster) < 16;
    Check(estimate.is_stack != is_refused, "what the network is");
    Check((estimate.cycles > cycles) == is_refused, "an estimate that learns");
    estimate.is_stack = false;
    Check((of_stack > bytes()) != is_refused, "layers at once");
  }
  has_kernel_libraries = false;
  most_granted = 16;
}

// All divisions of random layers keep to the limits of each GPU.
void CheckDivisions() {
  std::mt19937 random(1);
  for (const NamedGpu& gpu : kKnownGpus) {
    const int largest_cluster = gpu.limits.known().largest_cluster;
    for (int i = 0; i < 50; ++i) {
      DeviceLimits limits = gpu.limits;
      if (i % 4 == 3) limits.multiprocessors = 1 + i % 9;  // Small GPUs.
      KernelRequest request = {
          {}, /*allow_tf32=*/i % 4 < 2, false, i % 5 == 0 ? 3 : 1};
      request.problem.dtype =
          i % 2 == 0 ? RnnDataType::kFloat32 : RnnDataType::kFloat16;
      request.problem.spec.num_units = 1 + random() % 1200;
      request.problem.spec.direction = static_cast<Direction>(random() % 2);
      request.problem.batch_size = 1 + random() % 90;
      being_checked = gpu.name;
      for (const bool is_backward : {false, true}) {
        request.is_backward = is_backward;
        for (const persistent::Division& division :
             persistent::Divisions(request, limits)) {
          const persistent::Shape& shape = division.shape;
          Check(shape.team <= (shape.is_cluster ? largest_cluster
                                                : limits.multiprocessors),
                "a team's size");
          // By this, the host limits steps to what a block can count.
          Check(shape.block_units <= request.units() + 7, "a block's units");
          Check(shape.shared_bytes(is_backward) <= limits.shared_bytes,
                "shared memory");
          const int tiles = shape.warp_tiles(is_backward);
          const int warps = (shape.warps + 3) / 4 * 4;
          Check(
              32 * warps * 8 * tiles * shape.resident_pairs < limits.registers,
              "registers");
        }
      }
    }
  }
}

// Prints up to how many units each GPU trains layers of 64 sequences, in half
// types, in TF32 and in float32.
void PrintSizes() {
  for (const NamedGpu& gpu : kKnownGpus) {
    std::printf("%s", gpu.name);
    for (const auto& [dtype, allow_tf32] :
         {std::pair(RnnDataType::kFloat16, true),
          {RnnDataType::kFloat32, true},
          {RnnDataType::kFloat32, false}}) {
      int units = 0;
      KernelRequest request = {{}, allow_tf32, false};
      request.problem.dtype = dtype;
      request.problem.batch_size = 64;
      const auto fits = [&](int step) {
        request.problem.spec.num_units = units + step;
        request.is_backward = false;
        if (persistent::Divisions(request, gpu.limits).empty()) return false;
        request.is_backward = true;
        return !persistent::Divisions(request, gpu.limits).empty();
      };
      for (const int step : {1, 8}) {
        while ((step == 8 || units < 64) && fits(step)) units += step;
      }
      std::printf(", %d", units);
    }
    std::printf("\n");
  }
}

void CheckTypes(const DeviceLimits& limits) {
  for (const RnnDataType dtype :
       {RnnDataType::kFloat16, RnnDataType::kFloat32, RnnDataType::kBfloat16}) {
    Check(persistent::CheckDevice(dtype, limits).ok() ==
              (dtype != RnnDataType::kBfloat16 || limits.architecture >= 80),
          NameOf(dtype));
  }
}

void CheckAll(const std::string& imitated) {
  DeviceLimits limits;
  if (imitated == "H100") device_limits.architecture = 120;
  const RnnStatus status = ReadLimits(&limits);
  // An error names the part that is wrong.
  const std::map<std::string, std::string> wrong = {{"RTX 5090", "120"},
                                                    {"H100", "120"},
                                                    {"A1000", "A1000"},
                                                    {"A100,", "A100,"}};
  if (const auto found = wrong.find(imitated); found != wrong.end()) {
    being_checked = imitated;
    Check(status.code == RnnStatus::Code::kInvalidArgument &&
              status.message.find("CUDNN_RNN_TF_IMITATE_GPU") !=
                  std::string::npos &&
              status.message.find(found->second) != std::string::npos,
          "an error that names the variable and its value: " + status.message);
    return;
  }
  Check(status.ok(), status.message);
  // The fake GPU is an H100, which has no less of anything than others have.
  for (const NamedGpu& gpu : kKnownGpus) {
    Check(gpu.name != (imitated.empty() ? "H100" : imitated) ||
              std::memcmp(&limits, &gpu.limits, sizeof(limits)) == 0,
          "the limits");
  }
  CheckTypes(limits);
  CheckClusters(limits);
  CheckStackedNetwork(limits);
  CheckParameters();
  CheckDivisions();
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char**) {
  if (argc > 1) {
    cudnn_rnn_tf::PrintSizes();
    return 0;
  }
  const std::string imitated = std::getenv("CUDNN_RNN_TF_IMITATE_GPU");
  cudnn_rnn_tf::CheckAll(imitated);
  std::printf("kernels run as %s should\n",
              imitated.empty() ? "what they are" : imitated.c_str());
  return 0;
}
