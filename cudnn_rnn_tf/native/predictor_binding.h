// The class behind cudnn_rnn_tf.CpuPredictor.
#ifndef CUDNN_RNN_TF_NATIVE_PREDICTOR_BINDING_H_
#define CUDNN_RNN_TF_NATIVE_PREDICTOR_BINDING_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "cudnn_rnn_tf/native/layout_binding.h"
#include "kernels/cpu/cpu_predictor.h"

namespace cudnn_rnn_tf {

class PredictorBinding {
 public:
  // All arrays that go in and come out have the dtype of `params`.
  PredictorBinding(const LayoutBinding& layout, const py::array& params,
                   bool time_major, bool go_backwards, int64_t num_threads);

  // Takes array-likes, of which all but the first may be None, and returns
  // (outputs, states).
  py::tuple Call(const py::object& inputs, const py::object& initial_state,
                 const py::object& sequence_lengths, const py::object& resets);

 private:
  // The sizes of an array's dimensions; -1 stands for any size.
  using Shape = std::vector<py::ssize_t>;

  Shape StateShape(py::ssize_t batch_size, py::ssize_t size) const;
  // Returns `value` as a dense array of the predictor's dtype.
  py::array ToDense(const char* argument, const py::object& value) const;
  std::vector<py::array> ReadStates(const py::object& initial_state,
                                    py::ssize_t batch_size) const;

  const py::dtype dtype_;
  CpuPredictor predictor_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_NATIVE_PREDICTOR_BINDING_H_
