#include "kernels/xla/single_step.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "kernels/param_layout.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"

namespace cudnn_rnn_tf {
namespace {

using xla::XlaOp;

#include "kernels/cells/cells.h"

// The functions that cells.h asks for, but those of backward passes.
struct Functions {
  float clip;  // 0 for none.
  int activation, recurrent_activation;
  std::vector<XlaOp> vectors, zones;

  XlaOp Sigmoid(XlaOp x) const { return xla::Logistic(x); }
  XlaOp Tanh(XlaOp x) const { return xla::Tanh(x); }
  XlaOp Relu(XlaOp x) const { return Max(x, xla::ZerosLike(x)); }
  XlaOp OneMinus(XlaOp x) const { return xla::ScalarLike(x, 1.0) - x; }
  XlaOp Between(XlaOp a, XlaOp x, XlaOp y) const {
    return a * x + OneMinus(a) * y;
  }
  XlaOp Limit(XlaOp c) const {
    if (clip == 0.0f) return c;
    const XlaOp bound = xla::ScalarLike(c, clip);
    return Clamp(Neg(bound), c, bound);
  }
  XlaOp Linear(XlaOp x, double a, double b) const {
    return xla::ScalarLike(x, a) * x + xla::ScalarLike(x, b);
  }
  XlaOp Abs(XlaOp x) const { return xla::Abs(x); }
  XlaOp Min0(XlaOp x) const { return Min(x, xla::ZerosLike(x)); }
  XlaOp ExpMinus1(XlaOp x) const { return xla::Expm1(x); }
  XlaOp Within01(XlaOp x) const {
    return Clamp(xla::ZerosLike(x), x, xla::ScalarLike(x, 1.0));
  }
  XlaOp Gate(XlaOp x) const {
    return Activated(*this, recurrent_activation, x);
  }
  XlaOp Activate(XlaOp x) const { return Activated(*this, activation, x); }
  XlaOp OfVector(int i) const { return vectors[i]; }
  XlaOp Zone(int i) const { return zones[i]; }
};

// One pseudo-layer. All of its tensors have the shape of a sequence of one
// step, which is that of one pseudo-layer's states as well.
class PseudoLayer {
 public:
  PseudoLayer(const RnnProblem& problem, const SingleStepTypes& types,
              XlaOp params, const ParamLayout::PseudoLayer& places,
              int64_t input_size)
      : spec_(problem.spec),
        rows_(problem.time_major
                  ? std::array<int64_t, 2>{1, problem.batch_size}
                  : std::array<int64_t, 2>{problem.batch_size, 1}),
        types_(types),
        params_(params),
        places_(places),
        input_size_(input_size) {}

  // Replaces h and, if the cell has it, c by the next ones.
  void Run(XlaOp x, XlaOp* h, XlaOp* c) const {
    if (spec_.has_zoneout()) {
      RunCell(ZoneoutCells(), x, h, c);
    } else {
      RunCell(AllCells(), x, h, c);
    }
    if (spec_.num_proj > 0) {
      const XlaOp matrix =
          Block(places_.projection, {spec_.num_proj, spec_.num_units});
      *h = Product(*h, matrix, spec_.num_proj);
    }
  }

