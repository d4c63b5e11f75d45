#include "kernels/gpu/persistent/kernel.h"

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

RnnStatus Unsupported(const std::string& what) {
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm persistent cannot run " + what};
}

RnnStatus Limits(GpuLimits* limits) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  CRNN_RETURN_IF_ERROR(ReadAttribute(device,
                                     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                     &limits->multiprocessors));
  return ReadAttribute(device,
                       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                       &limits->shared_bytes);
}

// The persistent kernels that the process has used, and a text for each.
class UsedKernels {
 public:
  static UsedKernels& Instance() {
    static NeverDestroyed<UsedKernels> used;
    return *used;
  }

  using Key = std::tuple<int, int, bool, bool, int, int, int, int, int>;
  // The division of a layer and, once it was compiled, the kernel or the
  // failure. A failure is not tried again.
  struct Known {
    RnnStatus status;
    Division division = {};
    bool is_compiled = false;
    Kernel kernel;
  };

  static RnnStatus KeyOf(const KernelRequest& request, Key* key) {
    CUdevice device;
    CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
    *key = {static_cast<int>(request.rnn_mode),
            static_cast<int>(request.dtype),
            request.is_backward,
            request.is_training,
            request.num_units,
            request.num_dirs,
            request.batch_size,
            request.num_layers,
            device};
    return {};
  }
  bool Find(const Key& key, Known* known) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kernels_.find(key);
    if (found == kernels_.end()) return false;
    *known = found->second;
    return true;
  }
  void Add(const Key& key, const Known& known) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A program whose batch sizes keep changing makes ever more of these
    // entries, though they share kernels.
    if (kernels_.size() >= kMaxKnown) kernels_.clear();
    kernels_[key] = known;
  }
  void AddText(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_.insert(text);
  }
  std::string Text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string all;
    for (const std::string& text : texts_) all += text + '\n';
    return all;
  }

 private:
  static constexpr size_t kMaxKnown = 4096;

  std::mutex mutex_;
  std::map<Key, Known> kernels_;
  std::set<std::string> texts_;
};

std::string Describe(const KernelRequest& request, const Shape& shape) {
  const char* const types[] = {"float64", "TF32", "float16", "bfloat16"};
  return std::string(RnnModeName(request.rnn_mode)) + ", " +
         std::to_string(request.num_units) + " units, " +
         types[static_cast<int>(request.dtype)] + ", " +
         (request.is_backward   ? "backward"
          : request.is_training ? "forward"
                                : "inference") +
         (shape.is_stack     ? "\tlayers at the same time, clusters of "
          : shape.is_cluster ? "\tclusters of "
                             : "\tteams of ") +
         std::to_string(shape.team) + " blocks, " +
         std::to_string(shape.block_units) + " units and " +
         std::to_string(shape.warps) + " warps each, " +
         std::to_string(shape.rows()) + " sequences";
}

}  // namespace

std::string KernelsText() { return UsedKernels::Instance().Text(); }

RnnStatus CheckDevice() {
  if (!Gpu().has_graphs) return Unsupported("with this driver: 12.4 is needed");
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  int major = 0;
  CRNN_RETURN_IF_ERROR(ReadAttribute(
      device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major));
  if (major < 9) {
    return Unsupported("on this GPU: it needs compute capability 9.0");
  }
  return {};
}

RnnStatus Kernel::Divide(const KernelRequest& request,
                         std::vector<Division>* divisions) {
  GpuLimits limits;
  CRNN_RETURN_IF_ERROR(Limits(&limits));
  const Layer layer = {
      request.num_units, request.dtype == RnnDataType::kFloat32 ? 1 : 2,
      request.num_dirs, request.batch_size, request.num_layers};
  *divisions = request.is_backward ? BackwardDivisions(layer, limits)
                                   : ForwardDivisions(layer, limits);
  if (divisions->empty()) {
    return Unsupported("layers of " + std::to_string(request.num_units) +
                       " units of this type: the weights do not fit the GPU's "
                       "multiprocessors");
  }
  return {};
}

RnnStatus Kernel::Compile(const KernelRequest& request, const Shape& shape,
                          Kernel* kernel) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  const char* const name = request.is_backward ? "backward" : "forward";
  std::vector<std::string> macros = ShapeMacros(shape);
  macros.push_back(TypeMacro(request.dtype));
  macros.push_back(ModeMacro(request.rnn_mode));
  if (request.is_training) macros.push_back("IS_TRAINING");
  CRNN_RETURN_IF_ERROR(
      CompileKernel(std::string(name) + ".cu", name, macros, &kernel->kernel_));
  kernel->shape_ = shape;
  kernel->is_backward_ = request.is_backward;
  CUlaunchAttribute attribute;
  const CUlaunchConfig config = kernel->Config({1, 1}, nullptr, &attribute);
  for (const auto& [attribute, value] :
       {std::pair(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                  static_cast<int>(config.sharedMemBytes)),
        // Clusters of 16 blocks are larger than what CUDA calls portable.
        std::pair(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)}) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuKernelSetAttribute(attribute, value,
                                                   kernel->kernel_, device),
                   "set a kernel's attributes"));
  }
  // If only a part of the GPU can be used, it may have no room for a team.
  int clusters = 0;
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Gpu().cuda.cuOccupancyMaxActiveClusters(
          &clusters, reinterpret_cast<CUfunction>(kernel->kernel_), &config),
      "size clusters"));
  kernel->teams_at_once_ = shape.is_cluster ? clusters : clusters / shape.team;
  if (kernel->teams_at_once_ < 1) {
    return Unsupported("so many blocks at the same time on this GPU");
  }
  return {};
}

