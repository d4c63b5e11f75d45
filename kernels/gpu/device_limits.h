// What a GPU gives to kernels of our own, and the imitation of an older GPU by
// a newer one.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_

#include <cuda.h>

#include <string>

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Limits hold for all GPUs of an architecture, cycles for data centers' GPUs.
struct Architecture {
  int number;           // 10 * major + minor of the compute capability, as 90.
  int shared_bytes;     // The most shared memory of a block.
  int largest_cluster;  // The most blocks of a cluster; 1 without clusters.
  bool has_tf32;        // Tensor cores multiply TF32, and bfloat16.
  // Four warps multiply together, by instructions that are this architecture's
  // alone.
  bool has_warpgroups;
  // The cycles that a quarter of a multiprocessor takes for one MultiplyAdd
  // (device.cuh), and for the same number of fused multiply-adds.
  double product_cycles, fused_cycles;
  // Whether the registers of teams that are no clusters, and multiply directly,
  // were fitted to the fastest kernels that were measured. Others have a
  // margin, so that the compiler moves at most a few words to memory.
  bool is_measured;
  // Those of a thread of a band's backward pass, besides.
  int band_registers;
};

// Sizes, and cycles of fused multiply-adds, are those of the CUDA Programming
// Guide. It guarantees clusters of eight blocks; data centers' GPUs allow 16 to
// kernels that ask for it. The cycles of a product for 9.0 were measured on an
// H200, and the others follow from it by the throughput of tensor cores with
// float32 sums in NVIDIA's data sheets. Of 8.6 and 8.9, data centers' GPUs have
// the cycles that stand here, and GeForce GPUs twice as many.
inline constexpr Architecture kArchitectures[] = {
    {75, 65536, 1, false, false, 16.0, 64.0, false, 16},
    {80, 166912, 1, true, false, 8.0, 64.0, false, 16},
    {86, 101376, 1, true, false, 16.0, 32.0, false, 16},
    {89, 101376, 1, true, false, 16.0, 32.0, false, 16},
    {90, 232448, 16, true, true, 8.0, 32.0, true, 32},
    {100, 232448, 16, true, false, 8.0, 32.0, false, 48},
    {103, 232448, 16, true, false, 8.0, 32.0, false, 48},
    {110, 232448, 8, true, false, 8.0, 32.0, false, 48},
    {120, 101376, 8, true, false, 16.0, 32.0, false, 48}};

// Returns the newest one that is not newer than this.
constexpr const Architecture& ArchitectureOf(int number) {
  const Architecture* found = kArchitectures;
  for (const Architecture& each : kArchitectures) {
    if (each.number <= number) found = &each;
  }
  return *found;
}

struct DeviceLimits {
  int architecture;  // Its number.
  int multiprocessors;
  int shared_bytes;  // The most shared memory of a block.
  int registers;     // Of a multiprocessor.

  constexpr const Architecture& known() const {
    return ArchitectureOf(architecture);
  }
  bool has_clusters() const { return known().largest_cluster > 1; }
};

// GPUs by the names that people know them by.
struct NamedGpu {
  const char* name;
  DeviceLimits limits;

  constexpr NamedGpu(const char* name, int architecture, int multiprocessors)
      : name(name), limits{architecture, multiprocessors, 0, 65536} {
    limits.shared_bytes = limits.known().shared_bytes;
  }
};
// The numbers are from NVIDIA's data sheets.
inline constexpr NamedGpu kKnownGpus[] = {
    {"T4", 75, 40},        {"RTX 2080 Ti", 75, 68}, {"A100", 80, 108},
    {"A30", 80, 56},       {"A10", 86, 72},         {"RTX 3090", 86, 82},
    {"L4", 89, 58},        {"L40S", 89, 142},       {"RTX 4090", 89, 128},
    {"H100", 90, 132},     {"B200", 100, 148},      {"B300", 103, 148},
    {"RTX 5090", 120, 170}};

// Returns the architecture that the process imitates, or 0 if it imitates none.
// An error says what is wrong with the variable.
RnnStatus ImitatedArchitecture(int* architecture);

// Returns the limits of the current context's device or of the imitated GPU. It
// is an error if the latter is newer than the device. The driver is asked once
// for each device.
RnnStatus ReadLimits(DeviceLimits* limits);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_
