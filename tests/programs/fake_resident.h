// Takes the place of resident/kernel.cc: does on the host what its header says
// that the kernel does.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_RESIDENT_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_RESIDENT_H_

#include <cmath>
#include <vector>

#include "kernels/gpu/resident/kernel.h"
#include "tests/programs/fake_blas.h"

namespace cudnn_rnn_tf {

inline ResidentRequest resident_request;

RnnStatus ResidentKernel::Get(const ResidentRequest& request, ResidentKernel*) {
  resident_request = request;
  return {};
}

RnnStatus ResidentKernel::Enqueue(CUstream, const ResidentArguments& a) const {
  const auto& [mode, dtype, units, batch] = resident_request;
  const cudaDataType_t type = CudaType(dtype);
  const int64_t gates = KindOf(mode).num_gates;
  const auto load = [&](CUdeviceptr array, int64_t at) {
    return array == 0 ? 0.0 : Load(reinterpret_cast<void*>(array), type, at);
  };
  const auto store = [&](double value, CUdeviceptr array, int64_t at) {
    Store(value, reinterpret_cast<void*>(array), type, at);
    return load(array, at);
  };
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const auto output_at = [&](int64_t step, int64_t i) {
    const int64_t time = a.is_reversed ? a.num_steps - 1 - step : step;
    return (time * batch + i / units) * a.stride + i % units;
  };
  Check((a.weights | a.first_h | a.output) % 16 == 0, "alignment");
  std::vector<double> h(batch * units), c(batch * units);
  for (int64_t i = 0; i < batch * units; ++i) {
    // Blocks wait for outputs that are absent, so exactly those of the steps to
    // come must be.
    for (int64_t step = 0; step < a.num_steps; ++step) {
      Check(std::isnan(load(a.output, output_at(step, i))) == (step >= a.first),
            "the outputs of another step");
    }
    h[i] = a.first == 0 ? load(a.first_h, i)
                        : load(a.output, output_at(a.first - 1, i));
    c[i] = load(a.first == 0 ? a.first_c : a.last_c, i);
  }
  const auto* const projected = reinterpret_cast<const float*>(a.projected);
  for (int64_t s = 0; s < a.steps; ++s) {
    const int64_t time = a.is_reversed ? a.steps - 1 - s : s;
    const std::vector<double> before = h;
    for (int64_t i = 0; i < batch * units; ++i) {
      const int64_t b = i / units, unit = i % units;
      double input[4], recurrent[4], sum[4];
      for (int64_t gate = 0; gate < gates; ++gate) {
        const int64_t row = gate * units + unit;
        input[gate] = projected[(time * batch + b) * gates * units + row] +
                      load(a.input_bias, row);
        recurrent[gate] = load(a.recurrent_bias, row);
        for (int64_t k = 0; k < units; ++k) {
          recurrent[gate] +=
              load(a.weights, row * units + k) * before[b * units + k];
        }
        sum[gate] = input[gate] + recurrent[gate];
      }
      double next =
          mode == RnnMode::kRnnTanh ? std::tanh(sum[0]) : std::max(sum[0], 0.0);
      if (mode == RnnMode::kLstm) {
        c[i] = sigmoid(sum[1]) * c[i] + sigmoid(sum[0]) * std::tanh(sum[2]);
        next = sigmoid(sum[3]) * std::tanh(c[i]);
      } else if (mode == RnnMode::kGru) {
        const double update = sigmoid(sum[1]);
        const double candidate =
            std::tanh(input[2] + sigmoid(sum[0]) * recurrent[2]);
        next = (1.0 - update) * candidate + update * before[i];
      }
      h[i] = store(next, a.output, output_at(a.first + s, i));
    }
  }
  for (int64_t i = 0; i < batch * units; ++i) {
    store(h[i], a.last_h, i);
    if (mode == RnnMode::kLstm) store(c[i], a.last_c, i);
  }
  return {};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_RESIDENT_H_
