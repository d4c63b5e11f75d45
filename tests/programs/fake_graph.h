// CUDA graphs of fake nodes, for the programs that run on fake GPUs.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPH_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPH_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

using FakeEdges = std::vector<std::pair<size_t, size_t>>;

// A graph whose nodes have an `index`, their place in the graph.
template <typename Node>
struct FakeGraph {
  std::vector<std::unique_ptr<Node>> nodes;
  FakeEdges edges;
  // Nodes that were added, and those that were destroyed. Once there are as
  // many of both, the added ones take the places of the destroyed ones, in
  // order.
  std::vector<std::unique_ptr<Node>> added, destroyed;

  // The graph that is being captured, the one that was last added to, the one
  // that was last read, and the number of graphs that are not destroyed.
  inline static FakeGraph* capturing = nullptr;
  inline static FakeGraph* last_added_to = nullptr;
  inline static const FakeGraph* last_read = nullptr;
  inline static int count = 0;

  FakeGraph() { ++count; }
  ~FakeGraph() { --count; }

  static FakeGraph* Of(CUgraph graph) {
    return reinterpret_cast<FakeGraph*>(graph);
  }
  static Node* NodeOf(CUgraphNode node) {
    return reinterpret_cast<Node*>(node);
  }
  static std::pair<size_t, size_t> Edge(CUgraphNode from, CUgraphNode to) {
    return {NodeOf(from)->index, NodeOf(to)->index};
  }
  CUgraphNode Handle(size_t index) const {
    return reinterpret_cast<CUgraphNode>(nodes[index].get());
  }

  CUgraphNode Add(Node node) {
    last_added_to = this;
    node.index = nodes.size() + added.size();
    added.push_back(std::make_unique<Node>(std::move(node)));
    return reinterpret_cast<CUgraphNode>(added.back().get());
  }
  void DestroyNode(CUgraphNode node) {
    const size_t index = NodeOf(node)->index;
    destroyed.push_back(std::move(nodes[index]));
    edges.erase(std::remove_if(edges.begin(), edges.end(),
                               [&](const auto& edge) {
                                 return edge.first == index ||
                                        edge.second == index;
                               }),
                edges.end());
    if (destroyed.size() < added.size()) return;
    for (size_t place = 0, next = 0; next < added.size(); ++place) {
      if (nodes[place] != nullptr) continue;
      const size_t before = added[next]->index;
      for (auto& [from, to] : edges) {
        if (from == before) from = place;
        if (to == before) to = place;
      }
      nodes[place] = std::move(added[next++]);
      nodes[place]->index = place;
    }
    added.clear();
    destroyed.clear();
  }

  // Adds the driver's functions that capture, read and change graphs, except
  // those that read or change nodes.
  static void AddTo(CudaDriver* cuda) {
    cuda->cuStreamBeginCapture = [](CUstream, CUstreamCaptureMode) {
      capturing = new FakeGraph;  // The driver's until cuGraphDestroy.
      return CUDA_SUCCESS;
    };
    cuda->cuStreamEndCapture = [](CUstream, CUgraph* graph) {
      *graph = reinterpret_cast<CUgraph>(std::exchange(capturing, nullptr));
      return CUDA_SUCCESS;
    };
    cuda->cuGraphDestroy = [](CUgraph graph) {
      delete Of(graph);
      return CUDA_SUCCESS;
    };
    cuda->cuGraphGetNodes = [](CUgraph graph, CUgraphNode* handles,
                               size_t* size) {
      last_read = Of(graph);
      *size = last_read->nodes.size();
      for (size_t i = 0; handles != nullptr && i < *size; ++i) {
        handles[i] = last_read->Handle(i);
      }
      return CUDA_SUCCESS;
    };
    cuda->cuGraphGetEdges_v2 = [](CUgraph graph, CUgraphNode* from,
                                  CUgraphNode* to, CUgraphEdgeData*,
                                  size_t* size) {
      const FakeGraph& read = *Of(graph);
      *size = read.edges.size();
      for (size_t i = 0; from != nullptr && i < *size; ++i) {
        from[i] = read.Handle(read.edges[i].first);
        to[i] = read.Handle(read.edges[i].second);
      }
      return CUDA_SUCCESS;
    };
    cuda->cuGraphAddDependencies_v2 = [](CUgraph graph, const CUgraphNode* from,
                                         const CUgraphNode* to,
                                         const CUgraphEdgeData*, size_t size) {
      for (size_t i = 0; i < size; ++i) {
        Of(graph)->edges.push_back(Edge(from[i], to[i]));
      }
      return CUDA_SUCCESS;
    };
  }
};

// An executable graph, which copies a graph's nodes and edges.
template <typename Node>
struct FakeExec {
  std::vector<Node> nodes;
  FakeEdges edges;

  inline static int count = 0;  // Graphs that are not destroyed.

  explicit FakeExec(const FakeGraph<Node>& graph) : edges(graph.edges) {
    for (const std::unique_ptr<Node>& node : graph.nodes) {
      nodes.push_back(*node);
    }
    ++count;
  }
  ~FakeExec() { --count; }

  static FakeExec* Of(CUgraphExec exec) {
    return reinterpret_cast<FakeExec*>(exec);
  }
  static CUresult Destroy(CUgraphExec exec) {
    delete Of(exec);
    return CUDA_SUCCESS;
  }
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPH_H_
