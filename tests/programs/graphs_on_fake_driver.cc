// Runs random passes through the cache of graphs, on a fake driver. Each run
// must do the pass's work once, whether as a graph or not. Checks also which
// passes become graphs, what happens after failures, and how much memory graphs
// take. Without an argument, a number of seeds, it only lets threads compete.
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/gpu/graph_cache.h"
#include "tests/programs/fake_graphs.h"

namespace cudnn_rnn_tf {
namespace {

using Random = std::mt19937;

constexpr int kBuffers = 4;
std::optional<GraphCache> graphs(std::in_place);  // Each seed has its own.
// A pass is captured twice, and up to three times so where gaps differ.
constexpr int kMostCaptures = 6;

// Addresses of buffers, which any number of other calls may get as well.
Graph::Addresses AddressesOf(unsigned call) {
  Random random(call);
  Graph::Addresses addresses;
  for (int i = 0; i < kBuffers; ++i) {
    addresses.push_back(i == kBuffers - 1 ? 0
                                          : (CUdeviceptr{1} << 40) + 32 * i +
                                                (random() % 1000 << 20));
  }
  return addresses;
}

// A pass of random nodes.
struct Pass {
  std::string key;
  unsigned seed = 0;
  int num_nodes = 5;
  Node special;  // A node that the pass has as well, unless it is empty.
  // What else than addresses depends on addresses: nothing, a kernel's grid, an
  // argument, the number of nodes, or whether the pass can be recorded.
  int follows = 0;

  // Returns an address in a buffer, before its beginning or behind its end.
  static CUdeviceptr Draw(const Graph::Addresses& addresses, Random* random) {
    return addresses[(*random)() % (kBuffers - 1)] + 4096 -
           (*random)() % 2048 * 4;
  }

  void AddTo(const Graph::Addresses& addresses, FakeGraph* graph) const {
    Random random(seed);
    for (int i = 0; i < num_nodes; ++i) {
      auto node = std::make_unique<Node>();
      switch (random() % 5) {
        case 0:
          break;  // Empty.
        case 1:
          node->type = CU_GRAPH_NODE_TYPE_MEMCPY;
          node->says_whose_memory = random() % 2 == 0;
          node->from = Draw(addresses, &random);
          node->to = Draw(addresses, &random);
          break;
        case 2: {
          node->type = CU_GRAPH_NODE_TYPE_MEMSET;
          node->fill.elementSize = 1 << random() % 3;
          node->fill.dst = Draw(addresses, &random) + random() % 3 * 2;
          const unsigned bits = 8 * node->fill.elementSize;
          node->fill.value = random() >> (32 - bits);
          node->fill.height = random() % 5 == 0 ? 2 : 1;
          node->fill.width = random() % (random() % 3 == 0 ? 100000 : 9) * 4;
          break;
        }
        default:
          node->type = CU_GRAPH_NODE_TYPE_KERNEL;
          node->number = 1 + i % 7;
          node->grid = 1 + static_cast<int>(random() % 9);
          node->is_in_block = i % 7 == 3;
          for (int argument = 0; argument < i % 7; ++argument) {
            node->arguments.emplace_back(1 + argument % 3);
            for (CUdeviceptr& word : node->arguments.back()) {
              const unsigned kind = random() % 5;
              word = kind == 0  ? kGap + stack
                     : kind < 3 ? random()
                                : Draw(addresses, &random);
            }
          }
      }
      graph->nodes.push_back(std::move(node));
      for (unsigned edges = random() % 3; i > 0 && edges > 0; --edges) {
        graph->edges.emplace(graph->nodes[random() % i].get(),
                             graph->nodes[i].get());
      }
    }
    const auto page = static_cast<int>(addresses[0] >> 8 & 0xFFFF);
    if (follows != 0 || special.type != CU_GRAPH_NODE_TYPE_EMPTY) {
      graph->nodes.push_back(std::make_unique<Node>(special));
    }
    Node* const last = graph->nodes.back().get();
    if (follows == 1) last->grid = page;
    if (follows == 2) last->arguments = {{addresses[0] - addresses[1]}};
    if (follows == 3 && page % 2 == 1) graph->nodes.pop_back();
  }

