#include "kernels/gpu/persistent/layer_products.h"

#include <algorithm>

#include "kernels/ceil_div.h"

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// Products are computed in tiles of about this many rows and columns. A product
// over all steps that has few tiles is divided into parts, which together have
// at most so many.
constexpr int64_t kTileSize = 64, kMostTiles = 128;

// In float32 without TF32, cuBLAS takes up to 2.2 times as long for a sum over
// many steps as for as many parts of it as have this many numbers together. On
// an H200, this held for matrices of up to 2^18 numbers, in parts of 400 to
// 5,000 rows; larger ones gain nothing.
constexpr int64_t kNumbersOfExact = int64_t{1} << 20;

}  // namespace

LayerProducts::LayerProducts(const RnnProblem& problem, bool allow_tf32,
                             const Auxiliary& auxiliary)
    : problem_(problem), allows_tf32_(allow_tf32), auxiliary_(auxiliary) {
  const int64_t weights =
      gate_rows_ * std::max(WidestInput(), spec_.output_size());
  // A row of one unit's halved gates, which is padded, would reach its last
  // slot.
  if (problem_.dtype == RnnDataType::kFloat32 && allows_tf32_ &&
      spec_.num_units > 1 && weights >= auxiliary_.least.halved_weights &&
      rows_ * weights >= auxiliary_.least.halved_products) {
    halves_ = std::make_shared<Halves>();
  }
}

int64_t LayerProducts::WidestInput() const {
  int64_t widest = 0;
  for (int64_t l = 0; l < spec_.num_layers; ++l) {
    if (!spec_.has_input_weights(l)) continue;
    widest = std::max(widest, spec_.layer_input_size(l));
  }
  return widest;
}

// The parts are computed at the same time. cuBLAS divides such sums as well,
// but into few parts, which it adds one after the other. In float32 without
// TF32, some rows may be left. All others are in parts of the same number of
// rows, so there may be less of them than the GPU could compute at the same
// time.
int64_t LayerProducts::PartsOfSum(int64_t m, int64_t n) const {
  constexpr int64_t kFewestParts = 8, kFewestRows = 64;
  constexpr int64_t kFewestOfExact = 4, kFewestRowsOfExact = 512;
  const int64_t tiles = CeilDiv(m, kTileSize) * CeilDiv(n, kTileSize);
  const int64_t of_exact = is_exact() ? std::min(kNumbersOfExact / (m * n),
                                                 rows_ / kFewestRowsOfExact)
                                      : 0;
  for (int64_t parts = std::min(kMostTiles / tiles, rows_ / kFewestRows);
       parts >= std::max(kFewestParts, of_exact); --parts) {
    if (rows_ % parts == 0) return parts;
  }
  return of_exact >= kFewestOfExact ? of_exact : 1;
}

ForwardProducts::ForwardProducts(const LayerProducts& all, bool has_powers,
                                 Arena* arena)
    : LayerProducts(all) {
  const int64_t widest = WidestInput();
  if (!has_powers || !halves_ || widest == 0) return;
  inputs_ = TakeHalves(rows_, widest, arena);
  weights_ = TakeHalves(gate_rows_, widest, arena);
  step_powers_ = arena->Take<float>(rows_);
  row_powers_ = arena->Take<float>(spec_.num_dirs() * gate_rows_);
}

RnnStatus ForwardProducts::Read(const Handles& handles, int64_t l,
                                const void* input) const {
  if (step_powers(l) == nullptr) return {};
  const int64_t width = spec_.layer_input_size(l);
  return halves_->Rows(handles.stream, rows_, width, width, input,
                       /*least=*/0.0f, Halves::Pitch(width), inputs_,
                       step_powers_);
}

RnnStatus ForwardProducts::Multiply(const Handles& handles, int64_t l,
                                    int64_t d, const void* input,
                                    const void* weights, void* gates) const {
  if (!spec_.has_input_weights(l)) {
    const int64_t count = rows_ * spec_.num_units;
    return auxiliary_.Enqueue("spread_inputs", handles.stream, GridOver(count),
                              count, auxiliary_.units, auxiliary_.gates,
                              auxiliary_.slots, input, gates);
  }
  const int64_t width = spec_.layer_input_size(l);
  int64_t pitch = width;
  ProductType how = type();
  if (step_powers(l) != nullptr) {
    pitch = Halves::Pitch(width);
    how = kHalfProducts;
    CRNN_RETURN_IF_ERROR(halves_->Rows(handles.stream, gate_rows_, width, width,
                                       weights, /*least=*/0.0f, pitch, weights_,
                                       row_powers_ + d * gate_rows_));
    input = inputs_;
    weights = weights_;
  }
  return cudnn_rnn_tf::Multiply(handles.blas, how, rows_, gate_rows_, pitch,
                                {input, pitch},
                                {weights, pitch, /*is_transposed=*/true},
                                {gates, problem_.dtype, gates_pitch_});
}