 private:
  template <typename... Cells>
  void RunCell(CellList<Cells...>, XlaOp x, XlaOp* h, XlaOp* c) const {
    int mode = 0;
    ((mode++ == static_cast<int>(spec_.rnn_mode) ? RunStep<Cells>(x, h, c)
                                                 : void()),
     ...);
  }
  template <typename Cell>
  void RunStep(XlaOp x, XlaOp* h, XlaOp* c) const {
    constexpr int kJoint = Cell::kJointGates;
    Functions functions = {spec_.cell_clip,
                           static_cast<int>(spec_.candidate_activation()),
                           static_cast<int>(spec_.gate_activation()),
                           {},
                           {}};
    for (const float rate : {spec_.zoneout, spec_.cell_zoneout}) {
      functions.zones.push_back(xla::ScalarLike(x, rate));
    }
    for (int i = 0; i < Cell::kVectors; ++i) {
      functions.vectors.push_back(xla::ConvertElementType(
          Block(places_.vectors + i * spec_.num_units, {1, 1, spec_.num_units}),
          types_.sums));
    }
    XlaOp z[Cell::kSlots], kept[Cell::kSlots];
    const XlaOp joint = Gates(x, *h, 0, kJoint);
    for (int gate = 0; gate < kJoint; ++gate) z[gate] = Part(joint, gate);
    if constexpr (Cell::kResetsBefore) {
      Cell::ResetForward(functions, z, *h, kept);
      z[kJoint] = Gates(x, kept[Cell::kGates], kJoint, 1);
    } else if constexpr (kJoint < Cell::kGates) {
      z[kJoint] = OfInput(x, kJoint, 1);
      z[Cell::kGates] = OfState(*h, kJoint, 1);
    }
    if constexpr (Cell::kNorms > 0) {
      NormStep<Cell, XlaOp> at;
      at.c = *c;
      std::copy(std::begin(z), std::end(z), at.z);
      for (int gate = 0; gate < kJoint; ++gate) {
        at.y[gate] = Normalized(functions, gate, z[gate]);
      }
      at.last = Normalized(functions, kJoint, Cell::Inner(functions, at));
      Cell::Outer(functions, at, h, c);
    } else {
      Cell::Forward(functions, z, h, c, kept);
    }
  }

  // Normalises sums over the units by the norm of this number.
  XlaOp Normalized(const Functions& functions, int norm, XlaOp sums) const {
    const XlaOp units =
        xla::ScalarLike(sums, static_cast<double>(spec_.num_units));
    const auto mean_of = [&](XlaOp values) {
      const XlaOp zero = xla::Zero(params_.builder(), types_.sums);
      const XlaOp sum = xla::Reduce(
          values, zero,
          xla::CreateScalarAddComputation(types_.sums, params_.builder()), {2});
      return xla::BroadcastInDim(sum, {rows_[0], rows_[1], spec_.num_units},
                                 {0, 1}) /
             units;
    };
    const XlaOp mean = mean_of(sums), centred = sums - mean;
    const XlaOp variance =
        mean_of(centred * centred) +
        xla::ScalarLike(sums, static_cast<double>(spec_.layer_norm_epsilon));
    return Norm<XlaOp>{mean, xla::Rsqrt(variance)}.Of(
        sums, functions.OfVector(2 * norm), functions.OfVector(2 * norm + 1));
  }

  XlaOp Block(int64_t offset, const std::vector<int64_t>& shape) const {
    int64_t size = 1;
    for (const int64_t dimension : shape) size *= dimension;
    return xla::Reshape(
        xla::SliceInDim(params_, offset, offset + size, /*stride=*/1, 0),
        shape);
  }
  // A side's matrix and biases of some gates.
  XlaOp InputMatrix(int64_t first, int64_t num_gates) const {
    return Matrix(places_.input_weights, input_size_, first, num_gates);
  }
  XlaOp RecurrentMatrix(int64_t first, int64_t num_gates) const {
    return Matrix(places_.recurrent_weights, spec_.output_size(), first,
                  num_gates);
  }
  XlaOp Matrix(int64_t offset, int64_t fan_in, int64_t first,
               int64_t num_gates) const {
    return Block(offset + first * spec_.num_units * fan_in,
                 {num_gates * spec_.num_units, fan_in});
  }
  // Adds the biases of some gates, if the offset is that of any.
  XlaOp WithBias(XlaOp sums, int64_t offset, int64_t first,
                 int64_t num_gates) const {
    if (offset < 0) return sums;
    const XlaOp bias = Block(offset + first * spec_.num_units,
                             {1, 1, num_gates * spec_.num_units});
    return sums + xla::ConvertElementType(bias, types_.sums);
  }

