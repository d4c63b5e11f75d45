#include "kernels/gpu/replay.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "kernels/arena.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/copies_arguments.h"
#include "kernels/gpu/enqueue_lock.h"
#include "kernels/gpu/launch.h"
#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {
namespace {

std::atomic<int64_t> num_launches = 0;

const CudaDriver& Cuda() { return Gpu().cuda; }

}  // namespace

// Copies of all arrays that a pass reads, or writes.
struct PassCopies {
  ArrayCopies all = {};
  int count = 0;

  void Add(const void* from, void* to, size_t bytes) {
    if (bytes == 0) return;
    all.of[count++] = {from, to, static_cast<long long>(bytes)};
  }
  // One kernel does so, since each copy of the driver takes 2 µs. Without
  // CUDA's compiler, the driver does.
  RnnStatus Enqueue(CUstream stream) const {
    if (count == 0) return {};
    CUkernel kernel;
    if (CompileKernel("copies.cu", "copy_arrays", {}, &kernel).ok()) {
      long long most = 0;
      for (const ArrayCopy& copy : all.of) most = std::max(most, copy.bytes);
      Grid grid = GridOver(CeilDiv<int64_t>(most, 16));
      grid.blocks_y = count;
      return Launch(kernel, stream, grid, all);
    }
    for (int i = 0; i < count; ++i) {
      CRNN_RETURN_IF_ERROR(
          CudaStatus(Cuda().cuMemcpyDtoDAsync(
                         reinterpret_cast<CUdeviceptr>(all.of[i].to),
                         reinterpret_cast<CUdeviceptr>(all.of[i].from),
                         all.of[i].bytes, stream),
                     "copy a pass's buffers"));
    }
    return {};
  }
};

Replays& Replays::Of(int device) {
  static NeverDestroyed<std::mutex> mutex;
  static NeverDestroyed<std::map<int, Replays>> replays;
  const std::lock_guard<std::mutex> lock(*mutex);
  return (*replays)[device];
}

int64_t Replays::NumLaunches() { return num_launches; }

bool Replays::Run(ReplayablePass* pass) {
  if (!Gpu().has_graphs || StreamIsCapturing(pass->stream)) return false;
  std::string over_callers = pass->key;
  for (const PassBuffer& buffer : pass->buffers) {
    over_callers.append(reinterpret_cast<const char*>(buffer.address),
                        sizeof(*buffer.address));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Known* known = Use(over_callers, 2, pass->may_make);
  const bool copies = known == nullptr;
  if (copies) known = Use(pass->key, pass->first_copied_use, pass->may_make);
  if (known == nullptr) return false;
  const RnnStatus status = Replay(copies, pass, known);
  if (status.ok()) {
    ++num_launches;
    return true;
  }
  pass->log("a pass is not replayed: " + status.message);
  Drop(known, known->wait);
  known->wait = std::min(2 * known->wait, kMaxWait);
  return false;
}

Replays::Known* Replays::Use(const std::string& key, int64_t captured_use,
                             bool may_make) {
  Known& known = passes_.Use(key);
  if (++known.uses == 1) {
    known.captured_use = graph_bytes_ > kMaxBytes / 2
                             ? std::max(captured_use, kCapturedUseOfMany)
                             : captured_use;
  }
  if (passes_.size() > kMaxPasses) {
    Drop(&passes_.oldest(), 0);
    passes_.DropOldest();
  }
  const bool makes = may_make && known.uses >= known.captured_use;
  return known.graph != nullptr || makes ? &known : nullptr;
}

RnnStatus Replays::Replay(bool copies, ReplayablePass* pass, Known* known) {
  if (last_use_ == nullptr) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Cuda().cuEventCreate(&last_use_, CU_EVENT_DISABLE_TIMING),
                   "make an event"));
  }
  PassCopies in, out;
  size_t bytes = 0;
  if (copies) CRNN_RETURN_IF_ERROR(Move(pass, &in, &out, &bytes));
  if (known->graph == nullptr) {
    CRNN_RETURN_IF_ERROR(pass->capture(&known->graph));
    graph_bytes_ += known->graph->bytes();
    MakeRoom(known);
  }
  const std::lock_guard<std::mutex> enqueues(EnqueueLock(pass->stream));
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuStreamWaitEvent(pass->stream, last_use_, 0),
                 "wait for the last graph"));
  // After a failure, a part of what follows may run.
  const auto record = [&](CUevent last_use) {
    if (Cuda().cuEventRecord(last_use, pass->stream) != CUDA_SUCCESS) {
      Cuda().cuStreamSynchronize(pass->stream);
    }
  };
  const std::unique_ptr<CUevent_st, decltype(record)> use(last_use_, record);
  CRNN_RETURN_IF_ERROR(pass->begin(reinterpret_cast<void*>(memory_), bytes));
  CRNN_RETURN_IF_ERROR(in.Enqueue(pass->stream));
  CRNN_RETURN_IF_ERROR(known->graph->Launch(pass->stream));
  return out.Enqueue(pass->stream);
}

