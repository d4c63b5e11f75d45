#include "kernels/gpu/gpu_backend.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/keras_tensors.h"
#include "kernels/gpu/masked_steps.h"
#include "kernels/gpu/reserve_size.h"

namespace cudnn_rnn_tf {
namespace {

// A number of such bytes is NaN in every type.
constexpr unsigned char kNanByte = 0xFF;

}  // namespace

GpuBackend::GpuBackend(GpuResources resources, const GpuOptions& options)
    : device_(resources.device),
      stream_(resources.stream),
      allow_tf32_(options.allow_tf32),
      replays_(options.replay),
      poisons_(options.poison_scratch),
      is_profiled_(resources.is_profiled),
      log_(resources.log),
      warn_(resources.warn),
      cudnn_(std::move(resources), options) {}

GpuBackend::~GpuBackend() {
  if (session_ != nullptr) {
    SessionPool<persistent::Session>::Instance().Return(device_, stream(),
                                                        std::move(session_));
  }
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
  if (!is_pinned && (is_backward || problem.algorithm != RnnAlgorithm::kAuto)) {
    return {};
  }
  RnnStatus status = LoadCudaDriver();
  if (!status.ok()) return is_pinned ? status : RnnStatus();
  double cycles = 0.0;
  status = persistent::Network::EstimateCycles(problem, allow_tf32_, &cycles);
  // Options that are wrong must not pass unnoticed.
  if (status.code == RnnStatus::Code::kInvalidArgument) return status;
  const bool may_be_steps = MayBeSteps(problem);
  const bool has_kernels = status.ok() && ((is_pinned && !may_be_steps) ||
                                           !IsForWholeBatches(problem, cycles));
  if (!has_kernels && !is_pinned && !may_be_steps) return {};
  persistent::Network network;
  if (has_kernels) {
    status = persistent::Network::Create(problem, allow_tf32_, is_backward,
                                         &network);
  }
  const RnnStatus of_kernels = status;
  if ((is_pinned || may_be_steps) && (!has_kernels || !status.ok())) {
    status = persistent::Network::CreateOfSteps(problem, allow_tf32_, &network);
  }
  if (has_kernels && !of_kernels.ok()) {
    warn_(of_kernels.message + ". So " +
          (status.ok() ? "kernels of single steps run" : "cuDNN runs") +
          " what the persistent kernels would have run faster, sequences of "
          "different lengths several times as fast");
  } else if (!status.ok() && !is_pinned) {
    warn_(
        status.message +
        ". So cuDNN runs; if sequences have different lengths, the host waits "
        "for the GPU in each call");
  }
  if (status.ok()) {
    network_ = network;
    return {};
  }
  if (is_ours) {
    status.message += std::string(". ") +
                      (drops ? "In training with recurrent_dropout"
                             : "For gru_reset_before") +
                      ", a GPU has no other algorithm; use keras.layers, or "
                      "run the op on the "
                      "CPU";
  }
  return is_pinned ? status : RnnStatus();
}

RnnStatus GpuBackend::ReadSequenceLengths(size_t reserve_space,
                                          RnnProblem* problem,
                                          RnnLengths* lengths) {
  if (lengths->on_host != nullptr) {
    return CheckSequenceLengths(problem, lengths);
  }
  CRNN_RETURN_IF_ERROR(Choose(*problem, reserve_space));
  if (network_) return {};
  // cuDNN needs the lengths in host memory to describe the data.
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  std::vector<int64_t> copied(problem->batch_size);
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Gpu().cuda.cuMemcpyDtoHAsync(
          copied.data(), reinterpret_cast<CUdeviceptr>(lengths->on_device),
          copied.size() * sizeof(int64_t), stream()),
      "copy sequence lengths"));
  CRNN_RETURN_IF_ERROR(CudaStatus(Gpu().cuda.cuStreamSynchronize(stream()),
                                  "wait for sequence lengths"));
  // A length that does not fit 32 bits is clamped and then found out of range.
  for (const int64_t length : copied) {
    host_lengths_.push_back(static_cast<int32_t>(
        std::clamp<int64_t>(length, -1, std::numeric_limits<int32_t>::max())));
  }
  *lengths = {host_lengths_.data(), nullptr};
  return CheckSequenceLengths(problem, lengths);
}

