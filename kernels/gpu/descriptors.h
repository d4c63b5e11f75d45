// Types that own objects of cuDNN and cuBLAS.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_DESCRIPTORS_H_
#define CUDNN_RNN_TF_KERNELS_GPU_DESCRIPTORS_H_

#include <utility>

#include "kernels/gpu/libraries.h"

namespace cudnn_rnn_tf {

// An opaque object, created and destroyed by two entry points of its library.
template <typename T, auto library, auto create, auto destroy>
class LibraryObject {
 public:
  LibraryObject() = default;
  LibraryObject(LibraryObject&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  LibraryObject& operator=(LibraryObject&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~LibraryObject() {
    if (object_ != nullptr) (Gpu().*library.*destroy)(object_);
  }

  auto Create() { return (Gpu().*library.*create)(&object_); }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

template <typename T, auto create, auto destroy>
using CudnnObject = LibraryObject<T, &GpuLibraries::cudnn, create, destroy>;

using CublasHandle = LibraryObject<cublasHandle_t, &GpuLibraries::cublas,
                                   &CublasLibrary::cublasCreate_v2,
                                   &CublasLibrary::cublasDestroy_v2>;
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

#endif  // CUDNN_RNN_TF_KERNELS_GPU_DESCRIPTORS_H_
