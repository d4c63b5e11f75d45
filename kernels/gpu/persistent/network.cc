#include "kernels/gpu/persistent/network.h"

#include <algorithm>
#include <future>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/network_memory.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// Layers that run at the same time must promise to take less than this share of
// what they take one after the other.
constexpr double kStackGain = 0.8;

RnnStatus CheckProblem(const RnnProblem& problem) {
  const RnnSpec& spec = problem.spec;
  if (problem.dtype == RnnDataType::kFloat64) return Unsupported("float64");
  if (problem.has_recurrent_dropout()) return Unsupported("recurrent dropout");
  if (spec.resets_before()) {
    return Unsupported("a GRU's reset gate before the product");
  }
  if (spec.cell_clip > 0.0f) return Unsupported("cell clipping");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  // A block has up to seven units more than the layer. It counts four slots of
  // each unit and step, in strides for which half of the range is left. Zoneout
  // draws up to three steps ahead.
  if (problem.max_time > kMax / problem.batch_size - 3 ||
      spec.layer_input_size(0) > kMax || spec.num_units > kMax / 64 ||
      problem.max_time > kMax / (8 * (spec.num_units + 7))) {
    return Unsupported("as many steps or units");
  }
  return {};
}

// Estimates the cycles that the products around the steps take for a step of a
// layer with projections, as CyclesOfCudnn does for its own.
double CyclesOfProjections(const RnnProblem& problem, bool allow_tf32,
                           const DeviceLimits& limits) {
  const double of_products = problem.dtype != RnnDataType::kFloat32 ? 6e-6
                             : allow_tf32                           ? 12e-6
                                                                    : 70e-6;
  const RnnSpec& spec = problem.spec;
  const auto weights =
      static_cast<double>(spec.num_dirs() * spec.num_units * spec.num_proj);
  const auto gates = static_cast<double>(spec.num_gates());
  // A pass folds the projections once.
  const double folds =
      static_cast<double>(spec.num_gates() * spec.num_units) /
      static_cast<double>(std::max<int64_t>(problem.max_time, 1));
  const double batch = static_cast<double>(problem.batch_size);
  const double rows =
      problem.is_training ? (2.0 + gates) * batch + 2.0 * folds : batch + folds;
  return of_products * weights * rows * 132.0 / limits.multiprocessors;
}

// Returns what a step of a layer takes, of all that is estimated.
double CyclesOf(const RnnProblem& problem, const Estimate& all) {
  const auto of = [&](const Division& division) {
    return division.cycles +
           division.load_cycles / static_cast<double>(problem.max_time);
  };
  return (all.is_stack
              ? of(all.stack) / static_cast<double>(problem.spec.num_layers)
              : of(all.forward)) +
         of(all.backward) + all.of_projections;
}

}  // namespace

Estimate Network::EstimateCycles(const RnnProblem& problem, bool allow_tf32,
                                 const DeviceLimits& limits) {
  const RnnSpec& spec = problem.spec;
  Estimate all;
  const auto divide = [&](const KernelRequest& request, Division* division) {
    return Kernel::Divide(request, limits, division);
  };
  all.status = [&]() -> RnnStatus {
    CRNN_RETURN_IF_ERROR(CheckProblem(problem));
    CRNN_RETURN_IF_ERROR(CheckDevice(problem.dtype, limits));
    KernelRequest forward = {problem, allow_tf32, /*is_backward=*/false};
    CRNN_RETURN_IF_ERROR(divide(forward, &all.forward));
    // Dropout, a second direction and projections need all steps of the layer
    // below at once, so networks that have any of them do not run as a stack.
    if (spec.num_layers > 1 &&
        spec.num_layers <= ForwardArguments::kMaxLayers &&
        spec.num_dirs() == 1 && spec.num_proj == 0 &&
        !problem.has_dropout_between_layers()) {
      forward.num_layers = static_cast<int>(spec.num_layers);
      all.is_stack = divide(forward, &all.stack).ok() &&
                     all.stack.cycles <
                         kStackGain * forward.num_layers * all.forward.cycles;
    }
    all.of_projections = CyclesOfProjections(problem, allow_tf32, limits);
    if (!problem.is_training) return {};
    // A forward pass in training is of no use if its backward pass cannot run.
    return divide({problem, allow_tf32, /*is_backward=*/true}, &all.backward);
  }();
  all.cycles = CyclesOf(problem, all);
  return all;
}

Network::Network(const RnnProblem& problem, bool allow_tf32,
                 const LeastSizes& least)
    : problem_(problem),
      item_(static_cast<int64_t>(SizeOf(problem.dtype))),
      sum_(static_cast<int64_t>(SizeOf(SumType(problem.dtype)))),
      auxiliary_(problem_, least),
      rows_(problem.max_time * problem.batch_size),
      products_(problem_, allow_tf32, auxiliary_) {}

RnnStatus Network::Compile() {
  CRNN_RETURN_IF_ERROR(auxiliary_.Compile());
  return products_.Compile();
}

