// cuDNN called from C++ as its documentation shows, for comparison: each of its
// algorithms, enqueued call by call and captured once into a CUDA graph.
//
// Reads rows "id mode layers units batch time directions dtype tf32 training"
// and writes a line of JSON for each algorithm and way that runs.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr double kSampleSeconds = 0.05;
constexpr int kSamples = 5;
// Short steps are sampled more often, since the CPU's other work disturbs them.
constexpr double kShortStepSeconds = 1e-4;
constexpr int kSamplesOfShortSteps = 25;
// Slower than the best by this factor at first sight: not measured further.
constexpr double kHopeless = 2.0;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

bool Ok(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS; }

void Check(cudnnStatus_t status) {
  if (Ok(status)) return;
  std::fprintf(stderr, "%s\n", cudnnGetErrorString(status));
  std::exit(1);
}

struct Row {
  int id, layers, units, batch, time, directions, tf32, training;
  std::string mode, dtype;
};

// Device memory, random where `scale` is not 0.
class Buffer {
 public:
  Buffer(size_t count, cudnnDataType_t type, float scale, int seed) {
    const size_t item = type == CUDNN_DATA_FLOAT ? 4 : 2;
    Check(cudaMalloc(&data_, std::max<size_t>(count * item, 1)));
    std::vector<uint32_t> words((count * item + 3) / 4);
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    auto bits = [&] {
      const float value = uniform(generator);
      uint32_t word;
      std::memcpy(&word, &value, sizeof(word));
      if (type == CUDNN_DATA_FLOAT) return word;
      if (type == CUDNN_DATA_BFLOAT16) return word >> 16;
      const uint32_t exponent = word >> 23 & 0xFF;
      if (exponent <= 112) return 0u;  // Too small for a normal number.
      return (word >> 16 & 0x8000) | (exponent - 112) << 10 |
             (word >> 13 & 0x3FF);
    };
    for (uint32_t& word : words) {
      if (scale == 0) break;
      word = bits();
      if (item == 2) word = (word & 0xFFFF) | bits() << 16;
    }
    Check(
        cudaMemcpy(data_, words.data(), count * item, cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double TimeOf(const std::function<void()>& step, int count) {
  Check(cudaDeviceSynchronize());
  const double begin = Seconds();
  for (int i = 0; i < count; ++i) step();
  Check(cudaDeviceSynchronize());
  return (Seconds() - begin) / count;
}

void Report(const Row& row, const char* algorithm, const char* way,
            const std::function<void()>& step, double* best) {
  TimeOf(step, 2);
  const double estimate = TimeOf(step, 3);
  if (estimate > kHopeless * *best) return;
  *best = std::min(*best, estimate);
  const int count =
      std::max(1, std::min(1000, static_cast<int>(kSampleSeconds / estimate)));
  const int samples =
      estimate < kShortStepSeconds ? kSamplesOfShortSteps : kSamples;
  std::printf("{\"id\": %d, \"algorithm\": \"%s\", \"way\": \"%s\", \"ms\": [",
              row.id, algorithm, way);
  for (int i = 0; i < samples; ++i) {
    std::printf("%s%.6f", i > 0 ? ", " : "", 1e3 * TimeOf(step, count));
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

void Measure(cudnnHandle_t handle, cudaStream_t stream, const Row& row,
             cudnnRNNAlgo_t algorithm, const char* name, double* best) {
  const cudnnDataType_t type = row.dtype == "float32"   ? CUDNN_DATA_FLOAT
                               : row.dtype == "float16" ? CUDNN_DATA_HALF
                                                        : CUDNN_DATA_BFLOAT16;
  const cudnnMathType_t math = type != CUDNN_DATA_FLOAT ? CUDNN_TENSOR_OP_MATH
                               : row.tf32               ? CUDNN_DEFAULT_MATH
                                                        : CUDNN_FMA_MATH;
  const bool lstm = row.mode == "lstm";
  cudnnDropoutDescriptor_t dropout;
  cudnnRNNDescriptor_t rnn;
  cudnnRNNDataDescriptor_t x_descriptor, y_descriptor;
  cudnnTensorDescriptor_t h_descriptor;
  Check(cudnnCreateDropoutDescriptor(&dropout));
  Check(cudnnSetDropoutDescriptor(dropout, handle, 0, nullptr, 0, 0));
  Check(cudnnCreateRNNDescriptor(&rnn));
  Check(cudnnSetRNNDescriptor_v8(
      rnn, algorithm, lstm ? CUDNN_LSTM : CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS,
      row.directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
      CUDNN_LINEAR_INPUT, type, CUDNN_DATA_FLOAT, math, row.units, row.units,
      row.units, row.layers, dropout, CUDNN_RNN_PADDED_IO_DISABLED));
  std::vector<int> lengths(row.batch, row.time);
  double padding = 0;
  Check(cudnnCreateRNNDataDescriptor(&x_descriptor));
  Check(cudnnCreateRNNDataDescriptor(&y_descriptor));
  Check(cudnnSetRNNDataDescriptor(
      x_descriptor, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, row.time,
      row.batch, row.units, lengths.data(), &padding));
  Check(cudnnSetRNNDataDescriptor(
      y_descriptor, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, row.time,
      row.batch, row.units * row.directions, lengths.data(), &padding));
  const int dims[] = {row.layers * row.directions, row.batch, row.units};
  const int strides[] = {row.batch * row.units, row.units, 1};
  Check(cudnnCreateTensorDescriptor(&h_descriptor));
  Check(cudnnSetTensorNdDescriptor(h_descriptor, type, 3, dims, strides));
  const cudnnForwardMode_t mode =
      row.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
  size_t workspace_bytes, reserve_bytes, weight_bytes;
  auto destroy = [&] {
    cudnnDestroyTensorDescriptor(h_descriptor);
    cudnnDestroyRNNDataDescriptor(y_descriptor);
    cudnnDestroyRNNDataDescriptor(x_descriptor);
    cudnnDestroyRNNDescriptor(rnn);
    cudnnDestroyDropoutDescriptor(dropout);
  };
  // cuDNN has not every algorithm for every network.
  if (!Ok(cudnnGetRNNTempSpaceSizes(handle, rnn, mode, x_descriptor,
                                    &workspace_bytes, &reserve_bytes))) {
    destroy();
    return;
  }
  Check(cudnnGetRNNWeightSpaceSize(handle, rnn, &weight_bytes));
  const size_t item = type == CUDNN_DATA_FLOAT ? 4 : 2;
  const size_t steps = static_cast<size_t>(row.time) * row.batch * row.units;
  const size_t states = static_cast<size_t>(dims[0]) * row.batch * row.units;
  const Buffer x(steps, type, 1, 1), dx(steps, type, 0, 0),
      y(steps * row.directions, type, 0, 0),
      dy(steps * row.directions, type, 0.1f, 2), hx(states, type, 0.5f, 3),
      cx(states, type, 0.5f, 4), hy(states, type, 0, 0), cy(states, type, 0, 0),
      dhy(states, type, 0.1f, 5), dcy(states, type, 0.1f, 6),
      dhx(states, type, 0, 0), dcx(states, type, 0, 0),
      weights(weight_bytes / item, type,
              1 / std::sqrt(static_cast<float>(row.units)), 7),
      dweights(weight_bytes / item, type, 0, 0),
      workspace(workspace_bytes / item + 1, type, 0, 0),
      reserve(reserve_bytes / item + 1, type, 0, 0);
  auto step = [&] {
    if (!Ok(cudnnRNNForward(handle, rnn, mode, nullptr, x_descriptor, x.get(),
                            y_descriptor, y.get(), h_descriptor, hx.get(),
                            hy.get(), h_descriptor, lstm ? cx.get() : nullptr,
                            lstm ? cy.get() : nullptr, weight_bytes,
                            weights.get(), workspace_bytes, workspace.get(),
                            reserve_bytes, reserve.get()))) {
      return false;
    }
    if (!row.training) return true;
    return Ok(cudnnRNNBackwardData_v8(
               handle, rnn, nullptr, y_descriptor, y.get(), dy.get(),
               x_descriptor, dx.get(), h_descriptor, hx.get(), dhy.get(),
               dhx.get(), h_descriptor, lstm ? cx.get() : nullptr,
               lstm ? dcy.get() : nullptr, lstm ? dcx.get() : nullptr,
               weight_bytes, weights.get(), workspace_bytes, workspace.get(),
               reserve_bytes, reserve.get())) &&
           cudaMemsetAsync(dweights.get(), 0, weight_bytes, stream) ==
               cudaSuccess &&
           Ok(cudnnRNNBackwardWeights_v8(
               handle, rnn, CUDNN_WGRAD_MODE_ADD, nullptr, x_descriptor,
               x.get(), h_descriptor, hx.get(), y_descriptor, y.get(),
               weight_bytes, dweights.get(), workspace_bytes, workspace.get(),
               reserve_bytes, reserve.get()));
  };
  if (step()) {
    // The graph first, so that the bound for the hopeless is known early.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Check(cudaDeviceSynchronize());
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const bool captured = step();
    const bool ended = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
    if (captured && ended) {
      Check(cudaGraphInstantiate(&exec, graph, 0));
      Report(
          row, name, "graph", [&] { Check(cudaGraphLaunch(exec, stream)); },
          best);
      cudaGraphExecDestroy(exec);
    }
    if (ended) cudaGraphDestroy(graph);
    double none = 1e9;
    Report(row, name, "eager", [&] { step(); }, &none);
  }
  Check(cudaDeviceSynchronize());
  destroy();
}

}  // namespace

int main() {
  cudaStream_t stream;
  cudnnHandle_t handle;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Check(cudnnCreate(&handle));
  Check(cudnnSetStream(handle, stream));
  Row row;
  while (std::cin >> row.id >> row.mode >> row.layers >> row.units >>
         row.batch >> row.time >> row.directions >> row.dtype >> row.tf32 >>
         row.training) {
    double best = 1e9;
    Measure(handle, stream, row, CUDNN_RNN_ALGO_STANDARD, "standard", &best);
    // In float32 the persistent kernels' functions are exact to about 1e-5.
    if (row.dtype == "float32" && !row.tf32) continue;
    // In bfloat16 they are the standard algorithm.
    if (row.dtype == "bfloat16") continue;
    Measure(handle, stream, row, CUDNN_RNN_ALGO_PERSIST_STATIC,
            "persist_static", &best);
    Measure(handle, stream, row, CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H,
            "persist_static_small_h", &best);
  }
  return 0;
}
