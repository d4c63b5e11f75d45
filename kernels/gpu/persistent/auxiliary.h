// Compiles and launches the small kernels around the persistent ones.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// The small kernels of a problem, which auxiliary.cu describes.
class Auxiliary {
 public:
  explicit Auxiliary(const RnnProblem& problem) : problem_(problem) {}

  // The places of a unit in an array of gates.
  int slots() const { return slots_; }

  // Gets the kernels, which are compiled unless that was done before, and
  // without which nothing else may be called.
  RnnStatus Compile() {
    for (int i = 0; i < kNumEntries; ++i) {
      CRNN_RETURN_IF_ERROR(CompileKernel("auxiliary.cu", kEntries[i],
                                         {TypeMacro(problem_.dtype)},
                                         &kernels_[i]));
    }
    for (const auto& [entry, is_used, kernel] :
         {std::tuple("sum_vectors",
                     kind_.num_vectors > 0 && kind_.num_norms == 0,
                     &sum_vectors_),
          {"compute_unprojected", spec_.num_proj > 0, &compute_unprojected_}}) {
      if (!is_used || !problem_.is_training) continue;
      CRNN_RETURN_IF_ERROR(CompileKernel("outside_steps.cu", entry,
                                         CellMacros(spec_, problem_.dtype),
                                         kernel));
    }
    return {};
  }

  // These store what the host knows, in device memory.
  RnnStatus StoreLengths(CUstream stream, const int32_t* lengths,
                         int64_t* to) const {
    HostLengths part;
    for (int first = 0; first < batch_; first += HostLengths::kMax) {
      const int count = std::min(HostLengths::kMax, batch_ - first);
      std::copy_n(lengths + first, count, part.of);
      CRNN_RETURN_IF_ERROR(Enqueue(kStoreLengths, stream, GridOver(count), part,
                                   count, to + first));
    }
    return {};
  }
  RnnStatus StoreSeed(CUstream stream, const uint64_t seed[2],
                      uint64_t* to) const {
    return Enqueue(kStoreSeed, stream, {1, 32}, seed[0], seed[1], to);
  }
  // The following take what they read from device memory.
  RnnStatus OrderSequences(CUstream stream, const int64_t* given, int* lengths,
                           int* order) const {
    return Enqueue(kOrderSequences, stream, {batch_, 32}, given, batch_, steps_,
                   lengths, order);
  }
  RnnStatus ApplyDropout(CUstream stream, const Sequences& sequences,
                         int64_t width, int64_t layer, const uint64_t* seed,
                         const void* from, void* to) const {
    const int64_t count = Rows() * width;
    return Enqueue(kApplyDropout, stream, GridOver(count), sequences, count,
                   static_cast<int>(width), static_cast<int>(layer), seed,
                   DropoutThreshold(spec_.dropout), spec_.dropout, from, to);
  }
  RnnStatus SpreadInputs(CUstream stream, const void* inputs, void* to) const {
    const int64_t count = Rows() * units_;
    return Enqueue(kSpreadInputs, stream, GridOver(count), count, units_,
                   gates_, slots_, inputs, to);
  }
  RnnStatus GatherInputs(CUstream stream, const void* of_forward,
                         const void* of_backward, void* to) const {
    const int64_t count = Rows() * units_;
    return Enqueue(kGatherInputs, stream, GridOver(count), count, units_,
                   gates_, slots_, of_forward, of_backward, to);
  }
  RnnStatus CopyWithoutPadding(CUstream stream, const Sequences& sequences,
                               int64_t width, const void* from,
                               void* to) const {
    return Enqueue(kCopyWithoutPadding, stream, GridOver(Rows() * 32),
                   sequences, Rows(), static_cast<int>(width), from, to);
  }
  // Copies the states before each step of a direction of `arguments`, [rows,
  // width], or with a pitch as [width, to_pitch].
  RnnStatus ShiftStates(CUstream stream, const BackwardArguments& arguments,
                        int64_t direction, int64_t width, int64_t to_pitch,
                        void* to) const {
    const BackwardDirection& my = arguments.direction[direction];
    const auto enqueue = [&](Entry entry, const Grid& grid, auto... target) {
      return Enqueue(entry, stream, grid, Unordered(arguments.sequences),
                     Rows(), static_cast<int>(width), direction == 1, my.output,
                     arguments.output_stride, my.first_h,
                     arguments.state_stride, target...);
    };
    return to_pitch == 0
               ? enqueue(kShiftStates, GridOver(Rows() * 32), to)
               : enqueue(kTransposeStates, GridOfTiles(width), to_pitch, to);
  }
  // The following are for layers with projections, whose strides of outputs and
  // states `all` has.
  RnnStatus AddFirstProducts(CUstream stream, const ForwardArguments& all,
                             int64_t d, const void* products) const {
    const int width = gates_ * units_;
    return Enqueue(kAddFirstProducts, stream, GridOver(int64_t{batch_} * width),
                   Unordered(all.sequences), width, d == 1, products,
                   all.direction[d].gates);
  }
  RnnStatus StoreLastStates(CUstream stream, const ForwardArguments& all,
                            int64_t d, int64_t width) const {
    const ForwardDirection& my = all.direction[d];
    return Enqueue(kStoreLastStates, stream, GridOver(batch_ * width),
                   Unordered(all.sequences), static_cast<int>(width), d == 1,
                   my.output, all.output_stride, my.first_h, all.state_stride,
                   my.last_h);
  }
  RnnStatus AddGradients(CUstream stream, const BackwardArguments& all,
                         int64_t d, int64_t width, const void* before) const {
    const BackwardDirection& my = all.direction[d];
    const int64_t count = Rows() * width;
    return Enqueue(kAddGradients, stream, GridOver(count),
                   Unordered(all.sequences), count, static_cast<int>(width),
                   d == 1, my.output_backprop, all.output_stride,
                   my.last_h_backprop, all.state_stride, before,
                   my.first_h_backprop, my.projected_backprop);
  }
  RnnStatus TransposeSteps(CUstream stream, const Sequences& sequences,
                           int64_t width, int64_t pitch, const void* from,
                           void* to) const {
    return Enqueue(kTransposeSteps, stream, GridOfTiles(width), sequences,
                   Rows(), static_cast<int>(width), pitch, from, to);
  }
  // Sums are floats or, in float64, doubles.
  RnnStatus SumBiases(CUstream stream, const void* sums, int rows,
                      void* input_bias, void* recurrent_bias) const {
    const int recurrent_slot = (kind_.splits_gate() ? slots_ : gates_) - 1;
    return Enqueue(kSumBiases, stream, {CeilDiv(slots_ * units_, 32), 32, 8},
                   sums, rows, units_, gates_, slots_, recurrent_slot,
                   input_bias, recurrent_bias);
  }
  RnnStatus AddParts(CUstream stream, int64_t count, int64_t num_parts,
                     const void* parts, void* to) const {
    return Enqueue(kAddParts, stream, GridOver(count), count,
                   static_cast<int>(num_parts), parts, to);
  }
  // Computes a direction's h before its projection, [rows, H], before its
  // backward pass, which overwrites the gates.
  RnnStatus ComputeUnprojected(CUstream stream,
                               const BackwardArguments& arguments,
                               int64_t direction, void* to) const {
    const BackwardDirection& my = arguments.direction[direction];
    return Launch(compute_unprojected_, stream, GridOver(Rows() * 32),
                  Unordered(arguments.sequences), Rows(), units_,
                  spec_.cell_clip, my.gates, my.cells, to);
  }
  // Computes the gradients of a direction's vectors after its backward pass.
  // `sums` has room for at least one number of each vector and unit, or for
  // kMostSums if that is more.
  static constexpr int64_t kMostSums = int64_t{1} << 19;
  RnnStatus SumVectors(CUstream stream, const BackwardArguments& arguments,
                       int64_t direction, int64_t cell_stride, void* sums,
                       void* to) const {
    // Parts are computed at the same time, and then added one by one.
    constexpr int64_t kMostParts = 128, kFewestRows = 16;
    const int64_t numbers = kind_.num_vectors * units_;
    const int64_t parts = std::max<int64_t>(
        1, std::min({kMostParts, Rows() / kFewestRows, kMostSums / numbers}));
    CRNN_RETURN_IF_ERROR(
        Launch(sum_vectors_, stream, GridOver(parts * units_),
               Unordered(arguments.sequences), arguments.direction[direction],
               static_cast<int>(direction), units_, cell_stride,
               spec_.cell_clip, static_cast<int>(parts), sums));
    return AddParts(stream, numbers, parts, sums, to);
  }

