#ifndef CUDNN_RNN_TF_KERNELS_CPU_FORWARD_PASS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_FORWARD_PASS_H_

#include <algorithm>
#include <array>
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
  ForwardPass(const RnnProblem& problem, const PackedRows& rows,
              const RnnForwardBuffers& buffers, int64_t num_threads)
      : CpuNetwork(problem, rows, buffers.seed, num_threads),
        buffers_(buffers) {}

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
    int64_t pseudo_layer;
    typename CpuReserve<T>::PseudoLayer kept;
    // The states, [strand, h_stride]. A step reads h[step % 2] and writes the
    // other.
    T* h[2];
    // Only with recurrent dropout: the masks, and for the states in h[0] and
    // h[1] the products with them that the gates read.
    T* masks;
    T* masked[2];
    uint16_t* rounded[2];  // `h` as bfloat16, if products read it.
    T* c;                  // [strand, H]
    T* zones;              // Of zoneout, [strand, 2, H].
    T* unprojected;        // [strand, H]
    T* gates;      // In inference, a chunk's: [chunk rows, num_gates * H].
    T* candidate;  // In inference, as in the reserve space: [strand, H].

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
    DestinationRows<T> outputs[2];
    int num_outputs = 0;
    CpuForwardWeights<T> weights[2];  // By direction.
    std::vector<Group> groups;
  };
  // A step of a group, whose sequences with this step are the `active` first.
  struct Step {
    int64_t number, time, active;
    Rows<T> gates, candidate;  // Those of the sequences.
  };

  void PackWeights(Arena* arena, Layer* layer, Schedule* schedule) const;
  void LayOut(const CpuReserve<T>& reserve, Arena* arena, Layer* layer) const;
  void AddGroup(const Group& group, Schedule* schedule) const;
  void Begin(const Group& group) const;
  void AddInputs(const Group& group, int64_t first_step, int64_t last_step,
                 Schedule* schedule) const;
  void End(const Group& group) const;

  // These are in forward_steps.cc. A Phase is what a part of a group does in a
  // phase of a step; the parts meet after each of them.
  using Phase = void (ForwardPass::*)(const Group&, const Step&,
                                      int64_t part) const;
  // Returns the phases of a step. The second one may be null.
  std::array<Phase, 2> Phases() const;
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
