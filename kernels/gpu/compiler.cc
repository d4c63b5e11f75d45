#include "kernels/gpu/compiler.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/gpu/compiled_code_cache.h"
#include "kernels/gpu/device_limits.h"
#include "kernels/maps.h"

namespace cudnn_rnn_tf {
namespace {

RnnStatus NvrtcStatus(nvrtcResult result, const std::string& what) {
  if (result == NVRTC_SUCCESS) return {};
  return {result == NVRTC_ERROR_OUT_OF_MEMORY
              ? RnnStatus::Code::kResourceExhausted
              : RnnStatus::Code::kUnimplemented,
          "NVRTC failed to " + what + ": " +
              Gpu().nvrtc.nvrtcGetErrorString(result)};
}

RnnStatus Load(const std::string& code, CUlibrary* library) {
  return CudaStatus(
      Gpu().cuda.cuLibraryLoadData(library, code.data(), nullptr, nullptr, 0,
                                   nullptr, nullptr, 0),
      "load a kernel");
}

// Returns a key of everything that the machine code depends on: the compiler's
// version, the options and the sources.
std::string KeyOf(const std::string& file,
                  const std::vector<std::string>& options) {
  int major = 0, minor = 0;
  Gpu().nvrtc.nvrtcVersion(&major, &minor);
  std::string key =
      "NVRTC " + std::to_string(major) + '.' + std::to_string(minor);
  for (const std::string& option : options) key += ' ' + option;
  key += '\n' + file + '\n';
  for (const SourceFile& embedded : EmbeddedSources()) {
    const std::string_view name = embedded.name;
    // The code does not depend on the files of other kernels.
    if (name == file || name.substr(name.rfind('.')) != ".cu") {
      key += embedded.text;
    }
  }
  return key;
}

// Threads may compile at the same time, at worst the same file.
RnnStatus CompileLibrary(const std::string& file,
                         const std::vector<std::string>& options,
                         CUlibrary* library) {
  using Name = std::pair<std::string, std::vector<std::string>>;
  static auto* const libraries = new Known<Name, CUlibrary>;
  const Name name(file, options);
  if (libraries->Find(name, library)) return {};
  std::string code, log;
  const CompiledCodeCache files = CompiledCodeCache::OfUser();
  const std::string key = KeyOf(file, options);
  RnnStatus loaded = {RnnStatus::Code::kInternal, "there is no file"};
  if (files.Read(key, &code)) loaded = Load(code, library);
  if (!loaded.ok() && loaded.code != RnnStatus::Code::kResourceExhausted) {
    // There is no file, or it is damaged.
    CRNN_RETURN_IF_ERROR(CompileCode(file, options, &code, &log));
    files.Write(key, code);
    loaded = Load(code, library);
  }
  if (loaded.ok()) libraries->Add(name, library);
  return loaded;
}

}  // namespace

RnnStatus NameArchitecture(int architecture, bool is_imitated,
                           std::string* name) {
  const NvrtcLibrary& nvrtc = Gpu().nvrtc;
  int count = 0;
  CRNN_RETURN_IF_ERROR(
      NvrtcStatus(nvrtc.nvrtcGetNumSupportedArchs(&count), "count its GPUs"));
  std::vector<int> supported(count);
  CRNN_RETURN_IF_ERROR(NvrtcStatus(
      nvrtc.nvrtcGetSupportedArchs(supported.data()), "list its GPUs"));
  int nearest = 0;
  for (const int each : supported) {
    if (each <= architecture) nearest = std::max(nearest, each);
  }
  if (nearest == 0) {
    return {RnnStatus::Code::kUnimplemented,
            "NVRTC cannot compile for the GPU's architecture, " +
                std::to_string(architecture)};
  }
  const bool is_own = nearest == architecture && !is_imitated;
  // Code that uses warpgroups runs on no other architecture.
  *name =
      (is_own ? "sm_" : "compute_") + std::to_string(nearest) +
      (nearest == architecture && ArchitectureOf(architecture).has_warpgroups
           ? "a"
           : "");
  return {};
}

std::vector<std::string> CompilerOptions(
    const std::string& architecture, const std::vector<std::string>& macros) {
  // Functions that the host has as well are the device's without saying so.
  std::vector<std::string> options = {"--gpu-architecture=" + architecture,
                                      "--device-as-default-execution-space",
                                      "--std=c++17"};
  for (const std::string& macro : macros) options.push_back("-D" + macro);
  return options;
}

RnnStatus CompileCode(const std::string& file,
                      const std::vector<std::string>& options,
                      std::string* code, std::string* log) {
  const NvrtcLibrary& nvrtc = Gpu().nvrtc;
  // The source may include any embedded file, by its name without folders.
  std::vector<const char*> names, texts, option_texts;
  const char* source = nullptr;
  for (const SourceFile& embedded : EmbeddedSources()) {
    names.push_back(embedded.name);
    texts.push_back(embedded.text);
    if (embedded.name == file) source = texts.back();
  }
  if (source == nullptr) {
    return {RnnStatus::Code::kInternal, "there is no embedded file " + file};
  }
  nvrtcProgram program = nullptr;
  CRNN_RETURN_IF_ERROR(
      NvrtcStatus(nvrtc.nvrtcCreateProgram(&program, source, file.c_str(),
                                           static_cast<int>(names.size()),
                                           texts.data(), names.data()),
                  "make a program"));
  const auto destroy = [&](nvrtcProgram* made) {
    nvrtc.nvrtcDestroyProgram(made);
  };
  const std::unique_ptr<nvrtcProgram, decltype(destroy)> owner(&program,
                                                               destroy);
  for (const std::string& option : options) {
    option_texts.push_back(option.c_str());
  }
  const nvrtcResult compiled = nvrtc.nvrtcCompileProgram(
      program, static_cast<int>(option_texts.size()), option_texts.data());
  size_t size = 0;
  log->clear();
  if (nvrtc.nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS) {
    log->resize(size);
    nvrtc.nvrtcGetProgramLog(program, log->data());
    *log = log->c_str();  // The size counts a NUL.
  }
  CRNN_RETURN_IF_ERROR(
      NvrtcStatus(compiled, "compile " + file + " (" + *log + ")"));
  CRNN_RETURN_IF_ERROR(
      NvrtcStatus(nvrtc.nvrtcGetCUBINSize(program, &size), "size a kernel"));
  // Without an architecture of its own, the code is PTX.
  const bool is_ptx = size == 0;
  if (is_ptx) {
    CRNN_RETURN_IF_ERROR(
        NvrtcStatus(nvrtc.nvrtcGetPTXSize(program, &size), "size a kernel"));
  }
  code->resize(size);
  return NvrtcStatus(is_ptx ? nvrtc.nvrtcGetPTX(program, code->data())
                            : nvrtc.nvrtcGetCUBIN(program, code->data()),
                     "hand out a kernel");
}

RnnStatus CompileKernel(const std::string& file, const std::string& entry,
                        const std::vector<std::string>& macros,
                        CompiledKernel* kernel) {
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  // Small networks launch several kernels in a step, and to find one by asking
  // the driver and the compiler takes a good part of a launch's time.
  using Name =
      std::tuple<CUdevice, std::string, std::string, std::vector<std::string>>;
  static auto* const kernels = new Known<Name, CompiledKernel>;
  const Name name(device, file, entry, macros);
  if (kernels->Find(name, kernel)) return {};
  CRNN_RETURN_IF_ERROR(LoadCompiler());
  DeviceLimits limits;
  int imitated = 0;
  std::string architecture;
  CRNN_RETURN_IF_ERROR(ReadLimits(&limits));
  CRNN_RETURN_IF_ERROR(ImitatedArchitecture(&imitated));
  CRNN_RETURN_IF_ERROR(
      NameArchitecture(limits.architecture, imitated > 0, &architecture));
  CUlibrary library;
  CRNN_RETURN_IF_ERROR(
      CompileLibrary(file, CompilerOptions(architecture, macros), &library));
  CRNN_RETURN_IF_ERROR(CudaStatus(
      Gpu().cuda.cuLibraryGetKernel(&kernel->handle, library, entry.c_str()),
      "find a kernel"));
  std::vector<size_t> parameters;
  if (const auto ask = Gpu().cuda.cuKernelGetParamInfo;
      ask != nullptr && ReadParameters(ask, kernel->handle, &parameters).ok() &&
      !parameters.empty()) {
    kernel->parameters =
        std::make_shared<const std::vector<size_t>>(std::move(parameters));
  }
  kernels->Add(name, kernel);
  return {};
}

}  // namespace cudnn_rnn_tf
