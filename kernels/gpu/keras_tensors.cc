#include "kernels/gpu/cudnn/keras_tensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "kernels/ceil_div.h"
#include "kernels/gpu/ptx.h"

namespace cudnn_rnn_tf {
namespace {

// A block moves square tiles of one gate through shared memory, because the
// rows of the tensor are the columns of a gate in the buffer: so a warp has
// adjacent places in both of them.
constexpr unsigned int kTile = 32, kWarps = 8;
// A row of a tile has one item more than it needs, or the items of a column
// would all be in the same bank of shared memory.
constexpr unsigned int kPitch = kTile + 1;
constexpr int64_t kMostTilesOfRows = 65535;

struct Item {
  size_t bytes;
  const char* type;
};
constexpr std::array<Item, 3> kItems = {{{2, "b16"}, {4, "b32"}, {8, "b64"}}};

std::string KernelName(const Item& item, bool to_params) {
  return "keras_tensor_" + std::to_string(item.bytes) +
         (to_params ? "_to_params" : "_from_params");
}

// Returns the PTX that moves a tile between shared memory and `array`, which is
// "tensor" or "params". A warp has lines of it, which are rows of the tensor or
// of a gate in the buffer, and a thread has the item at its lane in each line.
std::string MoveTile(const Item& item, const std::string& array, bool loads) {
  const std::string type = item.type, name = "%" + array;
  const size_t apart =
      kWarps * item.bytes * (array == "tensor" ? kPitch : size_t{1});
  std::string global = "  mov.u64 %place, " + name + ";\n  mov.u32 %line, " +
                       name + "_line;\n  setp.lt.u32 %within, " + name +
                       "_lane, " + name + "_lanes;\n";
  std::string shared;
  for (unsigned int i = 0; i < kTile / kWarps; ++i) {
    const std::string has = "%has" + std::to_string(i);
    const std::string value = "%value" + std::to_string(i);
    const std::string slot =
        "[" + name + "_slot+" + std::to_string(i * apart) + "]";
    global +=
        "  setp.lt.and.u32 " + has + ", %line, " + name +
        "_lines, %within;\n  @" + has +
        (loads
             ? " ld.global.nc." + type + " " + value + ", [%place];\n"
             : " ld.shared." + type + " " + value + ", " + slot + ";\n  @" +
                   has + " st.global." + type + " [%place], " + value + ";\n") +
        "  add.u64 %place, %place, " + name +
        "_apart;\n  add.u32 %line, %line, " + std::to_string(kWarps) + ";\n";
    // All of a thread's loads are under way before it waits for the first.
    if (loads) {
      shared += "  @" + has + " st.shared." + type + " " + slot + ", " + value +
                ";\n";
    }
  }
  return global + shared;
}

// Returns the PTX of the kernel. The tensor is [fan_in, gates * units], and
// each gate is [units, fan_in] in the buffer. No thread leaves before its block
// does, since all of them must reach each barrier.
std::string KernelText(const Item& item, bool to_params) {
  const std::string type = item.type;
  const std::string bytes = std::to_string(item.bytes);
  const std::string tile = std::to_string(kTile);
  const std::string warps = std::to_string(kWarps);
  const std::string items = std::to_string(kTile / kWarps);
  const std::string pitch = std::to_string(kPitch);
  const std::string from = to_params ? "tensor" : "params";
  const std::string to = to_params ? "params" : "tensor";
  return ".visible .entry " + KernelName(item, to_params) + R"((
    .param .u64 tensor, .param .u64 params, .param .u32 gates,
    .param .u32 units, .param .u32 fan_in, .param .u32 swaps)
{
  .shared .align )" +
         bytes + " ." + type + " tile[" + std::to_string(kTile * kPitch) +
         R"(];
  .reg .pred %done, %swapped, %within, %has<)" +
         items + R"(>;
  .reg .)" +
         type + R"( %value<)" + items + R"(>;
  .reg .b32 %gates, %units, %fan_in, %swaps, %gate, %unit, %row, %side, %step;
  .reg .b32 %x, %y, %i, %j, %line, %tile;
  .reg .b32 %tensor_lane, %tensor_lanes, %tensor_line, %tensor_lines;
  .reg .b32 %params_lane, %params_lanes, %params_line, %params_lines;
  .reg .b32 %tensor_slot, %params_slot;
  .reg .b64 %tensor, %params, %place, %stride, %next, %item;
  .reg .b64 %tensor_apart, %params_apart, %tensor_skip, %params_skip;
  mov.u64 %item, )" +
         bytes + R"(;
  ld.param.u64 %tensor, [tensor];
  ld.param.u64 %params, [params];
  cvta.to.global.u64 %tensor, %tensor;
  cvta.to.global.u64 %params, %params;
  ld.param.u32 %gates, [gates];
  ld.param.u32 %units, [units];
  ld.param.u32 %fan_in, [fan_in];
  ld.param.u32 %swaps, [swaps];
  mov.u32 %x, %tid.x;
  mov.u32 %y, %tid.y;
  mov.u32 %side, %ctaid.z;
  mov.u32 %i, %ctaid.x;
  add.u32 %j, %units, )" +
         std::to_string(kTile - 1) + R"(;
  div.u32 %j, %j, )" +
         tile + R"(;
  div.u32 %gate, %i, %j;
  mul.lo.u32 %j, %gate, %j;
  sub.u32 %unit, %i, %j;
  mul.lo.u32 %unit, %unit, )" +
         tile + R"(;
  mov.u32 %row, %ctaid.y;
  mul.lo.u32 %row, %row, )" +
         tile + R"(;
  mov.u32 %step, %nctaid.y;
  mul.lo.u32 %step, %step, )" +
         tile + R"(;
  add.u32 %tensor_lane, %unit, %x;
  mov.u32 %tensor_lanes, %units;
  add.u32 %tensor_line, %row, %y;
  mov.u32 %tensor_lines, %fan_in;
  add.u32 %params_lane, %row, %x;
  mov.u32 %params_lanes, %fan_in;
  add.u32 %params_line, %unit, %y;
  mov.u32 %params_lines, %units;
  mov.u32 %tile, tile;
  mad.lo.u32 %i, %y, )" +
         pitch + R"(, %x;
  mad.lo.u32 %tensor_slot, %i, )" +
         bytes + R"(, %tile;
  mad.lo.u32 %i, %x, )" +
         pitch + R"(, %y;
  mad.lo.u32 %params_slot, %i, )" +
         bytes + R"(, %tile;
  cvt.u64.u32 %place, %side;
  cvt.u64.u32 %stride, %fan_in;
  cvt.u64.u32 %next, %tensor_line;
  mad.lo.u64 %place, %place, %stride, %next;
  mul.wide.u32 %stride, %gates, %units;
  mul.wide.u32 %next, %gate, %units;
  mad.lo.u64 %place, %place, %stride, %next;
  cvt.u64.u32 %next, %tensor_lane;
  add.u64 %place, %place, %next;
  mad.lo.u64 %tensor, %place, %item, %tensor;
  mul.lo.u64 %stride, %stride, %item;
  mul.lo.u64 %tensor_apart, %stride, )" +
         warps + R"(;
  cvt.u64.u32 %next, %step;
  mul.lo.u64 %tensor_skip, %stride, %next;
  mul.lo.u64 %params_skip, %next, %item;
  setp.ne.u32 %swapped, %swaps, 0;
  setp.lt.and.u32 %swapped, %gate, 2, %swapped;
  @%swapped sub.u32 %gate, 1, %gate;
  mad.lo.u32 %i, %side, %gates, %gate;
  mul.wide.u32 %place, %i, %units;
  cvt.u64.u32 %next, %params_line;
  add.u64 %place, %place, %next;
  cvt.u64.u32 %stride, %fan_in;
  cvt.u64.u32 %next, %params_lane;
  mad.lo.u64 %place, %place, %stride, %next;
  mad.lo.u64 %params, %place, %item, %params;
  mul.lo.u64 %stride, %stride, %item;
  mul.lo.u64 %params_apart, %stride, )" +
         warps + R"(;