  // Multiplies rows by those of a matrix, of which there are `size`.
  XlaOp Product(XlaOp rows, XlaOp matrix, int64_t size) const {
    xla::DotDimensionNumbers contracted;
    contracted.add_lhs_contracting_dimensions(1);
    contracted.add_rhs_contracting_dimensions(1);
    // For a CPU, XLA would copy the matrix if the rows had three dimensions.
    const XlaOp products = xla::DotGeneral(
        xla::ConvertElementType(xla::Collapse(rows, {0, 1}), types_.factors),
        xla::ConvertElementType(matrix, types_.factors), contracted,
        /*precision_config=*/nullptr, types_.sums);
    return xla::Reshape(products, {rows_[0], rows_[1], size});
  }
  // What x, h, or both together give some gates. Without an input matrix, each
  // gate gets x itself.
  XlaOp OfInput(XlaOp x, int64_t first, int64_t num_gates) const {
    return WithBias(places_.input_weights < 0
                        ? Joined(std::vector<XlaOp>(num_gates, x))
                        : Product(x, InputMatrix(first, num_gates),
                                  num_gates * spec_.num_units),
                    places_.input_bias, first, num_gates);
  }
  XlaOp OfState(XlaOp h, int64_t first, int64_t num_gates) const {
    return WithBias(Product(h, RecurrentMatrix(first, num_gates),
                            num_gates * spec_.num_units),
                    places_.recurrent_bias, first, num_gates);
  }
  XlaOp Gates(XlaOp x, XlaOp h, int64_t first, int64_t num_gates) const {
    if (places_.input_weights < 0) {
      return OfInput(x, first, num_gates) + OfState(h, first, num_gates);
    }
    // XLA joins the matrices before a loop.
    const XlaOp matrix = xla::ConcatInDim(
        params_.builder(),
        {InputMatrix(first, num_gates), RecurrentMatrix(first, num_gates)}, 1);
    XlaOp bias =
        xla::Zeros(params_.builder(),
                   xla::ShapeUtil::MakeShape(
                       types_.sums, {1, 1, num_gates * spec_.num_units}));
    bias = WithBias(bias, places_.input_bias, first, num_gates);
    bias = WithBias(bias, places_.recurrent_bias, first, num_gates);
    return Product(Joined({x, h}), matrix, num_gates * spec_.num_units) + bias;
  }

  static XlaOp Joined(const std::vector<XlaOp>& parts) {
    return xla::ConcatInDim(parts[0].builder(), parts, 2);
  }
  XlaOp Part(XlaOp gates, int64_t i) const {
    const int64_t units = spec_.num_units;
    return xla::SliceInDim(gates, i * units, (i + 1) * units, /*stride=*/1, 2);
  }

  const RnnSpec& spec_;
  const std::array<int64_t, 2> rows_;  // The dimensions before the last.
  const SingleStepTypes types_;
  const XlaOp params_;
  const ParamLayout::PseudoLayer& places_;
  const int64_t input_size_;
};

}  // namespace

SingleStepTensors SingleStep(const RnnProblem& problem,
                             const SingleStepTypes& types,
                             const SingleStepTensors& before, XlaOp params) {
  const RnnSpec& spec = problem.spec;
  const ParamLayout layout(spec);
  xla::XlaBuilder* const builder = params.builder();
  const int64_t axis = problem.time_major ? 0 : 1;  // Of pseudo-layers.
  const auto state = [&](XlaOp states, int64_t i) {
    return xla::ConvertElementType(
        xla::SliceInDim(states, i, i + 1, /*stride=*/1, axis), types.sums);
  };
  std::vector<XlaOp> all_h, all_c;
  XlaOp x = xla::ConvertElementType(before.sequence, types.sums);
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    std::vector<XlaOp> outputs;
    for (int64_t dir = 0; dir < spec.num_dirs(); ++dir) {
      const int64_t i = layer * spec.num_dirs() + dir;
      XlaOp h = state(before.h, i), c;
      if (spec.has_c()) c = state(before.c, i);
      const PseudoLayer pseudo_layer(problem, types, params,
                                     layout.pseudo_layer(i),
                                     spec.layer_input_size(layer));
      pseudo_layer.Run(x, &h, &c);
      outputs.push_back(h);
      all_h.push_back(h);
      if (spec.has_c()) all_c.push_back(c);
    }
    x = xla::ConcatInDim(builder, outputs, 2);
  }
  const auto narrow = [&](XlaOp values) {
    return xla::ConvertElementType(values, types.tensors);
  };
  return {
      narrow(x), narrow(xla::ConcatInDim(builder, all_h, axis)),
      spec.has_c() ? narrow(xla::ConcatInDim(builder, all_c, axis)) : before.c};
}

}  // namespace cudnn_rnn_tf
