#include "kernels/gpu/persistent/kernel.h"

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/launch.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

RnnStatus Attribute(CUdevice device, CUdevice_attribute attribute, int* value) {
  return CudaStatus(Gpu().cuda.cuDeviceGetAttribute(value, attribute, device),
                    "read a device's attributes");
}

RnnStatus Unsupported(const std::string& what) {
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm persistent cannot run " + what};
}

RnnStatus Limits(GpuLimits* limits) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetDevice(&device), "name the device"));
  CRNN_RETURN_IF_ERROR(Attribute(device,
                                 CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                 &limits->multiprocessors));
  return Attribute(device,
                   CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                   &limits->shared_bytes);
}

// The persistent kernels that the process has used, and a text for each.
class UsedKernels {
 public:
  static UsedKernels& Instance() {
    // The object is never destroyed, since threads may run until the process
    // ends.
    alignas(UsedKernels) static char storage[sizeof(UsedKernels)];
    static UsedKernels* const used = ::new (storage) UsedKernels;
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

  static RnnStatus KeyOf(const KernelChoice& choice, Key* key) {
    CUdevice device;
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuCtxGetDevice(&device), "name the device"));
    *key = {static_cast<int>(choice.rnn_mode),
            static_cast<int>(choice.dtype),
            choice.is_backward,
            choice.is_training,
            choice.num_units,
            choice.num_dirs,
            choice.batch_size,
            choice.num_layers,
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

std::string Describe(const KernelChoice& choice, const Shape& shape) {
  const char* const types[] = {"float64", "TF32", "float16", "bfloat16"};
  return std::string(RnnModeName(choice.rnn_mode)) + ", " +
         std::to_string(choice.num_units) + " units, " +
         types[static_cast<int>(choice.dtype)] + ", " +
         (choice.is_backward   ? "backward"
          : choice.is_training ? "forward"
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
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetDevice(&device), "name the device"));
  int major = 0;
  CRNN_RETURN_IF_ERROR(
      Attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major));
  if (major < 9) {
    return Unsupported("on this GPU: it needs compute capability 9.0");
  }
  return {};
}

RnnStatus Kernel::Divide(const KernelChoice& choice,
                         std::vector<Division>* divisions) {
  GpuLimits limits;
  CRNN_RETURN_IF_ERROR(Limits(&limits));
  const Layer layer = {choice.num_units,
                       choice.dtype == RnnDataType::kFloat32 ? 1 : 2,
                       choice.num_dirs, choice.batch_size, choice.num_layers};
  *divisions = choice.is_backward ? BackwardDivisions(layer, limits)
                                  : ForwardDivisions(layer, limits);
  if (divisions->empty()) {
    return Unsupported("layers of " + std::to_string(choice.num_units) +
                       " units of this type: the weights do not fit the GPU's "
                       "multiprocessors");
  }
  return {};
}

RnnStatus Kernel::Compile(const KernelChoice& choice, const Shape& shape,
                          Kernel* kernel) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetDevice(&device), "name the device"));
  const char* const name = choice.is_backward ? "backward" : "forward";
  std::vector<std::string> macros = ShapeMacros(shape);
  macros.push_back(TypeMacro(choice.dtype));
  macros.push_back(ModeMacro(choice.rnn_mode));
  if (choice.is_training) macros.push_back("IS_TRAINING");
  CRNN_RETURN_IF_ERROR(
      CompileKernel(std::string(name) + ".cu", name, macros, &kernel->kernel_));
  kernel->shape_ = shape;
  kernel->is_backward_ = choice.is_backward;
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
RnnStatus FindOrPlan(const KernelChoice& choice, const UsedKernels::Key& key,
                     UsedKernels::Known* known) {
  if (!UsedKernels::Instance().Find(key, known)) {
    std::vector<Division> divisions;
    known->status = Kernel::Divide(choice, &divisions);
    if (known->status.ok()) ChooseDivision(divisions, &known->division);
    UsedKernels::Instance().Add(key, *known);
  }
  return known->status;
}

}  // namespace

RnnStatus Kernel::Plan(const KernelChoice& choice, double* cycles) {
  UsedKernels::Key key;
  UsedKernels::Known known;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(choice, &key));
  CRNN_RETURN_IF_ERROR(FindOrPlan(choice, key, &known));
  *cycles = known.division.cycles;
  return {};
}

