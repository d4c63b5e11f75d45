// Timing the ways to run a configuration, on scratch memory.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_

#include <vector>

#include "kernels/gpu/cudnn/session.h"

namespace cudnn_rnn_tf {

// Runs the algorithms, standard among them, replayed or, where there are no
// graphs, enqueued one by one, takes the fastest, or in training standard where
// it is nearly as fast, and runs its passes as chains. It waits for the device,
// and ends soon after three quarters of a second, without what cuDNN and the
// compiler take to make kernels, but not before standard has been timed. Where
// there is nothing to compare, or without the memory for it, the choice is the
// rule's.
Choice MeasureChoice(CudnnSession* session, CudnnConfiguration* configuration,
                     const std::vector<RnnAlgorithm>& algorithms,
                     const AllocateMemory& allocate);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_
