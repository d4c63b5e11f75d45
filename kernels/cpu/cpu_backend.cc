#include "kernels/cpu/cpu_backend.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/cpu/cpu_network.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/storage.h"
#include "kernels/never_destroyed.h"
#include "kernels/param_layout.h"
#include "kernels/plan_cache.h"

namespace cudnn_rnn_tf {
namespace {

// Gives passes, which compute in Compute, access to a caller's tensors in
// Storage. They read and write numbers in place, row by row.
template <typename Storage, typename Compute>
class Adapter {
 public:
  Adapter(const RnnProblem& problem, const PackedRows& rows)
      : problem_(problem),
        spec_(problem.spec),
        cells_(spec_.num_dirs() * spec_.num_units),
        rows_(rows),
        caller_rows_(rows.CallerRows(problem.time_major)) {
    const int64_t layers = problem.spec.num_pseudo_layers();
    const int64_t batch = problem.batch_size;
    for (int64_t state = 0; state < layers * batch; ++state) {
      state_rows_.push_back(
          problem.time_major ? state : state % batch * layers + state / batch);
    }
  }

  CpuForwardCall<Compute> CallOf(const RnnForwardBuffers& buffers) const {
    CpuForwardCall<Compute> call = {};
    call.input = Sequences(buffers.input, spec_.input_size);
    call.input_h = States(buffers.input_h, spec_.output_size());
    call.input_c = States(buffers.input_c, spec_.num_units);
    call.params = NumbersOf<Storage, Compute>(buffers.params);
    call.output = Sequences(buffers.output, spec_.layer_output_size());
    call.cell_sequences = Sequences(buffers.cell_sequences, cells_);
    call.output_h = States(buffers.output_h, spec_.output_size());
    call.output_c = States(buffers.output_c, spec_.num_units);
    call.seed = buffers.seed;
    return call;
  }
  CpuBackwardCall<Compute> CallOf(const RnnBackwardBuffers& buffers) const {
    CpuBackwardCall<Compute> call = {};
    call.input = Sequences(buffers.input, spec_.input_size);
    call.params = NumbersOf<Storage, Compute>(buffers.params);
    call.output_backprop =
        Sequences(buffers.output_backprop, spec_.layer_output_size());
    call.output_h_backprop =
        States(buffers.output_h_backprop, spec_.output_size());
    call.output_c_backprop = States(buffers.output_c_backprop, spec_.num_units);
    call.cell_sequences_backprop =
        Sequences(buffers.cell_sequences_backprop, cells_);
    call.input_backprop = Sequences(buffers.input_backprop, spec_.input_size);
    call.input_h_backprop =
        States(buffers.input_h_backprop, spec_.output_size());
    call.input_c_backprop = States(buffers.input_c_backprop, spec_.num_units);
    call.params_backprop = NumbersOf<Storage, Compute>(buffers.params_backprop);
    call.seed = buffers.seed;
    return call;
  }
  // Fills what a pass leaves out with zeros.
  void FillPadding(const RnnForwardBuffers& buffers, Schedule* schedule) const {
    FillPadding(spec_.layer_output_size(), buffers.output, schedule);
    if (problem_.has_cell_sequences) {
      FillPadding(cells_, buffers.cell_sequences, schedule);
    }
  }
  void FillPadding(const RnnBackwardBuffers& buffers,
                   Schedule* schedule) const {
    if (buffers.input_backprop != nullptr) {
      FillPadding(spec_.input_size, buffers.input_backprop, schedule);
    }
    if (rows_.num_rows() > 0) return;
    std::fill_n(static_cast<Storage*>(buffers.params_backprop),
                ParamLayout(spec_).size(), Storage());
  }

 private:
  // Sequences, or states in the order [L * D, B], with rows of n numbers.
  // Padding is never read.
  template <typename Data>
  auto Sequences(Data* tensor, int64_t n) const {
    return NumberRows(NumbersOf<Storage, Compute>(tensor), n,
                      caller_rows_.data());
  }
  template <typename Data>
  auto States(Data* tensor, int64_t n) const {
    return NumberRows(NumbersOf<Storage, Compute>(tensor), n,
                      state_rows_.data());
  }
  void FillPadding(int64_t n, void* tensor, Schedule* schedule) const {
    Storage* const to = static_cast<Storage*>(tensor);
    const int64_t time = problem_.max_time, batch = problem_.batch_size;
    if (rows_.num_rows() == time * batch) return;
    const auto zero_padding = [=](int64_t first, int64_t last) {
      for (int64_t position = first; position < last; ++position) {
        const int64_t sequence = rows_.sequences()[position];
        for (int64_t t = rows_.length(position); t < time; ++t) {
          const int64_t row =
              problem_.time_major ? t * batch + sequence : sequence * time + t;
          std::fill_n(to + row * n, n, Storage());
        }
      }
    };
    schedule->AddRanges(batch, 1, zero_padding);
  }

