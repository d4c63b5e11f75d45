// A network's passes by the persistent kernels: the products around them, the
// memory between them, and their order.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_

#include <cstddef>

#include "kernels/gpu/call_addresses.h"
#include "kernels/gpu/cublas.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Where a pass is enqueued. The pass sets the handle's stream and workspace.
struct Handles {
  cublasHandle_t blas;
  CUstream stream;
};

// Made for one call: all that is costly is kept by the kernels.
class Network {
 public:
  // About how many cycles a step of a layer takes, in training forward and
  // backward together. kUnimplemented says why the kernels do not run the
  // problem on the current context's device. Compiles nothing.
  static RnnStatus Plan(const RnnProblem& problem, bool allow_tf32,
                        double* cycles);

  // Compiles the kernels of a forward pass or, with `is_backward`, of a
  // backward pass, if they are not there already. For a problem with a plan.
  static RnnStatus Create(const RnnProblem& problem, bool is_backward,
                          Network* network);

  // Sizes in bytes; workspaces have room for Replay::Capture.
  size_t reserve_size() const;
  size_t forward_workspace_size() const;
  size_t backward_workspace_size() const;

  // Enqueues what a forward pass begins with: sequences' lengths and seeds
  // change from call to call, and the host may know them.
  RnnStatus Prepare(CUstream stream, const RnnForwardBuffers& buffers) const;
  // Enqueues the rest, which depends on nothing but addresses.
  RnnStatus Enqueue(Pass pass, const Handles& handles,
                    const CallAddresses& addresses) const;

  const RnnProblem& problem() const { return problem_; }

 private:
  struct Reserve;
  struct ForwardWorkspace;
  struct BackwardWorkspace;

  RnnStatus Forward(const Handles& handles,
                    const CallAddresses& addresses) const;
  RnnStatus Backward(const Handles& handles,
                     const CallAddresses& addresses) const;

  // The kernel that runs a pass, and about how many cycles it takes for a step
  // of a layer.
  static RnnStatus ChooseKernel(const RnnProblem& problem, bool is_backward,
                                KernelChoice* choice, double* cycles);
  // Directions of a layer, or stages of a stack, that run at the same time.
  int AtOnce() const;
  // Numbers of a step of all sequences, of `width` each.
  size_t StepsBytes(int64_t width) const;
  // The kernel's teams exchange in memory of this size.
  size_t RingBytes() const;
  Sequences SequencesOf(const int* lengths, const int* order) const;
  // The bits of all steps, of `width` numbers each.
  RnnStatus SetToOnes(const Handles& handles, void* steps, int64_t width) const;
  RnnStatus Dropout(CUstream stream, const Sequences& sequences, int64_t layer,
                    const uint64_t* seed, void* values) const;
  RnnStatus Multiply(const Handles& handles, bool transposes_a,
                     bool transposes_b, int64_t m, int64_t n, int64_t k,
                     const void* a, int64_t lda, const void* b, int64_t ldb,
                     bool adds, void* c, int64_t ldc) const;
  RnnStatus BackwardWeights(const Handles& handles,
                            const ParamLayout::PseudoLayer& at,
                            int64_t input_size, const void* layer_input,
                            const void* gates, const void* previous_h,
                            void* params_backprop) const;
  const void* At(const void* base, int64_t items) const;
  void* At(void* base, int64_t items) const;
  // A parameter's address; null for one that there is not.
  const void* Param(const void* params, int64_t offset) const;
  // Where a pseudo-layer's states begin, and how far sequences are apart.
  int64_t StateOffset(int64_t pseudo_layer) const;
  int64_t StateStride() const;

  RnnProblem problem_;
  RnnSpec spec_;
  int64_t item_ = 0, rows_ = 0, slots_ = 0;
  int teams_ = 0;
  bool is_stack_ = false;  // All layers run at the same time, forward.
  Kernel kernel_;          // Forward or backward, as the pass.
  Auxiliary auxiliary_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
