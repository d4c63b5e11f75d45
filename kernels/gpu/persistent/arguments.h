// The host hands these arguments to the persistent kernels, and both lay out a
// block's memory by the functions here. The device's compiler reads this file
// too, so it includes nothing.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_

namespace cudnn_rnn_tf {
namespace persistent {

// The division of a layer among the blocks of teams. Each team runs some of the
// sequences with all of the recurrent weights; each of its blocks has the
// gates' rows of `block_units` units. If a team is a cluster, its blocks store
// to each other's shared memory. Any other team exchanges through the L2 cache;
// it may be larger, and leaves no multiprocessor idle.
//
// What products read is in words of 32 bits: two of a half type, or one float.
// The tensor cores multiply tiles of 16 rows by steps of 8 words; a lane loads
// the operands of two such steps, a pair, at once.
struct Shape {
  int units;           // H, of the layer.
  int items;           // Numbers in a word of what products read.
  int team;            // Blocks in a team.
  int is_cluster;      // 1 if a team is a cluster.
  int block_units;     // A multiple of chunk_units().
  int warps;           // In a block.
  int splits;          // Parts of the forward sums, each by different warps.
  int row_tiles;       // Groups of 8 sequences in a team.
  int resident_pairs;  // Pairs in registers; shared memory has the others.
  // 1 if one launch of the forward kernel runs all layers of a stack at the
  // same time, each of them some steps behind the one below. Teams are clusters
  // then.
  int is_stack;
  // How the products are computed; products.cuh has what these stand for. Half
  // types are multiplied directly. So are floats, where TF32 is allowed: as
  // they are or, if h has a bound, as numbers in float16 (powers.cuh).
  int products;
  static constexpr int kDirect = 0, kSplit = 1, kFused = 2, kHalves = 3;
  // 1, or the blocks of a band, which have the rows of all their units in
  // common: each of them has a slice of the columns of these rows. So it reads
  // a slice of h alone, and the sums of a band's blocks are added.
  int slices;
  int slots;  // Rows of the weights for each unit. Some stand for no gate.
  // 1 if four warps multiply 64 rows of the weights together, as Hopper's do.
  int has_warpgroups;
  int norms;  // Of a cell that normalises its sums; otherwise 0.
  // Whether floats keep all their digits.
  constexpr bool is_exact() const {
    return products == kSplit || products == kFused;
  }

  // The units of a chunk: 16 bytes, which go from block to block at once.
  constexpr int chunk_units() const { return 4 * items; }
  // Those of a chunk in the type of the data, in which parts of gradients go.
  constexpr int data_chunk_units() const {
    return products == kHalves ? 4 : chunk_units();
  }
  constexpr int data_bytes() const { return 16 / data_chunk_units(); }
  constexpr int rows() const { return 8 * row_tiles; }
  constexpr int item_bytes() const { return 4 / items; }
  constexpr int all_units() const { return team * block_units; }
  constexpr bool has_bands() const { return slices > 1; }
  constexpr int bands() const { return team / slices; }
  constexpr int slice_units() const { return all_units() / slices; }
  // The rows of the weights of which a block has a slice.
  constexpr int band_rows() const { return slices * block_units * slots; }