  RnnStatus Record(const Graph::Addresses& addresses,
                   Recording* recording) const {
    return Recording::Make(
        kCaptureStream,
        [&]() -> RnnStatus {
          if (++num_recorded % 7 == 0) ++stack;
          AddTo(addresses, capturing);
          if (follows == 4 && (addresses[0] >> 8 & 1) != 0) {
            return {RnnStatus::Code::kInternal, "no memory to copy"};
          }
          if (failing == "no memory") throw std::bad_alloc();
          if (failing == "no thread") {
            throw std::system_error(EAGAIN, std::generic_category());
          }
          if (failing == "enqueue") {
            return {RnnStatus::Code::kInternal, "no pass"};
          }
          return {};
        },
        recording);
  }

  // Checks that the last launch did the pass's work over these buffers.
  void CheckLaunched(const Graph::Addresses& addresses) const {
    FakeGraph graph;
    AddTo(addresses, &graph);
    const Exec expected = Instance(graph);
    Check(WorkOf(launched) == WorkOf(expected), "other work");
    Check(OrderOf(launched) == OrderOf(expected), "another order");
  }

  // Runs the pass over the buffers of a call; the work must be done exactly
  // once.
  void Run(unsigned call = 0, bool may_make = true) const {
    ReplayablePass pass;
    pass.key = key;
    pass.stream = kStream;
    pass.addresses = AddressesOf(call);
    pass.may_make = may_make;
    pass.log = [](const std::string&) {};
    pass.record = [this](const Graph::Addresses& addresses,
                         Recording* recording) {
      return Record(addresses, recording);
    };
    if (only_counts) {
      // Reading the counts would order what threads do.
      if (!graphs->Replay(pass)) ++num_direct;
      return;
    }
    ++stack;
    const int launches = num_launches;
    const bool is_replayed = graphs->Replay(pass);
    if (!is_replayed) ++num_direct;
    Check(num_launches == launches + is_replayed, "a pass is run once");
    Check(capturing == nullptr, "a capture is left");
    if (num_launches != launches && IsCompared()) CheckLaunched(pass.addresses);
  }
};

void Reset() {
  num_direct = num_launches = num_attempts = num_captures = num_rewritten = 0;
  failing.clear();
}

Pass NewPass(unsigned seed, int num_nodes = 5) {
  static int number = 0;
  return {"pass " + std::to_string(number++), seed, num_nodes, {}, 0};
}

void CheckUses(unsigned seed) {
  Reset();
  const Pass pass = NewPass(seed, 1 + static_cast<int>(seed % 100));
  refuses_kernels = seed % 5 == 0;
  pass.Run();
  Check(num_direct == 1 && num_captures == 0, "a first use is direct");
  NewPass(seed).Run();
  pass.Run(0, /*may_make=*/false);
  Check(num_direct == 3 && num_captures == 0, "passes are kept apart");
  for (int i = 0; i < 5; ++i) pass.Run();
  const int captures = num_captures;
  Check(num_direct == 3 && captures <= kMostCaptures && num_launches == 5,
        "later uses are replays");
  pass.Run(0, /*may_make=*/false);
  Check(num_launches == 6, "what was made needs not be made");
  is_callers_capture = true;
  pass.Run();
  Check(num_direct == 4, "a replay in the caller's capture");
  is_callers_capture = false;
  auto& libraries = const_cast<GpuLibraries&>(Gpu());
  libraries.has_graphs = false;
  pass.Run();
  Check(num_direct == 5, "a replay by an old driver");
  libraries.has_graphs = true;
  pass.Run();
  Check(num_launches == 7 && num_captures == captures, "the graph stays");
  refuses_kernels = false;
}

// While a call fails, passes are enqueued as they are, and only few uses try
// again. Later, passes are replayed.
void CheckFailures(unsigned seed) {
  for (const char* const call :
       {"begin", "enqueue", "no memory", "no thread", "end", "nodes",
        "arguments", "instantiate", "rewrite", "launch"}) {
    being_checked = std::string("failures of ") + call;
    Reset();
    const Pass pass = NewPass(seed, 20);
    const bool is_late = seed % 2 == 1 || std::string(call) == "rewrite";
    for (unsigned i = 0; is_late && i < 30; ++i) pass.Run(i);
    num_captures = num_direct = num_launches = num_attempts = 0;
    failing = call;
    for (unsigned i = 0; i < 1000; ++i) pass.Run(1000 + i);
    if (!is_late) {
      Check(num_direct == 1000 && num_launches == 0, "a failure falls back");
    }
    Check(num_captures <= 6 * kMostCaptures && num_attempts <= 1012,
          "few attempts");
    failing.clear();
    for (unsigned i = 0; i < 3000; ++i) pass.Run(i);
    Check(num_launches > 1500, "a failure passes");
  }
  // Without the node of our kernel, a fill stays what it is.
  Reset();
  failing = "kernel";
  const Pass pass = NewPass(seed, 50);
  for (int i = 0; i < 3; ++i) pass.Run();
  Check(num_launches == 2, "a pass without our kernel");
}

// A thread may have taken a graph from the cache before a launch of it failed
// in another thread. It runs the pass over its own buffers all the same.
void CheckUseAfterFailures(unsigned seed) {
  for (const std::string call : {"instantiate", "second rewrite"}) {
    being_checked = "a graph after a failure of " + call;
    Reset();
    const Pass pass = NewPass(seed, 50);
    Graph graph;
    const auto launch = [&](unsigned number, bool may_make) {
      bool is_launched;
      const Graph::Addresses addresses = AddressesOf(number);
      const RnnStatus status = graph.Launch(
          kStream, addresses,
          [&](const Graph::Addresses& at, Recording* recording) {
            return pass.Record(at, recording);
          },
          may_make, &is_launched);
      Check(status.ok() == is_launched, "a failure or a launch");
      if (is_launched) pass.CheckLaunched(addresses);
      return is_launched;
    };
    const bool is_late = call == "second rewrite";
    if (is_late) Check(launch(0, true), "a launch");
    failing = call;
    Check(!launch(1, !is_late), "a failure");
    failing.clear();
    for (const unsigned number : {0, 1, 2}) {
      Check(launch(number, !is_late), "a launch after a failure");
    }
  }
}

void CheckRefusals(unsigned seed) {
  Node copy;
  copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  copy.says_whose_memory = false;
  std::vector<Node> refused(4, copy);
  refused[0].from = kPinned;
  refused[1].to = kPageable;
  refused[2].type = CU_GRAPH_NODE_TYPE_HOST;
  refused[3].type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  for (const Node& node : refused) {
    Reset();
    Pass pass = NewPass(seed);
    pass.special = node;
    for (int i = 0; i < 20; ++i) pass.Run();
    Check(num_direct == 20 && num_captures == 1, "a node is refused");
  }
  Reset();
  const Pass large = NewPass(seed, 16385);
  for (int i = 0; i < 20; ++i) large.Run();
  Check(num_direct == 20 && num_captures <= kMostCaptures,
        "a graph that is too large");
}

// Passes that push each other out are not captured in turn, and the memory of
// graphs has a bound, after which others are replayed all the same.
void CheckBounds(unsigned seed) {
  constexpr int kNodes = 400;
  constexpr int kFit = (512 << 20) / (kNodes * (16 << 10));
  Random random(seed);
  Reset();
  only_counts = true;
  const int shapes = 2 * kFit + random() % 100;
  std::vector<Pass> passes;
  for (int i = 0; i < shapes; ++i) passes.push_back(NewPass(seed, kNodes));
  for (int i = 0; i < 40 * shapes; ++i) {
    passes[seed % 2 == 0 ? i % shapes : random() % shapes].Run();
  }
  only_counts = false;
  Check(num_execs <= kFit + 600, "too much memory");
  Check(num_captures < 2 * kMostCaptures * shapes, "captured in turn");
  const int launches = num_launches;
  const Pass other = NewPass(seed, kNodes);
  for (int i = 0; i < 100; ++i) other.Run();
  Check(num_launches - launches >= 85, "never captured");
  // Passes that come once push out what others know of, and leave nothing.
  for (int i = 0; i < 5000; ++i) NewPass(seed).Run();
  Check(num_execs == 0, "graphs of passes that are forgotten");
}

// Passes are launched over any buffers. They get instances of their own, as far
// as there is room; others are written into one that is there.
void CheckBuffers(unsigned seed) {
  Reset();
  const int before = num_execs;
  const Pass pass = NewPass(seed, 30);
  for (unsigned i = 0; i < 300; ++i) pass.Run(i);
  const int captures = num_captures;
  Check(num_direct == 1 && captures <= kMostCaptures,
        "other buffers are replayed");
  Check(num_execs - before == 16 && num_rewritten > 300, "instances");
  for (unsigned i = 0; i < 400; ++i) pass.Run(1000 + i % 10);
  num_rewritten = 0;
  for (unsigned i = 0; i < 100; ++i) pass.Run(1000 + i % 10);
  Check(num_rewritten == 0, "an instance is rewritten for nothing");
  pass.Run(5000, /*may_make=*/false);
  Check(num_captures == captures && num_direct == 1,
        "what is made runs anywhere");
  const Pass large = NewPass(seed, 1000);
  for (unsigned i = 0; i < 300; ++i) large.Run(i);
  Check(num_execs - before == 18, "a large graph has two instances");
  // None of these nodes is kRefused, so new instances are not rewritten.
  num_rewritten = 0;
  const Pass plain = NewPass(seed, 4);
  for (const unsigned call : {0, 0, 1}) plain.Run(call);
  Check(num_rewritten == 0, "a new instance is rewritten");
  for (int follows = 1; follows <= 4; ++follows) {
    Reset();
    Pass fixed = NewPass(seed);
    fixed.special.type = CU_GRAPH_NODE_TYPE_KERNEL;
    fixed.special.number = 8;
    fixed.follows = follows;
    for (unsigned i = 0; i < 100; ++i) fixed.Run(i % 2);
    Check(
        num_captures == kMostCaptures && num_direct == 50 && num_launches == 50,
        "what follows addresses runs over one set of them");
  }
}

// Threads may use the same passes at the same time; each use runs one once.
void CheckThreads() {
  Reset();
  only_counts = true;
  failing = "some launches";
  const Pass passes[] = {NewPass(1), NewPass(2), NewPass(3)};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int use = 0; use < 500; ++use) {
        passes[use % 3].Run(use % 9);
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  only_counts = false;
  failing.clear();
  Check(num_captures < 20 * kMostCaptures, "several captures of a pass");
  Check(num_direct + num_launches == 2000 && num_launches > 0, "uses");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  if (argc == 1) {
    cudnn_rnn_tf::CheckThreads();
    return 0;
  }
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::graphs.emplace();
    cudnn_rnn_tf::CheckBuffers(seed);
    cudnn_rnn_tf::CheckThreads();
    cudnn_rnn_tf::CheckUses(seed);
    cudnn_rnn_tf::CheckFailures(seed);
    cudnn_rnn_tf::CheckUseAfterFailures(seed);
    cudnn_rnn_tf::CheckRefusals(seed);
    cudnn_rnn_tf::CheckBounds(seed);
  });
}