RnnStatus Network::CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 std::unique_ptr<const Engine>* network,
                                 const LeastSizes& least) {
  CRNN_RETURN_IF_ERROR(LoadKernelLibraries());
  std::unique_ptr<Network> made(new Network(problem, allow_tf32, least));
  CRNN_RETURN_IF_ERROR(
      StepLoop::Get(problem, allow_tf32, &made->loop_.emplace()));
  CRNN_RETURN_IF_ERROR(made->Compile());
  *network = std::move(made);
  return {};
}

RnnStatus Network::Create(const RnnProblem& problem, bool allow_tf32,
                          const DeviceLimits& limits, Estimate* estimate,
                          std::unique_ptr<const Engine>* network,
                          const LeastSizes& least) {
  CRNN_RETURN_IF_ERROR(LoadKernelLibraries());
  std::unique_ptr<Network> made(new Network(problem, allow_tf32, least));
  CRNN_RETURN_IF_ERROR(made->Compile());
  const auto get_forward = [&](int64_t num_layers, Division* division) {
    return Kernel::Get({problem, allow_tf32, /*is_backward=*/false,
                        static_cast<int>(num_layers)},
                       limits, division, &made->forward_);
  };
  const auto get_backward = [&] {
    return Kernel::Get({problem, allow_tf32, /*is_backward=*/true}, limits,
                       &estimate->backward, &made->backward_);
  };
  // The kernels of both passes are compiled at the same time.
  std::future<RnnStatus> of_backward;
  if (problem.is_training) {
    CUcontext context;
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuCtxGetCurrent(&context), "name the context"));
    try {
      of_backward = std::async(std::launch::async, [&, context]() -> RnnStatus {
        const RelaxedCaptureMode relaxed_capture;
        CRNN_RETURN_IF_ERROR(CudaStatus(Gpu().cuda.cuCtxSetCurrent(context),
                                        "enter the context"));
        return get_backward();
      });
    } catch (const std::system_error&) {
      // The system has no more threads, so the kernels are compiled in turn.
    }
  }
  RnnStatus status = estimate->is_stack ? get_forward(problem.spec.num_layers,
                                                      &estimate->stack)
                                        : get_forward(1, &estimate->forward);
  // If the device does not grant the clusters of a stack, for example, layers
  // run one after the other.
  if (!status.ok() && std::exchange(estimate->is_stack, false)) {
    status = get_forward(1, &estimate->forward);
  }
  if (problem.is_training) {
    const RnnStatus other =
        of_backward.valid() ? of_backward.get() : get_backward();
    if (status.ok()) status = other;
  }
  CRNN_RETURN_IF_ERROR(status);
  made->is_stack_ = estimate->is_stack;
  estimate->cycles = CyclesOf(problem, *estimate);
  *network = std::move(made);
  return {};
}

int Network::BiasRows() const {
  return loop_ ? static_cast<int>(problem_.batch_size) : backward_.rows();
}

RnnBufferSizes Network::sizes() const {
  RnnBufferSizes sizes;
  sizes.forward_workspace = ForwardWorkspace(*this, nullptr).arena.used();
  if (!problem_.is_training) return sizes;
  sizes.reserve_space = Reserve(*this, nullptr).arena.used();
  sizes.backward_workspace = BackwardWorkspace(*this, nullptr).arena.used();
  return sizes;
}

Sequences Network::SequencesOf(const int* lengths, const int* order,
                               const void* resets) const {
  const int batch = static_cast<int>(problem_.batch_size);
  const int steps = static_cast<int>(problem_.max_time);
  const int time_stride = problem_.time_major ? batch : 1;
  const int batch_stride = problem_.time_major ? 1 : steps;
  return {lengths,
          order,
          batch,
          steps,
          time_stride,
          batch_stride,
          static_cast<const char*>(resets)};
}

ZoneoutArguments Network::ZoneoutOf(const uint64_t* seed) const {
  return {
      problem_.draws_zones() ? reinterpret_cast<const unsigned long long*>(seed)
                             : nullptr,
      {spec_.zoneout, spec_.cell_zoneout},
      {DropoutThreshold(spec_.zoneout), DropoutThreshold(spec_.cell_zoneout)},
      RnnSpec::kZoneoutLayer};
}

