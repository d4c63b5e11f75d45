#include "kernels/gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/gpu/host_copy.h"
#include "kernels/gpu/persistent/network.h"

namespace cudnn_rnn_tf {
namespace {

// A number of such bytes is NaN in every type.
constexpr unsigned char kNanByte = 0xFF;

// The places of a pass's addresses, the same for every call. They may be
// written to if the buffers are not constant.
template <typename... Pointers>
std::array<const void**, sizeof...(Pointers)> Places(Pointers*... pointers) {
  return {const_cast<const void**>(pointers)...};
}

auto AddressesIn(const RnnForwardBuffers* buffers) {
  return Places(&buffers->input, &buffers->input_h, &buffers->input_c,
                &buffers->params, &buffers->output, &buffers->output_h,
                &buffers->output_c, &buffers->reserve_space,
                &buffers->workspace);
}

auto AddressesIn(const RnnBackwardBuffers* buffers) {
  return Places(&buffers->input, &buffers->input_h, &buffers->input_c,
                &buffers->params, &buffers->output, &buffers->output_backprop,
                &buffers->output_h_backprop, &buffers->output_c_backprop,
                &buffers->reserve_space, &buffers->input_backprop,
                &buffers->input_h_backprop, &buffers->input_c_backprop,
                &buffers->params_backprop, &buffers->workspace);
}

}  // namespace

GpuBackend::GpuBackend(GpuResources resources, const GpuOptions& options)
    : resources_(std::move(resources)), options_(options) {
  // If there is no driver, the first call returns that error.
  if (LoadCudaDriver().ok()) relaxed_capture_.emplace();
}

GpuBackend::~GpuBackend() {
  if (session_ != nullptr) {
    SessionPool::Instance().Return(resources_.device, stream(),
                                   std::move(session_));
  }
}

Session* GpuBackend::session() {
  if (session_ == nullptr) {
    session_ = SessionPool::Instance().Take(resources_.device, stream());
  }
  return session_.get();
}

RnnStatus GpuBackend::Choose(const RnnProblem& problem, size_t reserve_space) {
  // With recurrent dropout, each gate's recurrent matrix reads h through a mask
  // of its own, and with the reset gate before the product, the candidate's
  // reads r * h. cuDNN multiplies all gates' matrices by the same h.
  const bool drops = problem.has_recurrent_dropout();
  const bool is_ours = drops || problem.spec.resets_before();
  if (is_ours && problem.algorithm != RnnAlgorithm::kAuto &&
      problem.algorithm != RnnAlgorithm::kPersistent) {
    return {RnnStatus::Code::kUnimplemented,
            std::string("the algorithm ") +
                kRnnAlgorithmNames[static_cast<int>(problem.algorithm)] +
                (drops ? " cannot run recurrent_dropout in training"
                       : " cannot run rnn_mode gru_reset_before") +
                "; auto and persistent can"};
  }
  if (std::exchange(has_chosen_, true)) return {};
  const bool is_backward = reserve_space > 0;
  const bool is_pinned =
      is_ours ||
      (is_backward ? AlgorithmOf(reserve_space) == RnnAlgorithm::kPersistent
                   : problem.algorithm == RnnAlgorithm::kPersistent);
  RnnStatus status = LoadCudaDriver();
  DeviceLimits limits;
  if (status.ok()) status = ReadLimits(&limits);
  // A variable that is wrong must not pass unnoticed, even where it would make
  // no difference, as to cuDNN.
  if (status.code == RnnStatus::Code::kInvalidArgument) return status;
  if (!is_pinned && (is_backward || problem.algorithm != RnnAlgorithm::kAuto)) {
    return {};
  }
  if (!status.ok()) return is_pinned ? status : RnnStatus();
  double cycles = 0.0;
  bool is_stack = false;
  status = persistent::Network::EstimateCycles(problem, options_.allow_tf32,
                                               &cycles, &is_stack);
  const bool may_be_steps = MayBeSteps(problem);
  const bool has_kernels =
      status.ok() &&
      ((is_pinned && !may_be_steps) ||
       !IsForWholeBatches(problem, options_.allow_tf32, limits, cycles));
  if (!has_kernels && !is_pinned && !may_be_steps) return {};
  if (has_kernels) {
    status = persistent::Network::Create(problem, options_.allow_tf32,
                                         is_backward, is_stack, &engine_);
  }
  const RnnStatus of_kernels = status;
  if ((is_pinned || may_be_steps) && (!has_kernels || !status.ok())) {
    status = persistent::Network::CreateOfSteps(problem, options_.allow_tf32,
                                                &engine_);
  }
  // Slower kernels are better than none.
  if (is_pinned && !has_kernels && of_kernels.ok() && !status.ok()) {
    status = persistent::Network::Create(problem, options_.allow_tf32,
                                         is_backward, is_stack, &engine_);
  }
  if (has_kernels && !of_kernels.ok() && (status.ok() || !is_pinned)) {
    resources_.warn(
        of_kernels.message + ". So " +
        (status.ok() ? "kernels of single steps run" : "cuDNN runs") +
        " what the persistent kernels would have run faster, sequences of "
        "different lengths several times as fast");
  } else if (!status.ok() && !is_pinned) {
    resources_.warn(
        status.message +
        ". So cuDNN runs; if sequences have different lengths, the host waits "
        "for the GPU in each call");
  }
  if (status.ok()) return {};
  if (is_ours) {
    status.message += drops ? ". In training with recurrent_dropout, a GPU has "
                              "no other algorithm"
                            : ". For gru_reset_before, a GPU has no other "
                              "algorithm";
    status.message += "; use keras.layers, or run the op on the CPU";
  }
  return is_pinned ? status : RnnStatus();
}

RnnStatus GpuBackend::MakeOther(const RnnProblem& problem,
                                RnnAlgorithm algorithm) {
  if (algorithm == RnnAlgorithm::kResident) {
    return CreateResidentNetwork(problem, options_.allow_tf32, &engine_);
  }
  CRNN_RETURN_IF_ERROR(LoadGpuLibraries());
  return CreateCudnnNetwork(problem, algorithm, options_, session(), &engine_);
}

RnnStatus GpuBackend::ChooseOther(const RnnProblem& problem) {
  Session::Plans* const plans = session()->PlansFor(problem, options_);
  const bool is_known = plans->algorithm != RnnAlgorithm::kAuto;
  RnnAlgorithm algorithm =
      is_known ? plans->algorithm
               : OtherAlgorithmFor(problem, options_.allow_tf32);
  const bool is_pinned = algorithm == problem.algorithm;
  // The rule's `resident` leaves calls with unaligned buffers to standard.
  if (algorithm == RnnAlgorithm::kResident && !is_pinned &&
      !problem.is_aligned) {
    return MakeOther(problem, RnnAlgorithm::kStandard);
  }
  RnnStatus status = MakeOther(problem, algorithm);
  if (is_known) return status;
  bool may_fit_later = false;
  while (!status.ok() && !is_pinned && algorithm != RnnAlgorithm::kStandard) {
    // The network does not fit or, this time, there is no memory for it.
    may_fit_later |= status.code == RnnStatus::Code::kResourceExhausted;
    algorithm = algorithm == RnnAlgorithm::kResident
                    ? CudnnAlgorithmFor(problem, options_.allow_tf32)
                    : RnnAlgorithm::kStandard;
    status = MakeOther(problem, algorithm);
  }
  if (!status.ok() || may_fit_later) return status;
  plans->algorithm = algorithm;
  resources_.log(Describe(problem) + ": " +
                 kRnnAlgorithmNames[static_cast<int>(algorithm)]);
  return {};
}

RnnStatus GpuBackend::ReadSequenceLengths(size_t reserve_space,
                                          RnnProblem* problem,
                                          RnnLengths* lengths) {
  if (lengths->on_host != nullptr) {
    return CheckSequenceLengths(problem, lengths);
  }
  CRNN_RETURN_IF_ERROR(Choose(*problem, reserve_space));
  if (engine_ != nullptr) return {};
  // cuDNN needs the lengths in host memory to describe the data.
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  const HostCopy<int64_t> copied(problem->batch_size);
  CRNN_RETURN_IF_ERROR(copied.Fetch(stream(), lengths->on_device));
  // A length that does not fit 32 bits is clamped and then found out of range.
  for (int64_t b = 0; b < problem->batch_size; ++b) {
    host_lengths_.push_back(static_cast<int32_t>(std::clamp<int64_t>(
        copied.items()[b], -1, std::numeric_limits<int32_t>::max())));
  }
  *lengths = {host_lengths_.data(), nullptr};
  return CheckSequenceLengths(problem, lengths);
}

RnnStatus GpuBackend::ForwardBufferSizes(const RnnProblem& problem,
                                         RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Choose(problem, 0));
  if (engine_ == nullptr) CRNN_RETURN_IF_ERROR(ChooseOther(problem));
  if (problem.is_training) {
    sizes->reserve_space =
        ReserveSize(engine_->reserve_size(), engine_->algorithm());
  }
  sizes->forward_workspace = engine_->forward_workspace_size();
  return {};
}