  // Bytes from one row of `pairs` pairs to the next. Odd multiples of 64 keep
  // the eight rows that a warp reads at once in different banks.
  static constexpr int Pitch(int pairs) { return (pairs / 2 * 2 + 1) * 64; }
  // What the weights are multiplied by has chunks of 16 bytes; these are the
  // bytes from a sequence's chunk to the next sequence's, and to the sequence's
  // next chunk. Warpgroups read the chunks of eight sequences at once.
  constexpr int operand_pitch(int pairs) const {
    return has_warpgroups ? 16 : Pitch(pairs);
  }
  constexpr int column_pitch() const {
    return has_warpgroups ? rows() * 16 + 16 : 16;
  }
  constexpr int operand_bytes(int pairs) const {
    return has_warpgroups ? pairs * 4 * column_pitch() : rows() * Pitch(pairs);
  }
  // The independent sums of each of a warp's tiles. There are enough of them to
  // hide the latency of the tensor cores.
  constexpr int Chains(int tiles) const {
    return has_warpgroups ? 1
                          : (4 + tiles * row_tiles - 1) / (tiles * row_tiles);
  }
  // Barriers and, in a stack, a cluster's ticket stand before everything else
  // in shared memory.
  static constexpr int kBarrierBytes = 128;
  // The bytes of one operand of a pair, for all lanes of a warp.
  static constexpr int kChunkBytes = 32 * 16;
  // Where floats are multiplied in float16, each of a block's rows of the
  // weights has a power of two, and so have a sequence's numbers in two steps.
  // In a band, a sequence's numbers have one for each block and one for all.
  constexpr int powers_bytes() const {
    const int of_sequences = 2 + (has_bands() ? 2 + slices : 0);
    return products == kHalves ? (band_rows() + of_sequences * rows()) * 4 : 0;
  }

  // So many consecutive lanes have cells of the same sequence, and perhaps all
  // of the sequence's cells in the block.
  constexpr int row_lanes() const {
    return block_units % 32 == 0   ? 32
           : block_units % 16 == 0 ? 16
           : block_units % 8 == 0  ? 8
                                   : 4;
  }
  // If a cell normalises, blocks get from each other what the lanes of each
  // such part know of a sequence, in the two exchanges of a step: in a cluster,
  // in shared memory.
  constexpr int norm_parts() const { return all_units() / row_lanes(); }
  constexpr int norm_bytes() const {
    return norms == 0 ? 0 : (norms / 2 + 1) * rows() * norm_parts() * 16;
  }
  constexpr int norm_shared_bytes() const {
    return is_cluster ? norm_bytes() : 0;
  }

  // The forward pass multiplies a block's rows of the weights by h.
  constexpr int forward_tiles() const {
    return has_warpgroups ? (band_rows() + 63) / 64 * 4
                          : (band_rows() + 15) / 16;
  }
  // In clusters, a warp of a warpgroup has all rows of eight units, which are
  // two tiles. So its lanes have all sums of their cells.
  constexpr bool forward_holds_cells() const {
    return has_warpgroups && is_cluster;
  }
  constexpr int forward_warp_tiles() const {
    return forward_holds_cells()
               ? 2
               : (forward_tiles() * splits + warps - 1) / warps;
  }
  constexpr int forward_warp_pairs() const {
    return (slice_units() / items + 16 * splits - 1) / (16 * splits);
  }
  constexpr int forward_pitch() const {
    return operand_pitch(forward_warp_pairs() * splits);
  }
  // A cluster's peers store to one copy while a block reads the other.
  constexpr int copies() const { return is_cluster ? 2 : 1; }
  constexpr int forward_h_bytes() const {
    return copies() * operand_bytes(forward_warp_pairs() * splits);
  }
  // The floats from the sums for one sequence to those for the next. With this
  // pitch, the stores of a warp go to different banks.
  constexpr int forward_sums_pitch() const { return slots * block_units + 4; }
  constexpr int forward_sums_bytes() const {
    const int copies = forward_holds_cells() ? 0 : has_bands() ? 1 : splits;
    return copies * rows() * forward_sums_pitch() * 4;
  }
  // In a band, a block receives so many chunks of sums from each split of each
  // block, itself too.
  constexpr int forward_sums_chunks() const {
    return block_units * slots / 4 * rows();
  }
  constexpr int forward_sums_step_bytes() const {
    return has_bands() ? slices * splits * forward_sums_chunks() * 16 : 0;
  }
  constexpr int forward_shared_bytes() const {
    return kBarrierBytes + powers_bytes() + norm_shared_bytes() +
           forward_h_bytes() + forward_sums_bytes() +
           (forward_warp_pairs() - resident_pairs) * warps *
               forward_warp_tiles() * 2 * kChunkBytes;
  }
  // The chunks of a step of the layer below that a thread of a stack fetches.
  constexpr int forward_thread_chunks() const {
    return (rows() * all_units() / data_chunk_units() + 32 * warps - 1) /
           (32 * warps);
  }
  // The bytes that a block receives in a step.
  constexpr int forward_step_bytes() const {
    return rows() * all_units() * item_bytes();
  }

