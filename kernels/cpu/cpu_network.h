// The recurrent network on a CPU, computed in T (float or double) on packed
// rows. The backend converts to and from what callers hold.
#ifndef CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
#define CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/arena.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Where the next row of states begins: never a power of two further on, whose
// multiples share the same few places in a cache.
inline int64_t RowStride(int64_t size) {
  const int64_t stride = CeilDiv(size, 16) * 16 + 16;
  const bool is_power_of_two = (stride & (stride - 1)) == 0;
  return is_power_of_two ? stride + 16 : stride;
}

// A forward pass leaves this for its backward pass, in packed rows; there are N
// of them, T * B at most. In inference only the outputs between layers are
// kept, and two of them serve all layers.
template <typename T>
struct CpuReserve {
  struct PseudoLayer {
    // [N, num_gates * H], activated. The backward pass puts the gradients of
    // the preactivations in their place.
    T* gates;
    T* cell;  // LSTM: [N + B, H], the initial states behind.
    // GRU: R_h h + b_Rh, [N, H]; backward, its gradient.
    T* candidate;
  };
  std::vector<PseudoLayer> pseudo_layers;  // [L * D]
  std::vector<T*>
      outputs;  // [L], each [N + B, D * P], the initial ones behind.

  CpuReserve(const RnnProblem& problem, Arena* arena);
};

// A layer's weights as a forward pass reads them; arrays by direction.
template <typename T>
struct CpuForwardWeights {
  PackedMatrix<T> input[2];         // [fan_in, num_gates * H]
  PackedMatrix<T> recurrent[2][4];  // By direction and gate, [P, H].
  PackedMatrix<T> projection[2];    // [H, P]
  T* bias[2] = {};                  // [num_gates * H]
  T* candidate_bias[2] = {};        // GRU: recurrent, [H].
};

// Rows of a caller's tensor, of T or of a half type.
template <typename T>
struct CallerRows {
  void* data = nullptr;
  int64_t stride = 0;
  const int64_t* index = nullptr;
  // Numbers [first, first + n) of a half type; null where the tensor is of T.
  void (*read)(const void* data, int64_t first, int64_t n, T* to) = nullptr;
  void (*write)(const T* from, int64_t n, void* data, int64_t first) = nullptr;

  bool in_place() const { return read == nullptr; }
  Rows<T> InPlace() const { return {static_cast<T*>(data), stride, index}; }
  int64_t First(int64_t row) const {
    return (index == nullptr ? row : index[row]) * stride;
  }
};

template <typename T>
struct CpuForwardCall {
  CallerRows<T> input;  // [N, I]
  const T* input_h;     // [L * D, B, P]
  const T* input_c;     // [L * D, B, H]
  Stored<T> params;
  // Every layer's weights, where they are packed already; the parameters are
  // not read then.
  const CpuForwardWeights<T>* packed;
  CallerRows<T> output;  // [N, D * P]
  T* output_h;
  T* output_c;
};

template <typename T>
struct CpuBackwardCall {
  Rows<const T> input;
  Stored<T> params;
  Rows<const T> output_backprop;  // [N, D * P]
  // Hold the gradients of the final states on entry and those of the initial
  // states on return.
  T* h_backprop;
  T* c_backprop;
  Rows<T> input_backprop;  // [N, I]
  T* params_backprop;
};

template <typename T>
class CpuNetwork {
 public:
  // The working memory depends on the number of threads that the schedule has.
  CpuNetwork(const RnnProblem& problem, const PackedRows& rows,
             const uint64_t seed[2], int64_t num_threads);

  // A layer's weights, for calls of any shape. The arena, which may only count,
  // must outlive them; they are packed once the schedule has run.
  CpuForwardWeights<T> PackForward(int64_t layer, Stored<T> params,
                                   Arena* arena, Schedule* schedule) const;
  // Add a pass to the schedule; the network, the call and what they refer to
  // must live until that has run. The arena lays out the workspace; where it
  // only counts, nothing is added.
  void Forward(const CpuForwardCall<T>& call, const CpuReserve<T>& reserve,
               Arena* arena, Schedule* schedule) const;
  void Backward(const CpuBackwardCall<T>& call, const CpuReserve<T>& reserve,
                Arena* arena, Schedule* schedule);

