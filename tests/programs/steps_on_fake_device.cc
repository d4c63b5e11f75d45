// The kernels around the products as a function that a fake driver calls. This
// is a library for one type and one kind of cell, which the kernels' macros
// give.
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "tests/programs/fake_device.h"

#define __shared__ static
// Threads run one after the other, so most of a block cannot wait for each
// other. Of kernels whose threads do, blocks have one thread here, or others
// take their places below; of those that normalise, some run as coroutines.
inline bool are_coroutines = false;
inline void __syncthreads() {
  if (are_coroutines) {
    SynchronizeBlock();
  } else if (blockDim.x * blockDim.y > 1) {
    Abort();
  }
}
template <typename Number>
Number __shfl_xor_sync(Word, Number number, int lanes) {
  if (!are_coroutines) Abort();
  Word words[sizeof(Number) / sizeof(Word)];
  std::memcpy(words, &number, sizeof(Number));
  for (Word& word : words) word = ShuffleFrom(word, Fake().me().lane ^ lanes);
  std::memcpy(&number, words, sizeof(Number));
  return number;
}
using std::min;

#include "kernels/gpu/persistent/auxiliary.cu"
#include "kernels/gpu/persistent/outside_steps.cu"
#if defined(IS_FLOAT)
#include "kernels/gpu/persistent/halves.cu"
#endif
#if defined(NORMALIZES)
#define ROUNDS 48  // Of a single thread.
#include "kernels/gpu/persistent/norm_steps.cu"
#else
#include "kernels/gpu/persistent/steps.cu"
#endif

#define UNIT_BYTES 2
#include "kernels/gpu/cudnn/transpose.cu"

namespace {

void SumBiases(const Sum* sums, int rows, int units, int gates, int slots,
               int recurrent_slot, Item* input_bias, Item* recurrent_bias) {
  if (FirstIndex() > 0) return;
  for (int gate = 0; gate < gates; ++gate) {
    for (int unit = 0; unit < units; ++unit) {
      const auto sum_of = [&](int slot) {
        Sum sum = 0.0f;
        for (int row = 0; row < rows; ++row) {
          sum += sums[(static_cast<Index>(row) * slots + slot) * units + unit];
        }
        return FromFloat(sum);
      };
      const int to = gate * units + unit;
      if (input_bias != nullptr) input_bias[to] = sum_of(gate);
      if (recurrent_bias != nullptr) {
        recurrent_bias[to] = sum_of(gate + 1 < gates ? gate : recurrent_slot);
      }
    }
  }
}

template <typename... Arguments, size_t... kPlaces>
void Call(void (*kernel)(Arguments...), void** parameters,
          std::index_sequence<kPlaces...>) {
  kernel(*static_cast<std::remove_const_t<Arguments>*>(parameters[kPlaces])...);
}

// What a thread of a kernel does, and the sizes of the kernel's parameters.
struct FakeKernel {
  std::function<void(void**)> run_thread;
  std::vector<size_t> parameters;
};

template <typename... Arguments>
FakeKernel ThreadOf(void (*kernel)(Arguments...)) {
  const auto run_thread = [kernel](void** parameters) {
    Call(kernel, parameters, std::index_sequence_for<Arguments...>());
  };
  return {run_thread, {sizeof(Arguments)...}};
}

const std::map<std::string, FakeKernel>& Kernels() {
  static const std::map<std::string, FakeKernel> kernels = {
      {"store_lengths", ThreadOf(store_lengths)},
      {"store_seed", ThreadOf(store_seed)},
      {"order_sequences", ThreadOf(order_sequences)},
      {"apply_dropout", ThreadOf(apply_dropout)},
      {"spread_inputs", ThreadOf(spread_inputs)},
      {"gather_inputs", ThreadOf(gather_inputs)},
      {"copy_steps", ThreadOf(copy_steps)},
      {"add_first_products", ThreadOf(add_first_products)},
      {"store_last_states", ThreadOf(store_last_states)},
      {"add_gradients", ThreadOf(add_gradients)},
      {"sum_biases", ThreadOf(SumBiases)},
      {"add_parts", ThreadOf(add_parts)},
      {"draw_masks", ThreadOf(draw_masks)},
      {"forward_step", ThreadOf(forward_step)},
      {"backward_step", ThreadOf(backward_step)},
#if !defined(NORMALIZES)
      {"project_step", ThreadOf(project_step)},
      {"reset_forward", ThreadOf(reset_forward)},
      {"reset_backward", ThreadOf(reset_backward)},
#endif
      {"mask_states", ThreadOf(mask_states)},
      {"transpose", ThreadOf(transpose)},
      {"sum_vectors", ThreadOf(sum_vectors)},
      {"compute_h", ThreadOf(compute_h)},
#if defined(IS_FLOAT)
      {"halve_rows", ThreadOf(halve_rows)},
      {"find_columns", ThreadOf(find_columns)},
      {"halve_columns", ThreadOf(halve_columns)},
      {"unscale", ThreadOf(unscale)},
#endif
  };
  return kernels;
}

}  // namespace

extern "C" const std::vector<size_t>* parameters_of(const char* name) {
  return &Kernels().at(name).parameters;
}

// Runs all blocks one after the other, and nearly all threads. `grid` has the
// number of blocks and those of their threads in two dimensions. Returns false
// if no kernel has the name.
extern "C" bool run_kernel(const char* name, const unsigned int* grid,
                           void** parameters) {
  // Larger units are several of the smallest ones here.
  unsigned int unit_bytes = 2, width;
  if (std::sscanf(name, "transposeUNIT_BYTES=%u", &unit_bytes) == 1) {
    width = *static_cast<unsigned int*>(parameters[4]) * unit_bytes / 2;
    parameters[4] = &width;
    name = "transpose";
  }
  const auto kernel = Kernels().find(name);
  if (kernel == Kernels().end()) return false;
  const auto& run_thread = kernel->second.run_thread;
  gridDim.x = grid[0];
  const std::string& found = kernel->first;
  const bool normalizes = CellType::kNorms > 0 &&
                          (found == "forward_step" || found == "backward_step");
  const bool has_tiles =
      found == "find_columns" || found == "halve_columns" || found == "unscale";
  const bool waits = found == "order_sequences" || found == "halve_rows" ||
                     found == "backward_step" || found == "project_step" ||
                     normalizes;
  for (unsigned int block = 0; block < grid[0]; ++block) {
    blockIdx.x = block;
    // To run all blocks so would take long.
    are_coroutines = has_tiles || (normalizes && block % 4 == 1);
    if (are_coroutines) {
      // Some threads take several units, and some take none.
      blockDim = {has_tiles        ? grid[1]
                  : block % 8 == 1 ? 32u
                                   : min(grid[1], 64u),
                  1};
      FakeTeam(1, static_cast<int>(blockDim.x), 0, block)
          .Run(
              [&] {
                gridDim.x = grid[0];
                run_thread(parameters);
              },
              blockIdx);
      continue;
    }
    blockDim = {waits ? 1 : grid[1], grid[2]};
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
        run_thread(parameters);
      }
    }
  }
  return true;
}
