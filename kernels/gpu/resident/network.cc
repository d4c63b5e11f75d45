// Runs a network in inference with our own kernel and cuBLAS.
#include <algorithm>
#include <memory>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/engine.h"
#include "kernels/gpu/product.h"
#include "kernels/gpu/resident/kernel.h"
#include "kernels/gpu/time_major.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace {

// A product's results take at most this many bytes, which limits the steps of
// one launch of the kernel. Each launch loads the weights anew, which takes as
// long as a few steps.
constexpr int64_t kProjectedBytes = int64_t{32} << 20;
// cuBLAS sums products of few results in parts. Its workspace has room for
// kBlasParts parts, but no more than kMaxBlasBytes and no less than
// kMinBlasBytes, which its documentation calls enough.
constexpr int64_t kBlasParts = 4;
constexpr int64_t kMinBlasBytes = int64_t{16} << 10;
constexpr int64_t kMaxBlasBytes = int64_t{4} << 20;

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

const void* At(const void* base, int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}

RnnStatus CheckSupport(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  if (problem.is_training) return NotResident("training");
  if (problem.has_sequence_lengths) return NotResident("sequence lengths");
  if (spec.num_proj > 0) return NotResident("projections");
  if (!spec.kind().is_in_cudnn()) {
    return NotResident(std::string("rnn_mode ") + spec.kind().name);
  }
  if (spec.input_mode == InputMode::kSkip) return NotResident("skip_input");
  if (spec.cell_clip > 0.0f) return NotResident("cell clipping");
  return {};
}

// The buffers of a pass, in time-major order. Without an address, they are only
// laid out.
struct Pass : TimeMajorBuffers<RnnForwardBuffers> {
  int64_t steps_at_once;
  size_t output_bytes;  // Of a layer.
  size_t blas_bytes;
  void* blas;
  float* projected;
  // The layers write by turns to this and to the network's output, so that the
  // last layer writes to the latter.
  char* outputs = nullptr;

  Pass(const RnnProblem& problem, const RnnForwardBuffers& callers)
      : TimeMajorBuffers(problem, callers) {
    const RnnSpec& spec = problem.spec;
    const int64_t of_step =
        problem.batch_size * spec.num_gates() * spec.num_units;
    steps_at_once = std::clamp(
        kProjectedBytes / (of_step * static_cast<int64_t>(sizeof(float))),
        int64_t{1}, problem.max_time);
    const int64_t num_projected = steps_at_once * of_step;
    blas_bytes = static_cast<size_t>(
        std::clamp(kBlasParts * num_projected * int64_t{sizeof(float)},
                   kMinBlasBytes, kMaxBlasBytes));
    blas = arena.Take<char>(blas_bytes);
    projected = arena.Take<float>(num_projected);
    output_bytes = problem.max_time * problem.batch_size *
                   spec.layer_output_size() * SizeOf(problem.dtype);
    if (spec.num_layers > 1) outputs = arena.Take<char>(output_bytes);
    LayOut(this);
  }
};

