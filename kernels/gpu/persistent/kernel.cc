#include "kernels/gpu/persistent/kernel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/maps.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// CUDA guarantees clusters of up to as many blocks; larger ones must be asked
// for.
constexpr int kPortableCluster = 8;

// A text for each kernel that was used, and why it failed if it did.
Known<std::string, std::string>& Texts() {
  static auto* const texts = new Known<std::string, std::string>;
  return *texts;
}

std::string Describe(const KernelRequest& request, const Shape& shape,
                     const DeviceLimits& limits) {
  const RnnProblem& problem = request.problem;
  const bool is_tf32 = request.is_float() && !shape.is_exact();
  const RnnSpec& spec = problem.spec;
  std::string what = spec.kind().name;
  for (const Activation each : {spec.activation, spec.recurrent_activation}) {
    if (each != Activation::kOwn) what += std::string(" ") + NameOf(each);
  }
  if (spec.has_zoneout()) what += " with zoneout";
  return what + ", " + std::to_string(spec.num_units) + " units, " +
         (is_tf32 ? "TF32" : NameOf(problem.dtype)) + ", " +
         (request.is_backward   ? "backward"
          : problem.is_training ? "forward"
                                : "inference") +
         (problem.has_resets ? " with resets" : "") +
         (shape.is_stack     ? "\tlayers at the same time, clusters of "
          : shape.is_cluster ? "\tclusters of "
                             : "\tteams of ") +
         std::to_string(shape.team) + " blocks, " +
         std::to_string(shape.block_units) + " units and " +
         std::to_string(shape.warps) + " warps each, " +
         (shape.has_bands()
              ? "bands of " + std::to_string(shape.slices) + " blocks, "
              : "") +
         (shape.has_warpgroups ? "warpgroups, " : "") +
         std::to_string(shape.rows()) + " sequences, architecture " +
         std::to_string(limits.architecture);
}

}  // namespace

std::string KernelsText() {
  std::string all;
  for (const auto& [text, failure] : Texts().All())
    all += text + failure + '\n';
  return all;
}

RnnStatus CheckDevice(RnnDataType dtype, const DeviceLimits& limits) {
  if (limits.architecture < kArchitectures[0].number) {
    return Unsupported("on this GPU: it needs compute capability 7.5");
  }
  if (!limits.known().has_tf32 && dtype == RnnDataType::kBfloat16) {
    return Unsupported("bfloat16 on this GPU: it needs compute capability 8.0");
  }
  return {};
}

RnnStatus Kernel::Divide(const KernelRequest& request,
                         const DeviceLimits& limits, Division* division) {
  const std::vector<Division> divisions = Divisions(request, limits);
  const Division* const best = ChooseDivision(divisions);
  if (best == nullptr) {
    return Unsupported("layers of " + std::to_string(request.units()) +
                       " units of this type: the weights do not fit the GPU's "
                       "multiprocessors");
  }
  *division = *best;
  return {};
}

RnnStatus Kernel::Compile(const KernelRequest& request,
                          const DeviceLimits& limits, const Shape& shape,
                          Kernel* kernel) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  kernel->shape_ = shape;
  kernel->shares_ = CeilDiv(request.batch_size(), shape.rows());
  kernel->at_once_ = request.is_stack()
                         ? shape.Stages(request.num_layers)
                         : static_cast<int>(request.problem.spec.num_dirs());
  kernel->is_backward_ = request.is_backward;
  kernel->has_clusters_ = limits.has_clusters();
  kernel->teams_at_once_ = 0;
  if (shape.is_cluster && shape.team > limits.known().largest_cluster) {
    return {};
  }
  const char* const name = request.is_backward ? "backward" : "forward";
  const RnnProblem& problem = request.problem;
  std::vector<std::string> macros = CellMacros(problem.spec, problem.dtype);
  for (const std::string& macro : ShapeMacros(shape)) macros.push_back(macro);
  const int64_t cell_sequences =
      problem.has_cell_sequences ? problem.spec.num_dirs() : 0;
  macros.push_back("IS_TRAINING=" + std::to_string(problem.is_training));
  macros.push_back("HAS_RESETS=" + std::to_string(problem.has_resets));
  macros.push_back("CELL_SEQUENCES=" + std::to_string(cell_sequences));
  CRNN_RETURN_IF_ERROR(
      CompileKernel(std::string(name) + ".cu", name, macros, &kernel->kernel_));
  CRNN_RETURN_IF_ERROR(CheckArguments(
      kernel->kernel_, {request.is_backward ? sizeof(BackwardArguments)
                                            : sizeof(ForwardArguments)}));
  CUlaunchAttribute attribute;
  const CUlaunchConfig config = kernel->Config({1, 1}, nullptr, &attribute);
  const int shared_bytes = static_cast<int>(config.sharedMemBytes);
  const auto set = [&](CUfunction_attribute attribute, int value) {
    return Gpu().cuda.cuKernelSetAttribute(attribute, value,
                                           kernel->kernel_.handle, device);
  };
  CRNN_RETURN_IF_ERROR(CudaStatus(
      set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
      "set a kernel's attributes"));
  if (shape.is_cluster && shape.team > kPortableCluster &&
      set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) !=
          CUDA_SUCCESS) {
    return {};
  }
  // If only a part of the GPU can be used, it may have no room for a team.
  const CUfunction function =
      reinterpret_cast<CUfunction>(kernel->kernel_.handle);
  int blocks = 0;
  if (kernel->has_clusters_) {
    int clusters = 0;
    const CUresult result =
        Gpu().cuda.cuOccupancyMaxActiveClusters(&clusters, function, &config);
    if (result == CUDA_ERROR_INVALID_CLUSTER_SIZE) return {};
    CRNN_RETURN_IF_ERROR(CudaStatus(result, "size clusters"));
    blocks = clusters * (shape.is_cluster ? shape.team : 1);
  } else {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                       &blocks, function, static_cast<int>(config.blockDimX),
                       config.sharedMemBytes),
                   "size teams"));
    blocks *= limits.multiprocessors;
  }
  // A GPU that is imitated has room for fewer.
  blocks = std::min(
      blocks, limits.multiprocessors * BlocksWithMemory(limits, shared_bytes));
  kernel->teams_at_once_ = blocks / shape.team;
  return {};
}