  // Each layer of a stack has a stage. Each but the lowest has another stage
  // before it, which multiplies the output of the layer below by the input
  // weights.
  constexpr int Stages(int layers) const {
    return is_stack ? 2 * layers - 1 : 1;
  }

  // The backward pass multiplies the transposed rows of the weights by the
  // gradients of the gates.
  constexpr int backward_pairs() const {
    return (band_rows() + 16 * items - 1) / (16 * items);
  }
  // A group's tiles give a lane the sums of consecutive units, 16 bytes of
  // them.
  constexpr int group_tiles() const { return data_chunk_units() / 4; }
  constexpr int backward_groups() const {
    return (slice_units() + 16 * group_tiles() - 1) / (16 * group_tiles());
  }
  constexpr int backward_warp_groups() const {
    return (backward_groups() + warps - 1) / warps;
  }
  constexpr int backward_warp_tiles() const {
    return backward_warp_groups() * group_tiles();
  }
  // A cluster's peers store partial sums to slots, one for each sender. This is
  // how many numbers one sequence takes in a slot.
  constexpr int backward_slot_pitch() const {
    return block_units + data_chunk_units();
  }
  // In other teams, threads fetch the partial sums of some senders each and add
  // them. A group of threads that has all of a block's units and sequences is
  // an adder, and shared memory has one slot of floats for each adder.
  constexpr int backward_sender_chunks() const {
    return rows() * block_units / data_chunk_units();
  }
  constexpr int backward_adders() const {
    const int most = 32 * warps / backward_sender_chunks();
    return most < 1 ? 1 : most < bands() ? most : bands();
  }
  constexpr int backward_slots_bytes() const {
    return is_cluster ? 2 * team * rows() * backward_slot_pitch() * data_bytes()
                      : backward_adders() * rows() * block_units * 4;
  }
  constexpr int backward_gradient_bytes() const {
    return (has_bands() ? 1 : 2) * operand_bytes(backward_pairs());
  }
  constexpr int backward_shared_bytes() const {
    return kBarrierBytes + powers_bytes() + norm_shared_bytes() +
           backward_slots_bytes() + backward_gradient_bytes() +
           (backward_pairs() - resident_pairs) * warps * backward_warp_tiles() *
               2 * kChunkBytes;
  }
  constexpr int backward_step_bytes() const {
    return bands() * rows() * block_units * data_bytes();
  }
  // In a band, a block sends so many chunks of gradients of its gates, four of
  // each unit, and then a chunk with the power of each sequence.
  constexpr int backward_gates_chunks() const {
    return block_units / items * rows();
  }
  constexpr int backward_gates_step_bytes() const {
    const int powers = products == kHalves ? rows() : 0;
    return has_bands() ? (backward_gates_chunks() + powers) * 16 : 0;
  }

