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

// The least sizes of networks that gain by other ways to compute, measured on
// an H200. Tests take smaller ones.
struct LeastSizes {
  // An h of inner layers that follows from its step's gates and c is computed
  // again, not kept. In small layers, that takes a larger part of a pass, and
  // there is memory enough.
  int64_t remade_units = 1024, remade_bytes = int64_t{64} << 20;
  // With operands in float16, TF32's products over all steps took half as long,
  // and training LSTMs of 256 to 1500 units 0.77 to 0.98 times. Few weights or
  // multiplications do not pay for making operands: LSTMs of 64 units took 1.19
  // times as long, and those of 256 units with 16 sequences 1.01 times.
  int64_t halved_weights = int64_t{1} << 17;
  int64_t halved_products = int64_t{1} << 29;
};

// The small kernels of a problem, which auxiliary.cu describes. Whoever needs
// one in a single place enqueues it by its name.
struct Auxiliary : SmallKernels {
  Auxiliary(const RnnProblem& problem, const LeastSizes& least)
      : problem(problem), least(least) {}

  // Gets the kernels, which are compiled unless that was done before, and
  // without which nothing else may be called.
  RnnStatus Compile() {
    CRNN_RETURN_IF_ERROR(Add(
        "auxiliary.cu", {TypeOf(problem.dtype).macro},
        {"store_lengths", "store_seed", "order_sequences", "apply_dropout",
         "spread_inputs", "gather_inputs", "copy_steps", "add_first_products",
         "store_last_states", "add_gradients", "sum_biases", "add_parts"}));
    if (!problem.is_training) return {};
    const auto macros = CellMacros(spec, problem.dtype);
    if (spec.num_proj > 0 || remakes_outputs) {
      CRNN_RETURN_IF_ERROR(Add("outside_steps.cu", macros, {"compute_h"}));
    }
    if (kind.num_vectors == 0 || kind.num_norms > 0) return {};
    return Add("outside_steps.cu", macros, {"sum_vectors"});
  }

  RnnStatus ApplyDropout(CUstream stream, const Sequences& sequences,
                         int64_t width, int64_t layer, const uint64_t* seed,
                         const void* from, void* to) const {
    const int64_t count = rows * width;
    return Enqueue("apply_dropout", stream, GridOver(count), sequences, count,
                   static_cast<int>(width), static_cast<int>(layer), seed,
                   DropoutThreshold(spec.dropout), spec.dropout, from, to);
  }
  RnnStatus CopySteps(CUstream stream, const StepRows& steps, int64_t width,
                      void* to) const {
    return Enqueue("copy_steps", stream, GridOver(rows * 32), steps, rows,
                   static_cast<int>(width), to);
  }
  // Sums are floats or, in float64, doubles.
  RnnStatus AddParts(CUstream stream, int64_t count, int64_t num_parts,
                     const void* parts, void* to) const {
    return Enqueue("add_parts", stream, GridOver(count), count,
                   static_cast<int>(num_parts), parts, to);
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
    const int64_t numbers = kind.num_vectors * units;
    const int64_t parts = std::max<int64_t>(
        1, std::min({kMostParts, rows / kFewestRows, kMostSums / numbers}));
    const BackwardDirection& of = arguments.direction[direction];
    CRNN_RETURN_IF_ERROR(
        Enqueue("sum_vectors", stream, GridOver(parts * units),
                StatesBefore(arguments.sequences, direction, of.cells, units,
                             of.first_c, cell_stride),
                of, units, spec.cell_clip, static_cast<int>(parts), sums));
    return AddParts(stream, numbers, parts, sums, to);
  }

  static Sequences Unordered(Sequences sequences) {
    sequences.order = nullptr;  // Row b of all buffers is sequence b's.
    return sequences;
  }
  // The states before each step of a direction, from those after it.
  static StepRows StatesBefore(const Sequences& sequences, int64_t direction,
                               const void* states, int64_t pitch,
                               const void* first, int64_t first_pitch) {
    return {Unordered(sequences),        states, pitch,      /*are_before=*/1,
            static_cast<int>(direction), first,  first_pitch};
  }

  const RnnProblem& problem;
  const LeastSizes least;
  const RnnSpec& spec = problem.spec;
  const CellKind& kind = spec.kind();
  // As kernels count. A unit has so many places in an array of gates.
  const int batch = static_cast<int>(problem.batch_size);
  const int steps = static_cast<int>(problem.max_time);
  const int units = static_cast<int>(spec.num_units);
  const int gates = static_cast<int>(kind.num_gates);
  const int slots = static_cast<int>(kind.num_slots);
  const int64_t rows = int64_t{batch} * steps;
  // This tells whether the outputs of inner layers are not kept.
  const bool remakes_outputs =
      problem.is_training && spec.has_c() && kind.num_norms == 0 &&
      spec.num_proj == 0 && !spec.has_zoneout() &&
      units >= least.remade_units &&
      (spec.num_layers - 1) * rows * spec.layer_output_size() *
              static_cast<int64_t>(SizeOf(problem.dtype)) >=
          least.remade_bytes;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