BackwardProducts::BackwardProducts(const LayerProducts& all, Arena* arena)
    : LayerProducts(all) {
  const auto sum = static_cast<int64_t>(SizeOf(SumType(problem_.dtype)));
  static_assert(kMostTiles * kTileSize * kTileSize >= Auxiliary::kMostSums);
  parts_ = arena->Take<char>(
      sum * std::max(is_exact() ? kNumbersOfExact
                                : kMostTiles * kTileSize * kTileSize,
                     spec_.kind().num_vectors * spec_.num_units));
  if (!halves_) return;
  const int64_t widest = std::max(WidestInput(), spec_.output_size());
  // A GRU that resets before has something else in its gates' second half.
  if (spec_.resets_before() || gates_pitch_ < Halves::Pitch(widest) ||
      gates_pitch_ % Halves::Pitch(1) != 0) {
    operand_ = TakeHalves(rows_, widest, arena);
  }
  const auto padded_numbers = [](int64_t m, int64_t n) {
    return Halves::Pitch(n) == n ? 0 : m * Halves::Pitch(n);
  };
  int64_t most = padded_numbers(gate_rows_, spec_.output_size());
  for (int64_t l = 0; l < spec_.num_layers; ++l) {
    if (!spec_.has_input_weights(l)) continue;
    const int64_t m =
        HalvesInputs(l) ? std::max(gate_rows_, rows_) : gate_rows_;
    most = std::max(most, padded_numbers(m, spec_.layer_input_size(l)));
  }
  if (most > 0) padded_ = arena->Take<float>(most);
  if (spec_.num_dirs() == 1) {
    weights_ = TakeHalves(gate_rows_, WidestInput(), arena);
  }
  column_powers_ = arena->Take<float>(widest);
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    step_powers_[d] = arena->Take<float>(rows_);
  }
}

RnnStatus BackwardProducts::Halve(const Handles& handles, int64_t d,
                                  void* gates) const {
  if (!halves_) return {};
  // A GRU that resets before has what its candidate reads in the last slot.
  const int64_t width = spec_.resets_before() ? gate_rows_ : gates_pitch_;
  return halves_->Rows(handles.stream, rows_, width, gates_pitch_, gates,
                       /*least=*/0.0f, 2 * gates_pitch_, gates,
                       step_powers_[d]);
}

// Returns the gradients of a gate and those after it, as products over all
// steps read them.
Factor BackwardProducts::OfGates(const void* gates, int64_t gate) const {
  const int64_t item = halves_ ? sizeof(uint16_t) : SizeOf(problem_.dtype);
  return {static_cast<const char*>(gates) + gate * spec_.num_units * item,
          (halves_ ? 2 : 1) * gates_pitch_};
}

// Computes a product, [m, n], of operands in float16, of which `b` has rows of
// Halves::Pitch(n) numbers, and divides it by the powers of b's columns and of
// a's rows, if those have any. cuBLAS takes three times as long for products
// whose columns are no multiple of eight, so it gets those of b's padding too.
RnnStatus BackwardProducts::MultiplyHalves(const Handles& handles, int64_t m,
                                           int64_t n, int64_t k,
                                           const Factor& a, const Factor& b,
                                           const float* of_rows,
                                           void* result) const {
  const int64_t pitch = Halves::Pitch(n);
  void* const products = pitch == n ? result : padded_;
  CRNN_RETURN_IF_ERROR(Multiply(handles.blas, kHalfProducts, m, pitch, k, a, b,
                                {products, problem_.dtype, pitch}));
  return halves_->Unscale(handles.stream, m, n, pitch, of_rows, column_powers_,
                          products, result);
}

