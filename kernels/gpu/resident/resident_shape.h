// The host and the kernel of resident.cu lay out a block's memory by the
// functions here. The device's compiler reads this file too, so it includes
// nothing.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_RESIDENT_SHAPE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_RESIDENT_SHAPE_H_

namespace cudnn_rnn_tf {

// The placement of a layer's weights among blocks and kinds of memory. A lane
// has chunks of 16 bytes of them, in this order: those in registers, those in
// shared memory, and those that are streamed.
struct ResidentShape {
  int num_units, batch, gates;  // Of the layer.
  int item_bytes;
  int units, warps;             // Of a block.
  int in_registers, in_shared;  // A lane's chunks there.
  int ahead;  // The streamed chunks that a lane fetches ahead, or 0.
  int kept;   // The thousandths of these that should stay in the L2 cache.

  constexpr int blocks() const { return (num_units + units - 1) / units; }
  constexpr int threads() const { return 32 * warps; }
  // The block's rows of the weights, gate by gate, in groups of 8.
  constexpr int rows() const { return gates * units; }
  constexpr int groups() const { return (rows() + 7) / 8; }
  // Columns are dealt out to the warps in slices of 64 bytes. Lane 4 g + t has
  // one chunk of each slice and group: the quarter t of row g.
  constexpr int slices() const { return num_units * item_bytes / 64; }
  constexpr int own_slices() const { return (slices() + warps - 1) / warps; }
  constexpr int chunks() const { return own_slices() * groups(); }
  constexpr int resident() const { return in_registers + in_shared; }
  constexpr int streamed() const {
    return chunks() > resident() ? chunks() - resident() : 0;
  }
  // Neighbouring lanes compute a cell, which is one unit of one sequence.
  static constexpr int kLanesOfCell = 4;
  constexpr int cells() const { return units * batch; }
  constexpr int rounds() const {
    return (cells() * kLanesOfCell + threads() - 1) / threads();
  }
  // With this pitch of one warp's sums, the lanes of a cell read from different
  // banks.
  constexpr int pitch() const { return (rows() * batch + 31) / 32 * 32 + 8; }
  // Shared memory has a chunk for each thread for each of those that lanes have
  // there or fetch ahead, two sets of sums and, in float32, two stages of h.
  constexpr int chunk_bytes() const { return 16 * threads(); }
  constexpr int other_bytes() const {
    return 2 * warps * (pitch() * 4 + (item_bytes == 4 ? batch * 64 : 0));
  }
  constexpr int shared_bytes() const {
    return (in_shared + ahead) * chunk_bytes() + other_bytes();
  }
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_RESIDENT_SHAPE_H_