class ResidentNetwork : public Engine {
 public:
  ResidentNetwork(const RnnProblem& problem, bool allow_tf32,
                  const ResidentKernel& kernel)
      : problem_(problem), allow_tf32_(allow_tf32), kernel_(kernel) {}
  size_t forward_workspace_size() const override {
    return Pass(problem_, {}).arena.used();
  }
  bool is_replayable() const override { return true; }
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& buffers) const override {
    const RnnSpec& spec = problem_.spec;
    const ParamLayout layout(spec);
    const Pass pass(problem_, buffers);
    CRNN_RETURN_IF_ERROR(pass.before.Enqueue(handles.stream));
    CRNN_RETURN_IF_ERROR(SetUpBlas(handles, pass.blas, pass.blas_bytes));
    const void* inputs = pass.input;
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      const bool to_output = (spec.num_layers - layer) % 2 == 1;
      void* const outputs = to_output ? pass.output : pass.outputs;
      // All bits set marks an output as absent; the kernel's blocks poll for
      // it.
      CRNN_RETURN_IF_ERROR(
          EnqueueFill(handles.stream, outputs, 0xFF, pass.output_bytes));
      for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
        CRNN_RETURN_IF_ERROR(EnqueueLayer(handles, pass, layout,
                                          layer * spec.num_dirs() + dir, inputs,
                                          outputs));
      }
      inputs = outputs;
    }
    return pass.after.Enqueue(handles.stream);
  }
  RnnStatus Backward(const Handles& /*handles*/,
                     const RnnBackwardBuffers& /*buffers*/) const override {
    return NotResident("training");
  }

 private:
  RnnStatus EnqueueLayer(const Handles& handles, const Pass& pass,
                         const ParamLayout& layout, int64_t pseudo_layer,
                         const void* inputs, void* outputs) const {
    const RnnSpec& spec = problem_.spec;
    const int64_t item = static_cast<int64_t>(SizeOf(problem_.dtype));
    const int64_t dir = pseudo_layer % spec.num_dirs();
    const ParamLayout::PseudoLayer& at = layout.pseudo_layer(pseudo_layer);
    const auto parameter = [&](int64_t offset) {
      return offset < 0 ? 0 : Address(At(pass.params, offset * item));
    };
    const auto state = [&](const void* states) {
      const int64_t offset =
          pseudo_layer * problem_.batch_size * spec.num_units * item;
      return states == nullptr ? 0 : Address(At(states, offset));
    };
    ResidentArguments arguments = {};
    arguments.weights = parameter(at.recurrent_weights);
    arguments.input_bias = parameter(at.input_bias);
    arguments.recurrent_bias = parameter(at.recurrent_bias);
    arguments.projected = Address(pass.projected);
    arguments.first_h = state(pass.input_h);
    arguments.first_c = state(pass.input_c);
    arguments.output = Address(At(outputs, dir * spec.num_units * item));
    arguments.last_h = state(pass.output_h);
    arguments.last_c = state(pass.output_c);
    arguments.num_steps = static_cast<int>(problem_.max_time);
    arguments.stride = static_cast<int>(spec.layer_output_size());
    arguments.is_reversed = dir == 1;
    for (const CUdeviceptr address :
         {arguments.weights, arguments.first_h, arguments.output}) {
      if (address % RnnProblem::kAlignment != 0) {
        return {RnnStatus::Code::kUnimplemented,
                "the algorithm resident wants parameters and states that begin "
                "at multiples of 16 bytes; algorithm='standard' takes any"};
      }
    }
    const int64_t input_size =
        spec.layer_input_size(pseudo_layer / spec.num_dirs());
    const int64_t gate_rows = spec.num_gates() * spec.num_units;
    const int64_t at_once = pass.steps_at_once;
    for (int64_t first = 0; first < problem_.max_time; first += at_once) {
      const int64_t steps = std::min(at_once, problem_.max_time - first);
      const int64_t first_time =
          arguments.is_reversed ? problem_.max_time - first - steps : first;
      // Computes [steps * B, G * H].
      CRNN_RETURN_IF_ERROR(Multiply(
          handles.blas, {problem_.dtype, allow_tf32_},
          steps * problem_.batch_size, gate_rows, input_size,
          {At(inputs, first_time * problem_.batch_size * input_size * item),
           input_size},
          {At(pass.params, at.input_weights * item), input_size,
           /*is_transposed=*/true},
          {pass.projected, RnnDataType::kFloat32, gate_rows}));
      arguments.first = static_cast<int>(first);
      arguments.steps = static_cast<int>(steps);
      CRNN_RETURN_IF_ERROR(kernel_.Enqueue(handles.stream, arguments));
    }
    return {};
  }

  const RnnProblem problem_;
  const bool allow_tf32_;
  const ResidentKernel kernel_;
};

}  // namespace

RnnStatus CreateResidentNetwork(const RnnProblem& problem, bool allow_tf32,
                                std::unique_ptr<const Engine>* network) {
  CRNN_RETURN_IF_ERROR(CheckSupport(problem));
  CRNN_RETURN_IF_ERROR(LoadKernelLibraries());
  ResidentKernel kernel;
  CRNN_RETURN_IF_ERROR(
      ResidentKernel::Get({problem.spec.rnn_mode, problem.dtype,
                           problem.spec.num_units, problem.batch_size},
                          &kernel));
  *network = std::make_unique<ResidentNetwork>(problem, allow_tf32, kernel);
  return {};
}

}  // namespace cudnn_rnn_tf
