#include "kernels/gpu/device_limits.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <system_error>
#include <utility>

#include "kernels/gpu/libraries.h"
#include "kernels/maps.h"
#include "kernels/never_destroyed.h"

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
    if (text != nullptr && *text != '\0') {
      status = ParseImitation(text, &limits);
    }
  }

  RnnStatus status;
  DeviceLimits limits = {};  // All are 0 if nothing is imitated.
};

const Imitation& ImitationOfProcess() {
  static NeverDestroyed<Imitation> imitation;
  return *imitation;
}

void Lower(int* limit, int to) {
  if (to > 0) *limit = std::min(*limit, to);
}

}  // namespace

int LargestCluster(int architecture) {
  if (architecture < 90) return 1;
  // Eight blocks are what CUDA calls portable. Data centers' GPUs allow 16 to
  // kernels that ask for it.
  return architecture < 110 ? 16 : 8;
}

RnnStatus ParseImitation(const std::string& text, DeviceLimits* limits) {
  for (const NamedGpu& gpu : kKnownGpus) {
    if (text == gpu.name) {
      *limits = gpu.limits;
      return {};
    }
  }
  *limits = {};
  const std::pair<const char*, int*> fields[] = {
      {"arch", &limits->architecture},
      {"multiprocessors", &limits->multiprocessors},
      {"shared_memory", &limits->shared_bytes},
      {"registers", &limits->registers},
      {"largest_cluster", &limits->largest_cluster}};
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const auto field =
        std::find_if(std::begin(fields), std::end(fields),
                     [&](const auto& each) { return name == each.first; });
    int value = 0;
    if (equals != std::string::npos) {
      const char* const end = part.data() + part.size();
      const auto parsed = std::from_chars(part.data() + equals + 1, end, value);
      if (parsed.ec != std::errc() || parsed.ptr != end) value = 0;
    }
    if (field == std::end(fields) || value < 1) {
      std::string names;
      for (const NamedGpu& gpu : kKnownGpus) {
        names += std::string(", ") + gpu.name;
      }
      return BadVariable(
          "must be a GPU's name (" + names.substr(2) +
          ") or have parts such as arch=80, multiprocessors=108, "
          "shared_memory=166912, registers=65536 or largest_cluster=1, "
          "separated by commas, but it has \"" +
          part + "\"");
    }
    *field->second = value;
  }
  if (limits->architecture == 0) {
    return BadVariable("must say which architecture is imitated, as arch=80");
  }
  return {};
}

RnnStatus ImitatedArchitecture(int* architecture) {
  *architecture = ImitationOfProcess().limits.architecture;
  return ImitationOfProcess().status;
}

namespace {

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
  limits->largest_cluster = LargestCluster(limits->architecture);
  const auto& [status, imitated] = ImitationOfProcess();
  CRNN_RETURN_IF_ERROR(status);
  if (imitated.architecture == 0) return {};
  if (imitated.architecture > limits->architecture) {
    return BadVariable("asks for architecture " +
                       std::to_string(imitated.architecture) +
                       ", which is newer than this GPU's, " +
                       std::to_string(limits->architecture));
  }
  limits->architecture = imitated.architecture;
  limits->largest_cluster = LargestCluster(imitated.architecture);
  Lower(&limits->largest_cluster, imitated.largest_cluster);
  Lower(&limits->multiprocessors, imitated.multiprocessors);
  Lower(&limits->shared_bytes, imitated.shared_bytes);
  Lower(&limits->registers, imitated.registers);
  return {};
}

}  // namespace

RnnStatus ReadLimits(DeviceLimits* limits) {
  static NeverDestroyed<Known<CUdevice, DeviceLimits>> known;
  CUdevice device;
  CRNN_RETURN_IF_ERROR(CurrentDevice(&device));
  if (known->Find(device, limits)) return {};
  CRNN_RETURN_IF_ERROR(ReadLimitsOf(device, limits));
  known->Add(device, limits);
  return {};
}

}  // namespace cudnn_rnn_tf