namespace {

// Finds what is known of a kernel. If nothing is known, decides how the layer
// is divided.
RnnStatus FindOrDivide(const KernelRequest& request,
                       const UsedKernels::Key& key, UsedKernels::Known* known) {
  if (!UsedKernels::Instance().Find(key, known)) {
    std::vector<Division> divisions;
    known->status = Kernel::Divide(request, &divisions);
    if (known->status.ok()) ChooseDivision(divisions, &known->division);
    UsedKernels::Instance().Add(key, *known);
  }
  return known->status;
}

}  // namespace

RnnStatus Kernel::EstimateCycles(const KernelRequest& request, double* cycles) {
  UsedKernels::Key key;
  UsedKernels::Known known;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(request, &key));
  CRNN_RETURN_IF_ERROR(FindOrDivide(request, key, &known));
  *cycles = known.division.cycles;
  return {};
}

RnnStatus Kernel::Get(const KernelRequest& request, Kernel* kernel) {
  UsedKernels::Key key;
  UsedKernels::Known known;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(request, &key));
  CRNN_RETURN_IF_ERROR(FindOrDivide(request, key, &known));
  if (!known.is_compiled) {
    known.is_compiled = true;
    known.status = Compile(request, known.division.shape, &known.kernel);
    std::string text = Describe(request, known.division.shape);
    if (!known.status.ok()) text += ": " + known.status.message;
    UsedKernels::Instance().Add(key, known);
    UsedKernels::Instance().AddText(text);
  }
  *kernel = known.kernel;
  return known.status;
}

RnnStatus Kernel::GetBoth(const KernelRequest& request,
                          const KernelRequest& other, Kernel* kernel) {
  UsedKernels::Key key;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(other, &key));
  UsedKernels::Known known;
  if (UsedKernels::Instance().Find(key, &known) && known.is_compiled) {
    CRNN_RETURN_IF_ERROR(known.status);
    return Get(request, kernel);
  }
  CUcontext context;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetCurrent(&context), "name the context"));
  const auto get_other = [&]() -> RnnStatus {
    const RelaxedCaptureMode relaxed_capture;
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuCtxSetCurrent(context), "enter the context"));
    Kernel compiled;
    return Get(other, &compiled);
  };
  std::future<RnnStatus> of_other;
  try {
    of_other = std::async(std::launch::async, get_other);
  } catch (const std::system_error&) {
    // The system has no more threads, so the kernels are compiled in turn.
  }
  const RnnStatus status = Get(request, kernel);
  const RnnStatus other_status =
      of_other.valid() ? of_other.get() : get_other();
  return status.ok() ? other_status : status;
}

Kernel::Grid Kernel::MostAtOnce(int shares, int at_once) const {
  if (shape_.is_cluster) return {shares, at_once};
  const auto with_dirs = [&](int dirs) -> Grid {
    return {std::min(shares, teams_at_once_ / dirs), dirs};
  };
  const auto rounds = [&](const Grid& grid) {
    return CeilDiv(shares, grid.teams) * CeilDiv(at_once, grid.dirs);
  };
  // If an odd number of teams fits, two directions at the same time would leave
  // one of them idle.
  const Grid together = with_dirs(std::min(at_once, teams_at_once_));
  const Grid one_by_one = with_dirs(1);
  return rounds(one_by_one) < rounds(together) ? one_by_one : together;
}

size_t Kernel::RingBytes(const Grid& grid) const {
  if (shape_.is_cluster) return shape_.is_stack ? sizeof(uint32_t) : 0;
  return static_cast<size_t>(is_backward_ ? shape_.backward_ring_bytes()
                                          : shape_.forward_ring_bytes()) *
         static_cast<size_t>(grid.teams * grid.dirs);
}

size_t Kernel::ring_bytes(int shares, int at_once) const {
  return RingBytes(MostAtOnce(shares, at_once));
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
  config.blockDimX = static_cast<unsigned int>(32 * shape_.warps);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes =
      static_cast<unsigned int>(is_backward_ ? shape_.backward_shared_bytes()
                                             : shape_.forward_shared_bytes());
  config.hStream = stream;
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}

RnnStatus Kernel::EnqueueParts(CUstream stream, int shares, int at_once,
                               void* ring, Part* part, void* arguments) const {
  const Grid most = MostAtOnce(shares, at_once);
  part->ring = ring;
  void* parameters[] = {arguments};
  for (int d = 0; d < at_once; d += most.dirs) {
    part->first_direction = d;
    CUlaunchAttribute attribute;
    const CUlaunchConfig config = Config(most, stream, &attribute);
    if (RingBytes(most) > 0) {
      CRNN_RETURN_IF_ERROR(CudaStatus(
          Gpu().cuda.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ring), 0xFF,
                                     RingBytes(most), stream),
          "clear a ring"));
    }
    if (!shape_.is_cluster) {
      // The driver then makes sure that all blocks run at the same time.
      attribute = {};
      attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute.value.cooperative = 1;
    }
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuLaunchKernelEx(&config,
                                    reinterpret_cast<CUfunction>(kernel_),
                                    parameters, nullptr),
        "launch a persistent kernel"));
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
