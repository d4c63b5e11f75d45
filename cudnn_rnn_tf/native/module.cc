// cudnn_rnn_tf.native: the parameter layout on NumPy arrays, without
// TensorFlow.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/simd_kernels.h"
#include "kernels/rnn_spec.h"

namespace py = pybind11;

namespace cudnn_rnn_tf {
namespace {

template <typename E>
E ParseOrThrow(const char* argument, const std::string& name,
               bool (*parse)(std::string_view, E*), const char* expected) {
  E value;
  if (!parse(name, &value)) {
    throw py::value_error(std::string("expected ") + argument + " to be " +
                          expected + ", but received '" + name + "'");
  }
  return value;
}

RnnSpec MakeSpec(const std::string& rnn_mode, int64_t num_layers,
                 int64_t num_units, int64_t input_size,
                 const std::string& input_mode, const std::string& direction,
                 const std::string& bias_mode, int64_t num_proj, float dropout,
                 float cell_clip) {
  RnnSpec spec;
  spec.rnn_mode = ParseOrThrow("rnn_mode", rnn_mode, ParseRnnMode,
                               "'lstm', 'gru', 'rnn_tanh' or 'rnn_relu'");
  spec.input_mode = ParseOrThrow("input_mode", input_mode, ParseInputMode,
                                 "'linear_input' or 'skip_input'");
  spec.direction = ParseOrThrow("direction", direction, ParseDirection,
                                "'unidirectional' or 'bidirectional'");
  spec.bias_mode =
      ParseOrThrow("bias_mode", bias_mode, ParseBiasMode,
                   "'none', 'single_input', 'single_recurrent' or 'double'");
  spec.num_layers = num_layers;
  spec.num_units = num_units;
  spec.input_size = input_size;
  spec.num_proj = num_proj;
  spec.dropout = dropout;
  spec.cell_clip = cell_clip;
  const std::string problem = spec.Problem();
  if (!problem.empty()) throw py::value_error(problem);
  return spec;
}

py::tuple ShapeOf(const ParamBlock& block, bool is_bias) {
  if (is_bias) return py::make_tuple(block.rows);
  return py::make_tuple(block.rows, block.cols);
}

std::string Text(const py::handle& value) {
  return py::cast<std::string>(py::str(value));
}

// The layout as Python sees it.
class Layout {
 public:
  explicit Layout(const RnnSpec& spec) : spec_(spec), layout_(spec) {}

  const RnnSpec& spec() const { return spec_; }
  int64_t size() const { return layout_.size(); }

  py::list Shapes(bool is_bias) const {
    py::list shapes;
    for (const ParamBlock& block : blocks(is_bias)) {
      shapes.append(ShapeOf(block, is_bias));
    }
    return shapes;
  }
  std::vector<std::string> Names(bool is_bias) const {
    std::vector<std::string> names;
    for (const ParamBlock& block : blocks(is_bias))
      names.push_back(block.Name());
    return names;
  }
  std::vector<int64_t> Offsets(bool is_bias) const {
    std::vector<int64_t> offsets;
    for (const ParamBlock& block : blocks(is_bias)) {
      offsets.push_back(block.offset);
    }
    return offsets;
  }

  py::array CanonicalToParams(const std::vector<py::array>& weights,
                              const std::vector<py::array>& biases) const {
    CheckCount("weights", weights, layout_.weights().size());
    CheckCount("biases", biases, layout_.biases().size());
    const py::dtype dtype = weights[0].dtype();
    py::array params(dtype, std::vector<py::ssize_t>{size()});
    char* const to = static_cast<char*>(params.mutable_data());
    for (const bool is_bias : {false, true}) {
      for (size_t i = 0; i < blocks(is_bias).size(); ++i) {
        const ParamBlock& block = blocks(is_bias)[i];
        const py::array& tensor = is_bias ? biases[i] : weights[i];
        const py::tuple shape = ShapeOf(block, is_bias);
        if (!shape.equal(tensor.attr("shape"))) {
          throw py::value_error("expected shape " + Text(shape) + " for " +
                                block.Name() + ", but received " +
                                Text(tensor.attr("shape")));
        }
        if (!tensor.dtype().equal(dtype)) {
          throw py::type_error("expected dtype " + Text(dtype) + " for " +
                               block.Name() +
                               ", as the first weight has, but "
                               "received " +
                               Text(tensor.dtype()));
        }
        const py::array dense = py::array::ensure(tensor, py::array::c_style);
        std::memcpy(to + block.offset * dtype.itemsize(), dense.data(),
                    block.size() * dtype.itemsize());
      }
    }
    return params;
  }

  std::pair<py::list, py::list> ParamsToCanonical(
      const py::array& params) const {
    if (params.ndim() != 1 || params.shape(0) != size()) {
      throw py::value_error("expected params of shape (" +
                            std::to_string(size()) + ",), but received " +
                            Text(params.attr("shape")));
    }
    const py::array dense = py::array::ensure(params, py::array::c_style);
    const char* const from = static_cast<const char*>(dense.data());
    const py::dtype dtype = params.dtype();
    std::pair<py::list, py::list> canonical;
    for (const bool is_bias : {false, true}) {
      py::list& list = is_bias ? canonical.second : canonical.first;
      for (const ParamBlock& block : blocks(is_bias)) {
        py::array tensor(
            dtype, py::cast<std::vector<py::ssize_t>>(ShapeOf(block, is_bias)));
        std::memcpy(tensor.mutable_data(),
                    from + block.offset * dtype.itemsize(),
                    block.size() * dtype.itemsize());
        list.append(tensor);
      }
    }
    return canonical;
  }

