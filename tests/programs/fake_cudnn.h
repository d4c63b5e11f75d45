// A cuDNN that computes with the package's network of single steps, which other
// tests compare with the reference. It knows what it is told in cuDNN's own
// terms alone, and takes time-major data.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_CUDNN_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_CUDNN_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/gpu/persistent/network.h"
#include "kernels/param_layout.h"
#include "tests/programs/fake_blas.h"

namespace cudnn_rnn_tf {

// The numbers by which its parameters are more than the package's, and by which
// its biases come later.
inline int num_more_params = 0, num_before_biases = 0;
inline int num_descriptors = 0;

struct FakeTensor {};
struct FakeDropout {
  float rate = 0.0f;
  void* states = nullptr;
};
struct FakeData {
  int steps, size;
  std::vector<int> lengths;
};
struct FakeRnn {
  RnnProblem problem;
  bool allow_tf32, takes_padding;
  FakeDropout* dropout;
};

template <typename Fake, typename Descriptor>
cudnnStatus_t MakeFake(Descriptor* descriptor) {
  ++num_descriptors;
  *descriptor = reinterpret_cast<Descriptor>(new Fake());
  return CUDNN_STATUS_SUCCESS;
}
template <typename Fake, typename Descriptor>
cudnnStatus_t DropFake(Descriptor descriptor) {
  --num_descriptors;
  delete reinterpret_cast<Fake*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
template <typename Fake, typename Descriptor>
Fake& Of(Descriptor descriptor) {
  return *reinterpret_cast<Fake*>(descriptor);
}
template <typename Number, size_t kCount>
int IndexOf(const Number (&numbers)[kCount], Number number) {
  const auto* const found = std::find(numbers, numbers + kCount, number);
  Check(found < numbers + kCount, "one of cuDNN's numbers");
  return static_cast<int>(found - numbers);
}

// One pass, and the network that runs it.
struct FakePass {
  RnnProblem problem;
  std::unique_ptr<const Engine> network;
  const std::vector<int>& lengths;

  FakePass(const FakeRnn& rnn, const FakeData& data, bool is_training)
      : problem(rnn.problem), lengths(data.lengths) {
    problem.max_time = data.steps;
    problem.batch_size = static_cast<int64_t>(lengths.size());
    problem.has_sequence_lengths = true;
    problem.is_training = is_training;
    problem.spec.dropout = rnn.dropout->rate;
    Check(data.size == problem.spec.input_size, "the size of the input");
    Check(rnn.takes_padding || std::count(lengths.begin(), lengths.end(),
                                          data.steps) == problem.batch_size,
          "padding that cuDNN was not told of");
    Check(persistent::Network::CreateOfSteps(problem, rnn.allow_tf32, &network)
              .ok(),
          "the fake's network");
  }
  size_t item() const { return SizeOf(problem.dtype); }
  int64_t num_params() const { return ParamLayout(problem.spec).size(); }
  // Fills in what both passes have.
  template <typename Buffers>
  void Fill(const void* input, const void* h, const void* c,
            const void* weights, void* reserve, void* workspace,
            Buffers* buffers) const {
    CheckEnqueuesAlone(/*stream=*/nullptr);
    buffers->input = input;
    buffers->input_h = h;
    buffers->input_c = c;
    buffers->params = weights;
    buffers->sequence_lengths.on_host = lengths.data();
    buffers->reserve_space = reserve;
    buffers->workspace = workspace;
  }
  // cuDNN makes the last states of sequences without steps zero.
  void ClearEmpty(int64_t size, void* states) const {
    if (states == nullptr) return;
    const int64_t rows = problem.spec.num_pseudo_layers() * problem.batch_size;
    for (int64_t i = 0; i < rows; ++i) {
      if (lengths[i % problem.batch_size] > 0) continue;
      std::memset(static_cast<char*>(states) + i * size * item(), 0,
                  size * item());
    }
  }
};

// What the forward pass read and wrote, which a backward pass must be given
// again, and the gradient of parameters, which one of its calls leaves for the
// other.
inline std::vector<char> forward_input, forward_h, forward_output;
inline std::vector<char> params_backprop;

inline void Keep(const void* array, int64_t bytes, std::vector<char>* kept) {
  const char* const begin = static_cast<const char*>(array);
  kept->assign(begin, begin + bytes);
}
inline void CheckKept(const void* array, const std::vector<char>& kept) {
  Check(std::memcmp(array, kept.data(), kept.size()) == 0,
        "an array of the forward pass");
}

inline cudnnStatus_t FakeForward(
    cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
    const int32_t*, cudnnRNNDataDescriptor_t data, const void* x,
    cudnnRNNDataDescriptor_t, void* y, cudnnTensorDescriptor_t, const void* hx,
    void* hy, cudnnTensorDescriptor_t, const void* cx, void* cy, size_t,
    const void* weights, size_t, void* workspace, size_t, void* reserve) {
  const FakeRnn& told = Of<FakeRnn>(rnn);
  const bool is_training = mode == CUDNN_FWD_MODE_TRAINING;
  const FakePass pass(told, Of<FakeData>(data), is_training);
  RnnForwardBuffers buffers;
  pass.Fill(x, hx, cx, weights, reserve, workspace, &buffers);
  buffers.output = y;
  buffers.output_h = hy;
  buffers.output_c = cy;
  if (told.dropout->rate > 0.0f) {
    std::memcpy(buffers.seed, told.dropout->states, sizeof(buffers.seed[0]));
  }
  Check(pass.network->StoreLengthsAndSeed({}, buffers).ok(), "the fake's seed");
  Check(pass.network->Forward({}, buffers).ok(), "the fake's forward pass");
  pass.ClearEmpty(pass.problem.spec.output_size(), hy);
  pass.ClearEmpty(pass.problem.spec.num_units, cy);
  told.dropout->states = nullptr;  // Each pass attaches them.
  const int64_t steps = pass.problem.max_time * pass.problem.batch_size;
  const RnnSpec& spec = pass.problem.spec;
  const int64_t item = static_cast<int64_t>(pass.item());
  Keep(x, steps * spec.input_size * item, &forward_input);
  Keep(y, steps * spec.layer_output_size() * item, &forward_output);
  Keep(hx,
       spec.num_pseudo_layers() * pass.problem.batch_size * spec.output_size() *
           item,
       &forward_h);
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t FakeBackwardData(
    cudnnHandle_t, cudnnRNNDescriptor_t rnn, const int32_t*,
    cudnnRNNDataDescriptor_t, const void* y, const void* dy,
    cudnnRNNDataDescriptor_t data, void* dx, cudnnTensorDescriptor_t,
    const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t,
    const void* cx, const void* dcy, void* dcx, size_t, const void* weights,
    size_t, void* workspace, size_t, void* reserve) {
  const FakeRnn& told = Of<FakeRnn>(rnn);
  const FakePass pass(told, Of<FakeData>(data), true);
  RnnBackwardBuffers buffers;
  CheckKept(y, forward_output);
  CheckKept(hx, forward_h);
  Check(told.dropout->rate == 0.0f || told.dropout->states != nullptr,
        "states of dropout");
  pass.Fill(forward_input.data(), hx, cx, weights, reserve, workspace,
            &buffers);
  params_backprop.assign(pass.num_params() * pass.item(), 0);
  buffers.output = y;
  buffers.output_backprop = dy;
  buffers.output_h_backprop = dhy;
  buffers.output_c_backprop = dcy;
  buffers.input_backprop = dx;
  buffers.input_h_backprop = dhx;
  buffers.input_c_backprop = dcx;
  buffers.params_backprop = params_backprop.data();
  Check(pass.network->Backward({}, buffers).ok(), "the fake's backward pass");
  pass.ClearEmpty(pass.problem.spec.output_size(), dhx);
  pass.ClearEmpty(pass.problem.spec.num_units, dcx);
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t FakeBackwardWeights(
    cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode,
    const int32_t*, cudnnRNNDataDescriptor_t data, const void* x,
    cudnnTensorDescriptor_t, const void* hx, cudnnRNNDataDescriptor_t,
    const void* y, size_t, void* dw, size_t bytes, void* workspace, size_t,
    void*) {
  const FakePass pass(Of<FakeRnn>(rnn), Of<FakeData>(data), true);
  Check(mode == CUDNN_WGRAD_MODE_ADD, "gradients are added");
  CheckKept(x, forward_input);
  CheckKept(hx, forward_h);
  CheckKept(y, forward_output);
  std::memset(workspace, 0xEE, bytes);
  const cudaDataType_t type = TypeOf(pass.problem.dtype).cuda;
  for (int64_t i = 0; i < pass.num_params(); ++i) {
    Store(Load(dw, type, i) + Load(params_backprop.data(), type, i), dw, type,
          i);
  }
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t FakeDescribe(
    cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t, cudnnRNNMode_t mode,
    cudnnRNNBiasMode_t bias_mode, cudnnDirectionMode_t direction,
    cudnnRNNInputMode_t input_mode, cudnnDataType_t dtype, cudnnDataType_t,
    cudnnMathType_t math, int32_t input_size, int32_t num_units,
    int32_t output_size, int32_t num_layers, cudnnDropoutDescriptor_t dropout,
    uint32_t flags) {
  FakeRnn& rnn = Of<FakeRnn>(descriptor);
  RnnSpec& spec = rnn.problem.spec;
  spec.rnn_mode = static_cast<RnnMode>(
      IndexOf({CUDNN_LSTM, CUDNN_GRU, CUDNN_RNN_TANH, CUDNN_RNN_RELU}, mode));
  spec.bias_mode = static_cast<BiasMode>(
      IndexOf({CUDNN_RNN_NO_BIAS, CUDNN_RNN_SINGLE_INP_BIAS,
               CUDNN_RNN_SINGLE_REC_BIAS, CUDNN_RNN_DOUBLE_BIAS},
              bias_mode));
  spec.direction = static_cast<Direction>(
      IndexOf({CUDNN_UNIDIRECTIONAL, CUDNN_BIDIRECTIONAL}, direction));
  spec.input_mode = static_cast<InputMode>(
      IndexOf({CUDNN_LINEAR_INPUT, CUDNN_SKIP_INPUT}, input_mode));
  rnn.problem.dtype =
      static_cast<RnnDataType>(IndexOf({CUDNN_DATA_DOUBLE, CUDNN_DATA_FLOAT,
                                        CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16},
                                       dtype));
  spec.input_size = input_size;
  spec.num_units = num_units;
  spec.num_proj = output_size == num_units ? 0 : output_size;
  spec.num_layers = num_layers;
  rnn.dropout = &Of<FakeDropout>(dropout);
  rnn.allow_tf32 = math != CUDNN_FMA_MATH;
  rnn.takes_padding = flags == CUDNN_RNN_PADDED_IO_ENABLED;
  return CUDNN_STATUS_SUCCESS;
}

inline void FakeCudnn(CudnnLibrary* cudnn) {
  cudnn->cudnnCreateTensorDescriptor = MakeFake<FakeTensor>;
  cudnn->cudnnDestroyTensorDescriptor = DropFake<FakeTensor>;
  cudnn->cudnnCreateDropoutDescriptor = MakeFake<FakeDropout>;
  cudnn->cudnnDestroyDropoutDescriptor = DropFake<FakeDropout>;
  cudnn->cudnnCreateRNNDescriptor = MakeFake<FakeRnn>;
  cudnn->cudnnDestroyRNNDescriptor = DropFake<FakeRnn>;
  cudnn->cudnnCreateRNNDataDescriptor = MakeFake<FakeData>;
  cudnn->cudnnDestroyRNNDataDescriptor = DropFake<FakeData>;
  cudnn->cudnnSetRNNDescriptor_v8 = FakeDescribe;
  cudnn->cudnnRNNSetClip_v9 = [](cudnnRNNDescriptor_t rnn, cudnnRNNClipMode_t,
                                 double low, double high) {
    Check(low == -high, "the bounds of c");
    Of<FakeRnn>(rnn).problem.spec.cell_clip = static_cast<float>(high);
    return CUDNN_STATUS_SUCCESS;
  };
  Succeed(&cudnn->cudnnSetTensorNdDescriptor);
  cudnn->cudnnDropoutGetStatesSize = [](cudnnHandle_t, size_t* bytes) {
    *bytes = 1000;
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn->cudnnSetDropoutDescriptor = [](cudnnDropoutDescriptor_t dropout,
                                        cudnnHandle_t, float rate, void* states,
                                        size_t bytes, unsigned long long seed) {
    if (states != nullptr) {
      std::memset(states, 0, bytes);
      std::memcpy(states, &seed, sizeof(seed));
    }
    Of<FakeDropout>(dropout) = {rate, states};
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn->cudnnRestoreDropoutDescriptor =
      [](cudnnDropoutDescriptor_t dropout, cudnnHandle_t, float rate,
         void* states, size_t, unsigned long long) {
        Of<FakeDropout>(dropout) = {rate, states};
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn->cudnnSetRNNDataDescriptor =
      [](cudnnRNNDataDescriptor_t data, cudnnDataType_t,
         cudnnRNNDataLayout_t layout, int steps, int batch, int size,
         const int* lengths, void*) {
        Check(layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
              "the layout of data");
        Of<FakeData>(data) = {steps, size, {lengths, lengths + batch}};
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn->cudnnGetRNNTempSpaceSizes = [](cudnnHandle_t, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t data,
                                        size_t* workspace, size_t* reserve) {
    const bool is_training = mode == CUDNN_FWD_MODE_TRAINING;
    const FakePass pass(Of<FakeRnn>(rnn), Of<FakeData>(data), is_training);
    const RnnBufferSizes sizes = pass.network->sizes();
    *workspace = std::max(sizes.forward_workspace, sizes.backward_workspace);
    *reserve = sizes.reserve_space;
    return CUDNN_STATUS_SUCCESS;
  };
  cudnn->cudnnGetRNNWeightSpaceSize =
      [](cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* bytes) {
        const RnnProblem& problem = Of<FakeRnn>(rnn).problem;
        *bytes = (ParamLayout(problem.spec).size() + num_more_params) *
                 SizeOf(problem.dtype);
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn->cudnnGetRNNWeightParams =
      [](cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t pseudo_layer, size_t,
         const void* base, int32_t id, cudnnTensorDescriptor_t,
         void** matrix_address, cudnnTensorDescriptor_t, void** bias_address) {
        const RnnProblem& problem = Of<FakeRnn>(rnn).problem;
        const ParamLayout layout(problem.spec);
        for (const ParamBlock& block : layout.tensors()) {
          if (block.layer * problem.spec.num_dirs() + block.dir !=
                  pseudo_layer ||
              block.linear_layer_id != id) {
            continue;
          }
          const int64_t offset =
              block.offset + (block.is_bias ? num_before_biases : 0);
          *(block.is_bias ? bias_address : matrix_address) =
              static_cast<char*>(const_cast<void*>(base)) +
              offset * SizeOf(problem.dtype);
        }
        return CUDNN_STATUS_SUCCESS;
      };
  cudnn->cudnnGetVersion = []() -> size_t { return 91900; };
  cudnn->cudnnRNNForward = FakeForward;
  cudnn->cudnnRNNBackwardData_v8 = FakeBackwardData;
  cudnn->cudnnRNNBackwardWeights_v8 = FakeBackwardWeights;
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_CUDNN_H_