RnnStatus BackwardProducts::Inputs(
    const Handles& handles, int64_t l,
    const std::array<const void*, kMaxDirs>& gates,
    const std::array<const void*, kMaxDirs>& weights,
    void* input_backprop) const {
  if (!spec_.has_input_weights(l)) {
    const int64_t count = rows_ * spec_.num_units;
    return auxiliary_.Enqueue("gather_inputs", handles.stream, GridOver(count),
                              count, auxiliary_.units, auxiliary_.gates,
                              auxiliary_.slots, gates[0], gates[1],
                              input_backprop);
  }
  const int64_t width = spec_.layer_input_size(l);
  if (HalvesInputs(l)) {
    CRNN_RETURN_IF_ERROR(halves_->Columns(
        handles.stream, {{}, weights[0], width}, gate_rows_, width,
        /*factors=*/nullptr, column_powers_, Halves::Pitch(width), weights_));
    return MultiplyHalves(
        handles, rows_, width, gate_rows_, OfGates(gates[0], 0),
        {weights_, Halves::Pitch(width)}, step_powers_[0], input_backprop);
  }
  for (int64_t d = 0; d < spec_.num_dirs(); ++d) {
    CRNN_RETURN_IF_ERROR(
        Multiply(handles.blas, type(), rows_, width, gate_rows_,
                 {gates[d], gates_pitch_}, {weights[d], width},
                 {input_backprop, problem_.dtype, width, /*adds=*/d > 0}));
  }
  return {};
}

RnnStatus BackwardProducts::MakeOperand(const Handles& handles, int64_t d,
                                        void* gates, int64_t width,
                                        const StepRows& values, void* room,
                                        Factor* operand) const {
  if (halves_) {
    void* const to = operand_ != nullptr
                         ? operand_
                         : static_cast<uint16_t*>(gates) + gates_pitch_;
    *operand = {to,
                operand_ != nullptr ? Halves::Pitch(width) : 2 * gates_pitch_};
    return halves_->Columns(handles.stream, values, rows_, width,
                            step_powers_[d], column_powers_, operand->pitch,
                            to);
  }
  if (!values.are_before && values.sequences.lengths == nullptr) {
    *operand = {values.numbers, values.pitch};
    return {};
  }
  *operand = {room, width};
  return auxiliary_.CopySteps(handles.stream, values, width, room);
}

RnnStatus BackwardProducts::Gates(const Handles& handles, int64_t m, int64_t n,
                                  const void* gates, int64_t gate,
                                  const Factor& operand, void* gradient) const {
  return Matrix(handles, m, n, OfGates(gates, gate), operand, halves(),
                gradient);
}

RnnStatus BackwardProducts::Matrix(const Handles& handles, int64_t m, int64_t n,
                                   Factor of_products, const Factor& operand,
                                   bool halved, void* gradient) const {
  const RnnDataType dtype = problem_.dtype;
  const int64_t parts = PartsOfSum(m, n), of_part = rows_ / parts;
  of_products.is_transposed = true;
  if (halved && parts == 1) {
    return MultiplyHalves(handles, m, n, rows_, of_products, operand,
                          /*of_rows=*/nullptr, gradient);
  }
  of_products.stride = of_part * of_products.pitch;
  CRNN_RETURN_IF_ERROR(Multiply(
      handles.blas, halved ? kHalfProducts : type(), m, n, of_part, of_products,
      {operand.numbers, operand.pitch, /*is_transposed=*/false,
       of_part * operand.pitch},
      parts == 1 ? Product{gradient, dtype, n}
                 : Product{parts_, SumType(dtype), n, false, m * n},
      parts));
  if (parts > 1) {
    CRNN_RETURN_IF_ERROR(
        auxiliary_.AddParts(handles.stream, m * n, parts, parts_, gradient));
  }
  const int64_t done = parts * of_part;
  if (done < rows_) {
    const auto rest = [&](Factor factor) {  // Of float32 without TF32.
      factor.numbers =
          static_cast<const float*>(factor.numbers) + done * factor.pitch;
      return factor;
    };
    return Multiply(handles.blas, type(), m, n, rows_ - done, rest(of_products),
                    rest(operand), {gradient, dtype, n, /*adds=*/true});
  }
  if (!halved) return {};
  return halves_->Unscale(handles.stream, m, n, n, /*of_rows=*/nullptr,
                          column_powers_, gradient, gradient);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
