// All kinds of cells. CPUs, GPUs and XLA include this same file, each in a
// namespace of its own. So it includes nothing else, and names no type: V is a
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

// A cell has `gates` gates. Forward computes a step from z, the inputs of the
// gates, and sets the numbers `kept`, one for each slot, which are the gates'
// values and what else a backward pass needs. h and c are replaced by the next
// ones. Prepare makes Factors of what was kept, of the h before the step, and
// of c after and before it. Backward computes from them the gradients dz of z,
// and replaces dc, the gradient of c, by that of the previous c. A cell that
// reads h sets `carry_h` to the gradient that goes to the previous h without
// passing a gate. Output, which a cell with c and without norms has, computes h
// from what was kept and c.
//
// kBoundsH, which every cell says or inherits, is whether its own activations
// keep h at most 1, or at most its first value.
//
// A cell may have kVectors vectors of weights, with one number of each unit.
// VectorGradients sets what a step adds to their gradients, given the dz that
// Backward has computed and c after and before the step.
//
// Of the gates, the first `joint_gates` read the sum of their products with the
// input and with h. If there is one more, it has a slot after the gates. Unless
// the cell resets before, the product with the input is in the gate's own slot
// of z, and that with h in the other one.
//
// A cell with kNorms > 0 is one of layer_norm.h, which has other functions.
// Norm k has vectors 2 k, which multiplies, and 2 k + 1, which is added.
//
// If the cell resets before, the last gate's matrix does not read h but what
// ResetForward puts into the slot after the gates, which needs no gate but the
// first. ResetBackward computes the gradient of that gate's input.
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
  static constexpr int kVectors = 0, kNorms = 0;

  template <typename F, typename V>
  static void ResetForward(const F&, const V*, V, V*) {}
  template <typename F, typename V>
  static void ResetBackward(const F&, const V*, V, V, V*, V*) {}
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
