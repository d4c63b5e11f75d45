#include "kernels/gpu/device_limits.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/gpu/libraries.h"
#include "kernels/maps.h"

namespace cudnn_rnn_tf {
namespace {

constexpr char kVariable[] = "CUDNN_RNN_TF_IMITATE_GPU";

RnnStatus BadVariable(const std::string& why) {
  return {RnnStatus::Code::kInvalidArgument,
          std::string("the environment variable ") + kVariable + " " + why};
}

struct Imitation {
  Imitation() {
    const char* const text = std::getenv(kVariable);
    if (text == nullptr || *text == '\0') return;
    std::string names;
    for (const NamedGpu& gpu : kKnownGpus) {
      names += std::string(", ") + gpu.name;
      if (std::strcmp(text, gpu.name) == 0) limits = gpu.limits;
    }
    if (limits.architecture > 0) return;
    status = BadVariable("must be a GPU's name (" + names.substr(2) +
                         "), but it is \"" + text + '"');
  }

  RnnStatus status;
  DeviceLimits limits = {};  // All are 0 if nothing is imitated.
};

const Imitation& ImitationOfProcess() {
  static auto* const imitation = new Imitation;
  return *imitation;
}

RnnStatus ReadLimitsOf(CUdevice device, DeviceLimits* limits) {
  int major = 0, minor = 0;
  for (const auto& [attribute, value] :
       {std::pair(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major),
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &limits->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
         &limits->shared_bytes},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
         &limits->registers}}) {
    CRNN_RETURN_IF_ERROR(
        CudaStatus(Gpu().cuda.cuDeviceGetAttribute(value, attribute, device),
                   "read a device's attributes"));
  }
  limits->architecture = 10 * major + minor;
  const auto& [status, imitated] = ImitationOfProcess();
  CRNN_RETURN_IF_ERROR(status);
  if (imitated.architecture == 0) return {};
  if (imitated.architecture > limits->architecture ||
      (imitated.known().has_warpgroups &&
       imitated.architecture < limits->architecture)) {
    return BadVariable("asks for architecture " +
                       std::to_string(imitated.architecture) +
                       ", whose code does not run on this GPU's, " +
                       std::to_string(limits->architecture));
  }
  limits->architecture = imitated.architecture;
  for (int DeviceLimits::* const limit :
       {&DeviceLimits::multiprocessors, &DeviceLimits::shared_bytes,
        &DeviceLimits::registers}) {
    limits->*limit = std::min(limits->*limit, imitated.*limit);
  }
  return {};
}

}  // namespace

RnnStatus ImitatedArchitecture(int* architecture) {
  *architecture = ImitationOfProcess().limits.architecture;
  return ImitationOfProcess().status;
}

RnnStatus ReadLimits(DeviceLimits* limits) {
  static auto* const known = new Known<CUdevice, DeviceLimits>;
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  if (known->Find(device, limits)) return {};
  CRNN_RETURN_IF_ERROR(ReadLimitsOf(device, limits));
  known->Add(device, limits);
  return {};
}

}  // namespace cudnn_rnn_tf
