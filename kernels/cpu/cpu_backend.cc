#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "kernels/cpu/cpu_network.h"

namespace cudnn_rnn_tf {
namespace {

// A tensor seen as [outer, inner, row] for the caller and [inner, outer, row]
// (batch-major) or the same (time-major) for the network.
struct Sequence {
  int64_t outer;  // T for sequences, L * D for states.
  int64_t batch;
  int64_t row;
  bool transposed;

  int64_t size() const { return outer * batch * row; }
  int64_t CallerOffset(int64_t o, int64_t b) const {
    return transposed ? (b * outer + o) * row : (o * batch + b) * row;
  }
};

template <typename From, typename To>
void ConvertRow(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, n, to);
  } else {
    for (int64_t j = 0; j < n; ++j) to[j] = static_cast<To>(from[j]);
  }
}

// Storage is what the caller holds, Compute what the network computes in.
template <typename Storage, typename Compute>
class Adapter {
 public:
  Adapter(const RnnProblem& problem, const int32_t* sequence_lengths,
          const ParallelFor& parallel_for)
      : problem_(problem),
        spec_(problem.spec),
        lengths_(sequence_lengths),
        parallel_for_(parallel_for) {}

  Sequence InputSequence() const { return Steps(spec_.input_size); }
  Sequence OutputSequence() const { return Steps(spec_.layer_output_size()); }
  Sequence HiddenStates() const { return States(spec_.output_size()); }
  Sequence CellStates() const { return States(spec_.num_units); }
  Sequence Params() const { return {1, 1, ParamLayout(spec_).size(), false}; }

  // The caller's tensor where the network can read it in place, else a copy of
  // it from the arena. Padded steps come as zeros: what the caller has there,
  // NaN perhaps, must not reach a product.
  const Compute* Import(const void* tensor, const Sequence& sequence,
                        bool has_padding, Arena* arena) {
    if (CanAlias(sequence) && !(has_padding && problem_.has_sequence_lengths)) {
      return static_cast<const Compute*>(tensor);
    }
    return ImportCopy(tensor, sequence, has_padding, arena);
  }

  Compute* ImportCopy(const void* tensor, const Sequence& sequence,
                      bool has_padding, Arena* arena) {
    Compute* const copy = arena->Take<Compute>(sequence.size());
    if (tensor == nullptr || copy == nullptr) return copy;
    const Storage* const from = static_cast<const Storage*>(tensor);
    ForEachRow(sequence, [&](int64_t o, int64_t b, int64_t offset) {
      Compute* const to = copy + (o * sequence.batch + b) * sequence.row;
      if (has_padding && lengths_ != nullptr && o >= lengths_[b]) {
        std::fill_n(to, sequence.row, Compute(0));
      } else {
        ConvertRow(from + offset, to, sequence.row);
      }
    });
    return copy;
  }

  // Where the network may write a result: the caller's tensor or a copy, which
  // Export carries over.
  Compute* Result(void* tensor, const Sequence& sequence, Arena* arena) {
    return CanAlias(sequence) ? static_cast<Compute*>(tensor)
                              : arena->Take<Compute>(sequence.size());
  }

  void Export(const Compute* from, const Sequence& sequence, void* tensor) {
    Storage* const to = static_cast<Storage*>(tensor);
    if (static_cast<const void*>(from) == tensor) return;
    ForEachRow(sequence, [&](int64_t o, int64_t b, int64_t offset) {
      ConvertRow(from + (o * sequence.batch + b) * sequence.row, to + offset,
                 sequence.row);
    });
  }

 private:
  Sequence Steps(int64_t row) const {
    return {problem_.max_time, problem_.batch_size, row, !problem_.time_major};
  }
  Sequence States(int64_t row) const {
    return {spec_.num_pseudo_layers(), problem_.batch_size, row,
            !problem_.time_major};
  }
  static bool CanAlias(const Sequence& sequence) {
    return std::is_same_v<Storage, Compute> &&
           (!sequence.transposed || sequence.outer == 1 || sequence.batch == 1);
  }
  template <typename Body>
  void ForEachRow(const Sequence& sequence, const Body& body) {
    parallel_for_(sequence.outer * sequence.batch, 4.0 * sequence.row,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t o = i / sequence.batch;
                      const int64_t b = i % sequence.batch;
                      body(o, b, sequence.CallerOffset(o, b));
                    }
                  });
  }

  const RnnProblem& problem_;
  const RnnSpec& spec_;
  const int32_t* lengths_;
  const ParallelFor& parallel_for_;
};