  // Teams that are no clusters send through memory, with places for this many
  // steps: in a ring whose places are cleared, what several blocks read, and in
  // one with marks, what is for one block.
  static constexpr int kClearedRing = 32, kMarkedRing = 2;
  constexpr int forward_ring_bytes() const {
    return kClearedRing * (forward_step_bytes() + norm_bytes()) +
           kMarkedRing * team * forward_sums_step_bytes() +
           ring_of_rows_bytes();
  }
  constexpr int backward_ring_bytes() const {
    return kMarkedRing * team * backward_step_bytes() +
           kClearedRing * (team * backward_gates_step_bytes() + norm_bytes()) +
           ring_of_rows_bytes();
  }
  // The powers of rows of the weights, which a band's blocks tell each other.
  constexpr int ring_of_rows_bytes() const {
    return has_bands() && products == kHalves ? bands() * band_rows() * 4 : 0;
  }
};

// What is set for each launch. If several launches run a layer, each of them
// runs one direction.
struct Part {
  int first_direction;
  // Memory in which all bits are set before the launch. It has a ring for each
  // of the launch's directions and teams or, in a stack, a counter. Other
  // clusters do not use it.
  void* ring;
};

// The sequences of the batch. Step `t` of sequence `b` is row t * time_stride +
// b * batch_stride of every buffer of steps.
struct Sequences {
  // [batch], each in [0, steps], or -1 for one that was out of range; null
  // where all sequences fill the steps.
  const int* lengths;
  // [batch], the sequences from the longest to the shortest; null where
  // lengths is null.
  const int* order;
  int batch, steps;
  int time_stride, batch_stride;
  // [rows], true where a segment of a sequence begins; null without resets.
  const bool* resets = nullptr;
};

// Lengths that the host knows, as an argument of a kernel. An argument is
// copied when the kernel is enqueued, so the host's memory may be freed then.
// It may have at most four kilobytes.
struct HostLengths {
  static constexpr int kMax = 960;
  int of[kMax];
};

// The most threads of the block that orders sequences.
inline constexpr int kOrderingThreads = 512;

// One direction of a layer. A unit has S slots in `gates`. A plain RNN has 1
// slot and an LSTM 4, one for each gate; a GRU has 4, for the reset gate, the
// update gate, the candidate, and the candidate's recurrent side. Rows of
// `output` and its gradient are `output_stride` numbers apart, those of states
// `state_stride`.
struct ForwardDirection {
  const void* recurrent_weights;  // [G * H, P].
  const void* projection;         // [P, H], or null.
  const void* vectors;            // [V, H], of a cell that has some.
  const void* input_bias;         // [G * H], or null.
  const void* recurrent_bias;     // [G * H], or null.
  // [rows, S * H], the products of the input side, which training replaces by
  // the gates' values. In a stack, other clusters compute the products of upper
  // layers from `input_weights`, [G * H, H], and `input`, the output of the
  // layer below, [rows, H]. All bits set mark a number in `gates` or `input`
  // that is not there yet.
  void* gates;
  const void* input_weights;
  const void* input;
  void* cells;        // [rows, H], c after each step; training, LSTM.
  void* unprojected;  // [rows, H], h before its projection; training.
  const void* first_h;
  const void* first_c;
  void* output;
  void* last_h;
  void* last_c;
  void* all_c;  // [rows, D * H], c after each step; null where it is not asked.
  // [rows, kNorms], of cells that normalise, in training: pairs of sums, as the
  // cells' Norm has them.
  void* norms;
};

struct ForwardArguments {
  // A stack has at most this many layers.
  static constexpr int kMaxLayers = 8;