RnnStatus GpuBackend::BackwardBufferSizes(const RnnProblem& problem,
                                          size_t reserve_space,
                                          RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Choose(problem, reserve_space));
  if (engine_ == nullptr) {
    // Other sizes than those of cuDNN's algorithms are of no forward pass.
    RnnAlgorithm algorithm = AlgorithmOf(reserve_space);
    if (algorithm == RnnAlgorithm::kAuto ||
        algorithm >= RnnAlgorithm::kResident) {
      algorithm = RnnAlgorithm::kStandard;
    }
    CRNN_RETURN_IF_ERROR(MakeOther(problem, algorithm));
  }
  sizes->reserve_space =
      ReserveSize(engine_->reserve_size(), engine_->algorithm());
  sizes->backward_workspace = engine_->backward_workspace_size();
  return {};
}

void GpuBackend::Prepare(void* buffer, size_t bytes) {
  if (!options_.poison_scratch || bytes == 0) return;
  RnnStatus status = LoadCudaDriver();
  if (status.ok()) status = EnqueueFill(stream(), buffer, kNanByte, bytes);
  if (!status.ok()) resources_.log(status.message);
}

template <typename Buffers>
RnnStatus GpuBackend::Run(const Buffers& buffers,
                          RnnStatus (Engine::*enqueue)(const Handles&,
                                                       const Buffers&) const) {
  // cuDNN's engine has made a handle of cuDNN; all others use one of cuBLAS.
  if (engine_->algorithm() >= RnnAlgorithm::kResident) {
    CRNN_RETURN_IF_ERROR(session()->MakeBlas());
  }
  if (options_.replay && engine_->is_replayable() && Replay(buffers, enqueue)) {
    return {};
  }
  return std::invoke(enqueue, *engine_, session_->handles(), buffers);
}

