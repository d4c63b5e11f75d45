// All kinds of cells. CPUs, GPUs and XLA include this same file, each in a
// namespace of its own. So it includes cells alone, and names no type: V is a
// number, a vector of numbers or one of XLA's operations, and F brings the
// functions of V that a cell computes with.
//
// F has Relu, and
//   Gate(x), Activate(x): what gates, or a candidate and c, pass through; they
//     are the sigmoid and tanh unless the network says otherwise.
//   GateSlope(y), Slope(y): the slopes where these are y.
//   OneMinus(x): 1 - x.
//   Between(a, x, y): a * x + (1 - a) * y.
//   Limit(c): c within the bounds of cell clipping, or c without clipping.
//   Product(x, ...): x * ..., as a Factor. A gradient times a Factor is what
//     the gradient times x, times the next number and so on would be. A GPU
//     multiplies factors before it knows the gradient, a CPU does not.
//   ThroughLimit(c, factor): the factor, or 0 where Limit changes c.
//   ReluSlope(y): 1 where y > 0, else 0, as a Factor.
//   OfVector(i): of a cell with vectors, the unit's number in one of them.
//   Zone(i): with zoneout, the share of h (0) or c (1) that stays.
#ifndef CUDNN_RNN_TF_KERNELS_CELLS_CELLS_H_
#define CUDNN_RNN_TF_KERNELS_CELLS_CELLS_H_

// A cell is a CellShape with these functions. z are the sums that its slots get
// from products with the input and with h, and dz the gradients of these. A
// function may leave unused what the cell has not, such as c.
//   Forward(f, z, &h, &c, kept): a step. It replaces h and c by the next ones
//     and sets the numbers of the slots that a backward pass needs, the gates'
//     values among them.
//   Prepare(f, kept, h_before, c, c_before): the Factors of a step, of what it
//     kept and of the states before and after it.
//   Backward(factors, dh, &carry_h, &dc, dz): sets dz, and replaces dc, the
//     gradient of c, by that of the previous c. A cell that reads h sets
//     carry_h to the gradient that goes to the previous h without passing a
//     gate.
//   Output(f, kept, c), of a cell with c and no norms: the step's h once more.
//   ResetForward(f, z, h, kept) and ResetBackward(f, reset, h, through, &dh,
//     &dz), of a cell that resets before: the former sets what the last gate's
//     matrix reads instead of h, in the slot after the gates, and needs no gate
//     but the first; the latter gets this gate, and sets the gradient of its
//     sum.
//   VectorGradients(f, dz, c, c_before, to), of a cell with vectors: what a
//     step adds to their gradients.
// Cells that normalise have other functions, which layer_norm.h describes.
//
// Each gate has a slot. The first `joint_gates` gates get the sum of both
// products. If there is one more gate, there is one more slot, after the gates:
// the product with the input is in the gate's own slot and that with h in this
// one, unless the cell resets before.
template <int gates, int joint_gates = gates, bool resets_before = false>
struct CellShape {
  static constexpr int kGates = gates, kJointGates = joint_gates;
  static constexpr int kSlots = joint_gates < gates ? gates + 1 : gates;
  static constexpr bool kResetsBefore = resets_before;
  // The gates whose matrices read h. They come first.
  static constexpr int kGatesOfH = resets_before ? joint_gates : gates;
  // Whether the two sides of the last gate are apart.
  static constexpr bool kSplitsGate = joint_gates < kGatesOfH;
  // The slot of a gate's recurrent side.
  static constexpr int RecurrentSlot(int gate) {
    return kSplitsGate && gate >= joint_gates ? gates : gate;
  }
  // Whether ResetForward and ResetBackward have a slot, and not the others.
  static constexpr bool IsOfReset(int slot) {
    return resets_before && (slot == 0 || slot == gates);
  }

  // Whether there is a state c beside h.
  static constexpr bool kHasC = false;
  // Whether a step reads h besides by the recurrent matrices.
  static constexpr bool kReadsH = false;
  static constexpr bool kZones = false;  // Whether a step calls Zone.
  // The number of vectors of weights, which have one number of each unit. Norm
  // k has two of them, 2 k, which multiplies, and 2 k + 1, which is added.
  static constexpr int kVectors = 0, kNorms = 0;
  // Each cell says whether its own activations keep h at most 1, or at most its
  // first value, as kBoundsH.

  template <typename F, typename V>
  static void ResetForward(const F&, const V*, V, V*) {}
  template <typename F, typename V>
  static void ResetBackward(const F&, V, V, V, V*, V*) {}
  template <typename F, typename V>
  static void VectorGradients(const F&, const V*, V, V, V*) {}
};

#include "activations.h"
#include "gru.h"
#include "gru_reset_before.h"
#include "layer_norm.h"
#include "lstm.h"
#include "lstm_peephole.h"
#include "rnn.h"
#include "zoneout.h"

// In the order of RnnMode.
template <typename... Cells>
struct CellList {};
using AllCells = CellList<Lstm, Gru, RnnTanh, RnnRelu, GruResetBefore,
                          LstmPeephole, LstmLayerNorm, GruLayerNorm>;
template <typename... Cells>
CellList<typename WithZoneout<Cells>::Type...> AllWithZoneout(
    CellList<Cells...>);
using ZoneoutCells = decltype(AllWithZoneout(AllCells()));

#endif  // CUDNN_RNN_TF_KERNELS_CELLS_CELLS_H_