 private:
  const std::vector<ParamBlock>& blocks(bool is_bias) const {
    return is_bias ? layout_.biases() : layout_.weights();
  }
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

using Function = void (*)(int64_t, const float*, float*);

py::array_t<float> Apply(
    Function function,
    const py::array_t<float, py::array::c_style | py::array::forcecast>& x) {
  py::array_t<float> y(
      std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  function(x.size(), x.data(), y.mutable_data());
  return y;
}

py::dict CpuFeatures() {
  py::dict features;
#ifdef CRNN_SIMD_X86
  __builtin_cpu_init();
  features["avx2"] = __builtin_cpu_supports("avx2") != 0;
  features["fma"] = __builtin_cpu_supports("fma") != 0;
  features["avx512f"] = __builtin_cpu_supports("avx512f") != 0;
  features["avx512dq"] = __builtin_cpu_supports("avx512dq") != 0;
#endif
  return features;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The parameter layout on NumPy arrays, without TensorFlow.";

  py::class_<Layout>(m, "ParamLayout", R"doc(
Where every canonical tensor stands in a network's opaque buffer.

All matrices come first, pseudo-layer by pseudo-layer (index
`layer * num_dirs + direction`); within one, the gates' input-side matrices
[num_units, fan_in], their recurrent-side matrices and, with projection,
[num_proj, num_units]; each row-major. All biases [num_units] follow in the same
order. There is no padding: a two-unit tanh RNN over three inputs holds
W [2, 3] at 0, R [2, 2] at 6, b_W [2] at 10 and b_R [2] at 12, 14 numbers in all.

Raises:
  ValueError: where an argument is out of range or does not fit the others.
)doc")
      .def(py::init([](const std::string& rnn_mode, int64_t num_layers,
                       int64_t num_units, int64_t input_size,
                       const std::string& input_mode,
                       const std::string& direction,
                       const std::string& bias_mode, int64_t num_proj,
                       float dropout, float cell_clip) {
             return Layout(MakeSpec(rnn_mode, num_layers, num_units, input_size,
                                    input_mode, direction, bias_mode, num_proj,
                                    dropout, cell_clip));
           }),
           py::arg("rnn_mode"), py::arg("num_layers"), py::arg("num_units"),
           py::arg("input_size"), py::arg("input_mode") = "linear_input",
           py::arg("direction") = "unidirectional",
           py::arg("bias_mode") = "double", py::arg("num_proj") = 0,
           py::arg("dropout") = 0.0f, py::arg("cell_clip") = 0.0f)
      .def_property_readonly("size", &Layout::size,
                             "Number of elements in the opaque buffer.")
      .def_property_readonly(
          "num_gates",
          [](const Layout& layout) { return layout.spec().num_gates(); })
      .def_property_readonly(
          "num_dirs",
          [](const Layout& layout) { return layout.spec().num_dirs(); })
      .def_property_readonly(
          "output_size",
          [](const Layout& layout) { return layout.spec().output_size(); },
          "num_proj, or num_units without projection.")
      .def_property_readonly(
          "weight_shapes",
          [](const Layout& layout) { return layout.Shapes(false); })
      .def_property_readonly(
          "bias_shapes",
          [](const Layout& layout) { return layout.Shapes(true); })
      .def_property_readonly(
          "weight_names",
          [](const Layout& layout) { return layout.Names(false); })
      .def_property_readonly(
          "bias_names", [](const Layout& layout) { return layout.Names(true); })
      .def_property_readonly(
          "weight_offsets",
          [](const Layout& layout) { return layout.Offsets(false); })
      .def_property_readonly(
          "bias_offsets",
          [](const Layout& layout) { return layout.Offsets(true); })
      .def("canonical_to_params", &Layout::CanonicalToParams,
           py::arg("weights"), py::arg("biases"), R"doc(
Packs lists of arrays into one buffer [size] of the first weight's dtype.

Raises:
  ValueError: where a list's length or an array's shape is not the layout's.
  TypeError: where the arrays differ in dtype.
)doc")
      .def("params_to_canonical", &Layout::ParamsToCanonical, py::arg("params"),
           R"doc(
Takes a buffer [size] apart into (weights, biases), lists of new arrays.

Raises:
  ValueError: where the buffer's shape is not the layout's.
)doc");

  m.def(
      "cpu_isa", [] { return Simd().name; },
      "The instruction set that the CPU kernels use.");
  m.def("cpu_features", &CpuFeatures);
  m.def(
      "sigmoid",
      [](const py::array_t<float, py::array::c_style | py::array::forcecast>&
             x) { return Apply(Simd().functions.sigmoid, x); },
      "The CPU kernels' float32 sigmoid, elementwise.");
  m.def(
      "tanh",
      [](const py::array_t<float, py::array::c_style | py::array::forcecast>&
             x) { return Apply(Simd().functions.tanh, x); },
      "The CPU kernels' float32 tanh, elementwise.");
}

}  // namespace cudnn_rnn_tf