RnnStatus Kernel::Get(const KernelChoice& choice, Kernel* kernel) {
  UsedKernels::Key key;
  UsedKernels::Known known;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(choice, &key));
  CRNN_RETURN_IF_ERROR(FindOrPlan(choice, key, &known));
  if (!known.is_compiled) {
    known.is_compiled = true;
    known.status = Compile(choice, known.division.shape, &known.kernel);
    std::string text = Describe(choice, known.division.shape);
    if (!known.status.ok()) text += ": " + known.status.message;
    UsedKernels::Instance().Add(key, known);
    UsedKernels::Instance().AddText(text);
  }
  *kernel = known.kernel;
  return known.status;
}

RnnStatus Kernel::GetBoth(const KernelChoice& choice, const KernelChoice& other,
                          Kernel* kernel) {
  UsedKernels::Key key;
  CRNN_RETURN_IF_ERROR(UsedKernels::KeyOf(other, &key));
  UsedKernels::Known known;
  if (UsedKernels::Instance().Find(key, &known) && known.is_compiled) {
    CRNN_RETURN_IF_ERROR(known.status);
    return Get(choice, kernel);
  }
  CUcontext context;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetCurrent(&context), "name the context"));
  std::future<RnnStatus> of_other = std::async(std::launch::async, [&] {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuCtxSetCurrent(context), "enter the context"));
    Kernel compiled;
    return Get(other, &compiled);
  });
  const RnnStatus status = Get(choice, kernel);
  const RnnStatus other_status = of_other.get();
  return status.ok() ? other_status : status;
}

Kernel::Grid Kernel::MostAtOnce(int shares, int at_once) const {
  if (shape_.is_cluster) return {shares, at_once};
  const auto with_dirs = [&](int dirs) -> Grid {
    return {std::min(shares, teams_at_once_ / dirs), dirs};
  };
  const auto rounds = [&](const Grid& grid) {
    return ((shares + grid.teams - 1) / grid.teams) *
           ((at_once + grid.dirs - 1) / grid.dirs);
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

RnnStatus Auxiliary::Get(RnnDataType dtype, Auxiliary* kernels) {
  using Known = std::map<std::pair<CUdevice, RnnDataType>, Auxiliary>;
  // The map is never destroyed, since threads may run until the process ends.
  alignas(Known) static char storage[sizeof(Known)];
  static Known* const known = ::new (storage) Known;
  static std::mutex mutex;
  CUdevice device;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuCtxGetDevice(&device), "name the device"));
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find({device, dtype});
  if (found != known->end()) {
    *kernels = found->second;
    return {};
  }
  for (const auto& [name, kernel] :
       {std::pair("store_lengths", &Auxiliary::lengths_),
        {"store_seed", &Auxiliary::seed_},
        {"order_sequences", &Auxiliary::order_},
        {"apply_dropout", &Auxiliary::dropout_},
        {"spread_inputs", &Auxiliary::spread_},
        {"gather_inputs", &Auxiliary::gather_},
        {"copy_without_padding", &Auxiliary::copy_},
        {"transpose_steps", &Auxiliary::transpose_},
        {"sum_biases", &Auxiliary::biases_},
        {"add_parts", &Auxiliary::parts_}}) {
    CRNN_RETURN_IF_ERROR(CompileKernel("auxiliary.cu", name, {TypeMacro(dtype)},
                                       &(kernels->*kernel)));
  }
  known->emplace(std::pair(device, dtype), *kernels);
  return {};
}

RnnStatus Auxiliary::StoreLengths(CUstream stream, const int32_t* lengths,
                                  int count, int64_t* to) const {
  HostLengths part;
  for (int first = 0; first < count; first += HostLengths::kMax) {
    int part_count = std::min(HostLengths::kMax, count - first);
    std::copy_n(lengths + first, part_count, part.of);
    int64_t* part_to = to + first;
    void* parameters[] = {&part, &part_count, &part_to};
    CRNN_RETURN_IF_ERROR(LaunchOver(lengths_, stream, part_count, parameters));
  }
  return {};
}