RnnStatus Replays::Move(ReplayablePass* pass, PassCopies* in, PassCopies* out,
                        size_t* bytes) {
  Arena sizes(nullptr);
  for (const PassBuffer& buffer : pass->buffers) {
    sizes.Take<char>(buffer.bytes);
  }
  *bytes = sizes.used();
  CRNN_RETURN_IF_ERROR(Grow(*bytes));
  Arena arena(reinterpret_cast<void*>(memory_));
  for (const PassBuffer& buffer : pass->buffers) {
    const void* const callers = *buffer.address;
    char* const moved = arena.Take<char>(buffer.bytes);
    if (callers == nullptr) continue;
    *buffer.address = moved;
    if (buffer.use == PassBuffer::Use::kRead) {
      in->Add(callers, moved, buffer.bytes);
    } else if (buffer.use == PassBuffer::Use::kWritten) {
      out->Add(moved, const_cast<void*>(callers), buffer.bytes);
    }
  }
  return {};
}

RnnStatus Replays::Grow(size_t bytes) {
  if (bytes <= memory_bytes_) return {};
  size_t free = 0, total = 0;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuMemGetInfo(&free, &total), "size the memory"));
  const size_t most = std::max(total / kShare, kLeastMost);
  if (bytes > most) {
    return NotRepeatable("its buffers take " + std::to_string(bytes) +
                         " bytes, more than " + std::to_string(most));
  }
  CRNN_RETURN_IF_ERROR(CudaStatus(Cuda().cuEventSynchronize(last_use_),
                                  "wait for the replay memory"));
  // Where sizes keep growing, the memory moves a few times only, if there is as
  // much.
  size_t larger = std::min(most, std::max(bytes, 2 * memory_bytes_));
  CUdeviceptr made = 0;
  if (Cuda().cuMemAlloc(&made, larger) != CUDA_SUCCESS) {
    larger = bytes;
    CRNN_RETURN_IF_ERROR(CudaStatus(Cuda().cuMemAlloc(&made, larger),
                                    "allocate the replay memory"));
  }
  passes_.VisitFromOldest([this](Known& known) {
    if (known.graph != nullptr) Drop(&known, 0);
    return true;
  });
  if (memory_ != 0) Cuda().cuMemFree(memory_);
  memory_ = made;
  memory_bytes_ = larger;
  return {};
}

void Replays::MakeRoom(const Known* except) {
  passes_.VisitFromOldest([&](Known& oldest) {
    if (graph_bytes_ <= kMaxBytes) return false;
    if (oldest.graph != nullptr && &oldest != except) {
      Drop(&oldest, kCapturedUseOfMany);
    }
    return true;
  });
}

void Replays::Drop(Known* known, int64_t uses) {
  if (known->graph != nullptr) graph_bytes_ -= known->graph->bytes();
  known->graph.reset();
  known->captured_use = known->uses + uses;
}

}  // namespace cudnn_rnn_tf
