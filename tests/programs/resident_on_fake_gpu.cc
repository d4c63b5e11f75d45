// Runs random networks with the algorithm resident on a fake GPU: its memory is
// the host's, and the host computes in place of cuBLAS and of our kernel.
// Checks, without a GPU, that both find what they rely on, and that each
// network's layers, directions, steps and states are put together correctly.
//
//   resident_on_fake_gpu SEEDS
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/resident/network.h"
#include "kernels/gpu/transpose.h"
#include "kernels/param_layout.h"
#include "tests/programs/draws_and_failures.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

// A network runs in parts if the products of all its steps take more than this.
constexpr int64_t kBytesOfPart = int64_t{32} << 20;
// The least workspace that cuBLAS's documentation asks for, and one that is
// enough for all products.
constexpr int64_t kMinBlasBytes = 16 << 10, kMaxBlasBytes = 4 << 20;

using Numbers = std::vector<double>;

struct Buffer {
  CUdeviceptr begin = 0;
  int64_t bytes = 0;
  std::vector<unsigned char> memory;

  // Places the buffer `offset` bytes past a multiple of 256. Without bytes, it
  // has no address.
  void Place(int64_t size, int64_t offset) {
    memory.assign(size + 512, 0xDD);
    const auto all = reinterpret_cast<CUdeviceptr>(memory.data());
    begin = size == 0 ? 0 : (all + 255) / 256 * 256 + offset;
    bytes = size;
  }
};
using Buffers = std::initializer_list<const Buffer*>;

// The problem that is run, and its buffers.
RnnProblem problem;
int64_t item;  // The bytes of a number of the problem's type.
bool allow_tf32;
Buffer params, input, input_h, input_c, output, output_h, output_c, workspace;
const CUstream stream = reinterpret_cast<CUstream>(uintptr_t{1});
const cublasHandle_t blas = reinterpret_cast<cublasHandle_t>(uintptr_t{2});
const CUkernel compiled = reinterpret_cast<CUkernel>(uintptr_t{3});

// The fake functions note these.
int64_t num_launches, blas_bytes;
unsigned char* blas_workspace;
CUstream stream_of_blas;
cublasStatus_t failure_of_cublas;

// Checks that `bytes` bytes from `begin` on lie within one of the buffers, and
// returns their address.
unsigned char* Within(Buffers buffers, CUdeviceptr begin, int64_t bytes) {
  for (const Buffer* const buffer : buffers) {
    if (begin < buffer->begin) continue;
    if (begin + bytes > buffer->begin + buffer->bytes) continue;
    return reinterpret_cast<unsigned char*>(begin);
  }
  Check(false, "an address outside of its buffer");
  return nullptr;
}

// The network does not look at numbers, so one half type stands for both here:
// it has the upper two bytes of a float, which are its last in memory.
double Load(const unsigned char* array, int64_t i) {
  float number = 0;
  std::memcpy(reinterpret_cast<char*>(&number) + 4 - item, array + i * item,
              item);
  return number;
}
void Store(unsigned char* array, int64_t i, double value) {
  const float number = static_cast<float>(value);
  std::memcpy(array + i * item,
              reinterpret_cast<const char*>(&number) + 4 - item, item);
}
Numbers LoadAll(Buffers buffers, CUdeviceptr address, int64_t size) {
  const unsigned char* const array = Within(buffers, address, size * item);
  Numbers numbers(size);
  for (int64_t i = 0; i < size; ++i) numbers[i] = Load(array, i);
  return numbers;
}
void StoreAll(Buffers buffers, CUdeviceptr address, const Numbers& numbers) {
  unsigned char* const array = Within(buffers, address, numbers.size() * item);
  for (size_t i = 0; i < numbers.size(); ++i) Store(array, i, numbers[i]);
}

