// cuDNN's descriptors as owning types.
#ifndef CUDNN_RNN_TF_KERNELS_CUDNN_DESCRIPTORS_H_
#define CUDNN_RNN_TF_KERNELS_CUDNN_DESCRIPTORS_H_

#include <utility>

#include "kernels/cudnn/libraries.h"

namespace cudnn_rnn_tf {

// One of cuDNN's opaque objects, created and destroyed by two entry points of
// its library.
template <typename T, auto create, auto destroy>
class CudnnObject {
 public:
  CudnnObject() = default;
  CudnnObject(CudnnObject&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  CudnnObject& operator=(CudnnObject&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~CudnnObject() {
    if (object_ != nullptr) (Gpu().cudnn.*destroy)(object_);
  }

  cudnnStatus_t Create() { return (Gpu().cudnn.*create)(&object_); }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

using CudnnHandle = CudnnObject<cudnnHandle_t, &CudnnLibrary::cudnnCreate,
                                &CudnnLibrary::cudnnDestroy>;
using TensorDescriptor =
    CudnnObject<cudnnTensorDescriptor_t,
                &CudnnLibrary::cudnnCreateTensorDescriptor,
                &CudnnLibrary::cudnnDestroyTensorDescriptor>;
using DropoutDescriptor =
    CudnnObject<cudnnDropoutDescriptor_t,
                &CudnnLibrary::cudnnCreateDropoutDescriptor,
                &CudnnLibrary::cudnnDestroyDropoutDescriptor>;
using RnnDescriptor =
    CudnnObject<cudnnRNNDescriptor_t, &CudnnLibrary::cudnnCreateRNNDescriptor,
                &CudnnLibrary::cudnnDestroyRNNDescriptor>;
using RnnDataDescriptor =
    CudnnObject<cudnnRNNDataDescriptor_t,
                &CudnnLibrary::cudnnCreateRNNDataDescriptor,
                &CudnnLibrary::cudnnDestroyRNNDataDescriptor>;

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CUDNN_DESCRIPTORS_H_
