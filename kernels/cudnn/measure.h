// Timing the ways to run a configuration, on scratch memory.
#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_MEASURE_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_MEASURE_H_

#include "kernels/cudnn/session.h"

namespace cudnn_rnn_tf {

// Runs the configuration's algorithms, or standard alone, replayed or, where
// there are no graphs, enqueued by cuDNN, takes the fastest, or in training
// standard where it is nearly as fast, and runs its passes as chains. It waits
// for the device, and ends soon after three quarters of a second. Without the
// memory for it, the choice is the rule's.
Choice MeasureChoice(CudnnSession* session, CudnnConfiguration* configuration,
                     bool standard_alone, const AllocateMemory& allocate);

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_MEASURE_H_
