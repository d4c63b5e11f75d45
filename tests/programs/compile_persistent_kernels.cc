// Compiles persistent kernels with the real compiler, which needs no GPU.
//
//   compile_persistent_kernels NVRTC_LIBRARY
#include <dlfcn.h>

#include <cstdio>
#include <string>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/persistent/division.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {
namespace {

const char* nvrtc_name;

}  // namespace

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = {};
  void* const nvrtc = dlopen(nvrtc_name, RTLD_NOW);
  Check(nvrtc != nullptr, "NVRTC");
#define CRNN_FIND(name)  \
  libraries.nvrtc.name = \
      reinterpret_cast<decltype(libraries.nvrtc.name)>(dlsym(nvrtc, #name));
  CRNN_NVRTC_FUNCTIONS(CRNN_FIND)
#undef CRNN_FIND
  return libraries;
}

namespace {

void Compile(const std::string& mode, const std::string& type,
             const persistent::Layer& layer, bool is_backward) {
  const persistent::GpuLimits gpu = {132, 227 << 10};
  persistent::Division division;
  Check(persistent::ChooseDivision(
            is_backward ? persistent::BackwardDivisions(layer, gpu)
                        : persistent::ForwardDivisions(layer, gpu),
            &division),
        "a division");
  const std::string file = is_backward ? "backward.cu" : "forward.cu";
  being_checked = file + ", " + mode + ", " + type;
  std::vector<std::string> options = {"--gpu-architecture=sm_90", "--std=c++17",
                                      "-DIS_TRAINING", "-DIS_" + mode,
                                      "-DIS_" + type};
  for (const std::string& macro : persistent::ShapeMacros(division.shape)) {
    options.push_back("-D" + macro);
  }
  std::string code;
  const RnnStatus status = CompileCode(file, options, &code);
  Check(status.ok(), status.message);
  Check(code.substr(1, 3) == "ELF", "machine code");
}

void CompileSmall(const std::string& file,
                  const std::vector<std::string>& macros) {
  std::vector<std::string> options = {"--gpu-architecture=sm_80",
                                      "--std=c++17"};
  being_checked = file;
  for (const std::string& macro : macros) {
    being_checked += ", " + macro;
    options.push_back("-D" + macro);
  }
  std::string code;
  const RnnStatus status = CompileCode(file, options, &code);
  Check(status.ok(), status.message);
}

int CompileAll() {
  int compiled = 0;
  for (const char* const mode : {"LSTM", "GRU", "TANH", "RELU"}) {
    for (const auto& [type, items] :
         {std::pair("FLOAT", 1), {"FLOAT16", 2}, {"BFLOAT16", 2}}) {
      for (const bool is_backward : {false, true}) {
        // Odd sizes use the code for unaligned words, and large ones the rings.
        const int units = compiled % 3 == 0   ? 128
                          : compiled % 3 == 1 ? 75
                                              : 900;
        Compile(mode, type, {units, items, 1, 64}, is_backward);
        ++compiled;
      }
      Compile(mode, type, {128, items, 1, 16, 3}, /*is_backward=*/false);
      ++compiled;
      CompileSmall("steps.cu",
                   {std::string("IS_") + mode, std::string("IS_") + type});
      ++compiled;
    }
  }
  CompileSmall("auxiliary.cu", {"IS_LSTM", "IS_FLOAT16"});
  ++compiled;
  for (const char* const macro : {"IS_MASK", "UNIT_BYTES=2", "UNIT_BYTES=4",
                                  "UNIT_BYTES=8", "UNIT_BYTES=16", "IS_FLOAT64",
                                  "IS_FLOAT", "IS_FLOAT16", "IS_BFLOAT16"}) {
    CompileSmall("masked_steps.cu", {macro});
    ++compiled;
  }
  for (const char* const unit :
       {"UNIT_BYTES=2", "UNIT_BYTES=4", "UNIT_BYTES=8"}) {
    CompileSmall("keras_tensors.cu", {unit});
    CompileSmall("keras_tensors.cu", {unit, "TO_PARAMS"});
    compiled += 2;
  }
  std::printf("%d kernels compiled\n", compiled);
  return 0;
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int, char** argv) {
  cudnn_rnn_tf::nvrtc_name = argv[1];
  return cudnn_rnn_tf::CompileAll();
}
