#include "kernels/gpu/persistent/network.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/network_memory.h"
#include "kernels/param_layout.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// Layers that run at the same time must promise to take less than this share of
// what they take one after the other.
constexpr double kStackGain = 0.8;

KernelRequest RequestOf(const RnnProblem& problem, bool allow_tf32,
                        bool is_backward) {
  const RnnSpec& spec = problem.spec;
  return {spec.rnn_mode,
          problem.dtype,
          allow_tf32,
          is_backward,
          problem.is_training,
          static_cast<int>(spec.num_units),
          static_cast<int>(spec.num_dirs()),
          static_cast<int>(problem.batch_size),
          1};
}

RnnStatus CheckProblem(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  if (problem.dtype == RnnDataType::kFloat64) return Unsupported("float64");
  if (problem.has_recurrent_dropout()) return Unsupported("recurrent dropout");
  if (spec.num_proj > 0) return Unsupported("projections");
  if (spec.resets_before()) {
    return Unsupported("a GRU's reset gate before the product");
  }
  if (spec.cell_clip > 0.0f) return Unsupported("cell clipping");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  // A block has up to seven units more than the layer. It counts four slots of
  // each unit and step, and adds its threads to the count.
  if (problem.max_time > kMax / problem.batch_size ||
      spec.layer_input_size(0) > kMax || spec.num_units > kMax / 64 ||
      problem.max_time > kMax / (8 * (spec.num_units + 7))) {
    return Unsupported("as many steps or units");
  }
  return {};
}

// Loads what networks need, and forbids TF32 where an imitated GPU has none.
RnnStatus LoadLibraries(bool* allow_tf32) {
  DeviceLimits limits;
  CRNN_RETURN_IF_ERROR(ReadLimits(&limits));
  *allow_tf32 = *allow_tf32 && HasTf32(limits.architecture);
  return LoadKernelLibraries();
}

}  // namespace

RnnStatus Network::EstimateCycles(const RnnProblem& problem, bool allow_tf32,
                                  double* cycles, bool* is_stack) {
  const RnnSpec& spec = problem.spec;
  *is_stack = false;
  CRNN_RETURN_IF_ERROR(CheckProblem(problem));
  CRNN_RETURN_IF_ERROR(CheckDevice(problem.dtype));
  KernelRequest forward = RequestOf(problem, allow_tf32, false);
  CRNN_RETURN_IF_ERROR(Kernel::EstimateCycles(forward, cycles));
  // Dropout and a second direction need all steps of the layer below at once,
  // so networks that have either do not run as a stack.
  if (spec.num_layers > 1 && spec.num_layers <= ForwardArguments::kMaxLayers &&
      spec.num_dirs() == 1 && !problem.has_dropout_between_layers()) {
    forward.num_layers = static_cast<int>(spec.num_layers);
    double of_stack = 0.0;
    *is_stack = Kernel::EstimateCycles(forward, &of_stack).ok() &&
                of_stack < kStackGain * forward.num_layers * *cycles;
    if (*is_stack) *cycles = of_stack / forward.num_layers;
  }
  if (!problem.is_training) return {};
  // A forward pass in training is of no use if its backward pass cannot run.
  double backward = 0.0;
  CRNN_RETURN_IF_ERROR(
      Kernel::EstimateCycles(RequestOf(problem, allow_tf32, true), &backward));
  *cycles += backward;
  return {};
}

Network::Network(const RnnProblem& problem, bool allow_tf32)
    : problem_(problem),
      item_(static_cast<int64_t>(SizeOf(problem.dtype))),
      sum_(static_cast<int64_t>(SizeOf(SumType(problem.dtype)))),
      auxiliary_(problem),
      rows_(problem.max_time * problem.batch_size),
      allows_tf32_(allow_tf32) {}

RnnStatus Network::CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 std::unique_ptr<Engine>* network) {
  CRNN_RETURN_IF_ERROR(LoadLibraries(&allow_tf32));
  std::unique_ptr<Network> made(new Network(problem, allow_tf32));
  CRNN_RETURN_IF_ERROR(
      StepLoop::Get(problem, allow_tf32, &made->loop_.emplace()));
  CRNN_RETURN_IF_ERROR(made->auxiliary_.Compile());
  *network = std::move(made);
  return {};
}

