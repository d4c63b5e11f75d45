#ifndef CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_PASS_H_
#define CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_PASS_H_

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_network.h"

namespace cudnn_rnn_tf {

// The backward pass. It adds a layer after the other to the schedule, the last
// one first; the groups of a layer go back through time side by side. What
// needs the gradients of all steps follows.
template <typename T>
class BackwardPass : public CpuNetwork {
 public:
  BackwardPass(const CpuPlan& plan, const Division& division,
               const PackedRows& rows, const RnnBackwardBuffers& buffers)
      : CpuNetwork(plan, division, rows, buffers), buffers_(buffers) {}

  // Adds the pass to the schedule, as ForwardPass::Add does.
  void Add(const CpuReserve<T>& reserve, Arena* arena, Schedule* schedule);

 private:
  // Rows [first, first + rows) of the recurrent weights, and the gradients [N,
  // rows] of the preactivations that they add to. There is more than one
  // segment in a GRU, whose candidate has a gradient of its own on the
  // recurrent side or reads other states, and with recurrent dropout, where
  // each gate reads other states.
  struct Segment {
    StoredRows<T> dz;
    int64_t first = 0;
    int64_t rows = 0;
    StoredRows<T> h;         // The states that the rows read, [N, P].
    RightMatrix<T> weights;  // [rows, P]
  };
  struct PseudoLayer {
    ParamLayout::PseudoLayer offsets;
    typename CpuReserve<T>::PseudoLayer kept;
    std::vector<Segment> segments;
    T* masked;  // The masked states with recurrent dropout, [N, num_gates * P].
    T* vectors;  // [num_vectors, H]
    // Each sequence's sums of the vectors' gradients, [B, num_vectors, H].
    T* vector_sums;
    RightMatrix<T> projection;  // [P, H]
    // Only with a projection: the gradient of its result, [N, P], and what was
    // projected, [N, H].
    T* projected_backprop;
    T* unprojected;
  };
  struct Layer;
  struct Group : CpuNetwork::Group {
    const Layer* layer;
    const PseudoLayer* pseudo_layer;
    T* dh;     // [strand, h_stride]
    T* dc;     // [strand, H]
    T* zones;  // Of zoneout, [strand, 2, H].
    T* dy;     // [strand, H], of the unprojected output.
    // Only with recurrent dropout.
    T* masks;
    // Only where a gate does not read h itself, as with recurrent dropout: the
    // gradients of what one gate reads, [strand, h_stride].
    T* read_backprop;
    // Only if products read bfloat16: `dz` of all segments. A step writes
    // rounded_dz[step % 2].
    DestinationRows<T> rounded_dz[2];
    T* norms;  // [parts, norms + 1, H], of a cell that normalises.
  };
  struct Layer {
    int64_t index = 0;
    StoredRows<T> input;                     // Dropout applied.
    StoredRows<T> output_backprop;           // [N, D * P]
    Rows<T> input_backprop;                  // [N, fan_in]
    T* output = nullptr;                     // [N + B, D * P]
    std::vector<PseudoLayer> pseudo_layers;  // [D]
    std::vector<Group> groups;
  };

  void LayOut(const CpuReserve<T>& reserve, Arena* arena, Layer* layer) const;
  void PackWeights(Arena* arena, PseudoLayer* pseudo_layer,
                   Schedule* schedule) const;
  void AddGroup(const Group& group, Schedule* schedule) const;
  void Begin(const Group& group) const;
  void End(const Group& group) const;

  // These are in backward_steps.cc.
  CpuNetwork::PhasesOf<BackwardPass, Group, Step> Phases() const;
  void RunStates(const Group& group, const Step& step, int64_t part) const;
  void RunUnits(const Group& group, const Step& step, int64_t part) const;
  void RunStatesAndUnits(const Group& group, const Step& step,
                         int64_t part) const;
  void RunRows(const Group& group, const Step& step, int64_t part) const;
  void RunResets(const Group& group, const Step& step, int64_t part) const;

  void ToStates(const Group& group, const Step& step, const Slice& slice) const;
  void AddGradientsOfStep(const Group& group, const Step& step,
                          const Slice& slice) const;
  void AddGradientsOfOutputs(const Group& group, const Step& step,
                             const Slice& slice) const;
  void ToUnits(const Group& group, const Step& step, const Slice& slice) const;
  void RunCells(const Group& group, const Step& step, int64_t r, int64_t unit,
                int64_t n, T* work) const;
  CellRow<T> RowOf(const Group& group, const Step& step, int64_t r,
                   int64_t unit) const;
  // A step's gradients of a segment, in the form in which products read them.
  StoredRows<T> GradientsOf(const Group& group, const Step& step,
                            const Segment& segment) const;

  // The products over all steps, which backward_sums.cc has.
  void AddSums(const Layer& layer, Arena* arena, Schedule* schedule) const;
  void AddInputs(const Layer& layer, int64_t dir, Arena* arena,
                 Schedule* schedule) const;
  void AddVectors(const Layer& layer, Schedule* schedule) const;
  void AddWeights(const Layer& layer, Arena* arena, Schedule* schedule) const;

  // These are not written if there is no row.
  Destination<T> params_backprop() const {
    return tensors_.Numbers<T>(buffers_.params_backprop);
  }

  const RnnBackwardBuffers& buffers_;
  // Indexed by direction and row: the row of the sequence's step before.
  std::vector<int64_t> previous_rows_[2];
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CPU_BACKWARD_PASS_H_
