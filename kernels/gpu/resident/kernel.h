// A kernel of our own: all steps of a recurrent layer, with its weights
// resident in the GPU's registers and shared memory.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_
#define CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gpu/device_limits.h"
#include "kernels/gpu/libraries.h"
#include "kernels/gpu/resident/resident_shape.h"

namespace cudnn_rnn_tf {

// Returns an error that says what `resident` cannot run.
inline RnnStatus NotResident(const std::string& why) {
  return {RnnStatus::Code::kUnimplemented,
          "the algorithm resident cannot run this: " + why};
}

// This is what a kernel is made for.
struct ResidentRequest {
  RnnMode rnn_mode;
  RnnDataType dtype;
  int64_t num_units, batch_size;
};

// Places the weights. The status says why if the GPU has no room for them.
RnnStatus PlaceResident(const ResidentRequest& request, const DeviceLimits& gpu,
                        ResidentShape* shape);

// Returns the macros that the kernel is compiled with.
std::vector<std::string> ResidentMacros(const ResidentRequest& request,
                                        const ResidentShape& shape);

// The arguments of a launch, which runs some steps of one layer in one
// direction. Addresses are of device memory and of the network's type unless
// said otherwise. H is the number of units, B the batch size and G the number
// of gates.
struct ResidentArguments {
  CUdeviceptr weights;                     // [G * H, H], aligned to 16 bytes.
  CUdeviceptr input_bias, recurrent_bias;  // [G * H]; 0 for none.
  CUdeviceptr projected;                   // float, [steps, B, G * H].
  CUdeviceptr first_h, first_c;            // [B, H]; h aligned to 16 bytes.
  // [num_steps, B, stride], aligned to 16 bytes, of which the first H numbers
  // of each row are written. All bits of an output must be set until it is
  // written, since blocks poll for it.
  CUdeviceptr output;
  CUdeviceptr last_h, last_c;  // [B, H].
  // The launch runs `steps` of `num_steps` steps, from `first` on in the order
  // of reading. Unless `first` is 0, it continues from the states in `output`
  // and `last_c`.
  int first, steps, num_steps;
  int stride;
  int is_reversed;  // 1 if steps run backwards in time.
};

// The kernel, compiled for the current context's device.
class ResidentKernel {
 public:
  // Compiles the kernel, which takes 0.1 to 2 seconds, unless its machine code
  // is kept from before. The status says why if the device cannot run what is
  // wanted.
  static RnnStatus Get(const ResidentRequest& request, ResidentKernel* kernel);

  RnnStatus Enqueue(CUstream stream, const ResidentArguments& arguments) const;

 private:
  CUkernel kernel_ = nullptr;
  ResidentShape shape_ = {};
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_RESIDENT_KERNEL_H_