NEXT:
  setp.ge.u32 %done, %row, %fan_in;
  @%done bra.uni END;
)" + MoveTile(item, from, /*loads=*/true) +
         "  bar.sync 0;\n" + MoveTile(item, to, /*loads=*/false) +
         R"(  bar.sync 0;
  add.u64 %tensor, %tensor, %tensor_skip;
  add.u64 %params, %params, %params_skip;
  add.u32 %row, %row, %step;
  add.u32 %tensor_line, %tensor_line, %step;
  add.u32 %params_lane, %params_lane, %step;
  bra.uni NEXT;
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
  // The numbers of rows and columns beyond the last ones, which the last tiles
  // have, must not overflow.
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
  // No tile has columns of two gates, which can be far apart in the buffer.
  const int64_t tiles_of_cols = place.gates * CeilDiv(place.units, kTile);
  const int64_t tiles_of_rows =
      std::min(CeilDiv(place.fan_in, kTile), kMostTilesOfRows);
  return CudaStatus(
      Gpu().cuda.cuLaunchKernel(
          reinterpret_cast<CUfunction>(kernels[item][to_params]),
          static_cast<unsigned int>(tiles_of_cols),
          static_cast<unsigned int>(tiles_of_rows),
          static_cast<unsigned int>(place.sides), kTile, kWarps, 1,
          /*sharedMemBytes=*/0, stream, arguments, /*extra=*/nullptr),
      "copy a kernel or bias");
}

}  // namespace cudnn_rnn_tf
