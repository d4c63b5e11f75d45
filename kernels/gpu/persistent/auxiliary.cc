#include "kernels/gpu/persistent/auxiliary.h"

#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/gpu/persistent/launch.h"

namespace cudnn_rnn_tf {
namespace persistent {

RnnStatus Auxiliary::Get(RnnDataType dtype, Auxiliary* kernels) {
  return GetKernels("auxiliary.cu", dtype, std::nullopt,
                    {{"store_lengths", &Auxiliary::lengths_},
                     {"store_seed", &Auxiliary::seed_},
                     {"order_sequences", &Auxiliary::order_},
                     {"apply_dropout", &Auxiliary::dropout_},
                     {"spread_inputs", &Auxiliary::spread_},
                     {"gather_inputs", &Auxiliary::gather_},
                     {"copy_without_padding", &Auxiliary::copy_},
                     {"transpose_steps", &Auxiliary::transpose_},
                     {"sum_biases", &Auxiliary::biases_},
                     {"add_parts", &Auxiliary::parts_}},
                    kernels);
}

RnnStatus Auxiliary::StoreLengths(CUstream stream, const int32_t* lengths,
                                  int count, int64_t* to) const {
  HostLengths part;
  for (int first = 0; first < count; first += HostLengths::kMax) {
    int part_count = std::min(HostLengths::kMax, count - first);
    std::copy_n(lengths + first, part_count, part.of);
    int64_t* part_to = to + first;
    void* parameters[] = {&part, &part_count, &part_to};
    CRNN_RETURN_IF_ERROR(LaunchOver(lengths_, stream, part_count, parameters));
  }
  return {};
}

RnnStatus Auxiliary::StoreSeed(CUstream stream, const uint64_t seed[2],
                               uint64_t* to) const {
  uint64_t seed0 = seed[0], seed1 = seed[1];
  void* parameters[] = {&seed0, &seed1, &to};
  return Launch(seed_, stream, 1, 32, 1, parameters);
}

RnnStatus Auxiliary::OrderSequences(CUstream stream, const int64_t* given,
                                    int batch, int steps, int* lengths,
                                    int* order) const {
  void* parameters[] = {&given, &batch, &steps, &lengths, &order};
  return Launch(order_, stream, CeilDiv(batch, 256), 256, 1, parameters);
}

RnnStatus Auxiliary::ApplyDropout(CUstream stream, const Sequences& sequences,
                                  int64_t count, int width, int layer,
                                  const uint64_t* seed, float rate,
                                  void* values) const {
  Sequences all = sequences;
  uint32_t threshold = DropoutThreshold(rate);
  void* parameters[] = {&all,  &count,     &width, &layer,
                        &seed, &threshold, &rate,  &values};
  return LaunchOver(dropout_, stream, count, parameters);
}

RnnStatus Auxiliary::SpreadInputs(CUstream stream, int64_t count, int units,
                                  int gates, int slots, const void* inputs,
                                  void* to) const {
  void* parameters[] = {&count, &units, &gates, &slots, &inputs, &to};
  return LaunchOver(spread_, stream, count, parameters);
}

RnnStatus Auxiliary::GatherInputs(CUstream stream, int64_t count, int units,
                                  int gates, int slots, const void* of_forward,
                                  const void* of_backward, void* to) const {
  void* parameters[] = {&count,      &units,       &gates, &slots,
                        &of_forward, &of_backward, &to};
  return LaunchOver(gather_, stream, count, parameters);
}

RnnStatus Auxiliary::CopyWithoutPadding(CUstream stream,
                                        const Sequences& sequences,
                                        int64_t count, int width,
                                        const void* from, void* to) const {
  Sequences all = sequences;
  void* parameters[] = {&all, &count, &width, &from, &to};
  return LaunchOver(copy_, stream, count, parameters);
}

RnnStatus Auxiliary::TransposeSteps(CUstream stream, const Sequences& sequences,
                                    int64_t rows, int width, int64_t pitch,
                                    const void* from, void* to) const {
  Sequences all = sequences;
  void* parameters[] = {&all, &rows, &width, &pitch, &from, &to};
  const int64_t tiles = CeilDiv(rows, 32) * CeilDiv(width, 32);
  return Launch(transpose_, stream,
                std::min<int64_t>(tiles, kMaxBlocksOfNumbers), 32, 8,
                parameters);
}

RnnStatus Auxiliary::SumBiases(CUstream stream, const void* sums, int rows,
                               int units, int gates, int slots,
                               int recurrent_slot, void* input_bias,
                               void* recurrent_bias) const {
  void* parameters[] = {&sums,  &rows,           &units,      &gates,
                        &slots, &recurrent_slot, &input_bias, &recurrent_bias};
  return Launch(biases_, stream, CeilDiv(slots * units, 32), 32, 8, parameters);
}

RnnStatus Auxiliary::AddParts(CUstream stream, int64_t count, int num_parts,
                              const void* parts, void* to) const {
  void* parameters[] = {&count, &num_parts, &parts, &to};
  return LaunchOver(parts_, stream, count, parameters);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
