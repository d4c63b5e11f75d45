// A fake driver whose device memory is the host's, with streams, events and
// graphs that run.
#ifndef CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_
#define CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

// These addresses are no device memory.
constexpr CUdeviceptr kOfHost = 1, kUnknown = 2;

struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::function<void()> work;
  // The arrays that it uses. Nodes that share one that either writes run in the
  // order in which they were enqueued, as do all where these are empty.
  std::set<int> reads = {}, writes = {};
  CUDA_MEMSET_NODE_PARAMS fill = {};
  CUDA_MEMCPY3D copy = {};
  std::set<Node*> before = {};  // The nodes for which it waits.
};
using FakeGraph = std::vector<std::unique_ptr<Node>>;
using Exec = std::vector<std::function<void()>>;  // In an order that it allows.

// Memory ends with this many bytes, which nothing may write.
constexpr size_t kGuard = 1 << 12;

// Each thread has streams of its own.
inline thread_local std::map<CUstream, std::unique_ptr<FakeGraph>> captures;
inline std::string failing;  // The name of the call that fails.
inline int num_captures = 0, num_execs = 0, num_attempts = 0, num_frees = 0;
inline size_t largest_memory = size_t{1} << 40, total_memory = 0;
inline std::map<CUdeviceptr, size_t> allocated;
inline std::set<CUdeviceptr> freed;  // A part of that.
// The fills of the last graph that a kernel could do.
inline int num_small_fills = 0;
inline bool is_callers_capture = false;
inline std::mt19937 order(1);
// Unless work runs at once, it waits in its stream until somebody lets it run.
// It returns false while it has to wait for another stream.
inline bool runs_at_once = true;
inline std::map<CUstream, std::deque<std::function<bool()>>> queues;
struct Event {
  int recorded = 0, reached = 0;
};

