// Takes random workspaces of the sessions of two devices. Checks, without a
// GPU, that they stay in their places, and how much of them is kept.
//
//   workspaces_on_fake_gpu SEEDS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/cudnn/session.h"
#include "tests/programs/fake_gpu.h"

static bool has_memory = true;
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = has_memory ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace cudnn_rnn_tf {

GpuLibraries FakeLibraries() { return LibrariesOfSession(); }

namespace {

// The most that idle sessions of a device keep, which is a 64th of its memory.
constexpr size_t kMaxKept = size_t{1} << 30;
constexpr int kDevices = 2, kStreams = 3;

size_t allocated[kDevices] = {};  // Bytes; none of them is touched.

AllocateMemory AllocatorOf(int device, bool succeeds) {
  return [=](size_t bytes) -> std::shared_ptr<void> {
    if (!succeeds) return nullptr;
    allocated[device] += bytes;
    return {new char, [=](void* memory) {
              allocated[device] -= bytes;
              delete static_cast<char*>(memory);
            }};
  };
}

// A workspace that an idle session keeps. The longest idle comes first.
struct Kept {
  int device;
  CudnnSession* session;
  size_t bytes;
};

// Gives back the process's first session, for which the pool has no room yet.
void CheckReturnWithoutMemory() {
  std::unique_ptr<CudnnSession> session;
  const auto limit = [] { return kMaxKept; };
  Check(CudnnSessionPool::Instance().Take(0, nullptr, &session, limit).ok(),
        "a session");
  has_memory = false;
  ReturnSession(0, nullptr, std::move(session));
  has_memory = true;
}

void CheckKept(unsigned seed) {
  std::mt19937 random(seed);
  CudnnSessionPool& pool = CudnnSessionPool::Instance();
  static std::vector<Kept> idle;
  const auto take = [&](int device, CUstream stream) {
    std::unique_ptr<CudnnSession> session;
    const auto limit = [] { return 64 * kMaxKept; };
    Check(pool.Take(device, stream, &session, limit).ok(), "a session");
    idle.erase(std::remove_if(idle.begin(), idle.end(),
                              [&](const Kept& one) {
                                return one.session == session.get();
                              }),
               idle.end());
    return session;
  };
  const auto give_back = [&](int device, CUstream stream,
                             std::unique_ptr<CudnnSession> session) {
    idle.push_back({device, session.get(), session->workspace_bytes()});
    ReturnSession(device, stream, std::move(session));
    size_t kept = 0;
    for (auto one = idle.rbegin(); one != idle.rend(); ++one) {
      if (one->device != device) continue;
      if (kept + one->bytes > kMaxKept) one->bytes = 0;
      kept += one->bytes;
      Check(one->session->workspace_bytes() == one->bytes,
            "another workspace is kept");
    }
  };
  for (int step = 0; step < 300; ++step) {
    const int device = random() % kDevices;
    const CUstream stream =
        reinterpret_cast<CUstream>(uintptr_t{1} + random() % kStreams);
    // Several sessions are taken at once, as by ops that run at the same time.
    std::vector<std::unique_ptr<CudnnSession>> sessions(1 + random() % 3);
    for (auto& session : sessions) {
      session = take(device, stream);
      const size_t had = session->workspace_bytes();
      const size_t bytes =
          random() % (random() % 8 == 0 ? 2 * kMaxKept : kMaxKept / 8);
      const size_t before = allocated[device];
      const void* const place = session->Workspace(had, nullptr).get();
      const bool succeeds = random() % 10 != 0;
      const std::shared_ptr<void> workspace =
          session->Workspace(bytes, AllocatorOf(device, succeeds));
      if (bytes <= had) {
        Check(workspace.get() == place, "a workspace elsewhere");
        Check(allocated[device] == before, "one is kept, but not used");
      } else {
        Check((workspace != nullptr) == succeeds, "no workspace");
        Check(allocated[device] == before - had + (succeeds ? bytes : 0),
              "an old workspace beside the new one");
      }
    }
    for (auto& session : sessions) {
      give_back(device, stream, std::move(session));
    }
    Check(allocated[device] <= kMaxKept, "too much is kept");
  }
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  cudnn_rnn_tf::CheckReturnWithoutMemory();
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckKept);
}