 private:
  using Strand = PackedRows::Strand;
  // One direction of one strand of sequences: what is carried through time
  // without regard to any other.
  struct Group {
    int64_t dir;
    const Strand* strand;
    // The time of a step, counted as the direction goes, and as the backward
    // pass goes.
    int64_t Time(int64_t step) const {
      return dir == 0 ? step : strand->longest - 1 - step;
    }
    int64_t TimeBack(int64_t step) const {
      return Time(strand->longest - 1 - step);
    }
  };
  int64_t num_groups() const {
    return dirs_ * static_cast<int64_t>(strands_.size());
  }
  Group group(int64_t index) const {
    const int64_t strands = static_cast<int64_t>(strands_.size());
    return {index / strands, &strands_[index % strands]};
  }
  // Adds what add(group, schedule) adds for all groups, each a lane of its own.
  template <typename Add>
  void AddGroups(const Add& add, Schedule* schedule) const {
    if (division_.parts > 1) {
      std::vector<Schedule> lanes;
      for (int64_t index = 0; index < num_groups(); ++index) {
        lanes.emplace_back(division_.parts);
        add(index, &lanes.back());
      }
      return schedule->AddLanes(std::move(lanes));
    }
    schedule->Add(1, num_groups(), [add](int64_t, int64_t index) {
      Schedule now = Schedule::Immediate();
      add(index, &now);
    });
  }
  // Calls body(r, position, state) for every sequence of a group: r within its
  // strand, position among all, the number of its state among a layer's.
  template <typename Body>
  void ForEachState(const Group& group, const Body& body) const {
    for (int64_t r = 0; r < group.strand->num_sequences; ++r) {
      const int64_t position = group.strand->Position(r);
      body(r, position, group.dir * batch_ + rows_.sequences()[position]);
    }
  }
  // Panels [first, last) of `cols` columns that are a part's.
  struct Range {
    int64_t first, last;
  };
  Range PartPanels(int64_t cols, int64_t part) const;
  // The rows of a matrix that a strand's sequences have in one step.
  template <typename U>
  static Rows<U> StepRows(U* matrix, int64_t stride, const Strand& strand,
                          int64_t t) {
    return {matrix + strand.Row(t, 0) * stride, stride * strand.stride};
  }

  bool has_dropout(int64_t layer) const {
    return problem_.is_training && spec_.dropout > 0.0f && layer > 0;
  }
  // `to` may be `from`: [N, D * P].
  void DropOut(int64_t layer, const T* from, T* to, Schedule* schedule) const;
  bool has_recurrent_dropout() const {
    return problem_.is_training && spec_.recurrent_dropout > 0.0f;
  }
  // Room for the masks that a group's gates multiply the states with.
  T* TakeMasks(Arena* arena) const {
    return arena->Take<T>(spec_.num_gates() * strand_size_ * h_stride_);
  }
  void DrawMasks(int64_t layer, const Group& group, T* masks) const;
  // A gate's part of what TakeMasks gives begins here.
  T* OfGate(T* masks, int64_t gate) const {
    return masks + gate * strand_size_ * h_stride_;
  }
  // Whether products round their factors to bfloat16: where the processor
  // multiplies these faster, and in the steps of so few sequences that a panel
  // is read once per step, since fewer bytes are read sooner.
  bool MultipliesBfloat16() const {
    return problem_.dtype == RnnDataType::kBfloat16 &&
           Simd().multiplies_bfloat16();
  }
  // The inputs of the first layer are factors as the caller has them, unless a
  // pair would reach into the next row.
  bool MultipliesCallersInput() const {
    return MultipliesBfloat16() && spec_.has_input_weights(0) &&
           spec_.input_size % 2 == 0;
  }
  bool StepsMultiplyBfloat16() const {
    return problem_.dtype == RnnDataType::kBfloat16 &&
           (Simd().multiplies_bfloat16() ||
            PackedRows::MaxBlockSize(problem_.batch_size) <= 4);
  }

