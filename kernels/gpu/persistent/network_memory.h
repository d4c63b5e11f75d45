// The layouts of the memory that a network's passes use.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_MEMORY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_MEMORY_H_

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/arena.h"
#include "kernels/gpu/persistent/network.h"

namespace cudnn_rnn_tf {
namespace persistent {

// This is enough for cuBLAS to divide the long sums of weights' gradients among
// all multiprocessors.
inline constexpr size_t kBlasBytes = size_t{8} << 20;

inline bool UsesSeed(const RnnProblem& problem) {
  return problem.has_dropout_between_layers() ||
         problem.has_recurrent_dropout() || problem.draws_zones();
}

// The memory of the layouts below, and what all of them take of it.
struct Network::Memory {
  const Network& network;
  const RnnProblem& problem = network.problem_;
  const RnnSpec& spec = network.spec_;
  Arena arena;

  Memory(const Network& network, void* base) : network(network), arena(base) {}
  // `width` numbers for each step of each sequence.
  char* TakeSteps(int64_t width) {
    return arena.Take<char>(network.rows_ * width * network.item_);
  }
  // Sums, which are doubles in float64.
  float* TakeSums(int64_t count) {
    return reinterpret_cast<float*>(arena.Take<char>(count * network.sum_));
  }
};

// The beginning of the reserve space.
struct Network::Kept : Memory {
  int* lengths = nullptr;
  int* order = nullptr;
  uint64_t* seed = nullptr;

  Kept(const Network& network, void* base) : Memory(network, base) {
    if (problem.has_sequence_lengths) {
      lengths = arena.Take<int>(problem.batch_size);
      order = arena.Take<int>(problem.batch_size);
    }
    if (UsesSeed(problem)) seed = arena.Take<uint64_t>(2);
  }
};

// The layout of the reserve space, which training keeps for the backward pass.
struct Network::Reserve : Kept {
  struct OfLayer {
    std::array<char*, kMaxDirs> gates = {};
    std::array<float*, kMaxDirs> norms = {};
    // Before dropout; null if it is not kept. The last layer's goes to the
    // caller.
    char* output = nullptr;
    // When the layer's steps have read them, the backward pass has room for
    // other arrays here, up to the end of the reserve space.
    std::array<char*, kMaxDirs> cells = {};
  };
  std::vector<OfLayer> layers;

  Reserve(const Network& network, void* base) : Kept(network, base) {
    for (int64_t l = 0; l < spec.num_layers; ++l) {
      OfLayer& layer = layers.emplace_back();
      for (int64_t d = 0; d < spec.num_dirs(); ++d) {
        layer.gates[d] = TakeSteps(network.slots_ * spec.num_units);
        layer.norms[d] = TakeSums(network.rows_ * 2 * spec.kind().num_norms);
      }
      if (l + 1 < spec.num_layers && !network.auxiliary_.remakes_outputs) {
        layer.output = TakeSteps(spec.layer_output_size());
      }
      for (int64_t d = 0; spec.has_c() && d < spec.num_dirs(); ++d) {
        layer.cells[d] = TakeSteps(spec.num_units);
      }
    }
  }
};

// Sets what both passes read and write of a pseudo-layer.
template <typename Buffers>
void Network::SetDirection(int64_t pseudo_layer, const Buffers& buffers,
                           void* gates, const Reserve& reserve,
                           LayerDirection* direction) const {
  const ParamLayout::PseudoLayer& at = layout_.pseudo_layer(pseudo_layer);
  const int64_t dirs = spec_.num_dirs(), d = pseudo_layer % dirs;
  const Reserve::OfLayer& kept = reserve.layers[pseudo_layer / dirs];
  direction->pseudo_layer = static_cast<int>(pseudo_layer);
  direction->recurrent_weights = Param(buffers.params, at.recurrent_weights);
  direction->projection = Param(buffers.params, at.projection);
  direction->vectors = Param(buffers.params, at.vectors);
  direction->gates = gates;
  direction->cells = kept.cells[d];
  direction->norms = kept.norms[d];
  direction->first_h =
      At(buffers.input_h, StateOffset(pseudo_layer, spec_.output_size()));
  if (!spec_.has_c()) return;
  direction->first_c =
      At(buffers.input_c, StateOffset(pseudo_layer, spec_.num_units));
}

// The workspaces of both passes begin with this.
struct Network::Workspace : Memory {
  void* blas = arena.Take<char>(kBlasBytes);
  void* team_memory = nullptr;
  std::optional<StepLoop::Memory> step_memory;
  // Around the kernels: what the projections are folded into, and the first
  // states of steps without them, or their gradients and those of the last.
  std::array<char*, kMaxDirs> folded = {};
  char* states = nullptr;

