#include "kernels/gpu/ptx.h"

namespace cudnn_rnn_tf {

RnnStatus LoadPtx(const std::string& name, const std::string& entry,
                  CUkernel* kernel) {
  const std::string text =
      ".version 6.0\n.target sm_50\n.address_size 64\n" + entry;
  CUlibrary library;
  CRNN_RETURN_IF_ERROR(
      CudaStatus(Gpu().cuda.cuLibraryLoadData(&library, text.c_str(), nullptr,
                                              nullptr, 0, nullptr, nullptr, 0),
                 ("load the kernel " + name).c_str()));
  return CudaStatus(
      Gpu().cuda.cuLibraryGetKernel(kernel, library, name.c_str()),
      ("find the kernel " + name).c_str());
}

}  // namespace cudnn_rnn_tf
