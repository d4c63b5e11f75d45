// The recurrent network on a CPU, computed in T (float or double) on time-major
// sequences. The backend converts to and from what callers hold.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_

#include <cstdint>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// What a forward pass leaves for its backward pass. In inference the layers
// share one set of gates and two outputs, and no cell states are kept.
template <typename T>
struct CpuReserve {
  struct PseudoLayer {
    T* gates;      // [T, B, num_gates * H], activated.
    T* cell;       // LSTM, training: [T, B, H].
    T* candidate;  // GRU: R_h h + b_Rh, [T, B, H].
  };
  std::vector<PseudoLayer> pseudo_layers;  // [L * D]
  std::vector<T*> outputs;                 // [L], each [T, B, D * P].

  CpuReserve(const RnnProblem& problem, Arena* arena);
};

template <typename T>
struct CpuForwardCall {
  const T* input;    // [T, B, I], padded steps zeroed.
  const T* input_h;  // [L * D, B, P]
  const T* input_c;  // [L * D, B, H]
  const T* params;
  T* output_h;  // [L * D, B, P]; the last layer's output is in the reserve.
  T* output_c;
};

template <typename T>
struct CpuBackwardCall {
  const T* input;
  const T* input_h;
  const T* input_c;
  const T* params;
  // [T, B, D * P], padded steps zeroed; consumed as working memory.
  T* output_backprop;
  // Hold the gradients of the final states on entry and those of the initial
  // states on return.
  T* h_backprop;
  T* c_backprop;
  T* input_backprop;   // [T, B, I]
  T* params_backprop;  // Zeros on entry.
};

template <typename T>
class CpuNetwork {
 public:
  CpuNetwork(const RnnProblem& problem, const int32_t* sequence_lengths,
             const uint64_t seed[2], const ParallelFor& parallel_for);

  // The workspace is laid out by the arena; over a null arena nothing is
  // computed and the call only counts.
  void Forward(const CpuForwardCall<T>& call, const CpuReserve<T>& reserve,
               Arena* arena, bool count_only);
  void Backward(const CpuBackwardCall<T>& call, const CpuReserve<T>& reserve,
                Arena* arena, bool count_only);

 private:
  int64_t length(int64_t row) const {
    return lengths_ == nullptr ? time_ : lengths_[row];
  }
  // Rows that one task carries through all time steps.
  static int64_t BatchBlock();
  int64_t LongestLength(int64_t first_row, int64_t last_row) const;
  bool has_dropout(int64_t layer) const {
    return problem_.is_training && spec_.dropout > 0.0f && layer > 0;
  }
  DropoutMask MaskBefore(int64_t layer) const {
    return {{seed_[0], seed_[1]}, layer - 1, spec_.dropout};
  }

  void ForwardInputGates(int64_t layer, int64_t dir, const T* input,
                         const T* params, T* gates, T* panels);
  void ForwardSteps(int64_t layer, int64_t dir, int64_t first_row,
                    int64_t last_row, const CpuReserve<T>& reserve,
                    const T* params, const T* recurrent_panels,
                    const T* projection_panels, T* h, T* c, T* block_workspace);

  struct BackwardLayer;
  void BackwardSteps(const BackwardLayer& layer, int64_t dir, int64_t first_row,
                     int64_t last_row);
  void BackwardWeights(const BackwardLayer& layer, int64_t dir);

  const RnnProblem& problem_;
  const RnnSpec& spec_;
  const ParamLayout layout_;
  const int32_t* lengths_;
  const uint64_t seed_[2];
  const ParallelFor& parallel_for_;
  const int64_t time_, batch_, gates_, units_, out_, layer_out_, dirs_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
