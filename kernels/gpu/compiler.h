// Compiles kernels of our own for the GPU at hand, with CUDA's compiler at run
// time, and launches the small ones.
//
// Code is kept in the process and in files, so that a kernel is compiled once
// for each version of its source, of the compiler and of the GPU.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_
#define CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/libraries.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct SourceFile {
  const char *name, *text;
};

// The files under kernels/gpu that the build puts into the library.
std::vector<SourceFile> EmbeddedSources();

// The macro that tells kernels the kind of cell.
inline std::string CellMacro(RnnMode mode, bool has_zoneout = false) {
  const std::string type = KindOf(mode).type;
  return "CELL=" + (has_zoneout ? "Zoneout<" + type + ">" : type);
}
// All macros that a kernel with a network's cells is compiled with.
inline std::vector<std::string> CellMacros(const RnnSpec& spec,
                                           RnnDataType dtype) {
  std::vector<std::string> macros = {
      TypeOf(dtype).macro, CellMacro(spec.rnn_mode, spec.has_zoneout())};
  for (const auto& [name, value] :
       {std::pair("ACTIVATION=", spec.activation),
        std::pair("RECURRENT_ACTIVATION=", spec.recurrent_activation)}) {
    if (value == Activation::kOwn) continue;
    macros.push_back(name + std::to_string(static_cast<int>(value)));
  }
  return macros;
}

struct CompiledKernel {
  CUkernel handle = nullptr;
  // The sizes of its parameters; null if the driver is too old to tell them.
  std::shared_ptr<const std::vector<size_t>> parameters;
};

// Gets the kernel `entry` of the embedded file `file`, compiled with `macros`
// ("A", "B=1") for the current context's device. Kernels belong to no context
// and are never unloaded, since graphs may hold them.
//
// If the compiler is missing or fails, the status says why. Machine code is
// kept in files, in the folder $CUDNN_RNN_TF_KERNEL_CACHE, unless it is empty,
// or by default cudnn_rnn_tf in $XDG_CACHE_HOME or ~/.cache. Files that are
// damaged, or that others may write, are ignored and replaced.
RnnStatus CompileKernel(const std::string& file, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CompiledKernel* kernel);

// Names what the compiler should compile for: machine code of an architecture,
// such as "sm_89". For one that the compiler does not know, or that is
// imitated, it is PTX ("compute_89"), which the driver compiles for the GPU at
// hand. The compiler's library must have been loaded.
RnnStatus NameArchitecture(int architecture, bool is_imitated,
                           std::string* name);

// Returns the options of the compiler. `architecture` is as NameArchitecture
// names it.
std::vector<std::string> CompilerOptions(
    const std::string& architecture, const std::vector<std::string>& macros);

// Compiles the embedded file with these options of the compiler, whose library
// must have been loaded. This needs no GPU. `log` is what the compiler says.
RnnStatus CompileCode(const std::string& file,
                      const std::vector<std::string>& options,
                      std::string* code, std::string* log);

// The blocks of a launch and the threads of each of them, in two dimensions.
struct Grid {
  int64_t blocks;
  int threads, threads_y = 1;
  int64_t blocks_y = 1;
};

// Threads take several numbers each where more blocks than these would be
// needed.
inline constexpr int64_t kMaxBlocksOfNumbers = 2048;

// Returns the grid of a kernel that computes number by number.
inline Grid GridOver(int64_t count) {
  constexpr int kThreads = 256;
  return {std::clamp<int64_t>(CeilDiv(count, kThreads), 1, kMaxBlocksOfNumbers),
          kThreads};
}

// Returns the largest number of bytes, up to 16, in whose multiples arrays and
// their rows begin. Threads that only move numbers take as many at once.
inline int64_t UnitBytes(const void* from, const void* to, int64_t row_bytes) {
  const auto bits = reinterpret_cast<uintptr_t>(from) |
                    reinterpret_cast<uintptr_t>(to) |
                    static_cast<uintptr_t>(row_bytes) | 16;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// These enqueue a copy within device memory, and a fill.
inline RnnStatus EnqueueCopy(CUstream stream, const void* from, void* to,
                             size_t bytes) {
  return CudaStatus(Gpu().cuda.cuMemcpyDtoDAsync(
                        reinterpret_cast<CUdeviceptr>(to),
                        reinterpret_cast<CUdeviceptr>(from), bytes, stream),
                    "copy device memory");
}
inline RnnStatus EnqueueFill(CUstream stream, void* to, unsigned char byte,
                             size_t bytes) {
  return CudaStatus(Gpu().cuda.cuMemsetD8Async(
                        reinterpret_cast<CUdeviceptr>(to), byte, bytes, stream),
                    "fill device memory");
}

// Copies device memory to the host, which waits for the device.
inline RnnStatus CopyToHost(CUstream stream, const void* from, void* to,
                            size_t bytes) {
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuMemcpyDtoHAsync(
                     to, reinterpret_cast<CUdeviceptr>(from), bytes, stream),
                 "copy to the host"));
  return CudaStatus(Gpu().cuda.cuStreamSynchronize(stream), "wait for a copy");
}

// Compares the sizes of arguments with those of a kernel's parameters.
inline RnnStatus CheckArguments(const CompiledKernel& kernel,
                                std::initializer_list<size_t> sizes) {
  if (kernel.parameters == nullptr ||
      std::equal(kernel.parameters->begin(), kernel.parameters->end(),
                 sizes.begin(), sizes.end())) {
    return {};
  }
  std::string text = "a kernel's parameters must have these sizes:";
  for (const size_t size : *kernel.parameters) {
    text += ' ' + std::to_string(size);
  }
  text += ", but the arguments have these:";
  for (const size_t size : sizes) text += ' ' + std::to_string(size);
  return {RnnStatus::Code::kInternal, text};
}

// Enqueues a kernel. The arguments must have the types of its parameters, where
// device memory is of any type. Their number and sizes are checked if the
// driver tells those of the parameters.
template <typename... Arguments>
RnnStatus Launch(const CompiledKernel& kernel, CUstream stream,
                 const Grid& grid, const Arguments&... arguments) {
  CRNN_RETURN_IF_ERROR(CheckArguments(kernel, {sizeof(arguments)...}));
  void* parameters[] = {
      const_cast<void*>(static_cast<const void*>(&arguments))...};
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel.handle),
                                static_cast<unsigned int>(grid.blocks),
                                static_cast<unsigned int>(grid.blocks_y), 1,
                                static_cast<unsigned int>(grid.threads),
                                static_cast<unsigned int>(grid.threads_y), 1,
                                /*sharedMemBytes=*/0, stream, parameters,
                                /*extra=*/nullptr),
      "launch a kernel");
}

// The small kernels of whoever enqueues them, by their names.
class SmallKernels {
 public:
  // Adds kernels of an embedded file, as CompileKernel gets them.
  RnnStatus Add(const std::string& file, const std::vector<std::string>& macros,
                std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      CRNN_RETURN_IF_ERROR(CompileKernel(file, name, macros, &kernels_[name]));
    }
    return {};
  }
  template <typename... Arguments>
  RnnStatus Enqueue(std::string_view name, CUstream stream, const Grid& grid,
                    const Arguments&... arguments) const {
    const auto kernel = kernels_.find(name);
    if (kernel == kernels_.end()) {
      return {RnnStatus::Code::kInternal, "no kernel " + std::string(name)};
    }
    return Launch(kernel->second, stream, grid, arguments...);
  }

 private:
  std::map<std::string_view, CompiledKernel> kernels_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_COMPILER_H_
