// Replays random passes on a fake driver. Checks, without a GPU, that each
// launch runs over the addresses it was given, and how much is rewritten or
// made for it.
//
//   replay_on_fake_driver SEEDS
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/replay.h"
#include "tests/programs/fake_driver.h"

namespace cudnn_rnn_tf {
namespace {

using Random = std::mt19937;

// A pass of random nodes. Its kernels take numbers, addresses, and structures
// with both; other nodes fill or copy.
struct Pass {
  unsigned seed;
  int num_nodes, num_buffers;

  RnnStatus operator()(const CallAddresses& addresses) const {
    Random random(seed);
    const auto address = [&] {
      const CUdeviceptr distance =
          random() % 4 == 0 ? random() % 100000 : random() % 64 * 16;
      return addresses[random() % num_buffers] + distance;
    };
    for (int i = 0; i < num_nodes; ++i) {
      auto node = std::make_unique<FakeNode>();
      node->index = i;
      node->refuses = random() % 9 == 0;
      node->grid = 1 + random() % 9;
      switch (random() % 12) {
        case 0:
          node->type = CU_GRAPH_NODE_TYPE_MEMSET;
          node->element_size = 1 << random() % 3;
          node->destination = address();
          node->value =
              random() % 2 == 0 ? 0 : random() >> (32 - 8 * node->element_size);
          node->height = random() % 5 == 0 ? 2 : 1;
          if (random() % 9 == 0) node->grid = 0;
          // Many fills are of whole words, and some of them are large.
          if (random() % 2 == 0) {
            node->grid *= random() % 3 == 0 ? 1 << (10 + random() % 4) : 4;
          }
          if (random() % 2 == 0) node->destination &= ~CUdeviceptr{15};
          break;
        case 1:
          node->type = CU_GRAPH_NODE_TYPE_MEMCPY;
          node->destination = address();
          node->source = address();
          node->says_whose_memory = random() % 2 == 0;
          break;
        case 2:
          break;  // Empty.
        default:
          node->type = CU_GRAPH_NODE_TYPE_KERNEL;
          node->is_cooperative = random() % 5 == 0;
          for (unsigned count = random() % 6; count > 0; --count) {
            Bytes argument = BytesOf(address());
            switch (random() % 3) {
              case 0:
                argument = BytesOf(static_cast<int>(random()));
                break;
              case 1:
                for (unsigned char byte :
                     BytesOf(random() % 5 == 0 ? CUdeviceptr{0} : address())) {
                  argument.push_back(byte);
                }
                argument.resize(argument.size() + 5, 7);
                break;
              default:
                break;
            }
            node->arguments.push_back(std::move(argument));
          }
      }
      Graph::capturing->nodes.push_back(std::move(node));
      if (i == 0) continue;
      Graph::capturing->edges.emplace_back(random() % i, i);
    }
    return {};
  }
};

std::unique_ptr<Replay> Capture(const Pass& pass) {
  std::array<bool, kNumCallBuffers> used = {};
  std::fill_n(used.begin(), pass.num_buffers, true);
  std::unique_ptr<Replay> replay;
  const RnnStatus status =
      Replay::Capture(nullptr, CUdeviceptr{1} << 32, used, pass, &replay);
  Check(status.ok(), status.message);
  return replay;
}

// Returns the kernel that does a fill. If no kernel can do it, returns the fill
// itself.
FakeNode FilledByKernel(const FakeNode& fill) {
  const unsigned bytes = fill.grid * fill.element_size;
  if (fill.type != CU_GRAPH_NODE_TYPE_MEMSET || fill.height > 1 || bytes == 0 ||
      bytes % 4 != 0 || fill.destination % 4 != 0 || bytes > 64 << 10) {
    return fill;
  }
  FakeNode kernel;
  kernel.type = CU_GRAPH_NODE_TYPE_KERNEL;
  kernel.fills = true;
  Bytes value(4);
  for (unsigned i = 0; i < 4; ++i) {
    value[i] = BytesOf(fill.value)[i % fill.element_size];
  }
  kernel.arguments = {BytesOf(fill.destination), BytesOf(bytes / 4), value};
  return kernel;
}

// Checks that `launch` enqueues the nodes of the pass over `addresses`. In
// graphs, kernels take the place of small fills.
void CheckLaunch(const Pass& pass, const CallAddresses& addresses,
                 bool is_graph, const std::function<RnnStatus()>& launch) {
  Graph graph;
  Graph::capturing = &graph;
  pass(addresses);
  launched.clear();
  const RnnStatus status = launch();
  Graph::capturing = nullptr;
  Check(status.ok(), status.message);
  size_t next = 0;
  for (const std::unique_ptr<FakeNode>& expected : graph.nodes) {
    if (expected->type == CU_GRAPH_NODE_TYPE_EMPTY) continue;
    Check(next < launched.size(), "a node is not launched");
    Check(
        launched[next++] == (is_graph ? FilledByKernel(*expected) : *expected),
        "a launch of something else");
  }
  Check(next == launched.size(), "too much is launched");
}

void Launch(const Pass& pass, const CallAddresses& addresses, Replay* replay) {
  CheckLaunch(pass, addresses, /*is_graph=*/true,
              [&] { return replay->Launch(nullptr, addresses); });
}

FakeEdges Sorted(FakeEdges edges) {
  std::sort(edges.begin(), edges.end());
  return edges;
}

FakeEdges EdgesOf(const Pass& pass) {
  Graph graph;
  Graph::capturing = &graph;
  pass({});
  Graph::capturing = nullptr;
  return Sorted(graph.edges);
}

CallAddresses RandomAddresses(Random* random) {
  CallAddresses addresses;
  for (CUdeviceptr& address : addresses) {
    address = (CUdeviceptr{1} << 40) + CUdeviceptr{(*random)()} * 256;
  }
  return addresses;
}

// The addresses are sets that come again, sets that differ from others in one
// buffer only, and sets that come once.
void CheckAddresses(unsigned seed) {
  Random random(seed);
  const Pass pass = {seed, 1 + static_cast<int>(random() % 200),
                     1 + static_cast<int>(random() % kNumCallBuffers)};
  std::unique_ptr<Replay> replay = Capture(pass);
  const FakeEdges edges = EdgesOf(pass);
  std::vector<CallAddresses> sets(1 + random() % 90);
  for (size_t i = 0; i < sets.size(); ++i) {
    sets[i] = RandomAddresses(&random);
    if (i > 0 && random() % 2 == 0) {
      sets[i] = sets[random() % i];
      sets[i][random() % pass.num_buffers] += 256;
    }
  }
  for (int step = 0; step < 400; ++step) {
    const size_t index = random() % 2 == 0 ? step : random();
    Launch(pass,
           random() % 10 == 0 ? RandomAddresses(&random)
                              : sets[index % sets.size()],
           replay.get());
    Check(Sorted(launched_edges) == edges, "nodes wait for others");
    if (step == 200) replay = Capture(pass);
    Check(replay->bytes() == Replay::TotalBytes(), "bytes");
  }
  replay.reset();
  Check(Exec::count == 0 && Graph::count == 0 && Replay::TotalBytes() == 0,
        "something is left");
}

// The nodes of a pass that runs once are launched one by one, over the pass's
// own addresses.
void CheckOnce(unsigned seed) {
  Random random(seed);
  const Pass pass = {seed, 100, kNumCallBuffers};
  const CallAddresses addresses = RandomAddresses(&random);
  GraphNode::Kernels kernels;
  CapturedGraph graph;
  const auto capture = [&](bool in_order) {
    return CapturedGraph::Capture(
        nullptr,
        [&] {
          const RnnStatus status = pass(addresses);
          if (!in_order) Graph::capturing->edges.emplace_back(60, 40);
          return status;
        },
        &kernels, &graph);
  };
  Check(capture(true).ok() && graph.is_in_order(), "a capture in order");
  CheckLaunch(pass, addresses, /*is_graph=*/false, [&] {
    bool has_begun;
    return graph.LaunchNodes(nullptr, &has_begun);
  });
  Check(capture(false).ok() && !graph.is_in_order(),
        "nodes before those that they wait for");
}

// Loops over random sets of addresses. In the second half, nothing may be made
// or rewritten.
void CheckSettles(const Pass& pass, size_t num_sets, int rounds,
                  const char* failure, Random* random, Replay* replay) {
  std::vector<CallAddresses> sets(num_sets);
  for (CallAddresses& set : sets) set = RandomAddresses(random);
  for (int round = 0; round < rounds; ++round) {
    if (round == rounds / 2) num_instantiated = num_rewritten = 0;
    for (const CallAddresses& set : sets) Launch(pass, set, replay);
  }
  Check(num_instantiated == 0 && num_rewritten == 0, failure);
}

void CheckLoop(unsigned seed) {
  Random random(seed);
  const Pass pass = {seed, 100, kNumCallBuffers};
  CheckSettles(pass, 1 + seed % 20, 6, "a loop does not settle", &random,
               Capture(pass).get());
}

// Loops must settle even if other replays have taken all the memory there is.
// One loop has few nodes and several sets; another has many nodes and two sets,
// and comes after addresses that do not come again.
void CheckLoopsBesideOthers(unsigned seed) {
  Random random(seed);
  std::vector<std::unique_ptr<Replay>> others;
  for (unsigned i = 0; Replay::TotalBytes() < size_t{256} << 20; ++i) {
    const Pass pass = {seed + i, 4000, kNumCallBuffers};
    others.push_back(Capture(pass));
    Launch(pass, RandomAddresses(&random), others.back().get());
  }
  const Pass small = {seed, 6, kNumCallBuffers};
  std::unique_ptr<Replay> replay = Capture(small);
  CheckSettles(small, 5, 6, "a small loop beside others does not settle",
               &random, replay.get());
  Check(replay->bytes() <= size_t{1} << 20, "more than is allowed");

  const Pass large = {seed, 3000, kNumCallBuffers};
  replay = Capture(large);
  for (unsigned i = 0; i < 1 + seed % 3; ++i) {
    Launch(large, RandomAddresses(&random), replay.get());
  }
  CheckSettles(large, 2, 40, "a large loop beside others does not settle",
               &random, replay.get());
  Check(replay->bytes() <= size_t{2 * 3000 * 16} << 10,
        "more than two instances");
}

// Addresses that never come again must share a few instances, and leave room
// for the loops of others.
void CheckNoLoop(unsigned seed) {
  Random random(seed);
  const Pass pass = {seed, 600, kNumCallBuffers};
  std::unique_ptr<Replay> replay = Capture(pass), other = Capture(pass);
  num_instantiated = 0;
  for (int step = 0; step < 100; ++step) {
    Launch(pass, RandomAddresses(&random), replay.get());
    Launch(pass, RandomAddresses(&random), other.get());
  }
  Check(num_instantiated <= 4, "instances for addresses that do not return");
  CheckSettles(pass, 4, 6, "a loop after that does not settle", &random,
               Capture(pass).get());
}

// The memory of instances has bounds, however many addresses come again.
void CheckBounds(unsigned seed) {
  Random random(seed);
  const Pass small = {seed, 10, kNumCallBuffers};
  const Pass large = {seed, 400, kNumCallBuffers};
  std::vector<std::unique_ptr<Replay>> replays;
  const auto loop = [&](const Pass& pass, size_t num_sets) {
    replays.push_back(Capture(pass));
    std::vector<CallAddresses> sets(num_sets);
    for (CallAddresses& set : sets) set = RandomAddresses(&random);
    for (int round = 0; round < 4; ++round) {
      for (const CallAddresses& set : sets) {
        Launch(pass, set, replays.back().get());
      }
    }
    return replays.back()->bytes();
  };
  Check(loop(small, 63) == size_t{63 * 10 * 16} << 10, "not all have one");
  Check(loop(small, 80) == size_t{64 * 10 * 16} << 10, "not 64 instances");
  for (int i = 0; i < 3; ++i) {
    Check(loop(large, 40) <= size_t{128} << 20, "too many of a pass");
  }
  Check(Replay::TotalBytes() <= size_t{256 + 2 * 7} << 20, "too many of all");
}

// Two sets that differ in one buffer have an instance each if that buffer tells
// layers apart or the pass has few nodes.
void CheckOneBuffer(unsigned seed) {
  Random random(seed);
  const auto num_made = [&](int num_nodes, CallBuffer buffer) {
    const Pass pass = {seed, num_nodes, kNumCallBuffers};
    std::unique_ptr<Replay> replay = Capture(pass);
    CallAddresses sets[2] = {RandomAddresses(&random)};
    sets[1] = sets[0];
    sets[1][buffer] += 256;
    num_instantiated = 0;
    for (int i = 0; i < 6; ++i) Launch(pass, sets[i % 2], replay.get());
    return num_instantiated;
  };
  Check(num_made(100, kOutput) == 2, "two places of a program share a graph");
  Check(num_made(100, kParams) == 2, "two layers share a graph");
  Check(num_made(100, kInput) == 1, "two graphs for two inputs");
  Check(num_made(32, kInput) == 2, "one small graph for two inputs");
  Check(num_made(33, kInput) == 1, "two larger graphs for two inputs");
}

// Two layers that share a pass have a graph each, in which only nodes that name
// a moved buffer are rewritten. If no more graphs can be made, they share one.
void CheckLayers(unsigned seed) {
  Random random(seed);
  const Pass pass = {seed, 100, kNumCallBuffers};
  std::unique_ptr<Replay> replay = Capture(pass);
  CallAddresses layers[] = {RandomAddresses(&random), RandomAddresses(&random)};
  for (const CallAddresses& layer : layers) Launch(pass, layer, replay.get());
  num_instantiated = num_rewritten = 0;
  for (int step = 0; step < 50; ++step) {
    for (CallAddresses& layer : layers) {
      layer[kInput] += 256;
      Launch(pass, layer, replay.get());
    }
  }
  Check(num_instantiated == 0, "a layer's graph is not its own");
  Check(num_rewritten < 100 * pass.num_nodes / 2, "too much is rewritten");
  replay = Capture(pass);
  Check(!replay->was_launched(), "was launched");
  Launch(pass, layers[0], replay.get());
  num_instantiated = 0;
  CheckLaunch(pass, layers[1], /*is_graph=*/true, [&] {
    return replay->Launch(nullptr, layers[1], /*may_instantiate=*/false);
  });
  Check(num_instantiated == 0, "a graph although none may be made");
  refuses_instantiating = true;
  Launch(pass, layers[0], replay.get());
  replay = Capture(pass);
  Check(!replay->Launch(nullptr, layers[0]).ok(), "a launch without a graph");
  refuses_instantiating = false;
  Launch(pass, layers[0], replay.get());
}

// Changes a node of the given type in every capture whose number is a multiple
// of `of_captures`, and checks that the pass is then refused.
void CheckRefused(const Pass& pass, const char* what, CUgraphNodeType type,
                  const std::function<void(FakeNode*)>& change,
                  int of_captures = 2) {
  std::array<bool, kNumCallBuffers> used;
  used.fill(true);
  std::unique_ptr<Replay> replay;
  int captures = 0;
  const RnnStatus status = Replay::Capture(
      nullptr, CUdeviceptr{1} << 32, used,
      [&](const CallAddresses& addresses) {
        CRNN_RETURN_IF_ERROR(pass(addresses));
        const auto& nodes = Graph::capturing->nodes;
        const auto changed =
            std::find_if(nodes.begin(), nodes.end(),
                         [&](const auto& node) { return node->type == type; });
        Check(changed != nodes.end(), "a node of the type");
        if (++captures % of_captures == 0) change(changed->get());
        return RnnStatus();
      },
      &replay);
  Check(status.code == RnnStatus::Code::kUnimplemented && replay == nullptr,
        std::string(what) + " is replayed");
}

void CheckRefusals() {
  const Pass pass = {1, 50, kNumCallBuffers};
  // The nodes in which captures are made to differ.
  const auto kernel = CU_GRAPH_NODE_TYPE_KERNEL,
             fill = CU_GRAPH_NODE_TYPE_MEMSET, copy = CU_GRAPH_NODE_TYPE_MEMCPY;
  CheckRefused(pass, "a grid", kernel, [](FakeNode* node) { ++node->grid; });
  CheckRefused(pass, "a cooperative launch", kernel, [](FakeNode* node) {
    node->is_cooperative = !node->is_cooperative;
  });
  CheckRefused(pass, "what is filled in", fill,
               [](FakeNode* node) { node->value ^= 1; });
  CheckRefused(pass, "how much is filled", fill,
               [](FakeNode* node) { ++node->grid; });
  CheckRefused(pass, "rows that are filled", fill,
               [](FakeNode* node) { ++node->height; });
  CheckRefused(pass, "how much is copied", copy,
               [](FakeNode* node) { ++node->grid; });
  CheckRefused(pass, "an edge", kernel,
               [](FakeNode*) { Graph::capturing->edges.pop_back(); });
  for (const CUdeviceptr host : {kPinned, kPageable}) {
    const auto copy_from_host = [=](FakeNode* node) {
      node->says_whose_memory = false;
      node->source = host;
    };
    CheckRefused(pass, "the host's memory", copy, copy_from_host,
                 /*of_captures=*/1);
  }
  std::unique_ptr<Replay> replay = Capture(pass);
  refuses_rewriting = true;
  Random random(1);
  Check(!replay->Launch(nullptr, RandomAddresses(&random)).ok(),
        "a launch although nodes were not set");
  refuses_rewriting = false;
  // If kernels are refused, memsets stay memsets.
  refuses_kernels = true;
  replay = Capture(pass);
  const CallAddresses addresses = RandomAddresses(&random);
  CheckLaunch(pass, addresses, /*is_graph=*/false,
              [&] { return replay->Launch(nullptr, addresses); });
  refuses_kernels = false;
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  return cudnn_rnn_tf::RunSeeds(argc, argv, [](unsigned seed) {
    cudnn_rnn_tf::CheckAddresses(seed);
    cudnn_rnn_tf::CheckOnce(seed);
    cudnn_rnn_tf::CheckLoop(seed);
    cudnn_rnn_tf::CheckNoLoop(seed);
    cudnn_rnn_tf::CheckBounds(seed);
    cudnn_rnn_tf::CheckOneBuffer(seed);
    cudnn_rnn_tf::CheckLayers(seed);
    cudnn_rnn_tf::CheckLoopsBesideOthers(seed);
    cudnn_rnn_tf::CheckRefusals();
  });
}
