// Replays random passes on a fake driver that runs them. Checks, without a GPU,
// that each has the results that it should, whether it is replayed or not,
// which passes are replayed, what happens after failures, and that graphs and
// their memory take no more than they may.
//
//   replays_on_fake_driver SEEDS
//
// Without an argument, it only lets threads compete, for ThreadSanitizer.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/gpu/compiler.h"
#include "kernels/gpu/copies_arguments.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/replay.h"
#include "tests/programs/fake_graphs.h"

namespace cudnn_rnn_tf {
namespace {

bool refuses_kernels = false;
int device = 0;
CUstream const kCaptureStream = reinterpret_cast<CUstream>(1 << 20);

}  // namespace

// This takes the place of compiler.cc.
RnnStatus CompileKernel(const std::string& file, const std::string&,
                        const std::vector<std::string>&, CUkernel* kernel) {
  if (refuses_kernels) return {RnnStatus::Code::kUnimplemented, "no NVRTC"};
  *kernel = reinterpret_cast<CUkernel>(uintptr_t{file == "fill.cu"} + 1);
  return {};
}

GpuLibraries FakeLibraries() {
  GpuLibraries libraries = LibrariesOfSession();
  FakeStreams(&libraries.cuda);
  libraries.cuda.cuLaunchKernel = [](CUfunction, unsigned blocks,
                                     unsigned count, unsigned, unsigned threads,
                                     unsigned, unsigned, unsigned,
                                     CUstream stream, void** parameters,
                                     void**) {
    CheckEnqueuesAlone(stream);
    if (Outcome("copy") != CUDA_SUCCESS) return Outcome("copy");
    Check(blocks <= kMaxBlocksOfNumbers && threads == 256,
          "a launch of copies");
    return EnqueueWork(
        stream, [all = *static_cast<const ArrayCopies*>(parameters[0]), count] {
          for (unsigned i = 0; i < count; ++i) {
            std::memcpy(all.of[i].to, all.of[i].from, all.of[i].bytes);
          }
        });
  };
  libraries.cuda.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from,
                                        size_t bytes, CUstream stream) {
    return EnqueueWork(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from),
                  bytes);
    });
  };
  return libraries;
}

namespace {

// A pass has scratch memory, then what it reads, and then what it writes.
constexpr int kRead = 4, kArrays = 8;
constexpr size_t kBytes = 500;
using Arrays = std::array<unsigned char*, kArrays>;

// A pass of random work.
struct Pass {
  std::string key;
  unsigned seed = 0;
  int num_nodes = 8, num_empty = 0;
  size_t scratch = 16;
  int64_t first_copied_use = 2;
  Node special;  // A node that the pass has as well, unless it is a kernel.

  bool IsNull(int array) const {
    return array == 1 + static_cast<int>(seed % 9);
  }