RnnStatus GpuBackend::Run(Pass pass, const CallAddresses& addresses) {
  CRNN_RETURN_IF_ERROR(SessionPool<persistent::Session>::Instance().Take(
      device_, stream(), &session_));
  // If the caller is capturing the stream, its capture gets the kernels
  // themselves, not a graph.
  if (!replays_ || StreamIsCapturing(stream())) {
    return session_->Enqueue(*network_, pass, addresses);
  }
  std::string why;
  const RnnStatus status = session_->EnqueueReplay(
      *network_, pass, addresses, /*may_make=*/!is_profiled_(), &why);
  if (!why.empty()) log_("the persistent kernels are not replayed: " + why);
  return status;
}

RnnStatus GpuBackend::ForwardBufferSizes(const RnnProblem& problem,
                                         RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Choose(problem, 0));
  if (!network_) return cudnn_.ForwardBufferSizes(problem, sizes);
  if (problem.is_training) {
    sizes->reserve_space =
        ReserveSize(network_->reserve_size(), RnnAlgorithm::kPersistent);
  }
  sizes->forward_workspace = network_->forward_workspace_size();
  return {};
}

size_t GpuBackend::OutputOffset(const RnnProblem& problem) const {
  return network_ ? 0 : cudnn_.OutputOffset(problem);
}

RnnStatus GpuBackend::BackwardBufferSizes(const RnnProblem& problem,
                                          size_t reserve_space,
                                          RnnBufferSizes* sizes) {
  CRNN_RETURN_IF_ERROR(Choose(problem, reserve_space));
  if (!network_) {
    return cudnn_.BackwardBufferSizes(problem, reserve_space, sizes);
  }
  sizes->reserve_space =
      ReserveSize(network_->reserve_size(), RnnAlgorithm::kPersistent);
  sizes->backward_workspace = network_->backward_workspace_size();
  return {};
}

std::shared_ptr<void> GpuBackend::Workspace(size_t bytes,
                                            const AllocateMemory& allocate) {
  return network_ ? allocate(bytes) : cudnn_.Workspace(bytes, allocate);
}

void GpuBackend::Prepare(void* buffer, size_t bytes) {
  if (!poisons_ || bytes == 0) return;
  RnnStatus status = LoadCudaDriver();
  if (status.ok()) {
    status = CudaStatus(
        Gpu().cuda.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(buffer),
                                   kNanByte, bytes, stream()),
        "fill device memory");
  }
  if (!status.ok()) log_(status.message);
}

RnnStatus GpuBackend::Forward(const RnnProblem& problem,
                              const RnnForwardBuffers& buffers) {
  if (!network_) return cudnn_.Forward(problem, buffers);
  CRNN_RETURN_IF_ERROR(network_->Prepare(stream(), buffers));
  return Run(Pass::kForward, AddressesOf(problem, buffers));
}

RnnStatus GpuBackend::Backward(const RnnProblem& problem,
                               const RnnBackwardBuffers& buffers) {
  if (!network_) return cudnn_.Backward(problem, buffers);
  return Run(Pass::kBackward, AddressesOf(problem, buffers));
}

RnnStatus GpuBackend::OrOnHost(
    const RnnStatus& status, const std::function<RnnStatus()>& on_host) const {
  if (status.code != RnnStatus::Code::kUnimplemented &&
      status.code != RnnStatus::Code::kFailedPrecondition) {
    return status;
  }
  warn_(status.message +
        "; masks and the weights of Keras's layers are copied to the host and "
        "back, which is slow");
  return on_host();
}

RnnStatus GpuBackend::ReadMask(const RnnMask& mask, const MaskedSteps& found) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return OrOnHost(EnqueueReadMask(stream(), mask, found),
                  [&] { return ReadMaskOnHost(stream(), mask, found); });
}

RnnStatus GpuBackend::MoveSteps(const StepMove& move) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return OrOnHost(EnqueueMoveSteps(stream(), move),
                  [&] { return MoveStepsOnHost(stream(), move); });
}

RnnStatus GpuBackend::Copy(const void* from, void* to, size_t bytes) {
  return cudnn_.Copy(from, to, bytes);
}

RnnStatus GpuBackend::SetZero(void* to, size_t bytes) {
  return cudnn_.SetZero(to, bytes);
}

RnnStatus GpuBackend::MoveKerasTensors(const KerasLayout& layout,
                                       size_t item_bytes, bool to_params,
                                       const std::vector<void*>& tensors,
                                       void* params) {
  CRNN_RETURN_IF_ERROR(LoadCudaDriver());
  return OrOnHost(EnqueueKerasTensors(stream(), layout, item_bytes, to_params,
                                      tensors, params),
                  [&] {
                    return MoveKerasTensorsOnHost(stream(), layout, item_bytes,
                                                  to_params, tensors, params);
                  });
}

}  // namespace cudnn_rnn_tf