// Computes one step in one direction, from the input side of its gates, [B, G *
// H]. The states, [B, H], become the next ones. A cell's equations are the
// kernel's alone; in their place stands one that tells gates, their sides and
// states apart.
void Step(const Numbers& inputs, const double* weights, const double* bias,
          double* h, double* c) {
  const RnnSpec& spec = problem.spec;
  const int64_t units = spec.num_units, gates = spec.num_gates();
  const Numbers before(h, h + problem.batch_size * units);
  for (size_t i = 0; i < before.size(); ++i) {
    const double* const h_of_b = &before[i / units * units];
    // Weights are so small that no difference grows from step to step.
    double sum = 0;
    for (int64_t gate = 0; gate < gates; ++gate) {
      const int64_t row = gate * units + i % units;
      const double product = std::inner_product(
          h_of_b, h_of_b + units, weights + row * units, bias[row]);
      sum += (gate + 1) *
             (inputs[i / units * gates * units + row] + product / 2) / 8;
    }
    if (spec.is_lstm()) c[i] = sum += c[i] / 2;
    unsigned char rounded[4];
    Store(rounded, 0, sum / (1 + std::abs(sum)));
    h[i] = Load(rounded, 0);
  }
}

// Does what resident/kernel.h says that the kernel does.
void RunKernel(const ResidentArguments& a) {
  const RnnSpec& spec = problem.spec;
  const int64_t units = spec.num_units, batch = problem.batch_size,
                rows = spec.num_gates() * units, states = batch * units;
  Check(a.first >= 0 && a.steps > 0 && a.first + a.steps <= a.num_steps,
        "steps that are none");
  Check((a.weights | a.first_h | a.output) % 16 == 0, "alignment");
  unsigned char* const outputs =
      Within({&output, &workspace}, a.output,
             ((int64_t{a.num_steps} * batch - 1) * a.stride + units) * item);
  const auto row_at = [&](int64_t step, int64_t b) {
    const int64_t time = a.is_reversed ? a.num_steps - 1 - step : step;
    return outputs + (time * batch + b) * a.stride * item;
  };
  // Blocks wait for numbers that are absent, and go on with others, so exactly
  // the outputs of steps to come must be absent.
  for (int64_t i = 0; i < a.num_steps * states; ++i) {
    const int64_t step = i / states;
    const double number = Load(row_at(step, i / units % batch), i % units);
    Check(std::isnan(number) == (step >= a.first), "outputs of another step");
  }
  const auto load_bias = [&](CUdeviceptr bias) {
    return bias == 0 ? Numbers(rows) : LoadAll({&params}, bias, rows);
  };
  const Numbers weights = LoadAll({&params}, a.weights, rows * units),
                input_bias = load_bias(a.input_bias),
                recurrent_bias = load_bias(a.recurrent_bias);
  const float* const projected = reinterpret_cast<const float*>(
      Within({&workspace}, a.projected, a.steps * batch * rows * 4));
  Numbers h = LoadAll({&input_h, &workspace}, a.first_h, states), c(states);
  for (int64_t i = 0; i < states && a.first > 0; ++i) {
    h[i] = Load(row_at(a.first - 1, i / units), i % units);
  }
  if (spec.is_lstm()) {
    c = a.first == 0 ? LoadAll({&input_c, &workspace}, a.first_c, states)
                     : LoadAll({&output_c, &workspace}, a.last_c, states);
  }
  for (int64_t s = 0; s < a.steps; ++s) {
    const int64_t time = a.is_reversed ? a.steps - 1 - s : s;
    Numbers inputs(batch * rows);
    for (int64_t i = 0; i < batch * rows; ++i) {
      inputs[i] = projected[time * batch * rows + i] + input_bias[i % rows];
    }
    Step(inputs, weights.data(), recurrent_bias.data(), h.data(), c.data());
    for (int64_t i = 0; i < states; ++i) {
      Store(row_at(a.first + s, i / units), i % units, h[i]);
    }
  }
  StoreAll({&output_h, &workspace}, a.last_h, h);
  if (spec.is_lstm()) StoreAll({&output_c, &workspace}, a.last_c, c);
}