  // Passes on the nodes, in order. They write all that is written, and some of
  // what is read. Of scratch memory, they read what the call has stored.
  void ForEach(const Arrays& all,
               const std::function<void(Node)>& enqueue) const {
    std::mt19937 random(seed);
    for (int i = -kArrays; i < num_nodes; ++i) {
      const bool is_first = i < 0;
      const unsigned salt = random(), kind = is_first ? 2 : random() % 3;
      const int from =
          is_first ? 1 + IsNull(1) : static_cast<int>(random() % kArrays);
      const int to = is_first ? kArrays + i : 1 + random() % (kArrays - 1);
      unsigned char* const target = all[to];
      const unsigned char* const source = all[from];
      if (target == nullptr || source == nullptr || (is_first && to < kRead))
        continue;
      Node node;
      node.reads = {from, to};
      node.writes = {to};
      CUDA_MEMSET_NODE_PARAMS& fill = node.fill;
      fill.elementSize = 1 << salt % 2;
      fill.dst = reinterpret_cast<CUdeviceptr>(target) + salt % 64 * 2;
      fill.value = salt >> (32 - 8 * fill.elementSize);
      fill.width = (salt % 3 == 0 ? 6 : 8) / fill.elementSize;
      fill.height = 1 + salt % 5 % 2;
      if (kind == 0) {
        node.type = CU_GRAPH_NODE_TYPE_MEMSET;
        node.work = [fill] { FillWith(fill); };
      } else if (kind == 1) {
        node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        node.copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        node.copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        node.work = [=] { std::memmove(target, source, from == 0 ? 4 : 16); };
      } else {
        node.work = [=] {
          for (size_t at = 0; at < kBytes; ++at) {
            const int kept = is_first ? 0 : 3 * target[at];
            target[at] = static_cast<unsigned char>(
                kept + salt + 5 * source[from == 0 ? at % 4 : at]);
          }
        };
      }
      enqueue(std::move(node));
    }
    if (special.type != CU_GRAPH_NODE_TYPE_KERNEL) enqueue(special);
    Node empty;
    empty.type = CU_GRAPH_NODE_TYPE_EMPTY;
    for (int i = 0; i < num_empty; ++i) enqueue(empty);
  }
};

// The memory of a caller. All of it is kept, so that no address comes again by
// chance.
using Memory = std::vector<unsigned char>;
constexpr size_t kStride = kBytes + 9;
Memory* NewMemory() {
  static std::mutex mutex;
  static std::deque<Memory> all;
  const std::lock_guard<std::mutex> lock(mutex);
  return &all.emplace_back(kArrays * kStride);
}

// A call of a pass, over new memory unless it is given some.
class Call {
 public:
  Call(const Pass& pass, int number, CUstream stream, bool may_make = true,
       Memory* memory = NewMemory())
      : pass_(pass),
        number_(number),
        before_(kArrays * kStride),
        memory_(*memory) {
    std::mt19937 random(number);
    for (unsigned char& byte : before_) byte = random();
    memory_ = before_;
    const Arrays callers = ArraysIn(&memory_);
    Arrays moved = callers;
    ReplayablePass given;
    for (int i = 0; i < kArrays; ++i) {
      given.buffers.emplace_back(reinterpret_cast<void**>(&moved[i]),
                                 i == 0 ? pass.scratch : kBytes,
                                 i == 0      ? PassBuffer::Use::kScratch
                                 : i < kRead ? PassBuffer::Use::kRead
                                             : PassBuffer::Use::kWritten);
    }
    given.key = pass.key;
    given.stream = stream;
    given.first_copied_use = pass.first_copied_use;
    given.may_make = may_make;
    given.log = [](const std::string&) {};
    given.begin = [&](void* memory, size_t bytes) -> RnnStatus {
      copies_ = bytes > 0;
      // A pass does not rely on what others have left.
      EnqueueWork(stream,
                  [=] { std::memset(memory, 0xFF, std::min(bytes, kMost)); });
      if (failing == "a beginning") return {RnnStatus::Code::kInternal, "no"};
      Store(stream, moved);
      return {};
    };
    given.capture = [&](std::unique_ptr<Graph>* graph) {
      for (int i = 0; i < kArrays; ++i) {
        Check((moved[i] == nullptr) == pass.IsNull(i) &&
                  (moved[i] == callers[i] ||
                   reinterpret_cast<uintptr_t>(moved[i]) % 256 == 0),
              "a buffer's address");
      }
      return Graph::Make(
          kCaptureStream,
          [&]() -> RnnStatus {
            pass.ForEach(moved, [](Node node) {
              Enqueue(kCaptureStream, std::move(node));
            });
            if (failing == "no memory") throw std::bad_alloc();
            if (failing != "enqueue") return {};
            return {RnnStatus::Code::kInternal, "no pass"};
          },
          graph);
    };
    is_replayed_ = Replays::Of(device).Run(&given);
    if (is_replayed_) return;
    Store(stream, callers);
    pass.ForEach(callers, [&](Node node) { Enqueue(stream, std::move(node)); });
  }

  bool is_replayed() const { return is_replayed_; }
  bool copies() const { return copies_; }

