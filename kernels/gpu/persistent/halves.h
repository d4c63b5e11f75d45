// Makes float16's operands of floats where TF32 is allowed, since both types
// keep ten bits of a fraction, and float16's products take half as long.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_HALVES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_HALVES_H_

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/arguments.h"
#include "kernels/gpu/product.h"

namespace cudnn_rnn_tf {
namespace persistent {

// How the operands are multiplied. The products are floats.
inline constexpr ProductType kHalfProducts = {RnnDataType::kFloat16, true};

// The kernels of halves.cu.
class Halves {
 public:
  // Gets the kernels, without which nothing else may be called.
  RnnStatus Compile() {
    return kernels_.Add(
        "halves.cu", {TypeOf(RnnDataType::kFloat32).macro},
        {"halve_rows", "find_columns", "halve_columns", "unscale"});
  }

  // The numbers from one row of operands to the next. cuBLAS is fast if rows
  // begin at multiples of 16 bytes.
  static int64_t Pitch(int64_t width) { return CeilDiv<int64_t>(width, 8) * 8; }
  // Halves [rows, width] by rows, whose powers go to `powers`. Zeros follow up
  // to Pitch(width), if `to_pitch` leaves room for them.
  RnnStatus Rows(CUstream stream, int64_t rows, int64_t width, int64_t pitch,
                 const void* from, float least, int64_t to_pitch, void* to,
                 float* powers) const {
    return kernels_.Enqueue(
        "halve_rows", stream,
        {rows, ThreadsOfRow(width, HalvedNumbers::kOfThread)},
        static_cast<int>(width), pitch, from, least,
        static_cast<int>(std::min(Pitch(width), to_pitch)), to_pitch, to,
        powers);
  }
  // The threads of a block that takes a row, of which each thread has
  // `numbers`.
  static int ThreadsOfRow(int64_t width, int64_t numbers) {
    constexpr int kWarp = 32, kMost = 1024;
    return static_cast<int>(
        std::min<int64_t>(CeilDiv(width, kWarp * numbers) * kWarp, kMost));
  }
  // Halves [rows, width] by columns. Rows are multiplied by `factors` first
  // unless it is null. `largest`, [width], keeps what the powers are made of.
  RnnStatus Columns(CUstream stream, const StepRows& from, int64_t rows,
                    int64_t width, const float* factors, void* largest,
                    int64_t to_pitch, void* to) const {
    CRNN_RETURN_IF_ERROR(
        EnqueueFill(stream, largest, 0, width * sizeof(float)));
    CRNN_RETURN_IF_ERROR(
        kernels_.Enqueue("find_columns", stream, GridOf(rows, width), from,
                         rows, static_cast<int>(width), factors, largest));
    return kernels_.Enqueue("halve_columns", stream, GridOf(rows, width), from,
                            rows, static_cast<int>(width), factors, largest,
                            to_pitch, to);
  }
  // Divides products, [rows, width] with rows that are `pitch` numbers apart,
  // by the powers of their operands.
  RnnStatus Unscale(CUstream stream, int64_t rows, int64_t width, int64_t pitch,
                    const float* of_rows, const void* of_columns,
                    const void* products, void* results) const {
    return kernels_.Enqueue("unscale", stream, GridOf(rows, width), rows,
                            static_cast<int>(width), pitch, of_rows, of_columns,
                            products, results);
  }

 private:
  static Grid GridOf(int64_t rows, int64_t width) {
    constexpr int kThreads = 256;
    const int64_t across =
        CeilDiv<int64_t>(width, HalvedNumbers::kColumnsOfTile);
    return {
        across * std::min(CeilDiv<int64_t>(rows, HalvedNumbers::kRowsOfTile),
                          CeilDiv(kMaxBlocksOfNumbers, across)),
        kThreads};
  }

  SmallKernels kernels_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_HALVES_H_
