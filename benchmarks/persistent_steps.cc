// Times one step of the persistent kernels, in all ways to divide a layer.
//
//   persistent_steps OUTPUT.jsonl STEPS all|chosen
//       MODE TYPE UNITS BATCH DIRECTIONS [MODE ...]
//
// `chosen` leaves it at the division that the package takes. Of the types,
// float32 is in TF32, and exact is float32 without it. In place of the
// directions, L3 stands for a stack of three layers that run at the same time,
// in inference.
//
// A line of the output is one kernel: what it was compiled for, the model's
// cycles, whether it is the one that is chosen, and the microseconds of a step:
// the least of some launches with full lengths, over the steps.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gpu/persistent/kernel.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

constexpr int kLaunches = 12;
int steps;
constexpr double kHopeless = 2.0, kPromising = 1.2;

void Check(const RnnStatus& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::exit(1);
}
void Check(CUresult result) { Check(CudaStatus(result, "run")); }

struct Candidate {
  KernelRequest request;
  std::string name;
  Division division;
  bool is_chosen;
  Kernel kernel;
  RnnStatus status;
};

// A function of the driver's that the package has no use for.
template <typename Function>
Function OfDriver(Function /*declared*/, const char* name) {
  void* const found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  if (found == nullptr) {
    Check({RnnStatus::Code::kInternal, std::string("there is no ") + name});
  }
  return reinterpret_cast<Function>(found);
}
#define CRNN_TEXT(name) #name
#define CRNN_DRIVER(name) OfDriver(decltype (&::name)(), CRNN_TEXT(name))

class Timer {
 public:
  explicit Timer(CUstream stream) : stream_(stream) {
    Check(CRNN_DRIVER(cuEventCreate)(&begin_, CU_EVENT_DEFAULT));
    Check(CRNN_DRIVER(cuEventCreate)(&end_, CU_EVENT_DEFAULT));
  }
  ~Timer() {
    CRNN_DRIVER(cuEventDestroy)(begin_);
    CRNN_DRIVER(cuEventDestroy)(end_);
  }
  template <typename Run>
  float Microseconds(const Run& run) {
    Check(CRNN_DRIVER(cuEventRecord)(begin_, stream_));
    run();
    Check(CRNN_DRIVER(cuEventRecord)(end_, stream_));
    Check(CRNN_DRIVER(cuEventSynchronize)(end_));
    float milliseconds;
    Check(CRNN_DRIVER(cuEventElapsedTime)(&milliseconds, begin_, end_));
    return 1e3f * milliseconds;
  }

 private:
  const CUstream stream_;
  CUevent begin_, end_;
};

// One memory for all candidates, full of small numbers.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    Check(CRNN_DRIVER(cuMemAlloc)(&base_, bytes));
    Check(Gpu().cuda.cuMemsetD8Async(base_, 0x2C, bytes, nullptr));
  }
  template <typename T>
  void Take(T** to, size_t bytes) {
    *to = reinterpret_cast<T*>(base_ + used_);
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > bytes_) Check({RnnStatus::Code::kInternal, "out of memory"});
  }
  void Reset() { used_ = 0; }

 private:
  CUdeviceptr base_;
  const size_t bytes_;
  size_t used_ = 0;
};