  struct ForwardLayer;
  void LayOut(int64_t index, const CpuReserve<T>& reserve, Arena* arena,
              ForwardLayer* layer) const;
  void SumBiases(int64_t index, Stored<T> params,
                 const CpuForwardWeights<T>& weights) const;
  void ForwardGroup(const CpuForwardCall<T>& call,
                    const std::shared_ptr<const ForwardLayer>& layer,
                    int64_t group_index, Schedule* schedule) const;
  void BeginForward(const CpuForwardCall<T>& call, const ForwardLayer& layer,
                    int64_t group_index) const;
  void PrepareState(const ForwardLayer& layer, int64_t group_index,
                    int64_t parity, int64_t r, int64_t first, int64_t n) const;
  void ForwardInputs(const ForwardLayer& layer, int64_t group_index,
                     int64_t first_step, int64_t last_step,
                     Schedule* schedule) const;
  void WriteOutput(const ForwardLayer& layer, int64_t row, int64_t col,
                   int64_t n, const T* from) const;
  void PrefetchPlaces(const ForwardLayer& layer, const Group& group,
                      int64_t step, int64_t r, int64_t unit, int64_t n) const;
  void ForwardUnits(const ForwardLayer& layer, int64_t group_index,
                    int64_t chunk_step, int64_t step, int64_t part) const;
  void ForwardProjection(const ForwardLayer& layer, int64_t group_index,
                         int64_t step, int64_t part) const;
  void EndForward(const CpuForwardCall<T>& call, const ForwardLayer& layer,
                  int64_t group_index) const;

  struct BackwardLayer;
  void LayOut(int64_t index, const CpuReserve<T>& reserve, Arena* arena,
              BackwardLayer* layer) const;
  void PackWeights(Stored<T> params, Arena* arena, BackwardLayer* layer,
                   Schedule* schedule) const;
  void BackwardGroup(const CpuBackwardCall<T>& call,
                     const std::shared_ptr<const BackwardLayer>& layer,
                     int64_t group_index, Schedule* schedule) const;
  void BeginBackward(const CpuBackwardCall<T>& call, const BackwardLayer& layer,
                     int64_t group_index) const;
  void BackwardStates(const BackwardLayer& layer, int64_t group_index,
                      int64_t step, int64_t panel) const;
  void PrefetchKept(const BackwardLayer& layer, const Group& group,
                    int64_t step, int64_t r, int64_t unit, int64_t n) const;
  void BackwardUnits(const BackwardLayer& layer, int64_t group_index,
                     int64_t step, int64_t panel) const;
  void EndBackward(const CpuBackwardCall<T>& call, const BackwardLayer& layer,
                   int64_t group_index) const;
  void BackwardInputs(const BackwardLayer& layer, int64_t dir, Stored<T> params,
                      Arena* arena, Schedule* schedule) const;
  void BackwardWeights(const BackwardLayer& layer, T* params_backprop,
                       Arena* arena, Schedule* schedule) const;

  const RnnProblem& problem_;
  const RnnSpec& spec_;
  const PackedRows& rows_;
  const ParamLayout layout_;
  const uint64_t seed_[2];
  const Division division_;
  const std::vector<Strand> strands_;
  // The place of each row's step in a [T * B] sequence; with dropout only.
  std::vector<int64_t> mask_steps_;
  // The previous row by direction and row; Backward fills it.
  std::vector<int64_t> previous_rows_[2];
  const int64_t batch_, gates_, units_, out_, layer_out_, dirs_;
  const int64_t h_stride_;     // Numbers from a row of states to the next.
  const int64_t strand_size_;  // Sequences, at most.
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_CPU_NETWORK_H_
