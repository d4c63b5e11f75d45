// The rule that says which algorithm runs a network on a GPU, if the caller
// names none.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_

#include "kernels/gpu/device_limits.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

// Tells whether a network whose steps are enqueued one by one goes before
// cuDNN. It does with different lengths, since cuDNN would have to be told them
// in host memory, and where cuDNN has no algorithm.
bool MayBeSteps(const RnnProblem& problem);

// Tells whether products of whole batches are likely to be faster than the
// persistent kernels, which take about `cycles` for a step of a layer. cuDNN
// computes such products or, with sequence lengths, a network that enqueues its
// steps one by one. Large batches cost these less, and cuDNN has kernels for
// one or two sequences, and for small layers. The limits were measured on an
// H200. On another GPU, its clock slows both sides alike, so the limits are as
// many of its own cycles.
bool IsForWholeBatches(const RnnProblem& problem, bool allow_tf32,
                       const DeviceLimits& gpu, double cycles);

// Returns that algorithm of cuDNN's which is likely to be the fastest. Its
// persistent algorithms are exact to about 1e-5 only, so they are for float16
// and for float32 with TF32 allowed.
RnnAlgorithm CudnnAlgorithmFor(const RnnProblem& problem, bool allow_tf32);

// Returns the algorithm that runs a network if the persistent kernels do not:
// the one that the caller names, or the one that is likely to be the fastest.
// What the rule names may turn out not to fit.
RnnAlgorithm OtherAlgorithmFor(const RnnProblem& problem, bool allow_tf32);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_ALGORITHM_RULE_H_
