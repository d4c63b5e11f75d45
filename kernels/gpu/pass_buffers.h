// The buffers of a pass, one by one.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_PASS_BUFFERS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_PASS_BUFFERS_H_

#include <cstddef>
#include <vector>

#include "kernels/gpu/engine.h"
#include "kernels/gpu/time_major.h"
#include "kernels/param_layout.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct PassBuffer {
  enum class Use { kRead, kWritten, kScratch };
  const void** address;  // Its place in the pass's struct, which may hold null.
  size_t bytes;
  Use use;

  PassBuffer(const void** address, size_t bytes)
      : address(address), bytes(bytes), use(Use::kRead) {}
  PassBuffer(void** address, size_t bytes, Use use = Use::kWritten)
      : address(const_cast<const void**>(address)), bytes(bytes), use(use) {}
};

// The sizes in bytes of the arrays of a problem.
struct ArrayBytes {
  explicit ArrayBytes(const RnnProblem& problem) {
    const Sizes all(problem);
    const size_t item = problem.batch_size * SizeOf(problem.dtype);
    input = all.steps * all.input * item;
    output = all.steps * all.output * item;
    h = all.states * all.h * item;
    c = all.states * all.c * item;
    params = ParamLayout(problem.spec).size() * SizeOf(problem.dtype);
  }
  size_t input, output, h, c, params;
};

inline std::vector<PassBuffer> BuffersOf(const RnnProblem& problem,
                                         const Engine& engine,
                                         RnnForwardBuffers* pass) {
  const ArrayBytes bytes(problem);
  return {{&pass->input, bytes.input},
          {&pass->input_h, bytes.h},
          {&pass->input_c, bytes.c},
          {&pass->params, bytes.params},
          {&pass->output, bytes.output},
          {&pass->output_h, bytes.h},
          {&pass->output_c, bytes.c},
          {&pass->reserve_space, engine.reserve_size()},
          {&pass->workspace, engine.forward_workspace_size(),
           PassBuffer::Use::kScratch}};
}

// A backward pass overwrites the reserve space, but no caller reads that.
inline std::vector<PassBuffer> BuffersOf(const RnnProblem& problem,
                                         const Engine& engine,
                                         RnnBackwardBuffers* pass) {
  const ArrayBytes bytes(problem);
  return {{&pass->input, bytes.input},
          {&pass->input_h, bytes.h},
          {&pass->input_c, bytes.c},
          {&pass->params, bytes.params},
          {&pass->output, bytes.output},
          {&pass->output_backprop, bytes.output},
          {&pass->output_h_backprop, bytes.h},
          {&pass->output_c_backprop, bytes.c},
          {&pass->reserve_space, engine.reserve_size(), PassBuffer::Use::kRead},
          {&pass->input_backprop, bytes.input},
          {&pass->input_h_backprop, bytes.h},
          {&pass->input_c_backprop, bytes.c},
          {&pass->params_backprop, bytes.params},
          {&pass->workspace, engine.backward_workspace_size(),
           PassBuffer::Use::kScratch}};
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_PASS_BUFFERS_H_