// Multiplies as cuBLAS does. Matrices are stored by columns, and the first one
// is transposed.
cublasStatus_t Multiply(cublasHandle_t handle, cublasOperation_t trans_a,
                        cublasOperation_t trans_b, int64_t m, int64_t n,
                        int64_t k, const void* alpha, const void* a,
                        cudaDataType_t type_a, int64_t lda, const void* b,
                        cudaDataType_t type_b, int64_t ldb, const void* beta,
                        void* c, cudaDataType_t type_c, int64_t ldc,
                        cublasComputeType_t compute_type,
                        cublasGemmAlgo_t algorithm) {
  if (Fails("cublasGemmEx_64")) return failure_of_cublas;
  const RnnDataType dtype = problem.dtype;
  const bool is_float = dtype == RnnDataType::kFloat32;
  const cudaDataType_t type = is_float                         ? CUDA_R_32F
                              : dtype == RnnDataType::kFloat16 ? CUDA_R_16F
                                                               : CUDA_R_16BF;
  const float by = *static_cast<const float*>(alpha),
              old = *static_cast<const float*>(beta);
  Check(type_a == type && type_b == type && type_c == CUDA_R_32F &&
            trans_a == CUBLAS_OP_T && trans_b == CUBLAS_OP_N && by == 1 &&
            old == 0 && algorithm == CUBLAS_GEMM_DEFAULT,
        "a product that the fake cuBLAS does not know");
  Check(compute_type == (is_float && allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F),
        "how a product is computed");
  Check(handle == blas && stream_of_blas == stream, "another stream");
  // The workspace must have room for a few parts of each sum.
  Check(blas_workspace != nullptr &&
            blas_bytes >= std::min(2 * m * n * 4, kMaxBlasBytes),
        "a product without its workspace");
  std::memset(blas_workspace, 0xEE, blas_bytes);
  const auto address = [](const void* matrix) {
    return reinterpret_cast<CUdeviceptr>(matrix);
  };
  const Numbers of_a = LoadAll({&params}, address(a), lda * (m - 1) + k);
  const Numbers of_b =
      LoadAll({&input, &output, &workspace}, address(b), ldb * (n - 1) + k);
  float* const results = reinterpret_cast<float*>(
      Within({&workspace}, address(c), (ldc * (n - 1) + m) * 4));
  for (int64_t i = 0; i < m * n; ++i) {
    const double *const row = &of_a[i % m * lda], *const x = &of_b[i / m * ldb];
    results[i / m * ldc + i % m] =
        static_cast<float>(std::inner_product(row, row + k, x, 0.0));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// The functions from here on take the place of resident/kernel.cc.

RnnStatus ResidentKernel::Get(const ResidentShape& wanted,
                              ResidentKernel* kernel) {
  if (Fails("compiling")) return {RnnStatus::Code::kUnimplemented, "no kernel"};
  Check(wanted.rnn_mode == problem.spec.rnn_mode &&
            wanted.dtype == problem.dtype &&
            wanted.num_units == problem.spec.num_units &&
            wanted.batch_size == problem.batch_size,
        "another shape");
  kernel->kernel_ = compiled;
  return {};
}

RnnStatus ResidentKernel::Enqueue(CUstream given,
                                  const ResidentArguments& arguments) const {
  if (Fails("a launch")) return {RnnStatus::Code::kInternal, "no launch"};
  Check(kernel_ == compiled, "a kernel that is not compiled");
  Check(given == stream, "another stream");
  ++num_launches;
  RunKernel(arguments);
  return {};
}

// This takes the place of transpose.cc.
RnnStatus EnqueueTranspose(CUstream given, CUdeviceptr from, CUdeviceptr to,
                           int64_t outer, int64_t inner, int64_t row_bytes) {
  if (Fails("a transposition")) {
    return {RnnStatus::Code::kInternal, "no transposition"};
  }
  Check(given == stream && !problem.time_major, "a transposition");
  const Buffers all = {&input,    &input_h,  &input_c,  &output,
                       &output_h, &output_c, &workspace};
  const int64_t bytes = outer * inner * row_bytes;
  const unsigned char* const rows = Within(all, from, bytes);
  unsigned char* const transposed = Within(all, to, bytes);
  for (int64_t i = 0; i < outer * inner; ++i) {
    std::memcpy(transposed + (i % inner * outer + i / inner) * row_bytes,
                rows + i * row_bytes, row_bytes);
  }
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries;
  libraries.cuda.cuMemsetD8Async = [](CUdeviceptr to, unsigned char byte,
                                      size_t bytes, CUstream given) {
    if (Fails("cuMemsetD8Async")) return CUDA_ERROR_UNKNOWN;
    Check(given == stream && byte == 0xFF, "a fill");
    std::memset(Within({&output, &workspace}, to, bytes), byte, bytes);
    return CUDA_SUCCESS;
  };
  CublasLibrary& cublas = libraries.cublas;
  cublas.cublasGemmEx_64 = Multiply;
  cublas.cublasGetStatusString = [](cublasStatus_t) {
    return "an error of cuBLAS's";
  };
  // In cuBLAS, setting the stream takes the workspace away.
  cublas.cublasSetStream_v2 = [](cublasHandle_t handle, cudaStream_t given) {
    if (Fails("cublasSetStream_v2")) return failure_of_cublas;
    Check(handle == blas, "another handle");
    stream_of_blas = reinterpret_cast<CUstream>(given);
    blas_workspace = nullptr;
    return CUBLAS_STATUS_SUCCESS;
  };
  cublas.cublasSetWorkspace_v2 = [](cublasHandle_t handle, void* begin,
                                    size_t size) {
    if (Fails("cublasSetWorkspace_v2")) return failure_of_cublas;
    const auto address = reinterpret_cast<CUdeviceptr>(begin);
    const int64_t bytes = size;
    Check(handle == blas && bytes >= kMinBlasBytes && address % 256 == 0,
          "cuBLAS's workspace");
    blas_workspace = Within({&workspace}, address, bytes);
    blas_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
  };
  return libraries;
}

namespace {

// Computes in double precision, except for outputs, which are rounded to the
// network's type. The states become the last ones.
Numbers RunReference(const Numbers& parameters, Numbers inputs, double* h,
                     double* c) {
  const RnnSpec& spec = problem.spec;
  const ParamLayout layout(spec);
  const int64_t units = spec.num_units, rows = spec.num_gates() * units,
                batch = problem.batch_size, times = problem.max_time,
                stride = spec.num_dirs() * units;
  const Numbers no_bias(rows);
  const auto bias_at = [&](int64_t offset) {
    return offset < 0 ? no_bias.data() : &parameters[offset];
  };
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const int64_t size = spec.layer_input_size(layer);
    Numbers outputs(times * batch * stride);
    for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
      const ParamLayout::PseudoLayer& at =
          layout.pseudo_layer(layer * spec.num_dirs() + dir);
      const double* const bias = bias_at(at.input_bias);
      for (int64_t step = 0; step < times; ++step) {
        const int64_t first_row = (dir == 0 ? step : times - 1 - step) * batch;
        Numbers sides(batch * rows);
        for (int64_t i = 0; i < batch * rows; ++i) {
          const double* const x = &inputs[(first_row + i / rows) * size];
          sides[i] = std::inner_product(
              x, x + size, &parameters[at.input_weights + i % rows * size],
              bias[i % rows]);
        }
        Step(sides, &parameters[at.recurrent_weights],
             bias_at(at.recurrent_bias), h, c);
        for (int64_t b = 0; b < batch; ++b) {
          std::copy_n(h + b * units, units,
                      &outputs[(first_row + b) * stride + dir * units]);
        }
      }
      h += batch * units;
      c += batch * units;
    }
    inputs = std::move(outputs);
  }
  return inputs;
}

// The bytes of one step's products.
int64_t BytesOfStep() {
  return problem.batch_size * problem.spec.num_gates() *
         problem.spec.num_units * 4;
}

void DrawProblem(bool in_parts) {
  problem = RnnProblem();
  problem.is_training = false;
  problem.dtype = static_cast<RnnDataType>(Draw(1, 3));
  item = SizeOf(problem.dtype);
  problem.batch_size = Draw(1, 8);
  problem.max_time = Draw(1, 7);
  problem.time_major = Draw(0, 2) > 0;
  RnnSpec& spec = problem.spec;
  spec.rnn_mode = static_cast<RnnMode>(Draw(0, 3));
  spec.bias_mode = static_cast<BiasMode>(Draw(0, 3));
  spec.direction = static_cast<Direction>(Draw(0, 1));
  // With these sizes, the outputs of both directions begin at multiples of 16
  // bytes.
  spec.num_units = 16 / item * Draw(1, 4);
  spec.num_layers = Draw(1, 4);
  spec.input_size = Draw(1, 40);
  if (!in_parts) return;
  problem.time_major = true;
  // The network is as cheap as possible, but has everything that one part hands
  // to the next.
  problem.batch_size = 64;
  spec.rnn_mode = RnnMode::kLstm;
  spec.direction = Direction::kBidirectional;
  spec.num_units = 16 / item;
  spec.num_layers = spec.input_size = 1;
  const int64_t steps = kBytesOfPart / BytesOfStep();
  problem.max_time = 2 * steps + Draw(1, steps / 20);
}

Numbers Fill(const Buffer& buffer, double most) {
  Numbers numbers(buffer.bytes / item);
  for (double& number : numbers) number = most * Draw(-1000, 1000) / 1000;
  StoreAll({&buffer}, buffer.begin, numbers);
  return LoadAll({&buffer}, buffer.begin, numbers.size());
}

// Returns an array that the caller has, with `rows` rows of each sequence, in
// time-major order.
Numbers TimeMajor(const Numbers& numbers, int64_t rows) {
  if (problem.time_major || numbers.empty()) return numbers;
  const int64_t batch = problem.batch_size,
                width = static_cast<int64_t>(numbers.size()) / (rows * batch);
  Numbers ordered(numbers.size());
  for (int64_t i = 0; i < rows * batch; ++i) {
    std::copy_n(&numbers[i * width], width,
                &ordered[(i % rows * batch + i / rows) * width]);
  }
  return ordered;
}

void Compare(const Buffer& buffer, int64_t rows, const Numbers& expected,
             const char* what) {
  const Numbers numbers =
      TimeMajor(LoadAll({&buffer}, buffer.begin, buffer.bytes / item), rows);
  const double tolerance = item == 4 ? 1e-5 : 2e-2;
  double most = 0;
  for (const double number : expected) most = std::max(most, std::abs(number));
  for (size_t i = 0; i < numbers.size(); ++i) {
    Check(std::abs(numbers[i] - expected[i]) <= tolerance * most, what);
  }
}

void CheckNetwork(bool in_parts) {
  const RnnSpec& spec = problem.spec;
  std::unique_ptr<Engine> network;
  const auto create = [&] {
    return ResidentNetwork::Create(problem, allow_tf32, &network);
  };
  FailEachCall(create, [&](const RnnStatus& status) {
    Check(Names(status, "no kernel") && network == nullptr, "no kernel");
  });

  const int64_t of_time = problem.max_time * problem.batch_size * item,
                states = spec.num_pseudo_layers() * problem.batch_size *
                         spec.num_units * item;
  params.Place(ParamLayout(spec).size() * item, 0);
  input.Place(of_time * spec.input_size, item * Draw(0, 16));
  input_h.Place(states, 0);
  input_c.Place(spec.is_lstm() ? states : 0, item * Draw(0, 16));
  output.Place(of_time * spec.layer_output_size(), 0);
  output_h.Place(states, item * Draw(0, 16));
  output_c.Place(spec.is_lstm() ? states : 0, item * Draw(0, 16));
  workspace.Place(network->forward_workspace_size(), 0);
  const int64_t at_once = kBytesOfPart / BytesOfStep();
  const int64_t products = std::min(problem.max_time, at_once) * BytesOfStep();
  const int64_t between = spec.num_layers > 1 ? output.bytes : 0;
  const int64_t copies = problem.time_major
                             ? 0
                             : 6 * 256 + input.bytes + input_h.bytes +
                                   input_c.bytes + output.bytes +
                                   output_h.bytes + output_c.bytes;
  Check(workspace.bytes <=
            between + copies + products + 1024 +
                std::clamp(4 * products, kMinBlasBytes, kMaxBlasBytes),
        "size of the workspace");

  const Numbers parameters =
      Fill(params, 1 / std::sqrt(static_cast<double>(spec.num_units)));
  const int64_t times = problem.max_time, layers = spec.num_pseudo_layers();
  const Numbers inputs = TimeMajor(Fill(input, 1), times);
  Numbers h = TimeMajor(Fill(input_h, 1), layers);
  Numbers c = TimeMajor(Fill(input_c, 1), layers);
  c.resize(h.size());
  const auto enqueue = [&] {
    num_launches = 0;
    const auto at = [](const Buffer& buffer) {
      return reinterpret_cast<void*>(buffer.begin);
    };
    RnnForwardBuffers buffers;
    buffers.params = at(params);
    buffers.input = at(input);
    buffers.input_h = at(input_h);
    buffers.input_c = at(input_c);
    buffers.output = at(output);
    buffers.output_h = at(output_h);
    buffers.output_c = at(output_c);
    buffers.workspace = at(workspace);
    return network->Forward({stream, blas, nullptr}, buffers);
  };
  if (in_parts) {
    Check(enqueue().ok(), "a run in parts");
  } else {
    FailEachCall(enqueue, [](const RnnStatus& status) {
      const bool of_blas = failed_call.rfind("cublas", 0) == 0;
      Check(status.code ==
                (of_blas && failure_of_cublas == CUBLAS_STATUS_ALLOC_FAILED
                     ? RnnStatus::Code::kResourceExhausted
                     : RnnStatus::Code::kInternal),
            "code of a failure of " + failed_call);
      Check(!of_blas || Names(status, "an error of cuBLAS's"),
            "an error without its text");
    });
  }
  Check(num_launches == spec.num_pseudo_layers() *
                            ((problem.max_time + at_once - 1) / at_once),
        "number of parts");
  const Numbers outputs = RunReference(parameters, inputs, h.data(), c.data());
  Compare(output, times, outputs, "outputs");
  Compare(output_h, layers, h, "last h");
  Compare(output_c, layers, c, "last c");

  // Copies in the workspace are aligned.
  Buffer* const moved = std::vector<Buffer*>{
      &params, &input_h, &output}[Draw(0, problem.time_major ? 2 : 0)];
  moved->Place(moved->bytes, item * Draw(1, 16 / item - 1));
  const RnnStatus refusal = enqueue();
  Check(refusal.code == RnnStatus::Code::kUnimplemented &&
            Names(refusal, "multiples of 16 bytes"),
        "alignment that is not refused");
}

void CheckRefusals() {
  const auto refuse = [](const char* word, auto change) {
    DrawProblem(false);
    change(&problem);
    num_calls = 0;
    std::unique_ptr<Engine> network;
    const RnnStatus status =
        ResidentNetwork::Create(problem, allow_tf32, &network);
    Check(status.code == RnnStatus::Code::kUnimplemented &&
              Names(status, word) && network == nullptr && num_calls == 0,
          std::string("no refusal for ") + word);
  };
  using Problem = RnnProblem;
  refuse("training", [](Problem* p) { p->is_training = true; });
  refuse("sequence lengths",
         [](Problem* p) { p->has_sequence_lengths = true; });
  refuse("projections", [](Problem* p) { p->spec.num_proj = 1; });
  refuse("skip_input",
         [](Problem* p) { p->spec.input_mode = InputMode::kSkip; });
  refuse("cell clipping", [](Problem* p) { p->spec.cell_clip = 1.0f; });
}

void CheckSeed(unsigned seed) {
  generator.seed(seed);
  allow_tf32 = Draw(0, 1) == 1;
  failure_of_cublas = Draw(0, 1) == 0 ? CUBLAS_STATUS_ALLOC_FAILED
                                      : static_cast<cublasStatus_t>(13);
  const bool in_parts = seed % 50 == 0;
  DrawProblem(in_parts);
  CheckNetwork(in_parts);
  CheckRefusals();
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  cudnn_rnn_tf::has_resident_libraries = true;
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckSeed);
}
