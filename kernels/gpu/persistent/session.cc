#include "kernels/gpu/persistent/session.h"

#include <algorithm>
#include <array>

namespace cudnn_rnn_tf {
namespace persistent {
namespace {

// Every new shape makes a new entry.
constexpr size_t kMaxPasses = 1024;
// A pass is captured at this use. Capturing takes as long as enqueuing the pass
// several times. So if there are more passes than room for them, and they push
// each other out, a pass must have been used more often.
constexpr int64_t kCapturedUse = 2, kCapturedUseOfMany = 16;

}  // namespace

RnnStatus Session::Open(CUstream stream) {
  stream_ = stream;
  return CublasStatus(blas_.Create(), "make a handle");
}

Session::~Session() {
  if (capture_stream_ != nullptr) Gpu().cuda.cuStreamDestroy(capture_stream_);
}

RnnStatus Session::Enqueue(const Network& network, Pass pass,
                           const CallAddresses& addresses) {
  return network.Enqueue(pass, {blas_.get(), stream_}, addresses);
}

RnnStatus Session::EnqueueReplay(const Network& network, Pass pass,
                                 const CallAddresses& addresses, bool may_make,
                                 std::string* why) {
  if (network.is_long()) return Enqueue(network, pass, addresses);
  PassReplay& replay = *Find(network, pass);
  ++replay.uses;
  const bool is_captured = replay.replay != nullptr;
  const int64_t captured_use =
      has_forgotten_ ? kCapturedUseOfMany : kCapturedUse;
  const bool may_launch = is_captured
                              ? may_make || replay.replay->was_launched()
                              : may_make && replay.uses >= captured_use;
  if (!may_launch || !Gpu().has_graphs || !Replay::Fits(addresses) ||
      !replay.IsDue() || (!is_captured && !MakeRoom())) {
    return Enqueue(network, pass, addresses);
  }
  const RnnStatus status = replay.Launch(
      stream_, addresses, may_make, [&](std::unique_ptr<Replay>* captured) {
        return Capture(network, pass, addresses, captured);
      });
  if (status.ok()) return {};
  *why = status.message;
  return Enqueue(network, pass, addresses);
}

PassReplay* Session::Find(const Network& network, Pass pass) {
  std::string key = KeyOf(network.problem());
  key.push_back(static_cast<char>(pass));
  key.push_back(static_cast<char>(network.allows_tf32()));
  key.push_back(static_cast<char>(network.is_of_steps()));
  const auto found = index_.find(key);
  if (found != index_.end()) {
    passes_.splice(passes_.begin(), passes_, found->second);
  } else {
    passes_.emplace_front(key, PassReplay());
    index_[key] = passes_.begin();
    if (passes_.size() > kMaxPasses) {
      index_.erase(passes_.back().first);
      passes_.pop_back();
      has_forgotten_ = true;
    }
  }
  return &passes_.front().second;
}

bool Session::MakeRoom() {
  for (auto entry = passes_.rbegin();
       Replay::TotalBytes() >= Replay::kMaxTotalBytes &&
       entry != passes_.rend();
       ++entry) {
    if (entry->second.replay == nullptr) continue;
    entry->second = PassReplay();
    has_forgotten_ = true;
  }
  return Replay::TotalBytes() < Replay::kMaxTotalBytes;
}

// A pass has kernels and fills but no copies, so the call's own workspace is
// large enough to stand for all memory.
RnnStatus Session::Capture(const Network& network, Pass pass,
                           const CallAddresses& addresses,
                           std::unique_ptr<Replay>* replay) {
  if (capture_stream_ == nullptr) {
    CRNN_RETURN_IF_ERROR(CudaStatus(
        Gpu().cuda.cuStreamCreate(&capture_stream_, CU_STREAM_NON_BLOCKING),
        "make a stream"));
  }
  std::array<bool, kNumCallBuffers> used;
  std::transform(addresses.begin(), addresses.end(), used.begin(),
                 [](CUdeviceptr address) { return address != 0; });
  return Replay::Capture(
      capture_stream_, addresses[kWorkspace], used,
      [&](const CallAddresses& moved) {
        return network.Enqueue(pass, {blas_.get(), capture_stream_}, moved);
      },
      replay);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf
