#ifndef CUDNN_RNN_TF_KERNELS_CPU_FORWARD_PASS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_FORWARD_PASS_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_network.h"

namespace cudnn_rnn_tf {

// The forward pass. It adds a layer after the other to the schedule; the groups
// of a layer go through time side by side, each a chunk of steps at a time: the
// products with the inputs of all steps of the chunk, and then step by step the
// products with h and the cells, which the parts of the group share.
template <typename T>
class ForwardPass : public CpuNetwork {
 public:
  ForwardPass(const CpuPlan& plan, const Division& division,
              const PackedRows& rows, const RnnForwardBuffers& buffers)
      : CpuNetwork(plan, division, rows, buffers), buffers_(buffers) {}

  // Adds the pass to the schedule and takes its workspace from the arena. This
  // object, and what all arguments refer to, must live until the schedule has
  // run, which it must not if the arena only counts. If `packed` is not null,
  // it holds the weights of all pseudo-layers, and the parameters are not read.
  void Add(const CpuReserve<T>& reserve, const CpuForwardWeights<T>* packed,
           Arena* arena, Schedule* schedule);

 private:
  struct Layer;
  struct Group : CpuNetwork::Group {
    const Layer* layer;
    // In inference, the gates are those of a chunk, [chunk rows, num_gates *
    // H], and the candidates those of a step, [strand, H].
    typename CpuReserve<T>::PseudoLayer kept;
    // The states, [strand, h_stride]. A step reads h[step % 2] and writes the
    // other.
    T* h[2];
    // The states h[0] and h[1] as products read them: multiplied by the masks
    // of recurrent dropout, those of a gate after the other, or rounded.
    DestinationRows<T> read[2];
    T* masks;        // Only with recurrent dropout.
    T* c;            // [strand, H]
    T* zones;        // Of zoneout, [strand, 2, H].
    T* unprojected;  // [strand, H]

    const CpuForwardWeights<T>& weights() const {
      return layer->weights[this->dir];
    }
  };
  struct Layer {
    int64_t index = 0;
    StoredRows<T> input;  // After dropout.
    // Indexed by strand: the rows of the input that its rows are computed from.
    std::vector<std::vector<int64_t>> input_rows;
    // Outputs are written to each of these: for the next layer or the backward
    // pass, and for the caller.
    std::vector<DestinationRows<T>> outputs;
    CpuForwardWeights<T> weights[2];  // By direction.
    std::vector<Group> groups;
  };
  struct Step : CpuNetwork::Step {
    Rows<T> gates, candidate;  // Those of the sequences.
  };

  void PackWeights(Arena* arena, Layer* layer, Schedule* schedule) const;
  void LayOut(const CpuReserve<T>& reserve, Arena* arena, Layer* layer) const;
  void AddGroup(const Group& group, Schedule* schedule) const;
  void Begin(const Group& group) const;
  void AddInputs(const Group& group, int64_t first_step, int64_t last_step,
                 Schedule* schedule) const;
  void End(const Group& group) const;

  // These are in forward_steps.cc.
  CpuNetwork::PhasesOf<ForwardPass, Group, Step> Phases() const;
  void RunUnits(const Group& group, const Step& step, int64_t part) const;
  void RunSums(const Group& group, const Step& step, int64_t part) const;
  void RunRows(const Group& group, const Step& step, int64_t part) const;
  void RunResets(const Group& group, const Step& step, int64_t part) const;
  void RunCandidates(const Group& group, const Step& step, int64_t part) const;
  void RunProjection(const Group& group, const Step& step, int64_t part) const;

  Step StepOf(const Group& group, int64_t chunk_step, int64_t number) const;
  StoredRows<T> StatesOf(const Group& group, int64_t step, int64_t gate) const;
  void PrepareStates(const Group& group, int64_t step, int64_t r, int64_t first,
                     int64_t n) const;
  void FinishStates(const Group& group, const Step& step, int64_t r,
                    int64_t first, int64_t n) const;
  template <typename Body>
  void ForUnits(const Group& group, const Step& step, int64_t part,
                const Body& body) const;
  CellRow<T> RowOf(const Group& group, const Step& step, int64_t r,
                   int64_t unit) const;
  void RunCells(const Group& group, const Step& step, int64_t r, int64_t unit,
                int64_t n) const;

  const RnnForwardBuffers& buffers_;
  // The products with the inputs are computed for the rows of so many steps at
  // a time: enough rows to reuse the weights, and few enough that the
  // recurrence finds the results in a cache.
  const int64_t chunk_steps_ =
      std::clamp<int64_t>(192 / strand_size_, 1, problem_.max_time);
  std::vector<std::vector<int64_t>> strand_rows_;  // By strand.
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_FORWARD_PASS_H_
