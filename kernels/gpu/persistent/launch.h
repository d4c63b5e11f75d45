// How the small kernels around the products are compiled and launched.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/compiler.h"
#include "kernels/gpu/libraries.h"
#include "kernels/never_destroyed.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {
namespace persistent {

// Gets kernels of a file, which are compiled once for each device, type of the
// data and, if one is given, kind of cell. An entry is a kernel's name in the
// file and its place in `Kernels`, a type that is used for this file only.
template <typename Kernels>
RnnStatus GetKernels(
    const std::string& file, RnnDataType dtype, std::optional<RnnMode> mode,
    std::initializer_list<std::pair<const char*, CUkernel Kernels::*>> entries,
    Kernels* kernels) {
  using Key = std::tuple<CUdevice, RnnDataType, std::optional<RnnMode>>;
  static NeverDestroyed<std::mutex> mutex;
  static NeverDestroyed<std::map<Key, Kernels>> known;
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  const Key key = {device, dtype, mode};
  {
    const std::lock_guard<std::mutex> lock(*mutex);
    const auto found = known->find(key);
    if (found != known->end()) {
      *kernels = found->second;
      return {};
    }
  }
  // Compiling takes long, so the lock, which every pass takes, is not held.
  std::vector<std::string> macros = {TypeMacro(dtype)};
  if (mode) macros.push_back(ModeMacro(*mode));
  for (const auto& [name, kernel] : entries) {
    CRNN_RETURN_IF_ERROR(
        CompileKernel(file, name, macros, &(kernels->*kernel)));
  }
  const std::lock_guard<std::mutex> lock(*mutex);
  known->emplace(key, *kernels);
  return {};
}

inline RnnStatus Launch(CUkernel kernel, CUstream stream, int64_t blocks,
                        unsigned int threads_x, unsigned int threads_y,
                        void** parameters) {
  return CudaStatus(Gpu().cuda.cuLaunchKernel(
                        reinterpret_cast<CUfunction>(kernel),
                        static_cast<unsigned int>(blocks), 1, 1, threads_x,
                        threads_y, 1, 0, stream, parameters, nullptr),
                    "launch a kernel");
}

// Launches one thread for each number, up to a limit; beyond it, threads take
// several numbers each.
inline constexpr int kThreadsOfNumbers = 256, kMaxBlocksOfNumbers = 2048;
inline RnnStatus LaunchOver(CUkernel kernel, CUstream stream, int64_t count,
                            void** parameters) {
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(count, kThreadsOfNumbers),
                                             1, kMaxBlocksOfNumbers);
  return Launch(kernel, stream, blocks, kThreadsOfNumbers, 1, parameters);
}

}  // namespace persistent
}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PERSISTENT_LAUNCH_H_