  const RnnProblem& problem_;
  const RnnSpec& spec_;
  const int64_t cells_;  // The numbers of a row of c.
  const PackedRows& rows_;
  const std::vector<int64_t> caller_rows_;
  std::vector<int64_t> state_rows_;
};

struct CpuPlan : RnnPlan {
  using RnnPlan::RnnPlan;

  // The threads that passes run on. Forward passes may find them at hand;
  // otherwise they must be woken.
  int64_t threads_woken = 1, threads_at_hand = 1, threads_backward = 1;
};

enum class Pass { kForward, kBackward };

// Returns how many threads, `count` at most, a pass has enough work for. Each
// thread needs a certain amount of work to be worth its cost, and more of it if
// the threads are not at hand but must be woken.
int64_t WorthThreads(const RnnProblem& problem, Pass pass, int64_t count,
                     bool at_hand) {
  const double worth_one = at_hand ? 3.75e5 : 2.5e6;
  const RnnSpec& spec = problem.spec;
  const double fan_ins =
      spec.layer_input_size(0) +
      static_cast<double>(spec.num_layers - 1) * spec.layer_output_size() +
      static_cast<double>(spec.num_layers) * spec.output_size();
  const double weights =
      spec.num_dirs() * spec.num_gates() * spec.num_units * fan_ins;
  // A backward pass also writes the gradient of each weight, which takes as
  // long as about three operations.
  const double work = 2.0 * problem.max_time * problem.batch_size +
                      (pass == Pass::kBackward ? 3 : 0);
  return std::clamp<int64_t>(static_cast<int64_t>(work * weights / worth_one),
                             1, count);
}

// Runs the pass. If the buffers are null, it only computes their sizes.
template <typename Storage, typename Compute, typename Buffers>
void RunPass(const RnnProblem& problem, const Buffers& buffers,
             const Threads& threads, int64_t num_threads,
             const CpuPackedParams* packed, RnnBufferSizes* sizes) {
  constexpr bool is_forward = std::is_same_v<Buffers, RnnForwardBuffers>;
  Arena workspace(buffers.workspace);
  Arena reserve_arena(buffers.reserve_space);
  const CpuReserve<Compute> reserve(
      problem, problem.is_training ? &reserve_arena : &workspace);
  const PackedRows rows(problem.max_time, problem.batch_size,
                        buffers.sequence_lengths.on_host, buffers.resets,
                        problem.time_major);
  Schedule schedule(
      is_forward ? ThreadsInForward(problem, ThisCore(problem), num_threads)
                 : num_threads);
  const Adapter<Storage, Compute> adapter(problem, rows);
  auto call = adapter.CallOf(buffers);
  if constexpr (is_forward) {
    if (packed != nullptr) call.packed = packed->weights<Compute>();
  }
  const auto pass =
      AddPass(problem, rows, call, reserve, &workspace, &schedule);
  if (workspace.only_counts()) {
    size_t* const size =
        is_forward ? &sizes->forward_workspace : &sizes->backward_workspace;
    *size = std::max(*size, workspace.used());
    sizes->reserve_space = reserve_arena.used();
    return;
  }
  adapter.FillPadding(buffers, &schedule);
  schedule.Run(threads);
}

// Asks the system for large pages. Otherwise new memory costs a page fault for
// each 4 KiB when it is first written, which takes longer than computing what
// is written. The call may fail without harm, so its result is ignored.
void AdviseLargePages(void* buffer, size_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kLargePage = 1 << 21;
  const uintptr_t start = reinterpret_cast<uintptr_t>(buffer);
  const uintptr_t first = (start + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t last = (start + bytes) / kLargePage * kLargePage;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
}

}  // namespace

CpuPackedParams::CpuPackedParams(const RnnSpec& spec, RnnDataType dtype,
                                 const void* params) {
  // A few steps of one sequence give the form that small batches read the
  // fastest. Larger batches read it as fast as any other.
  RnnProblem problem;
  problem.spec = spec;
  problem.dtype = dtype;
  problem.max_time = 3;
  problem.batch_size = 1;
  problem.is_training = false;
  const PackedRows rows(problem.max_time, problem.batch_size, nullptr);
  const uint64_t no_seed[2] = {};
  const CpuNetwork network(problem, rows, no_seed, /*num_threads=*/1);
  Dispatch(dtype, [&](auto storage, auto compute) {
    using Compute = decltype(compute);
    const auto stored = NumbersOf<decltype(storage), Compute>(params);
    const auto pack = [&](Arena arena, Schedule schedule) {
      std::vector<CpuForwardWeights<Compute>> weights;
      for (int64_t i = 0; i < spec.num_pseudo_layers(); ++i) {
        weights.push_back(network.PackForward(i, stored, WeightsForm::kPacked,
                                              &arena, &schedule));
      }
      if (arena.only_counts()) memory_.Grow(arena.used());
      return weights;
    };
    pack(Arena(nullptr), Schedule(1));
    AdviseLargePages(memory_.data(), memory_.size());
    weights_ = pack(Arena(memory_.data()), Schedule::Immediate());
  });
}

void CpuBackend::Prepare(void* buffer, size_t bytes) {
  AdviseLargePages(buffer, bytes);
}

std::shared_ptr<const RnnPlan> CpuBackend::MakePlan(
    const RnnProblem& problem) const {
  auto plan = std::make_shared<CpuPlan>(problem);
  const auto worth = [&](Pass pass, bool at_hand) {
    return WorthThreads(problem, pass, threads_.count, at_hand);
  };
  plan->threads_woken = worth(Pass::kForward, false);
  plan->threads_at_hand =
      threads_.are_at_hand ? worth(Pass::kForward, true) : plan->threads_woken;
  plan->threads_backward = worth(Pass::kBackward, false);
  Dispatch(problem.dtype, [&](auto storage, auto compute) {
    using Storage = decltype(storage);
    using Compute = decltype(compute);
    // The workspace must suffice for calls whether or not they find the threads
    // at hand.
    for (const int64_t count : {plan->threads_woken, plan->threads_at_hand}) {
      RunPass<Storage, Compute>(problem, RnnForwardBuffers(), threads_, count,
                                packed_.get(), &plan->sizes);
    }
    if (problem.is_training) {
      RunPass<Storage, Compute>(problem, RnnBackwardBuffers(), threads_,
                                plan->threads_backward, nullptr, &plan->sizes);
    }
  });
  return plan;
}

RnnStatus CpuBackend::Plan(const RnnProblem& given, int /*choice*/,
                           RnnLengths* lengths,
                           std::shared_ptr<const RnnPlan>* plan) {
  static NeverDestroyed<PlanCache> plans;
  RnnProblem problem = given;
  problem.algorithm = RnnAlgorithm::kAuto;
  if (problem.has_sequence_lengths && lengths != nullptr) {
    const RnnStatus status = CheckLengths(&problem, lengths);
    if (!status.ok()) return status;
  }
  std::string key = KeyOf(problem);
  const AppendTo append = {&key};
  append(threads_.count);
  append(packed_ != nullptr);
  PlanCache::Made made;
  if (!plans->Find(key, &made)) {
    made.plan = MakePlan(problem);
    plans->Keep(key, made);
  }
  *plan = std::move(made.plan);
  return {};
}

RnnStatus CpuBackend::Forward(const RnnPlan& plan,
                              const RnnForwardBuffers& buffers) {
  const auto& ours = static_cast<const CpuPlan&>(plan);
  const bool at_hand = ours.threads_woken < ours.threads_at_hand &&
                       threads_.are_at_hand && threads_.are_at_hand();
  Dispatch(plan.problem.dtype, [&](auto storage, auto compute) {
    RunPass<decltype(storage), decltype(compute)>(
        plan.problem, buffers, threads_,
        at_hand ? ours.threads_at_hand : ours.threads_woken, packed_.get(),
        nullptr);
  });
  return {};
}

RnnStatus CpuBackend::Backward(const RnnPlan& plan,
                               const RnnBackwardBuffers& buffers) {
  Dispatch(plan.problem.dtype, [&](auto storage, auto compute) {
    RunPass<decltype(storage), decltype(compute)>(
        plan.problem, buffers, threads_,
        static_cast<const CpuPlan&>(plan).threads_backward, nullptr, nullptr);
  });
  return {};
}

RnnStatus CpuBackend::Copy(const void* from, void* to, size_t bytes) {
  // An empty tensor may have a null address, which memcpy must not get even for
  // zero bytes.
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

RnnStatus CpuBackend::SetZero(void* to, size_t bytes) {
  if (bytes > 0) std::memset(to, 0, bytes);
  return {};
}

}  // namespace cudnn_rnn_tf
