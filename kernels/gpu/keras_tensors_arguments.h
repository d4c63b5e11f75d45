// What the host tells the kernel that moves the tensors of Keras's layers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_ARGUMENTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_ARGUMENTS_H_

namespace cudnn_rnn_tf {

// A kernel or bias, [sides, fan_in, gates * units]. In the buffer it is [sides,
// gates, units, fan_in], from `offset` on.
struct KerasTensorMove {
  void* tensor;
  long long offset;
  int fan_in, gates, units;
  int swaps_gates;  // Whether the first two gates are swapped in the buffer.
  // A tile has up to 32 x 32 numbers of one gate of one side. Tiles are counted
  // on from one tensor to the next.
  unsigned int first_tile;
};

// With these, the arguments fit into the 4 KiB that all GPUs take.
constexpr int kMostKerasTensorMoves = 64;

struct KerasTensorMoves {
  void* params;
  int count;
  KerasTensorMove of[kMostKerasTensorMoves];
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_KERAS_TENSORS_ARGUMENTS_H_
