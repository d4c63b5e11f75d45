// Compiles and launches the small kernels around the persistent ones.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_

#include <cstdint>

#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// The small kernels, which auxiliary.cu describes. Counts are in numbers, not
// bytes.
class Auxiliary {
 public:
  static RnnStatus Get(RnnDataType dtype, Auxiliary* kernels);

  RnnStatus StoreLengths(CUstream stream, const int32_t* lengths, int count,
                         int64_t* to) const;
  // `to` is in device memory, as is the seed that ApplyDropout takes.
  RnnStatus StoreSeed(CUstream stream, const uint64_t seed[2],
                      uint64_t* to) const;
  RnnStatus OrderSequences(CUstream stream, const int64_t* given, int batch,
                           int steps, int* lengths, int* order) const;
  RnnStatus ApplyDropout(CUstream stream, const Sequences& sequences,
                         int64_t count, int width, int layer,
                         const uint64_t* seed, float rate, void* values) const;
  RnnStatus SpreadInputs(CUstream stream, int64_t count, int units, int gates,
                         int slots, const void* inputs, void* to) const;
  RnnStatus GatherInputs(CUstream stream, int64_t count, int units, int gates,
                         int slots, const void* of_forward,
                         const void* of_backward, void* to) const;
  RnnStatus CopyWithoutPadding(CUstream stream, const Sequences& sequences,
                               int64_t count, int width, const void* from,
                               void* to) const;
  RnnStatus TransposeSteps(CUstream stream, const Sequences& sequences,
                           int64_t rows, int width, int64_t pitch,
                           const void* from, void* to) const;
  // Sums are floats or, in float64, doubles.
  RnnStatus SumBiases(CUstream stream, const void* sums, int rows, int units,
                      int gates, int slots, int recurrent_slot,
                      void* input_bias, void* recurrent_bias) const;
  RnnStatus AddParts(CUstream stream, int64_t count, int num_parts,
                     const void* parts, void* to) const;

 private:
  CUkernel lengths_, seed_, order_, dropout_, spread_, gather_, copy_,
      transpose_, biases_, parts_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_AUXILIARY_H_
