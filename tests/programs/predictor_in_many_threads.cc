// Calls a predictor from many threads at once. Every result must be the same as
// in a single thread, and no more memory may be kept than so many calls use
// at once. Built with ThreadSanitizer, the program shows races in the pool, the
// schedule and the predictor.
//
//   predictor_in_many_threads THREADS CALLS
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_predictor.h"
#include "kernels/param_layout.h"

using namespace cudnn_rnn_tf;

namespace {

constexpr int64_t kMaxTime = 24, kBatch = 2;

struct Network {
  RnnSpec spec;
  std::vector<float> params, input;
};

Network MakeNetwork() {
  Network network;
  network.spec.num_layers = 2;
  network.spec.num_units = 40;
  network.spec.input_size = 5;
  network.spec.direction = Direction::kBidirectional;
  network.params.resize(ParamLayout(network.spec).size());
  network.input.resize(kMaxTime * kBatch * network.spec.input_size);
  for (auto* const numbers : {&network.params, &network.input}) {
    for (size_t i = 0; i < numbers->size(); ++i) {
      (*numbers)[i] = static_cast<float>(i * 37 % 101) / 101.0f - 0.5f;
    }
  }
  return network;
}

std::vector<float> Call(const Network& network, int64_t time,
                        CpuPredictor* predictor) {
  const RnnSpec& spec = network.spec;
  const int64_t states = spec.num_pseudo_layers() * kBatch * spec.output_size();
  const std::vector<float> zeros(states);
  std::vector<float> output(time * kBatch * spec.layer_output_size());
  std::vector<float> h(states), c(states);
  RnnForwardBuffers buffers;
  buffers.input = network.input.data();
  buffers.input_h = buffers.input_c = zeros.data();
  buffers.params = network.params.data();
  buffers.output = output.data();
  buffers.output_h = h.data();
  buffers.output_c = c.data();
  predictor->Forward(time, kBatch, buffers);
  output.insert(output.end(), h.begin(), h.end());
  output.insert(output.end(), c.begin(), c.end());
  return output;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int num_threads = std::atoi(argv[1]), calls = std::atoi(argv[2]);
  const Network network = MakeNetwork();
  CpuPredictor predictor(network.spec, RnnDataType::kFloat32,
                         network.params.data(), {true, false, 2});
  // Calls begin at the same time, so that they collide at the predictor's list
  // of workspaces, but they have different lengths and end at different times.
  std::vector<std::vector<float>> expected;
  for (int thread = 0; thread < num_threads; ++thread) {
    expected.push_back(Call(network, 1 + thread * 5 % kMaxTime, &predictor));
  }
  const size_t before = mallinfo2().uordblks;
  std::atomic<int> wrong{0}, arrived{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int call = 0; call < calls; ++call) {
        ++arrived;
        while (arrived < (call + 1) * num_threads) std::this_thread::yield();
        const int64_t time = 1 + thread * 5 % kMaxTime;
        wrong += Call(network, time, &predictor) != expected[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const size_t after = mallinfo2().uordblks;
  // A workspace of this network takes up to 130 KB.
  const size_t allowed = num_threads * (size_t{160} << 10);
  std::printf("%d calls from %d threads: %d wrong, %zu bytes kept\n",
              num_threads * calls, num_threads, wrong.load(), after - before);
  return wrong == 0 && after <= before + allowed ? 0 : 1;
}