RnnStatus Kernel::Get(const KernelRequest& request, const DeviceLimits& limits,
                      Division* division, Kernel* kernel) {
  std::vector<Division> left;
  RnnStatus status;
  for (;;) {
    const Shape shape = division->shape;
    status = Compile(request, limits, shape, kernel);
    if (!status.ok() || kernel->fits()) break;
    if (left.empty()) left = Divisions(request, limits);
    left.erase(std::remove_if(left.begin(), left.end(),
                              [&](const Division& each) {
                                return each.shape.is_cluster ==
                                           shape.is_cluster &&
                                       each.shape.team >= shape.team;
                              }),
               left.end());
    if (left.empty()) {
      status = Unsupported("so many blocks at the same time on this GPU");
      break;
    }
    *division = *ChooseDivision(left);
  }
  Texts().Replace(Describe(request, division->shape, limits),
                  status.ok() ? "" : ": " + status.message);
  return status;
}

Kernel::Grid Kernel::MostAtOnce() const {
  if (shape_.is_cluster) return {shares_, at_once_};
  const auto with_dirs = [&](int dirs) -> Grid {
    return {std::min(shares_, teams_at_once_ / dirs), dirs};
  };
  const auto rounds = [&](const Grid& grid) {
    return CeilDiv(shares_, grid.teams) * CeilDiv(at_once_, grid.dirs);
  };
  // If an odd number of teams fits, two directions at the same time would leave
  // one of them idle.
  const Grid together = with_dirs(std::min(at_once_, teams_at_once_));
  const Grid one_by_one = with_dirs(1);
  return rounds(one_by_one) < rounds(together) ? one_by_one : together;
}

size_t Kernel::team_memory_bytes() const {
  if (shape_.is_cluster) return shape_.is_stack ? sizeof(uint32_t) : 0;
  const Grid grid = MostAtOnce();
  return static_cast<size_t>(shape_.team_memory_bytes(is_backward_)) *
         static_cast<size_t>(grid.teams * grid.dirs);
}

CUlaunchConfig Kernel::Config(const Grid& grid, CUstream stream,
                              CUlaunchAttribute* attribute) const {
  *attribute = {};
  attribute->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute->value.clusterDim = {
      static_cast<unsigned int>(shape_.is_cluster ? shape_.team : 1), 1, 1};
  CUlaunchConfig config = {};
  config.gridDimX = static_cast<unsigned int>(grid.teams * shape_.team);
  config.gridDimY = static_cast<unsigned int>(grid.dirs);
  config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned int>(shape_.threads());
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes =
      static_cast<unsigned int>(shape_.shared_bytes(is_backward_));
  config.hStream = stream;
  config.attrs = attribute;
  config.numAttrs = has_clusters_ ? 1 : 0;
  return config;
}

RnnStatus Kernel::Enqueue(CUstream stream, void* team_memory,
                          PassArguments* arguments) const {
  const Grid most = MostAtOnce();
  const size_t bytes = team_memory_bytes();
  arguments->team_memory = team_memory;
  void* parameters[] = {arguments};  // What is derived begins with its base.
  for (int d = 0; d < at_once_; d += most.dirs) {
    arguments->first_direction = d;
    CUlaunchAttribute attribute;
    CUlaunchConfig config = Config(most, stream, &attribute);
    if (bytes > 0) {
      CRNN_RETURN_IF_ERROR(EnqueueFill(stream, team_memory, 0xFF, bytes));
    }
    if (!shape_.is_cluster) {
      // The driver then makes sure that all blocks run at the same time.
      attribute = {};
      attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute.value.cooperative = 1;
      config.numAttrs = 1;
    }
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuLaunchKernelEx(
                       &config, reinterpret_cast<CUfunction>(kernel_.handle),
                       parameters, nullptr),
                   "launch a persistent kernel"));
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