RnnStatus Auxiliary::StoreSeed(CUstream stream, const uint64_t seed[2],
                               uint64_t* to) const {
  uint64_t seed0 = seed[0], seed1 = seed[1];
  void* parameters[] = {&seed0, &seed1, &to};
  return Launch(seed_, stream, 1, 32, 1, parameters);
}

RnnStatus Auxiliary::OrderSequences(CUstream stream, const int64_t* given,
                                    int batch, int steps, int* lengths,
                                    int* order) const {
  void* parameters[] = {&given, &batch, &steps, &lengths, &order};
  return Launch(order_, stream, (batch + 255) / 256, 256, 1, parameters);
}

RnnStatus Auxiliary::ApplyDropout(CUstream stream, const Sequences& sequences,
                                  int64_t count, int width, int layer,
                                  const uint64_t* seed, float rate,
                                  void* values) const {
  Sequences all = sequences;
  uint32_t threshold = DropoutThreshold(rate);
  float scale = 1.0f / (1.0f - rate);
  void* parameters[] = {&all,  &count,     &width, &layer,
                        &seed, &threshold, &scale, &values};
  return LaunchOver(dropout_, stream, count, parameters);
}

RnnStatus Auxiliary::SpreadInputs(CUstream stream, int64_t count, int units,
                                  int gates, int slots, const void* inputs,
                                  void* to) const {
  void* parameters[] = {&count, &units, &gates, &slots, &inputs, &to};
  return LaunchOver(spread_, stream, count, parameters);
}

RnnStatus Auxiliary::GatherInputs(CUstream stream, int64_t count, int units,
                                  int gates, int slots, const void* of_forward,
                                  const void* of_backward, void* to) const {
  void* parameters[] = {&count,      &units,       &gates, &slots,
                        &of_forward, &of_backward, &to};
  return LaunchOver(gather_, stream, count, parameters);
}

RnnStatus Auxiliary::CopyWithoutPadding(CUstream stream,
                                        const Sequences& sequences,
                                        int64_t count, int width,
                                        const void* from, void* to) const {
  Sequences all = sequences;
  void* parameters[] = {&all, &count, &width, &from, &to};
  return LaunchOver(copy_, stream, count, parameters);
}

RnnStatus Auxiliary::TransposeSteps(CUstream stream, const Sequences& sequences,
                                    int64_t rows, int width, int64_t pitch,
                                    const void* from, void* to) const {
  Sequences all = sequences;
  void* parameters[] = {&all, &rows, &width, &pitch, &from, &to};
  const int64_t tiles = ((rows + 31) / 32) * ((width + 31) / 32);
  return Launch(transpose_, stream,
                std::min<int64_t>(tiles, kMaxBlocksOfNumbers), 32, 8,
                parameters);
}

RnnStatus Auxiliary::SumBiases(CUstream stream, const float* sums, int rows,
                               int units, int gates, int slots,
                               int recurrent_slot, void* input_bias,
                               void* recurrent_bias) const {
  void* parameters[] = {&sums,  &rows,           &units,      &gates,
                        &slots, &recurrent_slot, &input_bias, &recurrent_bias};
  return Launch(biases_, stream, (slots * units + 31) / 32, 32, 8, parameters);
}

RnnStatus Auxiliary::AddParts(CUstream stream, int64_t count, int num_parts,
                              const float* parts, void* to) const {
  void* parameters[] = {&count, &num_parts, &parts, &to};
  return LaunchOver(parts_, stream, count, parameters);
}

RnnStatus EnqueueLengthsOfMask(CUstream stream, const void* mask, int batch,
                               int steps, bool time_major, int64_t* lengths) {
  CUkernel kernel;
  CRNN_RETURN_IF_ERROR(CompileKernel("auxiliary.cu", "lengths_of_mask",
                                     {TypeMacro(RnnDataType::kFloat32)},
                                     &kernel));
  Sequences all = Sequences::Of(nullptr, nullptr, batch, steps, time_major);
  void* parameters[] = {&all, &mask, &lengths};
  constexpr int kSequences = kThreadsOfNumbers / 32;
  return Launch(kernel, stream, (batch + kSequences - 1) / kSequences,
                kThreadsOfNumbers, 1, parameters);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