// Runs the pass, or, where buffers is all null, only counts its workspace.
template <typename Storage, typename Compute>
void RunForward(const RnnProblem& problem, const RnnForwardBuffers& buffers,
                const ParallelFor& parallel_for, bool count_only,
                size_t* workspace_bytes, size_t* reserve_bytes) {
  Arena workspace(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const CpuReserve<Compute> reserve(
      problem, problem.is_training ? &reserve_arena : &workspace);
  Adapter<Storage, Compute> adapter(problem, buffers.sequence_lengths,
                                    parallel_for);
  const bool lstm = problem.spec.is_lstm();
  CpuForwardCall<Compute> call = {};
  call.input = adapter.Import(buffers.input, adapter.InputSequence(),
                              /*has_padding=*/true, &workspace);
  call.input_h = adapter.Import(buffers.input_h, adapter.HiddenStates(), false,
                                &workspace);
  call.params =
      adapter.Import(buffers.params, adapter.Params(), false, &workspace);
  call.output_h =
      adapter.Result(buffers.output_h, adapter.HiddenStates(), &workspace);
  if (lstm) {
    call.input_c = adapter.Import(buffers.input_c, adapter.CellStates(), false,
                                  &workspace);
    call.output_c =
        adapter.Result(buffers.output_c, adapter.CellStates(), &workspace);
  }
  CpuNetwork<Compute>(problem, buffers.sequence_lengths, buffers.seed,
                      parallel_for)
      .Forward(call, reserve, &workspace, count_only);
  if (count_only) {
    *workspace_bytes = workspace.used();
    *reserve_bytes = reserve_arena.used();
    return;
  }
  adapter.Export(reserve.outputs.back(), adapter.OutputSequence(),
                 buffers.output);
  adapter.Export(call.output_h, adapter.HiddenStates(), buffers.output_h);
  if (lstm) {
    adapter.Export(call.output_c, adapter.CellStates(), buffers.output_c);
  }
}

template <typename Storage, typename Compute>
void RunBackward(const RnnProblem& problem, const RnnBackwardBuffers& buffers,
                 const ParallelFor& parallel_for, bool count_only,
                 size_t* workspace_bytes) {
  Arena workspace(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const CpuReserve<Compute> reserve(problem, &reserve_arena);
  Adapter<Storage, Compute> adapter(problem, buffers.sequence_lengths,
                                    parallel_for);
  const bool lstm = problem.spec.is_lstm();
  CpuBackwardCall<Compute> call = {};
  call.input = adapter.Import(buffers.input, adapter.InputSequence(),
                              /*has_padding=*/true, &workspace);
  call.input_h = adapter.Import(buffers.input_h, adapter.HiddenStates(), false,
                                &workspace);
  call.params =
      adapter.Import(buffers.params, adapter.Params(), false, &workspace);
  call.output_backprop =
      adapter.ImportCopy(buffers.output_backprop, adapter.OutputSequence(),
                         /*has_padding=*/true, &workspace);
  call.h_backprop = adapter.ImportCopy(
      buffers.output_h_backprop, adapter.HiddenStates(), false, &workspace);
  call.input_backprop = adapter.Result(buffers.input_backprop,
                                       adapter.InputSequence(), &workspace);
  call.params_backprop =
      adapter.Result(buffers.params_backprop, adapter.Params(), &workspace);
  if (lstm) {
    call.input_c = adapter.Import(buffers.input_c, adapter.CellStates(), false,
                                  &workspace);
    call.c_backprop = adapter.ImportCopy(
        buffers.output_c_backprop, adapter.CellStates(), false, &workspace);
  }
  CpuNetwork<Compute>(problem, buffers.sequence_lengths, buffers.seed,
                      parallel_for)
      .Backward(call, reserve, &workspace, count_only);
  if (count_only) {
    *workspace_bytes = workspace.used();
    return;
  }
  adapter.Export(call.input_backprop, adapter.InputSequence(),
                 buffers.input_backprop);
  adapter.Export(call.h_backprop, adapter.HiddenStates(),
                 buffers.input_h_backprop);
  if (lstm) {
    adapter.Export(call.c_backprop, adapter.CellStates(),
                   buffers.input_c_backprop);
  }
  adapter.Export(call.params_backprop, adapter.Params(),
                 buffers.params_backprop);
}

// Calls body(Storage(), Compute()): half types compute in float.
template <typename Body>
void Dispatch(RnnDataType dtype, const Body& body) {
  switch (dtype) {
    case RnnDataType::kFloat64:
      return body(double(), double());
    case RnnDataType::kFloat32:
      return body(float(), float());
    case RnnDataType::kFloat16:
      return body(Eigen::half(), float());
    case RnnDataType::kBfloat16:
      return body(Eigen::bfloat16(), float());
  }
}

}  // namespace

RnnStatus CpuBackend::BufferSizes(const RnnProblem& problem,
                                  RnnBufferSizes* sizes) {
  Dispatch(problem.dtype, [&](auto storage, auto compute) {
    using Storage = decltype(storage);
    using Compute = decltype(compute);
    size_t reserve = 0;
    RunForward<Storage, Compute>(problem, {}, parallel_for_,
                                 /*count_only=*/true, &sizes->forward_workspace,
                                 &reserve);
    sizes->reserve_space = reserve;
    if (problem.is_training) {
      RunBackward<Storage, Compute>(problem, {}, parallel_for_,
                                    /*count_only=*/true,
                                    &sizes->backward_workspace);
    }
  });
  return {};
}

RnnStatus CpuBackend::Forward(const RnnProblem& problem,
                              const RnnForwardBuffers& buffers) {
  Dispatch(problem.dtype, [&](auto storage, auto compute) {
    RunForward<decltype(storage), decltype(compute)>(
        problem, buffers, parallel_for_, /*count_only=*/false, nullptr,
        nullptr);
  });
  return {};
}

RnnStatus CpuBackend::Backward(const RnnProblem& problem,
                               const RnnBackwardBuffers& buffers) {
  Dispatch(problem.dtype, [&](auto storage, auto compute) {
    RunBackward<decltype(storage), decltype(compute)>(
        problem, buffers, parallel_for_, /*count_only=*/false, nullptr);
  });
  return {};
}

RnnStatus CpuBackend::Copy(const void* from, void* to, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

RnnStatus CpuBackend::SetZero(void* to, size_t bytes) {
  std::memset(to, 0, bytes);
  return {};
}

}  // namespace cudnn_rnn_tf