template <typename Buffers>
bool GpuBackend::Replay(const Buffers& buffers,
                        RnnStatus (Engine::*enqueue)(const Handles&,
                                                     const Buffers&) const) {
  ReplayablePass pass;
  pass.key = engine_->Key();
  const auto append = [&](uintptr_t value) {
    pass.key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(reinterpret_cast<uintptr_t>(stream()));
  for (const void* const* const place : AddressesIn(&buffers)) {
    const auto address = reinterpret_cast<CUdeviceptr>(*place);
    pass.addresses.push_back(address);
    append(address == 0 ? Graph::kMoveUnit : address % Graph::kMoveUnit);
  }
  pass.stream = stream();
  pass.may_make = !resources_.is_profiled();
  // cuDNN enqueues into streams of its own. Once a process has done so in two
  // streams, every node of every graph takes 0.18 µs longer until it ends, so
  // cuDNN's passes run as graphs from the beginning.
  if (engine_->algorithm() != RnnAlgorithm::kPersistent) pass.captured_use = 1;
  pass.record = [&](const Graph::Addresses& addresses, Recording* recording) {
    Handles handles;
    CRNN_RETURN_IF_ERROR(session_->MakeCaptureHandles(&handles));
    Buffers moved = buffers;
    auto address = addresses.begin();
    for (const void** const place : AddressesIn(&moved)) {
      *place = reinterpret_cast<const void*>(*address++);
    }
    return Recording::Make(
        handles.stream,
        [&] { return std::invoke(enqueue, *engine_, handles, moved); },
        recording);
  };
  pass.log = resources_.log;
  return GraphCache::Of(resources_.device).Replay(pass);
}

RnnStatus GpuBackend::Forward(const RnnProblem& /*problem*/,
                              const RnnForwardBuffers& buffers) {
  CRNN_RETURN_IF_ERROR(
      engine_->StoreLengthsAndSeed(session()->handles(), buffers));
  return Run(buffers, &Engine::Forward);
}

RnnStatus GpuBackend::Backward(const RnnProblem& /*problem*/,
                               const RnnBackwardBuffers& buffers) {
  return Run(buffers, &Engine::Backward);
}

RnnStatus GpuBackend::Copy(const void* from, void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return bytes == 0 ? RnnStatus() : EnqueueCopy(stream(), from, to, bytes);
}

RnnStatus GpuBackend::SetZero(void* to, size_t bytes) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return bytes == 0 ? RnnStatus() : EnqueueFill(stream(), to, 0, bytes);
}

}  // namespace cudnn_rnn_tf