  Workspace(const Network& network, bool is_backward, void* base)
      : Memory(network, base) {
    if (network.loop_) {
      step_memory.emplace(*network.loop_, is_backward, &arena);
    } else {
      const Kernel& kernel = is_backward ? network.backward_ : network.forward_;
      team_memory = arena.Take<char>(kernel.team_memory_bytes());
    }
    if (!network.folds()) return;
    const int64_t units = spec.num_units * network.item_;
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      folded[d] = arena.Take<char>(spec.num_gates() * spec.num_units * units);
    }
    states =
        arena.Take<char>(problem.batch_size * spec.num_pseudo_layers() * units);
  }
};

// The layout of a forward pass's workspace. For what training does not keep,
// layers that do not run at the same time take turns in the same memory.
struct Network::ForwardWorkspace : Workspace {
  int64_t* given = nullptr;
  int* lengths = nullptr;
  int* order = nullptr;
  std::array<char*, ForwardArguments::kMaxLayers> gates = {}, outputs = {};
  // With projections around the kernels: the products of the first states, and
  // h before its projection.
  std::array<float*, kMaxDirs> first_products = {};
  std::array<char*, kMaxDirs> unprojected = {};
  // The last states of steps without projections. A block may store its part
  // while another one reads the first states.
  char* last_states = nullptr;
  // The steps that are enqueued one by one divide products by powers.
  const ForwardProducts products = {network.products_,
                                    network.loop_.has_value(), &arena};

  ForwardWorkspace(const Network& network, void* base)
      : Workspace(network, /*is_backward=*/false, base) {
    const bool has_lengths = problem.has_sequence_lengths;
    if (has_lengths) given = arena.Take<int64_t>(problem.batch_size);
    for (int64_t d = 0; network.folds() && d < spec.num_dirs(); ++d) {
      first_products[d] =
          TakeSums(problem.batch_size * spec.num_gates() * spec.num_units);
      unprojected[d] = TakeSteps(spec.num_units);
    }
    if (network.folds()) {
      last_states =
          arena.Take<char>(problem.batch_size * spec.num_pseudo_layers() *
                           spec.num_units * network.item_);
    }
    if (problem.is_training && !network.auxiliary_.remakes_outputs) return;
    const bool is_stack = network.is_stack_;
    const int64_t most = is_stack ? spec.num_layers : 2;
    for (int64_t i = 0; i < std::min(spec.num_layers - 1, most); ++i) {
      outputs[i] = TakeSteps(spec.layer_output_size());
    }
    if (problem.is_training) return;
    if (has_lengths) {
      lengths = arena.Take<int>(problem.batch_size);
      order = arena.Take<int>(problem.batch_size);
    }
    const int64_t at_once = is_stack ? spec.num_layers : spec.num_dirs();
    for (int64_t i = 0; i < at_once; ++i) {
      gates[i] = TakeSteps(network.slots_ * spec.num_units);
    }
  }
};

struct Network::BackwardWorkspace : Workspace {
  // The states before each step as a gate reads them; gates use it by turns.
  void* masked_h = nullptr;
  std::array<float*, kMaxDirs> bias_sums = {};  // In float64, doubles.
  std::array<float*, kMaxDirs> vector_sums = {};
  std::array<char*, kMaxDirs> projected_backprop = {};
  // To keep h before its projection from the forward pass on would take more
  // memory than anything but the gates and c.
  std::array<char*, kMaxDirs> unprojected = {}, unprojected_backprop = {};
  // A copy of a layer's input, then h before its steps, and then the gradient
  // of its input, if it is an inner one; null if there is room for them where
  // the layer's cells were.
  char* room = nullptr;
  // That gradient, if it is computed before the others are.
  char* gradient = nullptr;
  const BackwardProducts products = {network.products_, &arena};

  BackwardWorkspace(const Network& network, void* base)
      : Workspace(network, /*is_backward=*/true, base) {
    if (problem.has_recurrent_dropout()) masked_h = TakeSteps(spec.num_units);
    for (int64_t d = 0; d < spec.num_dirs(); ++d) {
      bias_sums[d] =
          TakeSums(network.BiasRows() * network.slots_ * spec.num_units);
      if (spec.normalizes()) {
        vector_sums[d] = TakeSums(network.BiasRows() * spec.kind().num_vectors *
                                  spec.num_units);
      }
      if (spec.num_proj > 0) {
        projected_backprop[d] = TakeSteps(spec.num_proj);
        unprojected[d] = TakeSteps(spec.num_units);
      }
      if (network.folds()) {
        unprojected_backprop[d] = TakeSteps(spec.num_units);
      }
    }
    const bool is_deep = spec.num_layers > 1;
    // The lowest layer's cells come before what the other layers have kept.
    const int64_t of_cells =
        spec.has_c() ? spec.num_dirs() * spec.num_units : 0;
    const int64_t of_layer = of_cells * (network.slots_ + 1);
    const int64_t width = std::max(
        is_deep ? spec.layer_output_size() : spec.output_size(),
        products.ReadsPadding() && !problem.has_input_backprop ? spec.input_size
                                                               : 0);
    if (width > (network.auxiliary_.remakes_outputs
                     ? of_cells * network.slots_
                     : of_cells + (spec.num_layers - 1) * of_layer)) {
      room = TakeSteps(width);
    }
    if (is_deep && products.ReadsFloats(1)) {
      gradient = TakeSteps(spec.layer_output_size());
    }
  }
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_MEMORY_H_
