// A kernel of our own: all steps of a recurrent layer, with its weights
// resident in the GPU's registers and shared memory.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// The kernel is compiled for this.
struct ResidentShape {
  RnnMode rnn_mode;
  RnnDataType dtype;
  int64_t num_units, batch_size;
};

// One layer in one direction, some of its steps. Device memory; the type is the
// shape's unless said otherwise, H are the units, B is the batch, G the gates.
struct ResidentArguments {
  CUdeviceptr weights;                     // [G * H, H], at multiples of 16.
  CUdeviceptr input_bias, recurrent_bias;  // [G * H]; 0 for none.
  CUdeviceptr projected;                   // float, [steps, B, G * H].
  CUdeviceptr first_h, first_c;            // [B, H], h at multiples of 16.
  // [num_steps, B, stride], of which the first H of each row are written. What
  // is not written yet has all bits set; at multiples of 16.
  CUdeviceptr output;
  CUdeviceptr last_h, last_c;  // [B, H].
  // Which steps in the order of reading, of how many; those from 1 on go on
  // from what is in `output` and `last_c`.
  int first, steps, num_steps;
  int stride;
  int is_reversed;  // 1: from the last step of time to the first.
};

// Compiled for the current context's device.
class ResidentKernel {
 public:
  // Compiles, unless that was done before in the process, which takes a tenth
  // of a second to two. Says why where there is none for the shape or device.
  static RnnStatus Get(const ResidentShape& shape, ResidentKernel* kernel);

  RnnStatus Enqueue(CUstream stream, const ResidentArguments& arguments) const;

 private:
  CUkernel kernel_ = nullptr;
  unsigned int blocks_ = 0, shared_bytes_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_
