// The arguments that the host hands to the kernels. The device's compiler reads
// this file too, so it includes nothing.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_

namespace cudnn_rnn_tf {
namespace persistent {

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
  // [rows], not 0 where a segment of a sequence begins; null without resets.
  const char* resets = nullptr;
};

// [rows, width], some numbers of each step: rows of `numbers` or, if they are
// states after each step, those before it. These are first states, a row for
// each sequence, where it begins, and zeros where it starts anew. What is past
// the sequences' ends is zero if they have lengths.
struct StepRows {
  Sequences sequences;
  const void* numbers;
  long long pitch;  // The numbers from one row to the next.
  int are_before = 0, is_reversed = 0;
  const void* first = nullptr;
  long long first_pitch = 0;
};

// Lengths that the host knows, as an argument of a kernel. An argument is
// copied when the kernel is enqueued, so the host's memory may be freed then.
// It may have at most four kilobytes.
struct HostLengths {
  static constexpr int kMax = 960;
  int of[kMax];
};

// Zoneout of h and of c: the rates, which are the shares that stay if there is
// no seed, and what else says where there is one which of the numbers stay.
struct ZoneoutArguments {
  const unsigned long long* seed;  // [2], or null.
  float rates[2];
  unsigned int thresholds[2];
  long long mask_layer;
};

// The arguments of both passes begin with these.
struct PassArguments {
  // These two are set for each launch. If several launches run a layer, each of
  // them runs one direction. All bits of the memory are set before the launch.
  // Each of its directions and teams has Shape::team_memory_bytes of it; a
  // stack has a counter there, and other clusters have nothing.
  void* team_memory;
  int first_direction;
  float epsilon;  // What is added to variances.
  Sequences sequences;
  long long output_stride, state_stride;
  ZoneoutArguments zoneout;
};

// One direction of a layer. A unit has S slots in `gates`. A plain RNN has 1
// slot and an LSTM 4, one for each gate; a GRU has 4, for the reset gate, the
// update gate, the candidate, and the candidate's recurrent side. Rows of
// `output` and its gradient are `output_stride` numbers apart, those of states
// `state_stride`.
struct LayerDirection {
  long long pseudo_layer;
  const void* recurrent_weights;  // [G * H, P].
  const void* projection;         // [P, H], or null.
  const void* vectors;            // [V, H], of a cell that has some.
  // [rows, S * H], the products of the input side, which training replaces by
  // the gates' values, and the backward pass these by the gradients of the
  // gates' inputs, and a GRU's fourth slot by the gradient of the candidate's
  // recurrent side.
  void* gates;
  void* cells;  // [rows, H], c after each step; training, LSTM.
  // [rows, kNorms], of cells that normalise, in training: a mean and scales.
  void* norms;
  const void* first_h;
  const void* first_c;
};

struct ForwardDirection : LayerDirection {
  const void* input_bias;      // [G * H], or null.
  const void* recurrent_bias;  // [G * H], or null.
  // In a stack, other clusters compute the products of upper layers from
  // `input_weights`, [G * H, H], and `input`, the output of the layer below,
  // [rows, H]. All bits set mark a number in `gates` or `input` that is not
  // there yet.
  const void* input_weights;
  const void* input;
  void* output;
  void* last_h;
  void* last_c;
  void* all_c;  // [rows, D * H], c after each step; null where it is not asked.
};

struct ForwardArguments : PassArguments {
  // A stack has at most this many layers.
  static constexpr int kMaxLayers = 8;

  // The directions of a layer, of which the second runs backwards; or one
  // direction for each layer of a stack, the lowest layer first.
  ForwardDirection direction[kMaxLayers];
};

struct BackwardDirection : LayerDirection {
  const void* output;
  const void* output_backprop;
  const void* last_h_backprop;
  const void* last_c_backprop;
  const void* all_c_backprop;
  void* first_h_backprop;
  void* first_c_backprop;
  void* projected_backprop;  // [rows, P], the gradients of projections.
  // The sums of the gates' gradients over some sequences each, and, of cells
  // that normalise, those of the gradients of vectors: [shares * Shape::rows(),
  // S * H] and V * H or, if steps are enqueued one by one, [batch, ...]. They
  // are floats or, in float64, doubles.
  float* bias_sums;
  float* vector_sums;
};

struct BackwardArguments : PassArguments {
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

  // [D, B, H]. Bit g is 0 where the mask of gate g drops the number of h. Null
  // without recurrent dropout.
  unsigned char* masks;
  // What matrices are multiplied by, of all gates but the candidate of a GRU
  // that has matrices of its own below, or of "all gates" in what follows. In
  // the backward pass, these are gradients of the gates' inputs, in the order
  // that the strides below say. In the forward pass, it is h: with masks, once
  // for each gate, in the same order; otherwise [D, B, H], before the
  // projection if there is one. If operands are in float16, rows of these and
  // of products are padded with zeros.
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
  // The powers of two by which floats are halved, as scales.cuh has them, or
  // null: of the rows of the recurrent matrices, [D, G * H], of the sequences'
  // operands, [D, B], and of the operands of the input side, the matrices'
  // rows, [D, G * H], and the steps, [rows].
  const float* row_powers;
  const float* projection_powers;  // Of the projections' rows, [D, P].
  float* sequence_powers;
  const float* input_row_powers;
  const float* step_powers;
  int units, outputs, directions;  // H, P and D.
  // In the numbers of all gates, and from one row of [D, B, H] and [D, B, P] of
  // operands and products to the next.
  int direction_stride, gate_stride, sequence_stride, unit_pitch, output_pitch;
  long long cell_stride;  // From one sequence's first c to the next one's.
  float clip;             // The bound of an LSTM's c, or 0.
  float rate;             // That of recurrent dropout.
  // A random word below this drops its number.
  unsigned int threshold;
  int is_training;  // 1 or 0.
};

// Of halves.cu: the numbers of a row that a thread has at the same time, and
// the rows and columns of a tile.
struct HalvedNumbers {
  static constexpr int kOfThread = 16, kRowsOfTile = 32, kColumnsOfTile = 128;
};

// A pass is compared with an earlier one word by word. So there are no gaps,
// which could hold anything: these are the arguments' words of eight bytes.
static_assert(sizeof(ForwardArguments) == (13 + 8 * 17) * 8);
static_assert(sizeof(BackwardArguments) == (13 + 2 * 19) * 8);
static_assert(sizeof(StepBuffers) == 20 * 8);

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_ARGUMENTS_H_
