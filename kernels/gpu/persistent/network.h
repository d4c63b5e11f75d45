// Runs a network's passes with the persistent kernels, or step by step. A
// network adds the matrix products around the steps, the memory between them,
// and their order.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/persistent/auxiliary.h"
#include "kernels/gpu/persistent/kernel.h"
#include "kernels/gpu/persistent/layer_products.h"
#include "kernels/gpu/persistent/step_loop.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

struct Estimate : KernelEstimate {
  double of_projections = 0.0;  // Of the cycles, those around the steps.
  Division forward = {}, stack = {}, backward = {};
};

class Network : public Engine {
 public:
  // Compiles nothing.
  static Estimate EstimateCycles(const RnnProblem& problem, bool allow_tf32,
                                 const DeviceLimits& limits);

  // Makes a network of persistent kernels, for which there is an estimate, on
  // the current context's device. If that does not grant what was estimated,
  // the estimate is corrected.
  static RnnStatus Create(const RnnProblem& problem, bool allow_tf32,
                          const DeviceLimits& limits, Estimate* estimate,
                          std::unique_ptr<const Engine>* network,
                          const LeastSizes& least = {});
  // Makes a network that enqueues the steps of its layers one by one, for any
  // problem that a StepLoop can run. A pass reads what any other network
  // has left of the same problem.
  static RnnStatus CreateOfSteps(const RnnProblem& problem, bool allow_tf32,
                                 std::unique_ptr<const Engine>* network,
                                 const LeastSizes& least = {});

  RnnBufferSizes sizes() const override;
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
  struct Kept;
  struct Reserve;
  struct Workspace;
  struct ForwardWorkspace;
  struct BackwardWorkspace;
  struct BackwardPass;

  Network(const RnnProblem& problem, bool allow_tf32, const LeastSizes& least);

  template <typename Buffers>
  void SetDirection(int64_t pseudo_layer, const Buffers& buffers, void* gates,
                    const Reserve& reserve, LayerDirection* direction) const;
  // The rows of a direction's sums over each sequence, some of which may stand
  // for no sequence.
  int BiasRows() const;
  // The sequences in a pass's buffers, without lengths unless both are given.
  Sequences SequencesOf(const int* lengths, const int* order,
                        const void* resets) const;
  // What zoneout draws with the seed, if any, that is in device memory.
  ZoneoutArguments ZoneoutOf(const uint64_t* seed) const;
  // Tells whether persistent kernels run the steps without their projections.
  bool folds() const { return !loop_ && spec_.num_proj > 0; }
  // Compiles the small kernels.
  RnnStatus Compile();
  // Run a layer with projections by persistent kernels. `arguments` are those
  // of steps with projections.
  RnnStatus ForwardProjected(const Handles& handles,
                             const ForwardWorkspace& workspace,
                             const ForwardArguments& arguments) const;
  RnnStatus BackwardProjected(const Handles& handles,
                              const BackwardWorkspace& workspace,
                              const BackwardArguments& arguments) const;
  // Multiplies a direction's recurrent matrices by its projection.
  RnnStatus Fold(const Handles& handles, const Workspace& workspace,
                 const void* recurrent, const void* projection,
                 int64_t d) const;
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
  // And the numbers from one sequence's states to the next one's.
  int64_t StateStride(int64_t width) const {
    return width * (problem_.time_major ? 1 : spec_.num_pseudo_layers());
  }

  const RnnProblem problem_;
  const RnnSpec& spec_ = problem_.spec;
  const int64_t item_, sum_;  // The bytes of a number and of a sum.
  Auxiliary auxiliary_;
  const int64_t rows_, slots_ = auxiliary_.slots;
  const ParamLayout layout_ = ParamLayout(spec_);
  LayerProducts products_;
  // This runs the steps of a layer. If it is empty, the kernels do.
  std::optional<StepLoop> loop_;
  bool is_stack_ = false;  // All layers run at the same time, forward.
  Kernel forward_, backward_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_NETWORK_H_
