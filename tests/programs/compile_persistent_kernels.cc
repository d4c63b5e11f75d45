// Compiles persistent kernels with the real compiler, which needs no GPU, for
// GPUs of all architectures, in the divisions that the model chooses: in an
// order that it draws, those from one number to before another. It is a failure
// if the compiler moves more than a few words of a thread from registers to
// memory, where each step of a kernel would fetch them.
//
//   compile_persistent_kernels NVRTC_LIBRARY FIRST LAST
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
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

struct Type {
  RnnDataType dtype;
  // The oldest architecture of persistent kernels. There are none in float64.
  int oldest;
  bool is_exact;  // Float32 without TF32.

  std::string macro() const { return TypeOf(dtype).macro; }
};
constexpr Type kTypes[] = {{RnnDataType::kFloat64, 1000, false},
                           {RnnDataType::kFloat32, 80, false},
                           {RnnDataType::kFloat32, 75, true},
                           {RnnDataType::kFloat16, 75, false},
                           {RnnDataType::kBfloat16, 80, false}};

struct Job {
  std::string name, file;
  std::vector<std::string> options;
};
// A thread may have as many bytes in memory. Some of the fastest kernels on an
// H200 have, as TF32's backward pass of 768 units 120. In float32 without TF32,
// an RTX 50's have up to 216; with peepholes, which take three registers more
// for each unit, or zoneout, a B300's have up to 184.
constexpr int kMostSpilled = 128, kMostSpilledByExact = 224,
              kMostSpilledByCell = 184;

void AddJob(const std::string& file, const NamedGpu& gpu,
            const std::string& architecture,
            const std::vector<std::string>& macros, std::vector<Job>* jobs) {
  Job job = {file + ", " + gpu.name, file,
             CompilerOptions(architecture, macros)};
  job.options.push_back("--ptxas-options=-v");
  for (const std::string& macro : macros) job.name += ", " + macro;
  jobs->push_back(std::move(job));
}

// Adds the kernels that run a layer or a stack on a GPU, if it has room for
// them.
void AddPersistent(const NamedGpu& gpu, const std::string& architecture,
                   RnnMode mode, const Type& type, int units, int dirs,
                   int batch, int layers, float zoneout,
                   std::vector<Job>* jobs) {
  RnnProblem problem;
  problem.spec.rnn_mode = mode;
  problem.spec.zoneout = zoneout;
  problem.spec.num_units = units;
  problem.spec.direction = static_cast<Direction>(dirs - 1);
  problem.dtype = type.dtype;
  problem.batch_size = batch;
  for (const bool is_backward : {false, true}) {
    if (is_backward && layers > 1) continue;
    const std::vector<persistent::Division> divisions = persistent::Divisions(
        {problem, !type.is_exact, is_backward, layers}, gpu.limits);
    if (divisions.empty()) continue;
    std::vector<std::string> macros =
        persistent::ShapeMacros(persistent::ChooseDivision(divisions)->shape);
    macros.insert(macros.end(),
                  {"IS_TRAINING=1", "HAS_RESETS=0",
                   CellMacro(mode, problem.spec.has_zoneout()), type.macro()});
    const char* const file = is_backward ? "backward.cu" : "forward.cu";
    for (int sequences = 0; sequences <= KindOf(mode).has_c; ++sequences) {
      macros.push_back("CELL_SEQUENCES=" + std::to_string(sequences * dirs));
      AddJob(file, gpu, architecture, macros, jobs);
      macros.pop_back();
    }
  }
}

std::vector<Job> AllJobs() {
  std::vector<Job> jobs;
  for (const NamedGpu& gpu : kKnownGpus) {
    std::string architecture;
    const RnnStatus status = NameArchitecture(
        gpu.limits.architecture, /*is_imitated=*/false, &architecture);
    Check(status.ok(), status.message);
    // An older compiler makes PTX for the newest GPUs, which says nothing of
    // registers.
    if (architecture.substr(0, 3) != "sm_") continue;
    const auto add = [&](const char* file,
                         const std::vector<std::string>& macros) {
      AddJob(file, gpu, architecture, macros, &jobs);
    };
    for (const Type& type : kTypes) {
      // These kernels leave products to cuBLAS.
      const bool is_same =
          !type.is_exact && type.dtype == RnnDataType::kFloat32;
      for (int i = 0; i < static_cast<int>(RnnMode::kCount); ++i) {
        const RnnMode mode = static_cast<RnnMode>(i);
        const bool normalizes = KindOf(mode).num_norms > 0;
        if (gpu.limits.architecture >= type.oldest &&
            !KindOf(mode).resets_before) {
          // Odd sizes use the code for unaligned words.
          for (const int units : {32, 75, 96, 128, 192, 256, 320, 384, 512, 640,
                                  768, 1024, 1536, 2048}) {
            for (const auto& [dirs, batch] :
                 {std::pair(1, 64), {2, 16}, {1, 2048}}) {
              AddPersistent(gpu, architecture, mode, type, units, dirs, batch,
                            1, 0.0f, &jobs);
            }
            if (normalizes) continue;
            AddPersistent(gpu, architecture, mode, type, units, 1, 64, 1, 0.1f,
                          &jobs);
          }
          for (const int units : {64, 128, 512}) {
            AddPersistent(gpu, architecture, mode, type, units, 1, 16, 3, 0.0f,
                          &jobs);
          }
        }
        if (is_same) continue;
        add(normalizes ? "norm_steps.cu" : "steps.cu",
            {CellMacro(mode), type.macro(),
             type.dtype == RnnDataType::kFloat64 ? "ROUNDS=1" : "ROUNDS=2"});
        if (normalizes) continue;
        add("steps.cu", {CellMacro(mode, /*has_zoneout=*/true), type.macro()});
        add("outside_steps.cu", {CellMacro(mode), type.macro()});
      }
      if (is_same) continue;
      add("auxiliary.cu", {type.macro()});
    }
    add("halves.cu", {"IS_FLOAT"});
    for (const char* const macro :
         {"IS_MASK", "UNIT_BYTES=2", "UNIT_BYTES=4", "UNIT_BYTES=8",
          "UNIT_BYTES=16", "IS_FLOAT64", "IS_FLOAT", "IS_FLOAT16",
          "IS_BFLOAT16"}) {
      add("masked_steps.cu", {macro});
    }
    for (const char* const unit :
         {"UNIT_BYTES=2", "UNIT_BYTES=4", "UNIT_BYTES=8"}) {
      add("keras_tensors.cu", {unit});
      add("keras_tensors.cu", {unit, "TO_PARAMS"});
      add("transpose.cu", {unit});
    }
    add("transpose.cu", {"UNIT_BYTES=16"});
    add("fill.cu", {});
  }
  return jobs;
}