  Part part;
  Sequences sequences;
  long long output_stride, state_stride;
  float epsilon;  // What is added to variances.
  // The directions of a layer, of which the second runs backwards; or one
  // direction for each layer of a stack, the lowest layer first.
  ForwardDirection direction[kMaxLayers];
};

struct BackwardDirection {
  const void* recurrent_weights;
  const void* projection;
  const void* vectors;
  // [rows, S * H], the gates' values. The kernel replaces them by the gradients
  // of the gates' inputs, and a GRU's fourth slot by the gradient of the
  // candidate's recurrent side.
  void* gates;
  const void* cells;
  const void* first_h;
  const void* first_c;
  const void* output;
  const void* output_backprop;
  const void* last_h_backprop;
  const void* last_c_backprop;
  void* first_h_backprop;
  void* first_c_backprop;
  // [shares * Shape::rows(), S * H] or, if steps are enqueued one by one,
  // [batch, S * H]: the sums of these gradients over each sequence, in float64
  // doubles.
  float* bias_sums;
  void* projected_backprop;  // [rows, P], the gradients of projections.
  const void* all_c_backprop;
  const void* norms;
  // [shares * Shape::rows(), V * H] or [batch, V * H], of cells that normalise:
  // the sums of the gradients of vectors over each sequence.
  float* vector_sums;
};

struct BackwardArguments {
  Part part;
  Sequences sequences;
  long long output_stride, state_stride;
  BackwardDirection direction[2];
};

// What the steps of a layer share if each of them is enqueued on its own. B is
// the number of sequences, D that of directions, G that of gates, H that of
// units; P is the number of projected units, or H. Sums are floats or, in
// float64, doubles.
struct StepBuffers {
  // A block that takes units of a sequence has so many threads at most.
  static constexpr int kMostThreadsOfUnits = 256;
  // With more threads, a block of norm_steps.cu would lack registers.
  static constexpr int kMostThreadsOfNorms = 512;
  // What such a block keeps for a unit, besides a number for each norm.
  static constexpr int kNumbersBesideNorms = 3;

  // [D, B, H]. Bit g is 0 where the mask of gate g drops the number of h. Null
  // without recurrent dropout.
  unsigned char* masks;
  // What matrices are multiplied by, of all gates but the candidate of a GRU
  // that has matrices of its own below, or of "all gates" in what follows. In
  // the backward pass, these are gradients
  // of the gates' inputs, in the order that the strides below say. In the
  // forward pass, it is h: with masks, once for each gate, in the same order;
  // otherwise [D, B, H], before the projection if there is one.
  void* operands;
  // Sums, the products. In the forward pass, they are those of the gates, in
  // the order of the strides. In the backward pass, they are the gradients of
  // h, with masks once for each gate, and otherwise [D, B, H], before the
  // projection.
  void* products;
  // [D, B, P], null without projections: h as the recurrent matrices read it in
  // the forward pass, and the gradient of h in the backward pass. Then the
  // products of projections, sums, only in the forward pass.
  void* projected;
  void* projected_sums;
  // Sums, [D, B, H], for the next step: an LSTM's c or a GRU's h in the forward
  // pass. In the backward pass, they are the gradients of those which pass no
  // gate. Of a cell that reads both, those of h follow.
  void* carried;
  // Only of a GRU whose reset gate acts before the product. What the matrices
  // of the candidates are multiplied by, [D, B, H]: r * h as they read it or,
  // in the backward pass, the gradients of the candidates' inputs. And the
  // products, sums.
  void* candidate_operands;
  void* candidate_products;
  void* kept;  // Only of cells that normalise: sums, as norm_steps.cu has them.
  // The powers of two by which floats are halved, as scales.cuh has them, or
  // null: of the rows of the recurrent matrices, [D, G * H], of the sequences'
  // operands, [D, B], and of the operands of the input side, the matrices'
  // rows, [D, G * H], and the steps, [rows].
  const float* row_powers;
  const float* projection_powers;  // Of the projections' rows, [D, P].
  float* sequence_powers;
  const float* input_row_powers;
  const float* step_powers;
  int units, outputs, directions;    // H, P and D.
  int gate_stride, sequence_stride;  // In a direction's numbers of all gates.
  long long cell_stride;  // From one sequence's first c to the next one's.
  float clip;             // The bound of an LSTM's c, or 0.
  float rate;             // That of recurrent dropout.
  // A random word below this drops its number.
  unsigned int threshold;
  bool is_training;
  // Zoneout of h and of c: the rates, which are shares if there is no seed, and
  // what else says where there is one which of the numbers stay.
  const unsigned long long* zone_seed;
  float zone_rates[2];
  unsigned int zone_thresholds[2];
  int zone_mask_layer, first_pseudo_layer;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_