inline CUresult Outcome(const char* call) {
  return failing == call ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

template <typename T>
T* Of(void* handle) {
  return static_cast<T*>(handle);
}

inline bool Share(const std::set<int>& some, const std::set<int>& others) {
  return std::any_of(some.begin(), some.end(),
                     [&](int one) { return others.count(one) > 0; });
}

// Frees all memory of devices that are used no more.
inline void FreeMemory() {
  for (const auto& [memory, bytes] : allocated) {
    char* const made = reinterpret_cast<char*>(memory);
    Check(std::all_of(made + bytes, made + bytes + kGuard,
                      [](char byte) { return byte == 'g'; }),
          "nothing is written past the end of the replay memory");
    std::free(made);
  }
  allocated.clear();
  freed.clear();
}

// Lets random streams run until `is_done`, or as far as they can.
inline void RunStreams(const std::function<bool()>& is_done) {
  while (!is_done()) {
    for (const CUdeviceptr memory : freed) {  // Others use it now.
      std::memset(reinterpret_cast<void*>(memory), 0xDD,
                  std::min<size_t>(allocated.at(memory), 1 << 16));
    }
    std::vector<std::deque<std::function<bool()>>*> some;
    for (auto& [stream, queue] : queues) {
      if (!queue.empty()) some.push_back(&queue);
    }
    if (some.empty()) return;
    auto* const queue = some[order() % some.size()];
    if (queue->front()()) queue->pop_front();
  }
}

inline CUresult Enqueue(CUstream stream, Node node) {
  const auto found = captures.find(stream);
  if (found == captures.end() && runs_at_once) {
    if (node.work) node.work();
  } else if (found == captures.end()) {
    queues[stream].push_back([work = std::move(node.work)] {
      if (work) work();
      return true;
    });
  } else {
    FakeGraph& graph = *found->second;
    const bool is_alone = node.reads.empty() && node.writes.empty() &&
                          node.type != CU_GRAPH_NODE_TYPE_EMPTY;
    if (is_alone && !graph.empty()) node.before = {graph.back().get()};
    for (const auto& other : graph) {
      if (!is_alone && (Share(node.writes, other->reads) ||
                        Share(node.writes, other->writes) ||
                        Share(node.reads, other->writes))) {
        node.before.insert(other.get());
      }
    }
    graph.push_back(std::make_unique<Node>(std::move(node)));
  }
  return CUDA_SUCCESS;
}

inline CUresult EnqueueWork(CUstream stream, std::function<void()> work) {
  Node node;
  node.work = std::move(work);
  return Enqueue(stream, std::move(node));
}

inline void FillWith(const CUDA_MEMSET_NODE_PARAMS& fill) {
  for (size_t i = 0; i < fill.width * fill.height; ++i) {
    std::memcpy(reinterpret_cast<char*>(fill.dst) + i * fill.elementSize,
                &fill.value, fill.elementSize);
  }
}

// Returns the nodes that come before a node, or after it.
inline CUresult Neighbours(const std::vector<Node*>& found, CUgraphNode* nodes,
                           size_t* count) {
  *count = std::min(*count, found.size());
  std::copy_n(reinterpret_cast<CUgraphNode const*>(found.data()), *count,
              nodes);
  return CUDA_SUCCESS;
}
inline FakeGraph* graph_of_nodes;  // The graph that was asked for its nodes.

inline void FakeStreams(CudaDriver* cuda) {
  cuda->cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = is_callers_capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  cuda->cuMemGetInfo = [](size_t* free, size_t* total) {
    *free = 0;
    *total = total_memory;
    return CUDA_SUCCESS;
  };
  cuda->cuMemAlloc = [](CUdeviceptr* memory, size_t bytes) {
    if (bytes > largest_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    Check(bytes % 256 == 0, "the size of the replay memory");
    char* const made =
        static_cast<char*>(std::aligned_alloc(256, bytes + kGuard));
    std::fill_n(made + bytes, kGuard, 'g');
    *memory = reinterpret_cast<CUdeviceptr>(made);
    allocated[*memory] = bytes;
    return Outcome("allocate");
  };
  cuda->cuMemFree = [](CUdeviceptr memory) {
    ++num_frees;
    freed.insert(memory);
    return CUDA_SUCCESS;
  };
  cuda->cuEventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(new Event);
    return CUDA_SUCCESS;
  };
  cuda->cuEventRecord = [](CUevent event, CUstream stream) {
    if (runs_at_once) return Outcome("record");
    queues[stream].push_back(
        [one = Of<Event>(event), time = ++Of<Event>(event)->recorded] {
          one->reached = std::max(one->reached, time);
          return true;
        });
    return CUDA_SUCCESS;
  };
  cuda->cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
    if (runs_at_once) return Outcome("wait");
    queues[stream].push_back(
        [one = Of<Event>(event), time = Of<Event>(event)->recorded] {
          return one->reached >= time;
        });
    return CUDA_SUCCESS;
  };
  cuda->cuEventSynchronize = [](CUevent event) {
    Event* const one = Of<Event>(event);
    RunStreams([&] { return one->reached >= one->recorded; });
    return CUDA_SUCCESS;
  };
  cuda->cuStreamSynchronize = [](CUstream) { return CUDA_SUCCESS; };
  cuda->cuStreamBeginCapture = [](CUstream stream, CUstreamCaptureMode mode) {
    Check(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "the mode of a capture");
    if (Outcome("begin") != CUDA_SUCCESS) return Outcome("begin");
    Check(captures[stream] == nullptr, "a capture within a capture");
    captures[stream] = std::make_unique<FakeGraph>();
    return CUDA_SUCCESS;
  };
  cuda->cuStreamEndCapture = [](CUstream stream, CUgraph* graph) {
    *graph = reinterpret_cast<CUgraph>(captures[stream].release());
    captures.erase(stream);
    return Outcome("end");
  };
  cuda->cuGraphDestroy = [](CUgraph graph) {
    delete Of<FakeGraph>(graph);
    return CUDA_SUCCESS;
  };
  cuda->cuGraphGetNodes = [](CUgraph graph, CUgraphNode* nodes, size_t* count) {
    *count = Of<FakeGraph>(graph)->size();
    for (size_t i = 0; nodes != nullptr && i < *count; ++i) {
      nodes[i] =
          reinterpret_cast<CUgraphNode>((*Of<FakeGraph>(graph))[i].get());
    }
    if (nodes != nullptr) graph_of_nodes = Of<FakeGraph>(graph);
    return Outcome("nodes");
  };
  cuda->cuGraphNodeGetType = [](CUgraphNode node, CUgraphNodeType* type) {
    *type = Of<Node>(node)->type;
    return CUDA_SUCCESS;
  };
  cuda->cuGraphMemsetNodeGetParams = [](CUgraphNode node,
                                        CUDA_MEMSET_NODE_PARAMS* params) {
    *params = Of<Node>(node)->fill;
    // The bits beyond an element are whatever the caller's number had.
    if (params->elementSize < 4) params->value |= 0xAB << 24;
    return CUDA_SUCCESS;
  };
  cuda->cuGraphMemcpyNodeGetParams = [](CUgraphNode node,
                                        CUDA_MEMCPY3D* params) {
    *params = Of<Node>(node)->copy;
    return CUDA_SUCCESS;
  };
  cuda->cuPointerGetAttribute = [](void* type, CUpointer_attribute,
                                   CUdeviceptr address) {
    *static_cast<unsigned*>(type) =
        address == kOfHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    // The driver does not know all of the host's memory.
    return address == kUnknown ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  cuda->cuGraphNodeGetDependencies_v2 = [](CUgraphNode node, CUgraphNode* nodes,
                                           CUgraphEdgeData*, size_t* count) {
    const std::set<Node*>& before = Of<Node>(node)->before;
    return Neighbours({before.begin(), before.end()}, nodes, count);
  };
  cuda->cuGraphNodeGetDependentNodes_v2 = [](CUgraphNode node,
                                             CUgraphNode* nodes,
                                             CUgraphEdgeData*, size_t* count) {
    std::vector<Node*> after;
    for (const auto& other : *graph_of_nodes) {
      if (other->before.count(Of<Node>(node)) > 0) {
        after.push_back(other.get());
      }
    }
    return Neighbours(after, nodes, count);
  };
  cuda->cuGraphAddKernelNode = [](CUgraphNode* node, CUgraph graph,
                                  const CUgraphNode* before, size_t num_before,
                                  const CUDA_KERNEL_NODE_PARAMS* params) {
    if (Outcome("kernel") != CUDA_SUCCESS) return Outcome("kernel");
    CUDA_MEMSET_NODE_PARAMS fill = {};
    unsigned count;
    std::memcpy(&fill.dst, params->kernelParams[0], sizeof(fill.dst));
    std::memcpy(&count, params->kernelParams[1], sizeof(count));
    std::memcpy(&fill.value, params->kernelParams[2], sizeof(fill.value));
    const unsigned threads = params->gridDimX * params->blockDimX;
    Check(threads >= count && threads < count + params->blockDimX &&
              params->blockDimX < count + 32 &&
              params->gridDimY * params->gridDimZ * params->blockDimY *
                      params->blockDimZ ==
                  1,
          "the threads of a kernel");
    fill.elementSize = 4;
    fill.width = count;
    fill.height = 1;
    Node made;
    made.work = [fill] { FillWith(fill); };
    for (size_t i = 0; i < num_before; ++i) {
      made.before.insert(Of<Node>(before[i]));
    }
    Of<FakeGraph>(graph)->push_back(std::make_unique<Node>(std::move(made)));
    *node = reinterpret_cast<CUgraphNode>(Of<FakeGraph>(graph)->back().get());
    return CUDA_SUCCESS;
  };
  cuda->cuGraphAddDependencies_v2 = [](CUgraph, const CUgraphNode* from,
                                       const CUgraphNode* to,
                                       const CUgraphEdgeData*, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Of<Node>(to[i])->before.insert(Of<Node>(from[i]));
    }
    return CUDA_SUCCESS;
  };
  cuda->cuGraphDestroyNode = [](CUgraphNode handle) {
    FakeGraph& graph = *graph_of_nodes;
    for (const auto& other : graph) other->before.erase(Of<Node>(handle));
    graph.erase(std::find_if(graph.begin(), graph.end(), [&](const auto& one) {
      return one.get() == Of<Node>(handle);
    }));
    return CUDA_SUCCESS;
  };
  cuda->cuGraphInstantiate = [](CUgraphExec* exec, CUgraph graph,
                                unsigned long long) {
    if (Outcome("instantiate") != CUDA_SUCCESS) return Outcome("instantiate");
    auto made = std::make_unique<Exec>();
    std::vector<Node*> left;
    num_small_fills = 0;
    for (const auto& node : *Of<FakeGraph>(graph)) {
      left.push_back(node.get());
      const CUDA_MEMSET_NODE_PARAMS& fill = node->fill;
      num_small_fills += node->type == CU_GRAPH_NODE_TYPE_MEMSET &&
                         fill.height == 1 &&
                         (fill.dst | fill.width * fill.elementSize) % 4 == 0;
    }
    // Whatever waits for nothing that is left may be the next one.
    while (!left.empty()) {
      const size_t i = order() % left.size();
      const std::set<Node*>& before = left[i]->before;
      if (std::any_of(left.begin(), left.end(),
                      [&](Node* one) { return before.count(one) > 0; })) {
        continue;
      }
      if (left[i]->work) made->push_back(left[i]->work);
      left.erase(left.begin() + static_cast<int>(i));
    }
    *exec = reinterpret_cast<CUgraphExec>(made.release());
    ++num_captures;
    ++num_execs;
    return CUDA_SUCCESS;
  };
  cuda->cuGraphExecDestroy = [](CUgraphExec exec) {
    delete Of<Exec>(exec);
    --num_execs;
    return CUDA_SUCCESS;
  };
  cuda->cuGraphLaunch = [](CUgraphExec exec, CUstream stream) {
    ++num_attempts;
    if (Outcome("launch") != CUDA_SUCCESS) return Outcome("launch");
    if (failing == "some launches" && num_attempts % 3 == 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CheckEnqueuesAlone(stream);
    return EnqueueWork(stream, [work = *Of<Exec>(exec)] {
      for (const auto& one : work) one();
    });
  };
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_TESTS_PROGRAMS_FAKE_GRAPHS_H_
