// Runs a network's passes with the persistent kernels, or step by step. A
// network adds the matrix products around the steps, the memory between them,
// and their order.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/auxiliary.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/persistent/step_loop.h"
#include "kernels/gpu/product.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// A network is made for one call. That costs little, since compiled kernels are
// kept in the process.
class Network : public Engine {
 public:
  // Estimates the cycles that a step of a layer takes, in training forward and
  // backward together, and chooses whether the forward pass is to run all
  // layers at the same time, as a stack. A status of kUnimplemented says why
  // the kernels do not run the problem on the current context's device.
  // Compiles nothing.
  static RnnStatus EstimateCycles(const RnnProblem& problem, bool allow_tf32,
                                  double* cycles, bool* is_stack);

  // Compiles the kernels of a forward pass or, with `is_backward`, of a
  // backward pass, unless that was done before. In training, a forward pass
  // compiles those of its backward pass too. EstimateCycles must have succeeded
  // for the problem; `is_stack` is what it chose.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          bool is_backward, bool is_stack,
                          std::unique_ptr<Engine>* network);
  // Makes a network that enqueues the steps of its layers one by one, for any
  // problem that a StepLoop can run. A pass reads what any other network
  // has left of the same problem.
  static RnnStatus CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 std::unique_ptr<Engine>* network);

  // Whatever runs a pass, the reserve space has the same layout.
  RnnAlgorithm algorithm() const override { return RnnAlgorithm::kPersistent; }
  size_t reserve_size() const override;
  size_t forward_workspace_size() const override;
  size_t backward_workspace_size() const override;
  std::string Key() const override;
  // A graph of many steps that are enqueued one by one would have several nodes
  // for each and take too much memory, and gain little.
  bool is_replayable() const override {
    constexpr int64_t kMostSteps = 1024;
    return !loop_ || problem_.max_time <= kMostSteps / spec_.num_layers;
  }
  // Stores sequence lengths and seeds, which may be in host memory.
  RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& buffers) const override;
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& buffers) const override;
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& buffers) const override;

 private:
  struct Memory;
  struct Reserve;
  struct Workspace;
  struct ForwardWorkspace;
  struct BackwardWorkspace;
  struct BackwardPass;

  Network(const RnnProblem& problem, bool allow_tf32);

  // The number of directions of a layer, or stages of a stack, that run at the
  // same time.
  int AtOnce() const;
  // The bytes of the memory through which the kernel's teams exchange.
  size_t RingBytes() const;
  // The rows of a direction's sums over each sequence, some of which may stand
  // for no sequence.
  int BiasRows() const;
  // The sequences in a pass's buffers, without lengths unless both are given.
  Sequences SequencesOf(const int* lengths, const int* order) const;
  ProductType product_type() const { return {problem_.dtype, allows_tf32_}; }
  // The length of a transposed operand's rows, which TF32 products want
  // aligned.
  int64_t TransposedPitch() const { return (rows_ + 31) / 32 * 32; }
  // Tells whether the gradient of a matrix of the input side, or of a recurrent
  // matrix, reads its operand transposed. A matrix has `columns` columns.
  bool IsTransposed(bool is_recurrent, int64_t columns) const;
  // Returns the address of a number in an array.
  const void* At(const void* base, int64_t items) const {
    return static_cast<const char*>(base) + items * item_;
  }
  void* At(void* base, int64_t items) const {
    return static_cast<char*>(base) + items * item_;
  }
  // Returns a parameter's address, or null if its offset says that there is
  // none.
  template <typename Params>
  Params* Param(Params* params, int64_t offset) const {
    return offset < 0 ? nullptr : At(params, offset);
  }
  // The first number of a pseudo-layer's states, of `width` numbers each.
  int64_t StateOffset(int64_t pseudo_layer, int64_t width) const {
    return pseudo_layer * width *
           (problem_.time_major ? problem_.batch_size : 1);
  }
  // The numbers from one sequence's h to the next one's.
  int64_t StateStride() const {
    return spec_.output_size() *
           (problem_.time_major ? 1 : spec_.num_pseudo_layers());
  }

  const RnnProblem problem_;
  const RnnSpec& spec_ = problem_.spec;
  const int64_t item_, sum_;  // The bytes of a number and of a sum.
  const Auxiliary auxiliary_;
  const int64_t rows_, slots_ = auxiliary_.slots();
  const bool allows_tf32_;
  // This runs the steps of a layer. If it is empty, `kernel_` does, the forward
  // or the backward one, as the pass.
  std::optional<StepLoop> loop_;
  int shares_ = 0;  // Of the batch, each as large as a team takes at once.
  bool is_stack_ = false;  // All layers run at the same time, forward.
  Kernel kernel_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
