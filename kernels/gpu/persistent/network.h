// Runs a network's passes with the persistent kernels, or step by step. A
// network adds the matrix products around the steps, the memory between them,
// and their order.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_

#include <cstddef>
#include <optional>
#include <string>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/auxiliary.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/persistent/step_loop.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// A network is made for one call. That costs little, since compiled kernels are
// kept in the process.
class Network : public Engine {
 public:
  Network() = default;

  // Estimates the cycles that a step of a layer takes, in training forward and
  // backward together. A status of kUnimplemented says why the kernels do not
  // run the problem on the current context's device. Compiles nothing.
  static RnnStatus EstimateCycles(const RnnProblem& problem, bool allow_tf32,
                                  double* cycles);

  // Compiles the kernels of a forward pass or, with `is_backward`, of a
  // backward pass, unless that was done before. In training, a forward pass
  // compiles those of its backward pass too. EstimateCycles must have succeeded
  // for the problem.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          bool is_backward, Network* network);
  // Makes a network that enqueues the steps of its layers one by one, for any
  // problem that StepLoop::Check lets pass. A pass reads what any other network
  // has left of the same problem.
  static RnnStatus CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 Network* network);

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
  bool uses_blas() const override { return true; }
  // Stores sequence lengths and seeds, which may be in host memory.
  RnnStatus StoreLengthsAndSeed(
      const Handles& handles, const RnnForwardBuffers& buffers) const override;
  RnnStatus Forward(const Handles& handles,
                    const RnnForwardBuffers& buffers) const override;
  RnnStatus Backward(const Handles& handles,
                     const RnnBackwardBuffers& buffers) const override;

 private:
  struct Reserve;
  struct ForwardWorkspace;
  struct BackwardWorkspace;

  // Chooses the kernel that runs a pass, and estimates the cycles that it takes
  // for a step of a layer.
  static RnnStatus ChooseKernel(const RnnProblem& problem, bool allow_tf32,
                                bool is_backward, KernelRequest* request,
                                double* cycles);
  Network(const RnnProblem& problem, bool allow_tf32);

  // Lets cuBLAS use the pass's stream and memory.
  RnnStatus SetUpBlas(const Handles& handles, void* memory) const;
  // The number of directions of a layer, or stages of a stack, that run at the
  // same time.
  int AtOnce() const;
  // The bytes of a buffer with `width` numbers for each step of each sequence.
  size_t StepsBytes(int64_t width) const;
  // Takes memory for sums, which are doubles in float64.
  float* TakeSums(int64_t count, Arena* arena) const {
    return reinterpret_cast<float*>(arena->Take<char>(count * sum_));
  }
  // The bytes of the memory through which the kernel's teams exchange.
  size_t RingBytes() const;
  // The rows of a direction's sums over each sequence, some of which may stand
  // for no sequence.
  int BiasRows() const;
  Sequences SequencesOf(const int* lengths, const int* order) const;
  // Sets all bits of a buffer with `width` numbers for each step of each
  // sequence.
  RnnStatus SetToOnes(const Handles& handles, void* steps, int64_t width) const;
  RnnStatus Dropout(CUstream stream, const Sequences& sequences, int64_t layer,
                    const uint64_t* seed, void* values) const;
  RnnStatus Multiply(const Handles& handles, bool transposes_a,
                     bool transposes_b, int64_t m, int64_t n, int64_t k,
                     const void* a, int64_t lda, const void* b, int64_t ldb,
                     bool adds, void* c, int64_t ldc) const;
  // What a product over all steps reads: [rows, width], with a pitch of
  // `width`, or transposed.
  struct StepsOperand {
    const void* values;
    bool is_transposed;
    int64_t pitch;
  };
  // The length of a transposed operand's rows, which TF32 products want
  // aligned.
  int64_t TransposedPitch() const;
  // Tells whether the gradient of a matrix of the input side, or of a recurrent
  // matrix, reads its operand transposed. A matrix has `columns` columns.
  bool IsTransposed(bool is_recurrent, int64_t columns) const;
  // Makes an operand from values whose padding is undefined if `sequences` has
  // lengths. `memory` is what the operand may take.
  RnnStatus MakeOperand(CUstream stream, const Sequences& sequences,
                        bool is_recurrent, int64_t width, const void* values,
                        void* memory, StepsOperand* operand) const;
  // The number of parts that the sum over all steps is divided into for the
  // gradient of a matrix, [m, n]. They are computed at the same time.
  int64_t PartsOfSum(int64_t m, int64_t n) const;
  // Computes the gradient of a matrix, [m, n], from `gates`, the gradients of
  // its products: [rows, m], with rows that are `gates_pitch` numbers apart.
  // `parts` is memory for the parts of the sum.
  RnnStatus MultiplySteps(const Handles& handles, int64_t m, int64_t n,
                          const void* gates, int64_t gates_pitch,
                          const StepsOperand& operand, void* parts,
                          void* gradient) const;
  // Returns what the backward kernel reads and writes for layer `l`.
  BackwardArguments ArgumentsOfBackward(
      int64_t l, const Reserve& reserve, const BackwardWorkspace& workspace,
      const void* output_backprop, const RnnBackwardBuffers& buffers) const;
  // The following compute the gradients of layer `l` from those of its gates,
  // which the backward kernel has put in the place of the gates.
  RnnStatus BackwardInputs(const Handles& handles, int64_t l,
                           const BackwardArguments& arguments,
                           const void* params, void* input_backprop) const;
  // The padding of `input` is undefined if `sequences` has lengths.
  RnnStatus BackwardParams(const Handles& handles, int64_t l,
                           const Reserve& reserve,
                           const BackwardWorkspace& workspace,
                           const BackwardArguments& arguments,
                           const Sequences& sequences, const void* input,
                           void* params_backprop) const;
  // Computes the gradients of a direction's recurrent matrices.
  RnnStatus BackwardRecurrentWeights(const Handles& handles,
                                     const BackwardWorkspace& workspace,
                                     const ParamLayout::PseudoLayer& at,
                                     int64_t d,
                                     const BackwardArguments& arguments,
                                     void* params_backprop) const;
  const void* At(const void* base, int64_t items) const;
  void* At(void* base, int64_t items) const;
  // Returns a parameter's address, or null if its offset says that there is
  // none.
  const void* Param(const void* params, int64_t offset) const;
  // The first number of a pseudo-layer's states, of `width` numbers each.
  int64_t StateOffset(int64_t pseudo_layer, int64_t width) const;
  // The numbers from one sequence's h to the next one's.
  int64_t StateStride() const;

  RnnProblem problem_;
  RnnSpec spec_;
  // The bytes of a number and of a sum.
  int64_t item_ = 0, sum_ = 0;
  int64_t rows_ = 0, slots_ = 0;
  bool allows_tf32_ = false;
  // This runs the steps of a layer. If it is empty, `kernel_` does, the forward
  // or the backward one, as the pass.
  std::optional<StepLoop> loop_;
  int shares_ = 0;  // Of the batch, each as large as a team takes at once.
  bool is_stack_ = false;  // All layers run at the same time, forward.
  Kernel kernel_;
  Auxiliary auxiliary_ = {};
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
