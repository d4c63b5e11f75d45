#include "kernels/gpu/cudnn/transpose.h"

#include <array>
#include <limits>
#include <string>

#include "kernels/ceil_div.h"
#include "kernels/gpu/ptx.h"

namespace cudnn_rnn_tf {
namespace {

constexpr unsigned int kLanes = 32;
constexpr unsigned int kRowsPerBlock = 8;

// The unit in which a thread copies, with its name in PTX and the registers
// that hold it.
struct Item {
  int bytes;
  const char* type;
  const char* value;
};
constexpr Item kItems[] = {{16, "v4.b32", "{%w0, %w1, %w2, %w3}"},
                           {8, "b64", "%w"},
                           {4, "b32", "%w0"},
                           {2, "b16", "%h"}};
constexpr int kNumItems = sizeof(kItems) / sizeof(kItems[0]);

std::string KernelName(const Item& item) {
  return "transpose_" + std::to_string(item.bytes);
}

// Returns the PTX of the kernel, in which a row of threads copies a row of
// items.
std::string KernelText(const Item& item) {
  const std::string address =
      "  mad.lo.u64 %address, %place, " + std::to_string(item.bytes) + ", %";
  const std::string type = item.type, value = item.value;
  return ".visible .entry " + KernelName(item) + R"((
    .param .u64 from, .param .u64 to,
    .param .u32 outer, .param .u32 inner, .param .u32 items)
{
  .reg .pred %done;
  .reg .b16 %h;
  .reg .b32 %outer, %inner, %items, %x, %y, %row, %i, %j, %item, %step, %w<4>;
  .reg .b64 %from, %to, %read, %written, %place, %address, %w;
  ld.param.u64 %from, [from];
  ld.param.u64 %to, [to];
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %to, %to;
  ld.param.u32 %outer, [outer];
  ld.param.u32 %inner, [inner];
  ld.param.u32 %items, [items];
  mov.u32 %x, %ctaid.x;
  mov.u32 %y, %ntid.y;
  mov.u32 %row, %tid.y;
  mad.lo.u32 %row, %x, %y, %row;
  mul.lo.u32 %x, %outer, %inner;
  setp.ge.u32 %done, %row, %x;
  @%done bra END;
  div.u32 %i, %row, %inner;
  mul.lo.u32 %x, %i, %inner;
  sub.u32 %j, %row, %x;
  mad.lo.u32 %x, %j, %outer, %i;
  mul.wide.u32 %read, %row, %items;
  mul.wide.u32 %written, %x, %items;
  mov.u32 %item, %tid.x;
  mov.u32 %step, %ntid.x;
NEXT:
  setp.ge.u32 %done, %item, %items;
  @%done bra END;
  cvt.u64.u32 %address, %item;
  add.u64 %place, %read, %address;
)" + address +
         "from;\n  ld.global.nc." + type + " " + value + R"(, [%address];
  cvt.u64.u32 %address, %item;
  add.u64 %place, %written, %address;
)" + address +
         "to;\n  st.global." + type + " [%address], " + value + R"(;
  add.u32 %item, %item, %step;
  bra NEXT;
END:
  ret;
}
)";
}

using Kernels = std::array<CUkernel, kNumItems>;

RnnStatus Load(Kernels* kernels) {
  for (int i = 0; i < kNumItems; ++i) {
    if ((*kernels)[i] != nullptr) continue;
    CRNN_RETURN_IF_ERROR(
        LoadPtx(KernelName(kItems[i]), KernelText(kItems[i]), &(*kernels)[i]));
  }
  return {};
}

}  // namespace

RnnStatus EnqueueTranspose(CUstream stream, CUdeviceptr from, CUdeviceptr to,
                           int64_t outer, int64_t inner, int64_t row_bytes) {
  static Kernels kernels = {};
  static Loading loading;
  CRNN_RETURN_IF_ERROR(loading.Once([] { return Load(&kernels); }));
  if (outer == 0 || inner == 0 || row_bytes == 0) return {};
  int chosen = 0;
  while (chosen < kNumItems - 1 &&
         (from | to | row_bytes) % kItems[chosen].bytes != 0) {
    ++chosen;
  }
  const int64_t items_in_row = row_bytes / kItems[chosen].bytes;
  // The numbers of threads beyond the last row or item must not overflow, or
  // these threads would copy the first ones again.
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max() - kLanes;
  if (outer > kMost / inner || items_in_row > kMost) {
    return {
        RnnStatus::Code::kUnimplemented,
        "batch-major data on a GPU: there must be less than 2^32 time steps "
        "in all, but received " +
            std::to_string(outer) + " by " + std::to_string(inner)};
  }
  uint32_t outer32 = static_cast<uint32_t>(outer);
  uint32_t inner32 = static_cast<uint32_t>(inner);
  uint32_t items = static_cast<uint32_t>(items_in_row);
  void* arguments[] = {&from, &to, &outer32, &inner32, &items};
  const int64_t blocks = CeilDiv(outer * inner, kRowsPerBlock);
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(
          reinterpret_cast<CUfunction>(kernels[chosen]),
          static_cast<unsigned int>(blocks), 1, 1, kLanes, kRowsPerBlock, 1,
          /*sharedMemBytes=*/0, stream, arguments, /*extra=*/nullptr),
      "transpose batch and time");
}

}  // namespace cudnn_rnn_tf