// Returns what is wrong with a kernel; empty if nothing is.
std::string Compile(const Job& job) {
  std::string code, log;
  const RnnStatus status = CompileCode(job.file, job.options, &code, &log);
  if (!status.ok()) return status.message;
  if (code.substr(1, 3) != "ELF") return "no machine code";
  // So says the compiler where it waits for each of a warpgroup's products.
  if (log.find("serialized") != std::string::npos) return log;
  const size_t report = log.find(" bytes spill stores");
  if (report == std::string::npos) return "no report of registers: " + log;
  const size_t number = log.rfind(' ', report - 1);
  const auto has = [&](const std::string& macro) {
    return job.name.find(macro) != std::string::npos;
  };
  const int most = has("PRODUCTS=" + std::to_string(persistent::Shape::kFused))
                       ? kMostSpilledByExact
                   : has("CELL=LstmPeephole") || has("CELL=Zoneout")
                       ? kMostSpilledByCell
                       : kMostSpilled;
  return std::stoi(log.substr(number)) <= most ? "" : log;
}

// An architecture that is imitated, or that the compiler does not know, gets
// PTX of the nearest one that it knows.
void CheckPtx() {
  for (const auto& [number, is_imitated] :
       {std::pair(80, true), {999, false}}) {
    being_checked = "architecture " + std::to_string(number);
    std::string architecture, code, log;
    RnnStatus status = NameArchitecture(number, is_imitated, &architecture);
    Check(status.ok(), status.message);
    Check(is_imitated ? architecture == "compute_80"
                      : architecture.rfind("compute_1", 0) == 0,
          architecture);
    status = CompileCode(
        "steps.cu", CompilerOptions(architecture, {"CELL=Lstm", "IS_FLOAT16"}),
        &code, &log);
    Check(status.ok(), status.message);
    Check(
        code.find(".target sm_" + architecture.substr(8)) != std::string::npos,
        "PTX");
  }
  std::string architecture;
  Check(!NameArchitecture(20, false, &architecture).ok(), "a GPU of 2010");
}

int CompileAll(std::vector<Job> jobs, size_t first, size_t last) {
  CheckPtx();
  const size_t all = jobs.size();
  std::mt19937 random(1);
  std::shuffle(jobs.begin(), jobs.end(), random);
  // For one GPU each, kernels that no division shapes come before the others.
  std::set<std::vector<std::string>> met;
  std::stable_partition(jobs.begin(), jobs.end(), [&](const Job& job) {
    std::vector<std::string> key = {job.file};
    if (job.file != "forward.cu" && job.file != "backward.cu") {
      key.insert(key.end(), job.options.begin() + 1, job.options.end());
    }
    return met.insert(key).second;
  });
  last = std::min(last, all);
  std::atomic<size_t> next = first, failures = 0;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
    threads.emplace_back([&] {
      for (size_t i; (i = next++) < last;) {
        const std::string wrong = Compile(jobs[i]);
        if (wrong.empty()) continue;
        ++failures;
        const std::lock_guard<std::mutex> lock(mutex);
        std::printf("%s: %s\n", jobs[i].name.c_str(), wrong.c_str());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%zu of %zu kernels compiled\n", last - first - failures, all);
  return failures > 0;
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int, char** argv) {
  cudnn_rnn_tf::nvrtc_name = argv[1];
  return cudnn_rnn_tf::CompileAll(cudnn_rnn_tf::AllJobs(),
                                  std::strtoul(argv[2], nullptr, 10),
                                  std::strtoul(argv[3], nullptr, 10));
}
