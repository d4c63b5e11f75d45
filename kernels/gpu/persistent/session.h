// The calls of the persistent kernels in one stream share a session, which has
// a handle of cuBLAS and the passes that were captured.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SESSION_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SESSION_H_

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/gpu/descriptors.h"
#include "kernels/gpu/persistent/network.h"
#include "kernels/gpu/replay.h"
#include "kernels/gpu/session_pool.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Used by one thread at a time, for one stream of one device.
class Session {
 public:
  RnnStatus Open(CUstream stream);
  Session() = default;
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Enqueues a pass. A forward pass needs Network::Prepare before.
  RnnStatus Enqueue(const Network& network, Pass pass,
                    const CallAddresses& addresses);
  // Enqueues a pass as a replay, if passes like it have been enqueued before,
  // and otherwise like Enqueue. Small networks take the host longer to enqueue,
  // kernel by kernel, than the GPU to run. `may_make` says whether graphs may
  // be made, not only launched. If a replay fails, `why` is set to the reason.
  RnnStatus EnqueueReplay(const Network& network, Pass pass,
                          const CallAddresses& addresses, bool may_make,
                          std::string* why);

 private:
  using Entry = std::pair<std::string, PassReplay>;

  PassReplay* Find(const Network& network, Pass pass);
  // Tells whether one more pass may be captured, and drops old replays if there
  // are too many.
  bool MakeRoom();
  RnnStatus Capture(const Network& network, Pass pass,
                    const CallAddresses& addresses,
                    std::unique_ptr<Replay>* replay);

  CublasHandle blas_;
  CUstream stream_ = nullptr, capture_stream_ = nullptr;
  // The passes, the most recently used first.
  std::list<Entry> passes_;
  bool has_forgotten_ = false;  // True once a pass was dropped.
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_SESSION_H_
