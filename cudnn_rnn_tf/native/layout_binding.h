// The class behind cudnn_rnn_tf.native.ParamLayout.
#ifndef CUDNN_RNN_TF_NATIVE_LAYOUT_BINDING_H_
#define CUDNN_RNN_TF_NATIVE_LAYOUT_BINDING_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/param_layout.h"
#include "kernels/rnn_spec.h"

namespace cudnn_rnn_tf {

namespace py = pybind11;

inline std::string Text(const py::handle& value) {
  return py::cast<std::string>(py::str(value));
}

template <typename Field>
Field FieldOf(const char* name, const py::handle& value) {
  if constexpr (std::is_enum_v<Field>) {
    Field field;
    const auto text = FieldOf<std::string>(name, value);
    if (ParseName(text, &field)) return field;
    std::string names;
    for (size_t i = 0; i < kNumNames<Field>; ++i) {
      const std::string each = NameOf(static_cast<Field>(i));
      // The empty name, of an activation that is not chosen, is for the ops.
      if (!each.empty()) names += (names.empty() ? "'" : ", '") + each + "'";
    }
    throw py::value_error(std::string("expected ") + name + " to be one of " +
                          names + ", but received '" + text + "'");
  } else {
    try {
      return py::cast<Field>(value);
    } catch (const py::cast_error&) {
      const char* const kind = std::is_same_v<Field, std::string> ? "a string"
                               : std::is_integral_v<Field>
                                   ? "an integer of 64 bits"
                                   : "a number";
      throw py::type_error(std::string("expected ") + name + " to be " + kind +
                           ", but received " + Text(py::repr(value)));
    }
  }
}

// Makes a network of Python's arguments, which have the names and the order of
// VisitFields.
inline RnnSpec MakeSpec(const py::args& args, const py::kwargs& kwargs) {
  RnnSpec spec;
  std::string error;
  size_t place = 0;
  py::set unknown(kwargs);
  VisitFields(spec, [&](const char* name, AttrOf, auto& field) {
    py::object value;
    if (place < args.size()) {
      value = args[place];
    } else if (kwargs.contains(name)) {
      value = kwargs[name];
      unknown.attr("discard")(name);
    }
    ++place;
    if (!value) return;
    if (&field == static_cast<void*>(&spec.cell_clip)) {
      error = CellClipError(FieldOf<double>(name, value));
    }
    field = FieldOf<std::remove_reference_t<decltype(field)>>(name, value);
  });
  if (!unknown.empty() || args.size() > place) {
    throw py::type_error(
        unknown.empty()
            ? "received more arguments than a network has"
            : "received arguments twice or of unknown names: " + Text(unknown));
  }
  if (error.empty()) error = spec.Error();
  if (!error.empty()) throw py::value_error(error);
  return spec;
}

inline py::tuple ShapeOf(const ParamBlock& block) {
  return py::tuple(py::cast(block.Shape()));
}

// Returns the array if it holds numbers, and throws otherwise: the bytes of
// numbers can be copied, those of pointers to Python objects cannot. Types that
// are not NumPy's own, such as bfloat16, have the number 2 in `isbuiltin`.
inline const py::array& Numbers(const std::string& argument,
                                const py::array& array) {
  const py::dtype dtype = array.dtype();
  if (std::strchr("fiubc", dtype.kind()) == nullptr &&
      py::cast<int>(dtype.attr("isbuiltin")) != 2) {
    throw py::type_error("expected " + argument +
                         " to be an array of numbers, but received dtype " +
                         Text(dtype));
  }
  return array;
}

// NumPy's flags of an array that is contiguous in C order and aligned.
inline constexpr int kDense =
    py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;

// Returns the array if it is such an array of NumPy's own class, or a copy that
// is.
inline py::array Dense(const py::array& array) {
  return py::module_::import("numpy").attr("require")(array, py::none(), "CAE");
}

class LayoutBinding {
 public:
  explicit LayoutBinding(const RnnSpec& spec) : spec_(spec), layout_(spec) {}

  const RnnSpec& spec() const { return spec_; }
  int64_t size() const { return layout_.size(); }

  // Lists what `of` returns of the weights or of the biases.
  template <typename Of>
  py::list List(bool is_bias, const Of& of) const {
    py::list list;
    for (const ParamBlock& block : layout_.tensors()) {
      if (block.is_bias == is_bias) list.append(std::invoke(of, block));
    }
    return list;
  }

