#include "kernels/gpu/cudnn/keras_tensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "kernels/ceil_div.h"
#include "kernels/gpu/ptx.h"

namespace cudnn_rnn_tf {
namespace {

// A warp has a row of a block. The rows of a block make whole sectors of 32
// bytes in the buffer, in which these rows are columns.
constexpr unsigned int kLanes = 32, kRowsPerBlock = 8;
constexpr int64_t kMostBlocksOfRows = 65535;

struct Item {
  size_t bytes;
  const char* type;
};
constexpr std::array<Item, 3> kItems = {{{2, "b16"}, {4, "b32"}, {8, "b64"}}};

std::string KernelName(const Item& item, bool to_params) {
  return "keras_tensor_" + std::to_string(item.bytes) +
         (to_params ? "_to_params" : "_from_params");
}

// Returns the PTX of the kernel, in which a thread has a column of the tensor,
// [fan_in, gates * units], which is a row in the buffer.
std::string KernelText(const Item& item, bool to_params) {
  const std::string type = item.type;
  const std::string from = to_params ? "%tensor" : "%params";
  const std::string to = to_params ? "%params" : "%tensor";
  return ".visible .entry " + KernelName(item, to_params) + R"((
    .param .u64 tensor, .param .u64 params, .param .u32 gates,
    .param .u32 units, .param .u32 fan_in, .param .u32 swaps)
{
  .reg .pred %done, %swapped;
  .reg .)" +
         type + R"( %value;
  .reg .b32 %gates, %units, %fan_in, %swaps, %cols, %col, %gate, %unit, %x, %y;
  .reg .b32 %side, %row, %step;
  .reg .b64 %tensor, %params, %next, %skip, %place, %stride, %item;
  mov.u64 %item, )" +
         std::to_string(item.bytes) + R"(;
  ld.param.u64 %tensor, [tensor];
  ld.param.u64 %params, [params];
  cvta.to.global.u64 %tensor, %tensor;
  cvta.to.global.u64 %params, %params;
  ld.param.u32 %gates, [gates];
  ld.param.u32 %units, [units];
  ld.param.u32 %fan_in, [fan_in];
  ld.param.u32 %swaps, [swaps];
  mul.lo.u32 %cols, %gates, %units;
  mov.u32 %x, %ctaid.x;
  mov.u32 %y, %ntid.x;
  mov.u32 %col, %tid.x;
  mad.lo.u32 %col, %x, %y, %col;
  setp.ge.u32 %done, %col, %cols;
  @%done bra END;
  mov.u32 %x, %ctaid.y;
  mov.u32 %y, %ntid.y;
  mov.u32 %row, %tid.y;
  mad.lo.u32 %row, %x, %y, %row;
  mov.u32 %x, %nctaid.y;
  mul.lo.u32 %step, %x, %y;
  mov.u32 %side, %ctaid.z;
  div.u32 %gate, %col, %units;
  mul.lo.u32 %x, %gate, %units;
  sub.u32 %unit, %col, %x;
  setp.ne.u32 %swapped, %swaps, 0;
  setp.lt.and.u32 %swapped, %gate, 2, %swapped;
  @%swapped sub.u32 %gate, 1, %gate;
  mad.lo.u32 %x, %side, %gates, %gate;
  mul.wide.u32 %place, %x, %units;
  cvt.u64.u32 %next, %unit;
  add.u64 %place, %place, %next;
  cvt.u64.u32 %stride, %fan_in;
  cvt.u64.u32 %next, %row;
  mad.lo.u64 %place, %place, %stride, %next;
  mad.lo.u64 %params, %place, %item, %params;
  cvt.u64.u32 %skip, %cols;
  cvt.u64.u32 %place, %side;
  mad.lo.u64 %place, %place, %stride, %next;
  cvt.u64.u32 %next, %col;
  mad.lo.u64 %place, %place, %skip, %next;
  mad.lo.u64 %tensor, %place, %item, %tensor;
  cvt.u64.u32 %next, %step;
  mul.lo.u64 %skip, %skip, %next;
  mul.lo.u64 %skip, %skip, %item;
  mul.lo.u64 %next, %next, %item;
NEXT:
  setp.ge.u32 %done, %row, %fan_in;
  @%done bra END;
  ld.global.nc.)" +
         type + " %value, [" + from + "];\n  st.global." + type + " [" + to +
         R"(], %value;
  add.u64 %tensor, %tensor, %skip;
  add.u64 %params, %params, %next;
  add.u32 %row, %row, %step;
  bra NEXT;
END:
  ret;
}
)";
}

using Kernels = std::array<std::array<CUkernel, 2>, kItems.size()>;

RnnStatus Load(Kernels* kernels) {
  for (size_t i = 0; i < kItems.size(); ++i) {
    for (const bool to_params : {false, true}) {
      CUkernel& kernel = (*kernels)[i][to_params];
      if (kernel != nullptr) continue;
      CRNN_RETURN_IF_ERROR(LoadPtx(KernelName(kItems[i], to_params),
                                   KernelText(kItems[i], to_params), &kernel));
    }
  }
  return {};
}

}  // namespace

RnnStatus EnqueueKerasTensor(CUstream stream, const KerasTensor& place,
                             size_t item_bytes, bool to_params,
                             CUdeviceptr tensor, CUdeviceptr params) {
  static Kernels kernels = {};
  static Loading loading;
  CRNN_RETURN_IF_ERROR(loading.Once([] { return Load(&kernels); }));
  const int64_t cols = place.gates * place.units;
  // The numbers of threads beyond the last row or column must not overflow.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (cols > kMost || place.fan_in > kMost) {
    return {
        RnnStatus::Code::kUnimplemented,
        place.Name() + " on a GPU: expected less than 2^31 rows and columns"};
  }
  size_t item = 0;
  while (kItems[item].bytes != item_bytes) ++item;
  uint32_t gates = static_cast<uint32_t>(place.gates);
  uint32_t units = static_cast<uint32_t>(place.units);
  uint32_t fan_in = static_cast<uint32_t>(place.fan_in);
  uint32_t swaps = place.swaps_gates;
  params += place.offset * item_bytes;
  void* arguments[] = {&tensor, &params, &gates, &units, &fan_in, &swaps};
  const int64_t blocks_of_rows =
      std::min(CeilDiv(place.fan_in, kRowsPerBlock), kMostBlocksOfRows);
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(
          reinterpret_cast<CUfunction>(kernels[item][to_params]),
          static_cast<unsigned int>(CeilDiv(cols, kLanes)),
          static_cast<unsigned int>(blocks_of_rows),
          static_cast<unsigned int>(place.sides), kLanes, kRowsPerBlock, 1,
          /*sharedMemBytes=*/0, stream, arguments, /*extra=*/nullptr),
      "copy a kernel or bias");
}

}  // namespace cudnn_rnn_tf
