// Times the ways to run a configuration, on scratch memory.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_

#include <vector>

#include "kernels/gpu/cudnn/session.h"

namespace cudnn_rnn_tf {

// Times the algorithms, standard among them, and chooses the fastest or, in
// training, standard if it is nearly as fast. Passes are replayed or, if there
// are no graphs, enqueued one by one. The passes of the chosen algorithm are
// then tried as chains.
//
// This waits for the device. It ends soon after three quarters of a second,
// without the time that cuDNN and the compiler take to make kernels, but not
// before standard has been timed. If there is nothing to compare, or no memory
// for it, the choice is the rule's.
Choice MeasureChoice(CudnnSession* session, CudnnConfiguration* configuration,
                     const std::vector<RnnAlgorithm>& algorithms,
                     const AllocateMemory& allocate);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_MEASURE_H_