  // Returns (index of the pseudo-layer, field of Python's PseudoLayer, shape)
  // for each tensor of a pseudo-layer, in the buffer's order. The gates of a
  // side are adjacent, so they form one tensor, and so do a cell's vectors.
  py::list PseudoLayerTensors() const {
    static constexpr const char* kFields[2][3] = {
        {"kernel", "recurrent_kernel", "projection"},
        {"bias", "recurrent_bias"}};
    const int64_t gates = spec_.num_gates();
    py::list tensors;
    for (ParamBlock block : layout_.tensors()) {
      const int64_t index = block.layer * spec_.num_dirs() + block.dir;
      if (block.linear_layer_id == 2 * gates + 1) {
        tensors.append(py::make_tuple(
            index, "vectors",
            py::make_tuple(spec_.kind().num_vectors, block.rows)));
      }
      if (block.is_vector() || block.linear_layer_id % gates != 0) continue;
      const int64_t side = block.linear_layer_id / gates;
      const bool is_projection = side == 2;
      if (!is_projection) block.rows *= gates;
      tensors.append(
          py::make_tuple(index, kFields[block.is_bias][side], ShapeOf(block)));
    }
    return tensors;
  }

  py::array CanonicalToParams(const std::vector<py::array>& weights,
                              const std::vector<py::array>& biases) const {
    const size_t count = layout_.tensors().size();
    CheckCount("weights", weights, layout_.num_weights());
    CheckCount("biases", biases, count - layout_.num_weights());
    const py::dtype dtype =
        Numbers(layout_.tensors()[0].Name(), weights[0]).dtype();
    py::array params(dtype, std::vector<py::ssize_t>{size()});
    char* const to = static_cast<char*>(params.mutable_data());
    for (size_t i = 0; i < count; ++i) {
      const ParamBlock& block = layout_.tensors()[i];
      const py::array& tensor =
          block.is_bias ? biases[i - weights.size()] : weights[i];
      const std::vector<int64_t> shape(tensor.shape(),
                                       tensor.shape() + tensor.ndim());
      if (shape != block.Shape()) {
        throw py::value_error("expected shape " + Text(ShapeOf(block)) +
                              " for " + block.Name() + ", but received " +
                              Text(tensor.attr("shape")));
      }
      if (!tensor.dtype().equal(dtype)) {
        throw py::type_error("expected dtype " + Text(dtype) + " for " +
                             block.Name() +
                             ", as the first weight has, but "
                             "received " +
                             Text(tensor.dtype()));
      }
      const py::array dense = Dense(tensor);
      std::memcpy(to + block.offset * dtype.itemsize(), dense.data(),
                  block.size() * dtype.itemsize());
    }
    return params;
  }

  // Returns `params` as a dense array, or throws if it does not have the
  // layout's size.
  py::array DenseParams(const py::array& params) const {
    if (params.ndim() != 1 || params.shape(0) != size()) {
      throw py::value_error("expected params of shape (" +
                            std::to_string(size()) + ",), but received " +
                            Text(params.attr("shape")));
    }
    return Dense(Numbers("params", params));
  }

  std::pair<py::list, py::list> ParamsToCanonical(
      const py::array& params) const {
    const py::array dense = DenseParams(params);
    const char* const from = static_cast<const char*>(dense.data());
    const py::dtype dtype = params.dtype();
    std::pair<py::list, py::list> canonical;
    for (const ParamBlock& block : layout_.tensors()) {
      py::array tensor(dtype,
                       py::cast<std::vector<py::ssize_t>>(ShapeOf(block)));
      std::memcpy(tensor.mutable_data(), from + block.offset * dtype.itemsize(),
                  block.size() * dtype.itemsize());
      (block.is_bias ? canonical.second : canonical.first).append(tensor);
    }
    return canonical;
  }

 private:
  static void CheckCount(const char* name, const std::vector<py::array>& list,
                         size_t expected) {
    if (list.size() != expected) {
      throw py::value_error("expected " + std::to_string(expected) + " " +
                            name + " for this configuration, but received " +
                            std::to_string(list.size()));
    }
  }

  RnnSpec spec_;
  ParamLayout layout_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_NATIVE_LAYOUT_BINDING_H_