float MicrosecondsOfStep(const Candidate& candidate, Memory* memory) {
  const KernelRequest& request = candidate.request;
  const int at_once = request.num_layers > 1
                          ? candidate.division.shape.Stages(request.num_layers)
                          : request.num_dirs;
  const size_t item = SizeOf(request.dtype), units = request.num_units;
  const size_t batch = request.batch_size, rows = batch * steps;
  const size_t gates = KindOf(request.rnn_mode).num_gates,
               slots = KindOf(request.rnn_mode).num_slots;
  const int of_team = candidate.division.shape.rows();
  const int teams = (request.batch_size + of_team - 1) / of_team;
  const Sequences sequences = {
      nullptr, nullptr, request.batch_size, steps, request.batch_size,
      1,       nullptr};
  ForwardArguments forward = {};
  BackwardArguments backward = {};
  forward.sequences = backward.sequences = sequences;
  forward.output_stride = backward.output_stride = request.num_dirs * units;
  forward.state_stride = backward.state_stride = units;
  memory->Reset();
  const void* weights;
  memory->Take(&weights, gates * units * units * item);
  for (int d = 0; d < std::max(request.num_dirs, request.num_layers); ++d) {
    ForwardDirection& f = forward.direction[d];
    BackwardDirection& b = backward.direction[request.num_layers > 1 ? 0 : d];
    if (d > 0 && request.num_layers > 1) {
      f.input = forward.direction[d - 1].output;
      f.input_weights = weights;
    }
    f.recurrent_weights = b.recurrent_weights = weights;
    memory->Take(&f.gates, rows * slots * units * item);
    memory->Take(&f.cells, rows * units * sizeof(float));
    memory->Take(&f.previous_h, rows * units * item);
    memory->Take(&f.output, rows * request.num_dirs * units * item);
    memory->Take(&f.first_h, batch * units * item);
    memory->Take(&f.first_c, batch * units * item);
    memory->Take(&f.last_h, batch * units * item);
    memory->Take(&f.last_c, batch * units * item);
    b.gates = f.gates;
    b.cells = f.cells;
    b.previous_h = f.previous_h;
    b.first_c = f.first_c;
    b.output_backprop = f.output;
    b.last_h_backprop = f.first_h;
    b.last_c_backprop = f.first_c;
    b.first_h_backprop = f.last_h;
    b.first_c_backprop = f.last_c;
    memory->Take(&b.bias_sums, static_cast<size_t>(teams * of_team) * slots *
                                   units * sizeof(float));
  }
  void* ring;
  memory->Take(&ring, candidate.kernel.ring_bytes(teams, at_once));
  Timer timer(nullptr);
  float least = 1e30f;
  for (int i = 0; i < kLaunches; ++i) {
    least = std::min(least, timer.Microseconds([&] {
      for (int l = 1; l < request.num_layers; ++l) {
        const ForwardDirection& upper = forward.direction[l];
        Check(Gpu().cuda.cuMemsetD8Async(
            reinterpret_cast<CUdeviceptr>(upper.input), 0xFF,
            rows * units * item, nullptr));
        Check(Gpu().cuda.cuMemsetD8Async(
            reinterpret_cast<CUdeviceptr>(upper.gates), 0xFF,
            rows * slots * units * item, nullptr));
      }
      Check(request.is_backward
                ? candidate.kernel.Enqueue(nullptr, teams, at_once, ring,
                                           &backward.part)
                : candidate.kernel.Enqueue(nullptr, teams, at_once, ring,
                                           &forward.part));
    }));
  }
  return least / steps;
}