 private:
  enum Entry {
    kStoreLengths,
    kStoreSeed,
    kOrderSequences,
    kApplyDropout,
    kSpreadInputs,
    kGatherInputs,
    kCopyWithoutPadding,
    kShiftStates,
    kAddFirstProducts,
    kStoreLastStates,
    kAddGradients,
    kTransposeSteps,
    kTransposeStates,
    kSumBiases,
    kAddParts,
    kNumEntries
  };
  static constexpr const char* kEntries[kNumEntries] = {
      "store_lengths",        "store_seed",    "order_sequences",
      "apply_dropout",        "spread_inputs", "gather_inputs",
      "copy_without_padding", "shift_states",  "add_first_products",
      "store_last_states",    "add_gradients", "transpose_steps",
      "transpose_states",     "sum_biases",    "add_parts"};

  static Sequences Unordered(Sequences sequences) {
    sequences.order = nullptr;  // Row b of all buffers is sequence b's.
    return sequences;
  }
  int64_t Rows() const { return int64_t{batch_} * steps_; }
  // The grid of a kernel that transposes [rows, width].
  Grid GridOfTiles(int64_t width) const {
    const int64_t tiles = CeilDiv(Rows(), 32) * CeilDiv(width, 32);
    return {std::min(tiles, kMaxBlocksOfNumbers), 32, 8};
  }
  template <typename... Arguments>
  RnnStatus Enqueue(Entry entry, CUstream stream, const Grid& grid,
                    const Arguments&... arguments) const {
    return Launch(kernels_[entry], stream, grid, arguments...);
  }

  const RnnProblem& problem_;
  const RnnSpec& spec_ = problem_.spec;
  const CellKind& kind_ = spec_.kind();
  const int batch_ = static_cast<int>(problem_.batch_size);
  const int steps_ = static_cast<int>(problem_.max_time);
  const int units_ = static_cast<int>(spec_.num_units);
  const int gates_ = static_cast<int>(kind_.num_gates);
  const int slots_ = static_cast<int>(kind_.num_slots);
  CUkernel kernels_[kNumEntries] = {};
  CUkernel sum_vectors_ = nullptr, compute_unprojected_ = nullptr;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
