// cudnn_rnn_tf.native: the parameter layout and the CPU kernels on NumPy
// arrays, without TensorFlow.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "cudnn_rnn_tf/native/layout_binding.h"
#include "cudnn_rnn_tf/native/predictor_binding.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/param_layout.h"

namespace py = pybind11;

namespace cudnn_rnn_tf {
namespace {

using AnyFloats = py::array_t<float, kDense | py::array::forcecast>;
using DenseFloats = py::array_t<float, kDense>;
using DenseBits = py::array_t<uint16_t, kDense>;

using Function = void (*)(int64_t, const float*, float*);

py::array_t<float> Apply(Function function, const AnyFloats& x) {
  py::array_t<float> y(
      std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  function(x.size(), x.data(), y.mutable_data());
  return y;
}

template <auto half_type>
DenseFloats FromBits(const DenseBits& x) {
  DenseFloats y(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  (Simd().*half_type).widen(x.size(), x.data(), y.mutable_data());
  return y;
}
template <auto half_type>
DenseBits ToBits(const DenseFloats& x) {
  DenseBits y(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  (Simd().*half_type).round(x.size(), x.data(), y.mutable_data());
  return y;
}

py::tuple SpecFields() {
  py::list names[3];
  VisitFields(RnnSpec(), [&](const char* name, AttrOf ops, const auto&) {
    names[static_cast<int>(ops)].append(name);
  });
  return py::make_tuple(names[0], names[1], names[2]);
}

py::dict CpuFeatures() {
  py::dict features;
#ifdef CRNN_SIMD_X86
  __builtin_cpu_init();
  features["avx2"] = __builtin_cpu_supports("avx2") != 0;
  features["fma"] = __builtin_cpu_supports("fma") != 0;
  features["avx512f"] = __builtin_cpu_supports("avx512f") != 0;
  features["avx512dq"] = __builtin_cpu_supports("avx512dq") != 0;
  features["avx512bf16"] = __builtin_cpu_supports("avx512bf16") != 0;
  features["amx"] = HasAmx();
#endif
  return features;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() =
      "The parameter layout and the CPU kernels on NumPy arrays, without "
      "TensorFlow.";
  m.attr("compiler_version") = __VERSION__;

  const auto list = [](bool of_biases, auto of_tensor) {
    return [=](const LayoutBinding& layout) {
      return layout.List(of_biases, of_tensor);
    };
  };
  py::class_<LayoutBinding>(m, "ParamLayout", R"doc(
Where every canonical tensor stands in a network's opaque buffer.

All matrices come first, pseudo-layer by pseudo-layer (index
`layer * num_dirs + direction`); within one, the gates' input-side matrices
[num_units, fan_in], their recurrent-side matrices and, with projection,
[num_proj, num_units], each row-major, and the cell's vectors [num_units], if it
has any. All biases [num_units] follow in the same
order. There is no padding: a two-unit tanh RNN over three inputs holds
W [2, 3] at 0, R [2, 2] at 6, b_W [2] at 10 and b_R [2] at 12, 14 numbers in all.

Raises:
  ValueError: where an argument is out of range or does not fit the others.
)doc")
      .def(py::init([](const py::args& args, const py::kwargs& kwargs) {
        return LayoutBinding(MakeSpec(args, kwargs));
      }))
      .def_property_readonly("size", &LayoutBinding::size,
                             "Number of elements in the opaque buffer.")
      .def_property_readonly(
          "num_gates",
          [](const LayoutBinding& layout) { return layout.spec().num_gates(); })
      .def_property_readonly(
          "has_c",
          [](const LayoutBinding& layout) { return layout.spec().has_c(); },
          "Whether the cell has a state c beside h.")
      .def_property_readonly(
          "is_in_cudnn",
          [](const LayoutBinding& layout) {
            return layout.spec().is_in_cudnn();
          },
          "Whether cuDNN has the cell with its activations.")
      .def_property_readonly(
          "num_dirs",
          [](const LayoutBinding& layout) { return layout.spec().num_dirs(); })
      .def_property_readonly(
          "output_size",
          [](const LayoutBinding& layout) {
            return layout.spec().output_size();
          },
          "num_proj, or num_units without projection.")
      .def_property_readonly("weight_shapes", list(false, ShapeOf))
      .def_property_readonly("bias_shapes", list(true, ShapeOf))
      .def_property_readonly("weight_names", list(false, &ParamBlock::Name))
      .def_property_readonly("bias_names", list(true, &ParamBlock::Name))
      .def_property_readonly("weight_offsets", list(false, &ParamBlock::offset))
      .def_property_readonly("bias_offsets", list(true, &ParamBlock::offset))
      .def_property_readonly(
          "pseudo_layer_tensors", &LayoutBinding::PseudoLayerTensors,
          "For each tensor that stacks a side's gates or a cell's vectors, and "
          "each projection, in the buffer's order: the pseudo-layer's index, "
          "the tensor's name and "
          "its shape.")
      .def("canonical_to_params", &LayoutBinding::CanonicalToParams,
           py::arg("weights"), py::arg("biases"), R"doc(
Packs lists of arrays into one buffer [size] of the first weight's dtype.

Raises:
  ValueError: where a list's length or an array's shape is not the layout's.
  TypeError: where the arrays differ in dtype, or hold no numbers.
)doc")
      .def("params_to_canonical", &LayoutBinding::ParamsToCanonical,
           py::arg("params"),
           R"doc(
Takes a buffer [size] apart into (weights, biases), lists of new arrays.

Raises:
  ValueError: where the buffer's shape is not the layout's.
  TypeError: where it holds no numbers.
)doc");

  py::class_<PredictorBinding>(m, "PredictorBinding",
                               "What cudnn_rnn_tf.CpuPredictor calls.")
      .def(py::init<const LayoutBinding&, const py::array&, bool, bool,
                    int64_t>(),
           py::arg("layout"), py::arg("params"), py::arg("time_major"),
           py::arg("go_backwards"), py::arg("num_threads"))
      .def("__call__", &PredictorBinding::Call, py::arg("inputs"),
           py::arg("initial_state"), py::arg("sequence_lengths"),
           py::arg("resets"));

  m.def("spec_fields", &SpecFields, R"doc(
Returns the names of a network's fields, which are ParamLayout's arguments.

They come by the ops that have them as attributes: all ops, those that convert
parameters (passes read the size of their inputs instead), and passes only.
)doc");
  m.def(
      "cpu_isa", [] { return Simd().name; },
      "The instruction set that the CPU kernels use.");
  m.def("cpu_features", &CpuFeatures);
  m.def(
      "sigmoid",
      [](const AnyFloats& x) { return Apply(Simd().functions.sigmoid, x); },
      "The CPU kernels' float32 sigmoid, elementwise.");
  m.def(
      "tanh",
      [](const AnyFloats& x) { return Apply(Simd().functions.tanh, x); },
      "The CPU kernels' float32 tanh, elementwise.");
  m.def("from_float16", &FromBits<&SimdTable::float16>,
        "Float32 numbers of the bits of float16 numbers, as the kernels read.");
  m.def("to_float16", &ToBits<&SimdTable::float16>,
        "The bits of float32 numbers as float16, as the kernels write.");
  m.def("from_bfloat16", &FromBits<&SimdTable::bfloat16>,
        "Float32 numbers of the bits of bfloat16 numbers.");
  m.def("to_bfloat16", &ToBits<&SimdTable::bfloat16>,
        "The bits of float32 numbers as bfloat16.");
}

}  // namespace cudnn_rnn_tf