  // Checks the results against those of the nodes in their order. A replay over
  // copies does not write to what it reads.
  void CheckResults() const {
    Memory expected = before_;
    const Arrays arrays = ArraysIn(&expected);
    std::memcpy(arrays[0], &number_, sizeof(number_));
    pass_.ForEach(arrays, [](const Node& node) {
      if (node.work) node.work();
    });
    if (is_replayed_ && copies_)
      std::copy_n(&before_[0], kRead * kStride, &expected[0]);
    Check(memory_ == expected,
          is_replayed_ ? "a pass that is replayed" : "a pass that is not");
  }

 private:
  static constexpr size_t kMost = 1 << 16;

  // The caller's arrays begin anywhere.
  Arrays ArraysIn(Memory* memory) const {
    Arrays arrays;
    for (int i = 0; i < kArrays; ++i) {
      arrays[i] = pass_.IsNull(i) ? nullptr : &(*memory)[i * kStride + 1];
    }
    return arrays;
  }
  // Stores the number of the call, which the pass reads.
  void Store(CUstream stream, const Arrays& arrays) const {
    EnqueueWork(stream, [number = number_, to = arrays[0]] {
      std::memcpy(to, &number, sizeof(number));
    });
  }

  const Pass pass_;
  const int number_;
  Memory before_;
  Memory& memory_;
  bool is_replayed_, copies_ = false;
};

Pass NewPass(unsigned seed, int num_nodes = 8, int num_empty = 0) {
  static int number = 0;
  Pass pass;
  pass.key = "pass " + std::to_string(number++);
  pass.seed = seed;
  pass.num_nodes = num_nodes;
  pass.num_empty = num_empty;
  return pass;
}

CUstream StreamOf(int number) {
  return reinterpret_cast<CUstream>(uintptr_t{64} * number);
}

// Runs a call, and tells whether it was replayed.
bool Run(const Pass& pass, bool may_make = true) {
  static int number = 0;
  ++number;
  const Call call(pass, number, StreamOf(1 + number % 3), may_make);
  call.CheckResults();
  Check(captures.empty(), "a capture is left");
  return call.is_replayed();
}

int CountReplays(const Pass& pass, int uses) {
  int count = 0;
  for (int i = 0; i < uses; ++i) count += Run(pass) ? 1 : 0;
  return count;
}

void CheckUses(unsigned seed) {
  const Pass pass = NewPass(seed, 1 + static_cast<int>(seed % 100));
  refuses_kernels = seed % 5 == 0;
  const int64_t launches = Replays::NumLaunches();
  Check(!Run(pass) && !Run(NewPass(seed)), "a first use is direct");
  Check(!Run(pass, /*may_make=*/false), "a graph where none may be made");
  num_captures = 0;
  Check(CountReplays(pass, 5) == 5 && num_captures == 1,
        "later uses are replays of one graph");
  Check(refuses_kernels || num_small_fills == 0, "a small fill is left");
  Check(Run(pass, /*may_make=*/false), "what was made needs not be made");
  is_callers_capture = true;
  Check(!Run(pass), "a replay in the caller's capture");
  is_callers_capture = false;
  auto& libraries = const_cast<GpuLibraries&>(Gpu());
  libraries.has_graphs = false;
  Check(!Run(pass), "a replay by an old driver");
  libraries.has_graphs = true;
  Check(Run(pass) && num_captures == 1, "the graph stays");
  Check(Replays::NumLaunches() == launches + 7, "the count of replays");
  refuses_kernels = false;
}

// Buffers that come again get a graph of their own, and nothing is copied.
void CheckBuffersThatComeAgain(unsigned seed) {
  Pass pass = NewPass(seed, 12);
  const auto check = [&](Memory* memory, const std::string& expected,
                         bool may_make = true) {
    static int number = 0;
    ++number;
    const Call call(pass, number, StreamOf(1 + number % 3), may_make, memory);
    call.CheckResults();
    const std::string found = !call.is_replayed() ? "enqueued"
                              : call.copies()     ? "copied"
                                                  : "over its own";
    Check(found == expected, "a pass is " + found + ", not " + expected);
  };
  Memory *const first = NewMemory(), *const second = NewMemory();
  num_captures = 0;
  check(first, "enqueued");
  check(first, "enqueued", /*may_make=*/false);
  check(first, "over its own");
  check(second, "copied");
  check(NewMemory(), "copied", /*may_make=*/false);
  check(first, "over its own");
  check(second, "copied", /*may_make=*/false);
  check(second, "over its own");
  check(second, "over its own", /*may_make=*/false);
  Check(num_captures == 3, "a graph for new buffers, and two for others");
  pass.key += "few launches";
  pass.first_copied_use = Engine::kNever;
  for (const char* const expected : {"enqueued", "over its own"}) {
    check(first, expected);
    check(second, expected);
    check(NewMemory(), "enqueued");
  }
}

// While a call fails, passes are enqueued as they are, and only few uses try
// again. Later, passes are replayed.
void CheckFailures(unsigned seed) {
  for (const char* const call :
       {"begin", "enqueue", "no memory", "end", "nodes", "instantiate",
        "launch", "wait", "copy", "a beginning"}) {
    being_checked = std::string("failures of ") + call;
    const Pass pass = NewPass(seed, 20);
    const bool has_graph = seed % 2 == 1;
    if (has_graph) CountReplays(pass, 3);
    const bool is_of_launch =
        std::string(call) == "launch" || std::string(call) == "wait" ||
        std::string(call) == "copy" || std::string(call) == "a beginning";
    num_attempts = num_captures = 0;
    failing = call;
    Check(CountReplays(pass, 200) == (has_graph && !is_of_launch ? 200 : 0),
          "a failure");
    failing.clear();
    Check(num_captures <= 3, "few attempts");
    Check(num_attempts <= (has_graph ? 200 : 3), "few launches");
    Check(CountReplays(pass, 400) > 100, "a failure passes");
  }
  for (const char* const call : {"kernel", "record"}) {
    failing = call;
    const Pass pass = NewPass(seed, 50);
    CountReplays(pass, 3);
    failing.clear();
  }
  being_checked = "seed " + std::to_string(seed);
}

void CheckRefusals(unsigned seed) {
  Node copy;
  copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  copy.copy.srcMemoryType = copy.copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  std::vector<Node> refused(4, copy);
  refused[0].copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  refused[1].copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  refused[1].copy.dstDevice = kOfHost;
  refused[2].copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  refused[2].copy.srcDevice = kUnknown;
  refused[3].type = CU_GRAPH_NODE_TYPE_HOST;
  for (const Node& node : refused) {
    Pass pass = NewPass(seed);
    pass.special = node;
    Check(CountReplays(pass, 20) == 0, "a node is refused");
  }
  Pass pass = NewPass(seed);
  pass.special = copy;
  Check(CountReplays(pass, 20) == 19, "a node that is not refused");
  num_captures = 0;
  Check(CountReplays(NewPass(seed, 1, 16384), 5) == 0 && num_captures == 0,
        "a graph that is too large");
}

// The replay memory grows up to its bound, which also follows the device's.
void CheckMemory(unsigned seed) {
  constexpr size_t kMiB = size_t{1} << 20;
  const int others = std::exchange(device, device + 1000);
  Pass small = NewPass(seed), large = NewPass(seed), huge = NewPass(seed);
  large.scratch = 100 * kMiB + seed;
  huge.scratch = 300 * kMiB;
  Check(CountReplays(small, 3) == 2 && CountReplays(large, 3) == 2, "growth");
  num_captures = num_frees = 0;
  Check(CountReplays(small, 3) == 3 && num_captures == 1 && num_frees == 0,
        "graphs of the old memory are made anew");
  Check(CountReplays(huge, 10) == 0 && CountReplays(large, 2) == 2,
        "more than may be");
  total_memory = 64 * 400 * kMiB;
  huge.key += " again";
  largest_memory = 150 * kMiB;
  Check(CountReplays(huge, 10) == 0 && CountReplays(large, 2) == 2,
        "no memory");
  large.key += "r";
  large.scratch += 10 * kMiB;
  Check(CountReplays(large, 3) == 2, "no memory for more than is needed");
  largest_memory = 401 * kMiB;
  huge.key += " and again";
  Check(CountReplays(huge, 10) == 9 && num_frees == 2, "a large device");
  total_memory = 0;
  device = others;
}

// Passes that push each other out are not captured in turn, and the memory of
// graphs has a bound, after which others are replayed all the same.
void CheckBounds(unsigned seed) {
  constexpr int kNodes = 400;
  constexpr int kFit = (512 << 20) / (kNodes * (16 << 10));
  std::mt19937 random(seed);
  const int shapes = 2 * kFit + random() % 100;
  std::vector<Pass> passes;
  for (int i = 0; i < shapes; ++i) passes.push_back(NewPass(seed, 1, kNodes));
  num_captures = 0;
  const int before = num_execs, others = std::exchange(device, device + 3000);
  for (int i = 0; i < 40 * shapes; ++i) {
    Run(passes[seed % 2 == 0 ? i % shapes : random() % shapes]);
  }
  Check(num_execs - before <= kFit, "too much memory");
  Check(num_captures < 5 * shapes, "captured in turn");
  const Pass some[] = {NewPass(seed, 1, kNodes), NewPass(seed, 1, kNodes)};
  int replays = 0;
  for (int i = 0; i < 200; ++i) replays += Run(some[i % 2]) ? 1 : 0;
  Check(replays >= 168, "never captured, or pushed out at once");
  num_captures = 0;
  for (int i = 0; i < 30; ++i) CountReplays(NewPass(seed, 1, kNodes), 3);
  Check(num_captures == 0, "new passes push out others");
  // Passes that come once push out what others know of, and leave nothing.
  for (int i = 0; i < 5000; ++i) Run(NewPass(seed, 1));
  device = others;
  Check(num_execs == before, "graphs of passes that are forgotten");
}

// Streams use the same memory. What they enqueue runs in any order that events
// allow.
void CheckStreams(unsigned seed) {
  std::mt19937 random(seed);
  const int others = std::exchange(device, device + 2000);
  runs_at_once = false;
  if (seed % 2 == 1) failing = "some launches";
  std::vector<Pass> passes;
  for (int i = 0; i < 3; ++i) passes.push_back(NewPass(seed + i));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 60; ++i) {
    // Memory that grows must not be taken from what is under way.
    if (i % 20 == 19) {
      passes[0].scratch = size_t{1} << (20 + i / 20);
      passes[0].key += "+";
    }
    calls.push_back(std::make_unique<Call>(passes[random() % 3], i,
                                           StreamOf(1 + random() % 3)));
    int steps = static_cast<int>(random() % 5);
    RunStreams([&] { return steps-- == 0; });
  }
  RunStreams([] { return false; });
  for (const auto& call : calls) call->CheckResults();
  failing.clear();
  runs_at_once = true;
  device = others;
}

// Threads may use the same passes at the same time.
void CheckThreads() {
  const Pass passes[] = {NewPass(1), NewPass(2), NewPass(3)};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int use = 0; use < 300; ++use) {
        Call(passes[use % 3], use, StreamOf(1 + i)).CheckResults();
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  if (argc == 1) {
    cudnn_rnn_tf::CheckThreads();
    return 0;
  }
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    // Each device has graphs of its own.
    cudnn_rnn_tf::device = static_cast<int>(seed);
    cudnn_rnn_tf::CheckThreads();
    cudnn_rnn_tf::CheckUses(seed);
    cudnn_rnn_tf::CheckBuffersThatComeAgain(seed);
    cudnn_rnn_tf::CheckFailures(seed);
    cudnn_rnn_tf::CheckRefusals(seed);
    cudnn_rnn_tf::CheckMemory(seed);
    cudnn_rnn_tf::CheckStreams(seed);
    cudnn_rnn_tf::CheckBounds(seed);
    cudnn_rnn_tf::FreeMemory();
  });
}