int Main(int argc, char** argv) {
  Check(LoadCudaDriver());
  Check(CRNN_DRIVER(cuInit)(0));
  CUdevice device;
  CUcontext context;
  Check(CRNN_DRIVER(cuDeviceGet)(&device, 0));
  Check(CRNN_DRIVER(cuDevicePrimaryCtxRetain)(&context, device));
  const auto set_context = CRNN_DRIVER(cuCtxSetCurrent);
  Check(set_context(context));
  DeviceLimits limits;
  Check(ReadLimits(&limits));
  std::vector<Candidate> candidates;
  if (argc < 4) return 1;
  steps = std::atoi(argv[2]);
  const bool only_chosen = std::string(argv[3]) == "chosen";
  for (int i = 4; i + 4 < argc; i += 5) {
    const std::string mode = argv[i], type = argv[i + 1];
    KernelRequest request = {};
    if (!ParseName(mode, &request.rnn_mode)) {
      Check({RnnStatus::Code::kInvalidArgument, "there is no mode " + mode});
    }
    request.dtype = type == "float16"    ? RnnDataType::kFloat16
                    : type == "bfloat16" ? RnnDataType::kBfloat16
                                         : RnnDataType::kFloat32;
    request.allow_tf32 = type != "exact";
    request.num_units = std::atoi(argv[i + 2]);
    request.batch_size = std::atoi(argv[i + 3]);
    const std::string at_once = argv[i + 4];
    const bool is_stack = at_once[0] == 'L';
    request.num_layers = is_stack ? std::stoi(at_once.substr(1)) : 1;
    request.num_dirs = is_stack ? 1 : std::stoi(at_once);
    request.is_training = !is_stack;
    for (const bool is_backward : {false, true}) {
      if (is_stack && is_backward) continue;
      request.is_backward = is_backward;
      const std::vector<Division> divisions = Divisions(request, limits);
      if (divisions.empty()) continue;
      const Shape& chosen = ChooseDivision(divisions)->shape;
      double least = divisions[0].cycles;
      for (const Division& division : divisions) {
        least = std::min(least, division.cycles);
      }
      // What the model finds hopeless takes long to compile; what it finds good
      // is tried with fewer weights in registers, too.
      std::vector<Division> tried;
      for (const Division& division : divisions) {
        if (division.cycles > kHopeless * least) continue;
        tried.push_back(division);
        for (int fewer = 1; fewer < 3; ++fewer) {
          Division other = division;
          other.shape.resident_pairs -= fewer;
          const int bytes = is_backward ? other.shape.backward_shared_bytes()
                                        : other.shape.forward_shared_bytes();
          if (division.cycles > kPromising * least ||
              bytes > limits.shared_bytes || other.shape.resident_pairs < 0) {
            break;
          }
          tried.push_back(other);
        }
      }
      for (const Division& division : tried) {
        const Shape& shape = division.shape;
        const bool is_chosen = shape.team == chosen.team &&
                               shape.is_cluster == chosen.is_cluster &&
                               shape.row_tiles == chosen.row_tiles &&
                               shape.splits == chosen.splits &&
                               shape.products == chosen.products &&
                               shape.slices == chosen.slices &&
                               shape.resident_pairs == chosen.resident_pairs &&
                               shape.warps == chosen.warps;
        if (only_chosen && !is_chosen) continue;
        candidates.push_back({request,
                              mode + ' ' + type + " H" + argv[i + 2] + " B" +
                                  argv[i + 3] + " D" + argv[i + 4],
                              division, is_chosen, Kernel(), RnnStatus()});
      }
    }
  }
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
    threads.emplace_back([&] {
      Check(set_context(context));
      for (size_t i; (i = next++) < candidates.size();) {
        Candidate& candidate = candidates[i];
        candidate.status =
            Kernel::Compile(candidate.request, limits, candidate.division.shape,
                            &candidate.kernel);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Memory memory(size_t{6} << 30);
  std::ofstream output(argv[1]);
  for (const Candidate& candidate : candidates) {
    const Shape& shape = candidate.division.shape;
    const float time = candidate.status.ok() && candidate.kernel.fits()
                           ? MicrosecondsOfStep(candidate, &memory)
                           : -1.0f;
    output << "{\"layer\": \"" << candidate.name << "\", \"pass\": \""
           << (candidate.request.is_backward ? "backward" : "forward")
           << "\", \"team\": " << shape.team
           << ", \"is_cluster\": " << (shape.is_cluster ? "true" : "false")
           << ", \"block_units\": " << shape.block_units
           << ", \"warps\": " << shape.warps << ", \"splits\": " << shape.splits
           << ", \"row_tiles\": " << shape.row_tiles
           << ", \"resident_pairs\": " << shape.resident_pairs
           << ", \"products\": " << shape.products
           << ", \"slices\": " << shape.slices
           << ", \"model_cycles\": " << candidate.division.cycles
           << ", \"is_chosen\": " << (candidate.is_chosen ? "true" : "false")
           << ", \"microseconds\": " << time << "}" << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace persistent
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::persistent::Main(argc, argv);
}