RnnStatus Network::StoreLengthsAndSeed(const Handles& handles,
                                       const RnnForwardBuffers& buffers) const {
  const CUstream stream = handles.stream;
  const ForwardWorkspace workspace(*this, buffers.workspace);
  const Kept reserve(*this, buffers.reserve_space);
  if (UsesSeed(problem_)) {
    CRNN_RETURN_IF_ERROR(buffers.device_seed == nullptr
                             ? auxiliary_.Enqueue("store_seed", stream, {1, 32},
                                                  buffers.seed[0],
                                                  buffers.seed[1], reserve.seed)
                             : EnqueueCopy(stream, buffers.device_seed,
                                           reserve.seed, sizeof(buffers.seed)));
  }
  if (!problem_.has_sequence_lengths) return {};
  const int64_t* given = buffers.sequence_lengths.on_device;
  const int batch = auxiliary_.batch;
  for (int first = 0; given == nullptr && first < batch;
       first += HostLengths::kMax) {
    HostLengths part;
    const int count = std::min(HostLengths::kMax, batch - first);
    std::copy_n(buffers.sequence_lengths.on_host + first, count, part.of);
    CRNN_RETURN_IF_ERROR(auxiliary_.Enqueue("store_lengths", stream,
                                            GridOver(count), part, count,
                                            workspace.given + first));
  }
  if (given == nullptr) given = workspace.given;
  const bool is_training = problem_.is_training;
  return auxiliary_.Enqueue("order_sequences", stream, {batch, 32}, given,
                            batch, auxiliary_.steps,
                            is_training ? reserve.lengths : workspace.lengths,
                            is_training ? reserve.order : workspace.order);
}

RnnStatus Network::Forward(const Handles& handles,
                           const RnnForwardBuffers& buffers) const {
  const bool is_training = problem_.is_training;
  ForwardWorkspace workspace(*this, buffers.workspace);
  const Reserve reserve(*this, buffers.reserve_space);
  CRNN_RETURN_IF_ERROR(SetUpBlas(handles, workspace.blas, kBlasBytes));
  const int64_t units = spec_.num_units;
  ForwardArguments arguments = {};
  arguments.sequences = SequencesOf(
      is_training ? reserve.lengths : workspace.lengths,
      is_training ? reserve.order : workspace.order, buffers.resets);
  arguments.output_stride = spec_.layer_output_size();
  arguments.state_stride = StateStride(spec_.output_size());
  arguments.zoneout = ZoneoutOf(reserve.seed);
  arguments.epsilon = spec_.layer_norm_epsilon;
  const auto set_to_ones = [&](void* steps, int64_t width) {
    return EnqueueFill(handles.stream, steps, 0xFF, rows_ * width * item_);
  };
  const void* input = buffers.input;
  void* output_below = nullptr;
  for (int64_t l = 0; l < spec_.num_layers; ++l) {
    const bool is_last = l + 1 == spec_.num_layers;
    CRNN_RETURN_IF_ERROR(workspace.products.Read(handles, l, input));
    const Reserve::OfLayer& kept = reserve.layers[l];
    void* const output = is_last ? buffers.output
                         : is_training && !auxiliary_.remakes_outputs
                             ? kept.output
                             : workspace.outputs[is_stack_ ? l : l % 2];
    for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
      const int64_t pseudo_layer = l * spec_.num_dirs() + d;
      const ParamLayout::PseudoLayer& at = layout_.pseudo_layer(pseudo_layer);
      const int64_t place = is_stack_ ? l : d;
      void* const gates = is_training ? kept.gates[d] : workspace.gates[place];
      const void* const input_weights = Param(buffers.params, at.input_weights);
      ForwardDirection& direction = arguments.direction[place];
      if (is_stack_ && l > 0) {
        direction.input_weights = input_weights;
        direction.input = input;
        CRNN_RETURN_IF_ERROR(set_to_ones(output_below, units));
        CRNN_RETURN_IF_ERROR(set_to_ones(gates, slots_ * units));
      } else {
        CRNN_RETURN_IF_ERROR(workspace.products.Multiply(handles, l, d, input,
                                                         input_weights, gates));
      }
      SetDirection(pseudo_layer, buffers, gates, reserve, &direction);
      direction.input_bias = Param(buffers.params, at.input_bias);
      direction.recurrent_bias = Param(buffers.params, at.recurrent_bias);
      direction.output = At(output, d * spec_.output_size());
      direction.last_h =
          At(buffers.output_h, StateOffset(pseudo_layer, spec_.output_size()));
      if (spec_.has_c()) {
        direction.last_c =
            At(buffers.output_c, StateOffset(pseudo_layer, units));
        if (is_last && problem_.has_cell_sequences) {
          direction.all_c = At(buffers.cell_sequences, d * units);
        }
      }
    }
    if (workspace.step_memory) {
      StepBuffers& all = workspace.step_memory->buffers;
      all.step_powers = workspace.products.step_powers(l);
      all.input_row_powers = workspace.products.row_powers();
      CRNN_RETURN_IF_ERROR(loop_->Forward(handles, *workspace.step_memory, l,
                                          reserve.seed, arguments));
    } else if (folds()) {
      CRNN_RETURN_IF_ERROR(ForwardProjected(handles, workspace, arguments));
    } else if (!is_stack_ || is_last) {
      CRNN_RETURN_IF_ERROR(
          forward_.Enqueue(handles.stream, workspace.team_memory, &arguments));
    }
    input = output_below = output;
    if (problem_.has_dropout_between_layers() && !is_last) {
      // The next layer reads its input before anything is written here.
      CRNN_RETURN_IF_ERROR(auxiliary_.ApplyDropout(
          handles.stream, arguments.sequences, spec_.layer_output_size(), l,
          reserve.seed, output, buffers.output));
      input = buffers.output;
    }
  }
  return {};
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
