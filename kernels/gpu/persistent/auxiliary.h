// Compiles and launches the small kernels around the persistent ones.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_

#include <algorithm>
#include <cstdint>

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
    CRNN_RETURN_IF_ERROR(kernels_.Add(
        "auxiliary.cu", {TypeMacro(problem_.dtype)},
        {"store_lengths", "store_seed", "order_sequences", "apply_dropout",
         "spread_inputs", "gather_inputs", "copy_steps", "shift_states",
         "add_first_products", "store_last_states", "add_gradients",
         "sum_biases", "add_parts"}));
    if (!problem_.is_training) return {};
    const auto macros = CellMacros(spec_, problem_.dtype);
    if (spec_.num_proj > 0) {
      CRNN_RETURN_IF_ERROR(
          kernels_.Add("outside_steps.cu", macros, {"compute_unprojected"}));
    }
    if (kind_.num_vectors == 0 || kind_.num_norms > 0) return {};
    return kernels_.Add("outside_steps.cu", macros, {"sum_vectors"});
  }

  // These store what the host knows, in device memory.
  RnnStatus StoreLengths(CUstream stream, const int32_t* lengths,
                         int64_t* to) const {
    HostLengths part;
    for (int first = 0; first < batch_; first += HostLengths::kMax) {
      const int count = std::min(HostLengths::kMax, batch_ - first);
      std::copy_n(lengths + first, count, part.of);
      CRNN_RETURN_IF_ERROR(kernels_.Enqueue(
          "store_lengths", stream, GridOver(count), part, count, to + first));
    }
    return {};
  }
  RnnStatus StoreSeed(CUstream stream, const uint64_t seed[2],
                      uint64_t* to) const {
    return kernels_.Enqueue("store_seed", stream, {1, 32}, seed[0], seed[1],
                            to);
  }
  // The following take what they read from device memory.
  RnnStatus OrderSequences(CUstream stream, const int64_t* given, int* lengths,
                           int* order) const {
    return kernels_.Enqueue("order_sequences", stream, {batch_, 32}, given,
                            batch_, steps_, lengths, order);
  }
  RnnStatus ApplyDropout(CUstream stream, const Sequences& sequences,
                         int64_t width, int64_t layer, const uint64_t* seed,
                         const void* from, void* to) const {
    const int64_t count = Rows() * width;
    return kernels_.Enqueue(
        "apply_dropout", stream, GridOver(count), sequences, count,
        static_cast<int>(width), static_cast<int>(layer), seed,
        DropoutThreshold(spec_.dropout), spec_.dropout, from, to);
  }
  RnnStatus SpreadInputs(CUstream stream, const void* inputs, void* to) const {
    const int64_t count = Rows() * units_;
    return kernels_.Enqueue("spread_inputs", stream, GridOver(count), count,
                            units_, gates_, slots_, inputs, to);
  }
  RnnStatus GatherInputs(CUstream stream, const void* of_forward,
                         const void* of_backward, void* to) const {
    const int64_t count = Rows() * units_;
    return kernels_.Enqueue("gather_inputs", stream, GridOver(count), count,
                            units_, gates_, slots_, of_forward, of_backward,
                            to);
  }
  // Copies steps, [rows, width], with zeros for padding, or with a
  // to_pitch as [width, to_pitch].
  RnnStatus CopySteps(CUstream stream, const Sequences& sequences,
                      int64_t width, int64_t pitch, const void* from,
                      int64_t to_pitch, void* to) const {
    const int64_t tiles = CeilDiv(Rows(), 32) * CeilDiv(width, 32);
    return kernels_.Enqueue("copy_steps", stream,
                            GridOver(to_pitch == 0 ? Rows() * 32 : tiles * 256),
                            sequences, Rows(), static_cast<int>(width), pitch,
                            from, to_pitch, to);
  }
  // Copies the states before each step of a direction, [rows, width].
  RnnStatus ShiftStates(CUstream stream, const BackwardArguments& arguments,
                        int64_t direction, int64_t width, void* to) const {
    const BackwardDirection& my = arguments.direction[direction];
    return kernels_.Enqueue("shift_states", stream, GridOver(Rows() * 32),
                            Unordered(arguments.sequences), Rows(),
                            static_cast<int>(width), direction == 1, my.output,
                            arguments.output_stride, my.first_h,
                            arguments.state_stride, to);
  }
  // The following are for layers with projections, whose strides of outputs and
  // states `all` has.
  RnnStatus AddFirstProducts(CUstream stream, const ForwardArguments& all,
                             int64_t d, const void* products) const {
    const int width = gates_ * units_;
    return kernels_.Enqueue("add_first_products", stream,
                            GridOver(int64_t{batch_} * width),
                            Unordered(all.sequences), width, d == 1, products,
                            all.direction[d].gates);
  }
  RnnStatus StoreLastStates(CUstream stream, const ForwardArguments& all,
                            int64_t d, int64_t width) const {
    const ForwardDirection& my = all.direction[d];
    return kernels_.Enqueue(
        "store_last_states", stream, GridOver(batch_ * width),
        Unordered(all.sequences), static_cast<int>(width), d == 1, my.output,
        all.output_stride, my.first_h, all.state_stride, my.last_h);
  }
  RnnStatus AddGradients(CUstream stream, const BackwardArguments& all,
                         int64_t d, int64_t width, const void* before) const {
    const BackwardDirection& my = all.direction[d];
    const int64_t count = Rows() * width;
    return kernels_.Enqueue(
        "add_gradients", stream, GridOver(count), Unordered(all.sequences),
        count, static_cast<int>(width), d == 1, my.output_backprop,
        all.output_stride, my.last_h_backprop, all.state_stride, before,
        my.first_h_backprop, my.projected_backprop);
  }
  // Sums are floats or, in float64, doubles.
  RnnStatus SumBiases(CUstream stream, const void* sums, int rows,
                      void* input_bias, void* recurrent_bias) const {
    const int recurrent_slot = (kind_.splits_gate() ? slots_ : gates_) - 1;
    return kernels_.Enqueue(
        "sum_biases", stream, {CeilDiv(slots_ * units_, 32), 32, 8}, sums, rows,
        units_, gates_, slots_, recurrent_slot, input_bias, recurrent_bias);
  }
  RnnStatus AddParts(CUstream stream, int64_t count, int64_t num_parts,
                     const void* parts, void* to) const {
    return kernels_.Enqueue("add_parts", stream, GridOver(count), count,
                            static_cast<int>(num_parts), parts, to);
  }
  // Computes a direction's h before its projection, [rows, H], before its
  // backward pass, which overwrites the gates.
  RnnStatus ComputeUnprojected(CUstream stream,
                               const BackwardArguments& arguments,
                               int64_t direction, void* to) const {
    const BackwardDirection& my = arguments.direction[direction];
    return kernels_.Enqueue("compute_unprojected", stream,
                            GridOver(Rows() * 32),
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
    CRNN_RETURN_IF_ERROR(kernels_.Enqueue(
        "sum_vectors", stream, GridOver(parts * units_),
        Unordered(arguments.sequences), arguments.direction[direction],
        static_cast<int>(direction), units_, cell_stride, spec_.cell_clip,
        static_cast<int>(parts), sums));
    return AddParts(stream, numbers, parts, sums, to);
  }

 private:
  static Sequences Unordered(Sequences sequences) {
    sequences.order = nullptr;  // Row b of all buffers is sequence b's.
    return sequences;
  }
  int64_t Rows() const { return int64_t{batch_} * steps_; }
  const RnnProblem& problem_;
  const RnnSpec& spec_ = problem_.spec;
  const CellKind& kind_ = spec_.kind();
  const int batch_ = static_cast<int>(problem_.batch_size);
  const int steps_ = static_cast<int>(problem_.max_time);
  const int units_ = static_cast<int>(spec_.num_units);
  const int gates_ = static_cast<int>(kind_.num_gates);
  const int slots_ = static_cast<int>(kind_.num_slots);
  SmallKernels kernels_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