RnnStatus Network::Create(const RnnProblem& problem, bool allow_tf32,
                          bool is_backward, bool is_stack,
                          std::unique_ptr<Engine>* network) {
  CRNN_RETURN_IF_ERROR(LoadLibraries(&allow_tf32));
  std::unique_ptr<Network> made(new Network(problem, allow_tf32));
  CRNN_RETURN_IF_ERROR(made->auxiliary_.Compile());
  made->is_stack_ = is_stack && !is_backward;
  KernelRequest request = RequestOf(problem, allow_tf32, is_backward);
  const auto get = [&](int64_t num_layers) {
    request.num_layers = static_cast<int>(num_layers);
    return problem.is_training && !is_backward
               ? Kernel::GetBoth(request, RequestOf(problem, allow_tf32, true),
                                 &made->kernel_)
               : Kernel::Get(request, &made->kernel_);
  };
  RnnStatus status = get(made->is_stack_ ? problem.spec.num_layers : 1);
  // If the device does not grant the clusters of a stack, for example, layers
  // run one after the other.
  if (!status.ok() && std::exchange(made->is_stack_, false)) status = get(1);
  CRNN_RETURN_IF_ERROR(status);
  const int64_t rows = made->kernel_.shape().rows();
  made->shares_ = static_cast<int>(CeilDiv(problem.batch_size, rows));
  *network = std::move(made);
  return {};
}

int Network::AtOnce() const {
  return is_stack_ ? kernel_.shape().Stages(static_cast<int>(spec_.num_layers))
                   : static_cast<int>(spec_.num_dirs());
}

size_t Network::RingBytes() const {
  return loop_ ? 0 : kernel_.ring_bytes(shares_, AtOnce());
}

int Network::BiasRows() const {
  return loop_ ? static_cast<int>(problem_.batch_size)
               : shares_ * kernel_.shape().rows();
}

size_t Network::reserve_size() const {
  return Reserve(*this, nullptr).arena.used();
}

size_t Network::forward_workspace_size() const {
  return ForwardWorkspace(*this, nullptr).arena.used();
}

size_t Network::backward_workspace_size() const {
  return BackwardWorkspace(*this, nullptr).arena.used();
}

Sequences Network::SequencesOf(const int* lengths, const int* order) const {
  const int batch = static_cast<int>(problem_.batch_size);
  const int steps = static_cast<int>(problem_.max_time);
  const int time_stride = problem_.time_major ? batch : 1;
  const int batch_stride = problem_.time_major ? 1 : steps;
  return {lengths, order, batch, steps, time_stride, batch_stride};
}

std::string Network::Key() const {
  std::string key = KeyOf(problem_);
  key.push_back(static_cast<char>(allows_tf32_ | loop_.has_value() << 1));
  // The workspace is large enough for this kernel.
  const void* const kernel = kernel_.id();
  key.append(reinterpret_cast<const char*>(&kernel), sizeof(kernel));
  return key;
}

RnnStatus Network::StoreLengthsAndSeed(const Handles& handles,
                                       const RnnForwardBuffers& buffers) const {
  const CUstream stream = handles.stream;
  const ForwardWorkspace workspace(*this, buffers.workspace);
  const Reserve reserve(*this, buffers.reserve_space);
  if (UsesSeed(problem_)) {
    CRNN_RETURN_IF_ERROR(
        buffers.device_seed == nullptr
            ? auxiliary_.StoreSeed(stream, buffers.seed, reserve.seed)
            : EnqueueCopy(stream, buffers.device_seed, reserve.seed,
                          sizeof(buffers.seed)));
  }
  if (!problem_.has_sequence_lengths) return {};
  const RnnLengths& all = buffers.sequence_lengths;
  if (all.on_device == nullptr) {
    CRNN_RETURN_IF_ERROR(
        auxiliary_.StoreLengths(stream, all.on_host, workspace.given));
  }
  const bool is_training = problem_.is_training;
  return auxiliary_.OrderSequences(
      stream, all.on_device == nullptr ? workspace.given : all.on_device,
      is_training ? reserve.lengths : workspace.lengths,
      is_training ? reserve.order : workspace.order);
}

