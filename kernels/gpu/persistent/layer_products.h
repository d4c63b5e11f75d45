// The matrix products over all steps of a network's layers.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAYER_PRODUCTS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAYER_PRODUCTS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "kernels/arena.h"
#include "kernels/gpu/persistent/auxiliary.h"
#include "kernels/gpu/persistent/halves.h"
#include "kernels/gpu/product.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

inline constexpr int kMaxDirs = 2;

// Multiplies a layer's inputs by its input weights and, backward, computes the
// gradients of inputs and of matrices from those of the gates. This says in
// which type, order and parts cuBLAS does so, and what memory that takes.
// Where TF32 is allowed and layers are large, operands are in float16: in the
// backward pass and, if whoever reads the products divides them by the powers
// of their operands, in the forward pass.
class LayerProducts {
 public:
  LayerProducts(const RnnProblem& problem, bool allow_tf32,
                const Auxiliary& auxiliary);
  // Compiles the kernels, without which nothing else may be called.
  RnnStatus Compile() { return halves_ ? halves_->Compile() : RnnStatus(); }

  ProductType type() const { return {problem_.dtype, allows_tf32_}; }
  // Tells whether operands are in float16, and differ from direction to
  // direction, since the powers of the gates' steps do.
  bool halves() const { return halves_ != nullptr; }
  // Tells whether the gradient of the lowest input matrix would read padding in
  // the input, which may hold anything, where it is.
  bool ReadsPadding() const {
    return problem_.has_sequence_lengths && spec_.has_input_weights(0) &&
           !halves_;
  }

 protected:
  // Tells whether floats keep all their digits.
  bool is_exact() const {
    return problem_.dtype == RnnDataType::kFloat32 && !allows_tf32_;
  }
  // The columns of the widest matrix of the input side.
  int64_t WidestInput() const;
  // Returns the number of parts that the sum over all steps is divided into for
  // the gradient of a matrix, [m, n].
  int64_t PartsOfSum(int64_t m, int64_t n) const;
  char* TakeHalves(int64_t rows, int64_t width, Arena* arena) const {
    return arena->Take<char>(rows * Halves::Pitch(width) * sizeof(uint16_t));
  }

  const RnnProblem& problem_;
  const RnnSpec& spec_ = problem_.spec;
  const bool allows_tf32_;
  const Auxiliary& auxiliary_;
  const int64_t rows_ = problem_.max_time * problem_.batch_size;
  // The rows of a layer's matrices, and the numbers of a step of a sequence.
  const int64_t gate_rows_ = spec_.num_gates() * spec_.num_units;
  const int64_t gates_pitch_ = auxiliary_.slots * spec_.num_units;
  std::shared_ptr<Halves> halves_;
};

// A forward pass's products and their memory.
class ForwardProducts : public LayerProducts {
 public:
  ForwardProducts(const LayerProducts& all, bool has_powers, Arena* arena);
  // Makes operands of the input of layer `l`, which Multiply then reads.
  RnnStatus Read(const Handles& handles, int64_t l, const void* input) const;
  // Multiplies the input by the weights of direction `d`. Products go to
  // `gates`, [rows, S * H], as does the input itself if there are no weights.
  RnnStatus Multiply(const Handles& handles, int64_t l, int64_t d,
                     const void* input, const void* weights, void* gates) const;
  // The powers of the operands of layer `l`, null if it has none, and those
  // of the rows of its directions' weights.
  const float* step_powers(int64_t l) const {
    return spec_.has_input_weights(l) ? step_powers_ : nullptr;
  }
  const float* row_powers() const { return row_powers_; }

 private:
  char *inputs_ = nullptr, *weights_ = nullptr;
  float *step_powers_ = nullptr, *row_powers_ = nullptr;
};

// A backward pass's, after that of a layer's steps. `gates` are the gradients
// of the gates' inputs, [rows, S * H].
class BackwardProducts : public LayerProducts {
 public:
  BackwardProducts(const LayerProducts& all, Arena* arena);

  // Puts the gradients of a direction's gates in float16, if they are to be
  // so, where they stand. What reads them as they are comes before.
  RnnStatus Halve(const Handles& handles, int64_t d, void* gates) const;
  // Tells whether anybody reads the gradient of a layer's input.
  bool HasInputs(int64_t l) const {
    return l > 0 || problem_.has_input_backprop;
  }
  // Tells whether the gradient of a layer's input reads halved gates. Those
  // of two directions, whose powers differ, could not be added to each other.
  bool HalvesInputs(int64_t l) const {
    return halves_ && spec_.num_dirs() == 1 && spec_.has_input_weights(l) &&
           HasInputs(l);
  }
  // Or floats, although all else reads halved gates.
  bool ReadsFloats(int64_t l) const { return halves_ && !HalvesInputs(l); }
  // Computes the gradient of the input of layer `l`, from the gates and the
  // input weights of its directions.
  RnnStatus Inputs(const Handles& handles, int64_t l,
                   const std::array<const void*, kMaxDirs>& gates,
                   const std::array<const void*, kMaxDirs>& weights,
                   void* input_backprop) const;

  // Sets `operand` to values, [rows, width], as products with the gates of
  // direction `d` over all steps read them. Those in float16 are multiplied by
  // the powers of the gates' steps; others that cannot be read where they are
  // are copied to `room`.
  RnnStatus MakeOperand(const Handles& handles, int64_t d, void* gates,
                        int64_t width, const StepRows& values, void* room,
                        Factor* operand) const;
  // Computes the gradient of a matrix, [m, n], whose rows stand for gates
  // from `gate` on.
  RnnStatus Gates(const Handles& handles, int64_t m, int64_t n,
                  const void* gates, int64_t gate, const Factor& operand,
                  void* gradient) const;
  // Of any matrix, from the gradients of its products, [rows, m]. Operands
  // may be `halved`.
  RnnStatus Matrix(const Handles& handles, int64_t m, int64_t n,
                   Factor of_products, const Factor& operand, bool halved,
                   void* gradient) const;
  // Memory for sums, which only Matrix uses: at least Auxiliary::kMostSums,
  // and those of a unit's vectors.
  void* parts() const { return parts_; }

 private:
  RnnStatus MultiplyHalves(const Handles& handles, int64_t m, int64_t n,
                           int64_t k, const Factor& a, const Factor& b,
                           const float* of_rows, void* result) const;
  Factor OfGates(const void* gates, int64_t gate) const;

  // The parts of a product over all steps.
  void* parts_;
  // What a product over all steps reads in float16; null if it is where halved
  // gates leave half of their memory free.
  void* operand_ = nullptr;
  // In float16, a layer's input matrix, if its input's gradient reads one, and
  // the powers of the gates' steps and of the other operand's columns.
  void *weights_ = nullptr, *column_powers_ = nullptr;
  std::array<float*, kMaxDirs> step_powers_ = {};
  // Their product, where its columns are no multiple of those of operands.
  void* padded_ = nullptr;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAYER_PRODUCTS_H_
