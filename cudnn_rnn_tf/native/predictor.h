// The CPU predictor as Python sees it.
#ifndef CUDNN_RNN_TF_NATIVE_PREDICTOR_H_
#define CUDNN_RNN_TF_NATIVE_PREDICTOR_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "cudnn_rnn_tf/native/layout_binding.h"
#include "kernels/cpu/cpu_predictor.h"

namespace cudnn_rnn_tf {

class Predictor {
 public:
  // The parameters' dtype is that of all arrays.
  Predictor(const Layout& layout, const py::array& params, bool time_major,
            bool go_backwards, int64_t num_threads);

  // (outputs, states) of array-likes; the last two may be None.
  py::tuple Call(const py::object& inputs, const py::object& initial_state,
                 const py::object& sequence_lengths);

 private:
  // Sizes in the order of the argument's layout; -1 fits any.
  using Shape = std::vector<py::ssize_t>;

  Shape StateShape(py::ssize_t batch_size, py::ssize_t size) const;
  // `value` as a dense array of the predictor's dtype.
  py::array ToDense(const char* argument, const py::object& value) const;
  std::vector<py::array> ReadStates(const py::object& initial_state,
                                    py::ssize_t batch_size) const;

  const py::dtype dtype_;
  CpuPredictor predictor_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_NATIVE_PREDICTOR_H_