RnnStatus Network::Forward(const Handles& handles,
                           const RnnForwardBuffers& buffers) const {
  const ParamLayout layout(spec_);
  const bool is_training = problem_.is_training;
  const ForwardWorkspace workspace(*this, buffers.workspace);
  const Reserve reserve(*this, buffers.reserve_space);
  CRNN_RETURN_IF_ERROR(SetUpBlas(handles, workspace.blas, kBlasBytes));
  const int64_t units = spec_.num_units;
  ForwardArguments arguments = {};
  arguments.sequences =
      SequencesOf(is_training ? reserve.lengths : workspace.lengths,
                  is_training ? reserve.order : workspace.order);
  arguments.output_stride = spec_.layer_output_size();
  arguments.state_stride = StateStride();
  const auto set_to_ones = [&](void* steps, int64_t width) {
    return EnqueueFill(handles.stream, steps, 0xFF, rows_ * width * item_);
  };
  const void* input = buffers.input;
  void* output_below = nullptr;
  for (int64_t l = 0; l < spec_.num_layers; ++l) {
    const int64_t input_size = spec_.layer_input_size(l);
    const bool is_last = l + 1 == spec_.num_layers;
    const Reserve::OfLayer& kept = reserve.layers[l];
    void* const output = is_last ? buffers.output
                         : is_training
                             ? kept.output
                             : workspace.outputs[is_stack_ ? l : l % 2];
    for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
      const int64_t pseudo_layer = l * spec_.num_dirs() + d;
      const ParamLayout::PseudoLayer& at = layout.pseudo_layer(pseudo_layer);
      const int64_t place = is_stack_ ? l : d;
      void* const gates = is_training ? kept.gates[d] : workspace.gates[place];
      const void* const input_weights = Param(buffers.params, at.input_weights);
      ForwardDirection& direction = arguments.direction[place];
      if (is_stack_ && l > 0) {
        direction.input_weights = input_weights;
        direction.input = input;
        CRNN_RETURN_IF_ERROR(set_to_ones(output_below, units));
        CRNN_RETURN_IF_ERROR(set_to_ones(gates, slots_ * units));
      } else if (spec_.has_input_weights(l)) {
        CRNN_RETURN_IF_ERROR(
            Multiply(handles.blas, product_type(), rows_,
                     spec_.num_gates() * units, input_size, {input, input_size},
                     {input_weights, input_size, /*is_transposed=*/true},
                     {gates, problem_.dtype, slots_ * units}));
      } else {
        CRNN_RETURN_IF_ERROR(
            auxiliary_.SpreadInputs(handles.stream, input, gates));
      }
      const int64_t state = StateOffset(pseudo_layer, spec_.output_size());
      direction.recurrent_weights = Param(buffers.params, at.recurrent_weights);
      direction.projection = Param(buffers.params, at.projection);
      direction.input_bias = Param(buffers.params, at.input_bias);
      direction.recurrent_bias = Param(buffers.params, at.recurrent_bias);
      direction.gates = gates;
      direction.cells = kept.cells[d];
      direction.previous_h = kept.previous_h[d];
      direction.unprojected = kept.unprojected[d];
      direction.first_h = At(buffers.input_h, state);
      direction.output = At(output, d * spec_.output_size());
      direction.last_h = At(buffers.output_h, state);
      if (spec_.is_lstm()) {
        const int64_t cell_state = StateOffset(pseudo_layer, units);
        direction.first_c = At(buffers.input_c, cell_state);
        direction.last_c = At(buffers.output_c, cell_state);
      }
    }
    if (workspace.step_memory) {
      CRNN_RETURN_IF_ERROR(loop_->Forward(handles, *workspace.step_memory, l,
                                          reserve.seed, arguments));
    } else if (!is_stack_ || is_last) {
      CRNN_RETURN_IF_ERROR(kernel_.Enqueue(handles.stream, shares_, AtOnce(),
                                           workspace.ring, &arguments.part));
    }
    if (problem_.has_dropout_between_layers() && !is_last) {
      CRNN_RETURN_IF_ERROR(auxiliary_.ApplyDropout(
          handles.stream, arguments.sequences, spec_.layer_output_size(), l,
          reserve.seed, output));
    }
    input = output_below = output;
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
