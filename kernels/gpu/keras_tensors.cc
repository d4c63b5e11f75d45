// GpuBackend moves the weights of Keras's layers here.
#include <limits>
#include <string>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/keras_tensors_arguments.h"
#include "kernels/keras_layout.h"

namespace cudnn_rnn_tf {

RnnStatus GpuBackend::MoveKerasTensors(const KerasLayout& layout,
                                       RnnDataType dtype, bool to_params,
                                       const std::vector<void*>& tensors,
                                       void* params) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  std::vector<std::string> macros = {"UNIT_BYTES=" +
                                     std::to_string(SizeOf(dtype))};
  if (to_params) macros.push_back("TO_PARAMS");
  CompiledKernel kernel;
  CRNN_RETURN_IF_ERROR(
      CompileKernel("keras_tensors.cu", "move_keras_tensors", macros, &kernel));
  KerasTensorMoves moves = {params, 0, {}};
  int64_t tiles = 0;
  const auto launch = [&] {
    return Launch(kernel, stream(), {tiles, 32, 8}, moves);
  };
  auto tensor = tensors.begin();
  for (const KerasTensor& place : layout.tensors()) {
    const int64_t added = place.sides * place.gates *
                          CeilDiv<int64_t>(place.units, 32) *
                          CeilDiv<int64_t>(place.fan_in, 32);
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (added > kMost || place.fan_in > kMost ||
        place.gates * place.units > kMost) {
      return {RnnStatus::Code::kUnimplemented,
              place.Name() +
                  " on a GPU: expected less than 2^31 rows, "
                  "columns and tiles of 32 by 32"};
    }
    if (moves.count == kMostKerasTensorMoves || tiles + added > kMost) {
      CRNN_RETURN_IF_ERROR(launch());
      moves.count = 0;
      tiles = 0;
    }
    moves.of[moves.count++] = {
        *tensor++,
        place.offset,
        static_cast<int>(place.fan_in),
        static_cast<int>(place.gates),
        static_cast<int>(place.units),
        place.swaps_gates,
        static_cast<unsigned int>(tiles),
    };
    tiles += added;
  }
  return launch();
}

}  // namespace cudnn_rnn_tf
