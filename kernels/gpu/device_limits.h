// What a GPU gives to kernels of our own, and the imitation of an older GPU by
// a newer one.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_

#include <cuda.h>

#include <string>

#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct DeviceLimits {
  int architecture;  // 10 * major + minor of the compute capability, as 90.
  int multiprocessors;
  int shared_bytes;     // The most shared memory of a block.
  int registers;        // Of a multiprocessor.
  int largest_cluster;  // The most blocks of a cluster; 1 without clusters.
};

// GPUs by the names that people know them by.
struct NamedGpu {
  const char* name;
  DeviceLimits limits;
};
// The numbers are from NVIDIA's data sheets and the table of compute
// capabilities in the CUDA Programming Guide.
inline constexpr NamedGpu kKnownGpus[] = {
    {"T4", {75, 40, 65536, 65536, 1}},
    {"RTX 2080 Ti", {75, 68, 65536, 65536, 1}},
    {"A100", {80, 108, 166912, 65536, 1}},
    {"A30", {80, 56, 166912, 65536, 1}},
    {"A10", {86, 72, 101376, 65536, 1}},
    {"RTX 3090", {86, 82, 101376, 65536, 1}},
    {"L4", {89, 58, 101376, 65536, 1}},
    {"L40S", {89, 142, 101376, 65536, 1}},
    {"RTX 4090", {89, 128, 101376, 65536, 1}},
    {"H100", {90, 132, 232448, 65536, 16}},
    {"B200", {100, 148, 232448, 65536, 16}},
    {"B300", {103, 148, 232448, 65536, 16}},
    {"RTX 5090", {120, 170, 101376, 65536, 8}},
};

// Returns the most blocks that a cluster may have on an architecture.
int LargestCluster(int architecture);
inline bool HasClusters(const DeviceLimits& gpu) {
  return LargestCluster(gpu.architecture) > 1;
}

// Tells whether the tensor cores of an architecture multiply in TF32.
inline bool HasTf32(int architecture) { return architecture >= 80; }

// Returns the architecture that the process imitates, or 0 if it imitates none.
// An error says what is wrong with the variable.
RnnStatus ImitatedArchitecture(int* architecture);

// Returns the limits of the current context's device or of the imitated GPU. It
// is an error if the latter is newer than the device. The driver is asked once
// for each device.
RnnStatus ReadLimits(DeviceLimits* limits);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_DEVICE_LIMITS_H_
