#include "cudnn_rnn_tf/native/predictor_binding.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace cudnn_rnn_tf {
namespace {

// Releases Python's interpreter lock for its lifetime. py::gil_scoped_release
// does so too, but it ends the process if a daemon thread asks for the lock
// while the interpreter shuts down: Python before 3.14 then unwinds the
// thread's stack, and a destructor must not throw. Here such a thread waits
// until the process ends, as it does in later versions of Python.
class OtherThreadsRun {
 public:
  OtherThreadsRun() : state_(PyEval_SaveThread()) {}
  ~OtherThreadsRun() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      while (true) pause();
    }
  }
  OtherThreadsRun(const OtherThreadsRun&) = delete;
  OtherThreadsRun& operator=(const OtherThreadsRun&) = delete;

 private:
  PyThreadState* const state_;
};

RnnDataType DataTypeOf(const py::dtype& dtype) {
  if (!py::cast<bool>(dtype.attr("isnative"))) {
    throw py::type_error(
        "expected weights in this machine's byte order, but received dtype " +
        Text(py::repr(dtype)));
  }
  const std::string name = py::cast<std::string>(dtype.attr("name"));
  RnnDataType type;
  if (ParseName(name, &type)) return type;
  throw py::type_error(
      "expected weights of type float64, float32, float16 or bfloat16, but "
      "received " +
      name);
}

// `shape` has -1 for a dimension of any size, for which the error message shows
// the letter in `names`.
void CheckShape(const std::string& argument, const py::array& array,
                const std::vector<py::ssize_t>& shape,
                const std::vector<const char*>& names) {
  bool fits = array.ndim() == static_cast<py::ssize_t>(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 || array.shape(i) == shape[i];
  }
  if (fits) return;
  std::string expected;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) expected += ", ";
    expected += shape[i] < 0 ? names[i] : std::to_string(shape[i]);
  }
  if (shape.size() == 1) expected += ",";
  throw py::value_error("expected " + argument + " of shape (" + expected +
                        "), but received " + Text(array.attr("shape")));
}

// The lengths are copied, since another thread may write to the array while the
// call runs.
std::vector<int32_t> ReadLengths(const py::object& value,
                                 py::ssize_t batch_size, py::ssize_t max_time) {
  py::array array = py::array::ensure(value);
  if (!array || (array.dtype().kind() != 'i' && array.dtype().kind() != 'u')) {
    throw py::type_error(
        "expected sequence_lengths to be integers, but received " +
        Text(py::repr(value)));
  }
  CheckShape("sequence_lengths", array, {batch_size}, {"B"});
  const auto lengths =
      py::array_t<int64_t, kDense | py::array::forcecast>(array);
  std::vector<int32_t> checked(batch_size);
  for (py::ssize_t i = 0; i < batch_size; ++i) {
    const int64_t length = lengths.data()[i];
    if (length < 0 || length > max_time) {
      throw py::value_error("sequence_lengths[" + std::to_string(i) +
                            "] must lie in [0, " + std::to_string(max_time) +
                            "], but received " + std::to_string(length));
    }
    checked[i] = static_cast<int32_t>(length);
  }
  return checked;
}

}  // namespace

PredictorBinding::PredictorBinding(const LayoutBinding& layout,
                                   const py::array& params, bool time_major,
                                   bool go_backwards, int64_t num_threads)
    : dtype_(params.dtype()),
      predictor_(layout.spec(), DataTypeOf(dtype_),
                 layout.DenseParams(params).data(),
                 {time_major, go_backwards, num_threads}) {}

PredictorBinding::Shape PredictorBinding::StateShape(py::ssize_t batch_size,
                                                     py::ssize_t size) const {
  const py::ssize_t count = predictor_.spec().num_pseudo_layers();
  return predictor_.options().time_major ? Shape{count, batch_size, size}
                                         : Shape{batch_size, count, size};
}

py::array PredictorBinding::ToDense(const char* argument,
                                    const py::object& value) const {
  py::array array = py::array::ensure(value);
  if (!array) {
    throw py::type_error(std::string("expected ") + argument +
                         " to be an array of numbers, but received " +
                         Text(py::repr(value)));
  }
  const py::dtype dtype = array.dtype();
  if ((dtype.is(dtype_) || dtype.equal(dtype_)) &&
      (array.flags() & kDense) == kDense) {
    return array;
  }
  const bool is_number = std::strchr("fiub", dtype.kind()) != nullptr;
  // Types that are not NumPy's own, such as bfloat16, tell NumPy what they can
  // be converted to.
  if (!is_number && !dtype.equal(dtype_) &&
      !py::cast<bool>(
          py::module_::import("numpy").attr("can_cast")(dtype, dtype_))) {
    throw py::type_error(std::string("expected ") + argument +
                         " of a dtype that can become " + Text(dtype_) +
                         ", but received " + Text(dtype));
  }
  return array.attr("astype")(dtype_, py::arg("order") = "C");
}

std::vector<py::array> PredictorBinding::ReadStates(
    const py::object& initial_state, py::ssize_t batch_size) const {
  const RnnSpec& spec = predictor_.spec();
  std::vector<py::object> given;
  if (py::isinstance<py::list>(initial_state) ||
      py::isinstance<py::tuple>(initial_state)) {
    for (const py::handle& state : initial_state) {
      given.push_back(py::reinterpret_borrow<py::object>(state));
    }
  } else {
    given.push_back(initial_state);
  }
  const size_t count = spec.has_c() ? 2 : 1;
  if (given.size() != count) {
    throw py::value_error("expected initial_state to be " +
                          std::string(count == 2 ? "h and c" : "h") +
                          ", but received " + std::to_string(given.size()) +
                          (given.size() == 1 ? " array" : " arrays"));
  }
  std::vector<py::array> states;
  for (size_t i = 0; i < count; ++i) {
    const char* const argument = i == 0 ? "initial h" : "initial c";
    states.push_back(ToDense(argument, given[i]));
    CheckShape(
        argument, states.back(),
        StateShape(batch_size, i == 0 ? spec.output_size() : spec.num_units),
        {});
  }
  return states;
}

py::tuple PredictorBinding::Call(const py::object& inputs,
                                 const py::object& initial_state,
                                 const py::object& sequence_lengths,
                                 const py::object& resets) {
  const RnnSpec& spec = predictor_.spec();
  const bool time_major = predictor_.options().time_major;
  const py::array input = ToDense("inputs", inputs);
  CheckShape("inputs", input, {-1, -1, spec.input_size},
             time_major ? std::vector<const char*>{"T", "B", ""}
                        : std::vector<const char*>{"B", "T", ""});
  const py::ssize_t max_time = input.shape(time_major ? 0 : 1);
  const py::ssize_t batch_size = input.shape(time_major ? 1 : 0);
  if (std::max(max_time, batch_size) > std::numeric_limits<int32_t>::max()) {
    throw py::value_error(
        "expected inputs' time and batch dimensions to fit 32 bits, but "
        "received shape " +
        Text(input.attr("shape")));
  }
  std::vector<int32_t> lengths;
  std::vector<py::array> before;
  if (!sequence_lengths.is_none()) {
    lengths = ReadLengths(sequence_lengths, batch_size, max_time);
  }
  if (!initial_state.is_none()) before = ReadStates(initial_state, batch_size);
  py::array begins;
  if (!resets.is_none()) {
    begins = py::array::ensure(resets);
    if (!begins || begins.dtype().kind() != 'b') {
      throw py::type_error("expected resets to be booleans, but received " +
                           Text(py::repr(resets)));
    }
    CheckShape("resets", begins, {input.shape(0), input.shape(1)}, {});
    begins = py::array_t<bool, kDense>(begins);
  }

  py::array output(
      dtype_, Shape{input.shape(0), input.shape(1), spec.layer_output_size()});
  std::vector<py::array> after;
  after.emplace_back(dtype_, StateShape(batch_size, spec.output_size()));
  if (spec.has_c()) {
    after.emplace_back(dtype_, StateShape(batch_size, spec.num_units));
  }
  if (before.empty()) {
    // The initial states are zeros. They may share memory with the final
    // states, since a state is read before it is written.
    for (py::array& state : after) {
      std::memset(state.mutable_data(), 0, state.nbytes());
    }
    before = after;
  }
  RnnForwardBuffers buffers;
  buffers.input = input.data();
  buffers.input_h = before[0].data();
  buffers.sequence_lengths.on_host = lengths.empty() ? nullptr : lengths.data();
  if (!resets.is_none()) buffers.resets = begins.data();
  buffers.output = output.mutable_data();
  buffers.output_h = after[0].mutable_data();
  if (spec.has_c()) {
    buffers.input_c = before[1].data();
    buffers.output_c = after[1].mutable_data();
  }
  {
    const OtherThreadsRun others;
    predictor_.Forward(max_time, batch_size, buffers);
  }
  if (spec.cell_clip > 0.0f) {
    // The network stores cell states unclipped and clips them when it reads
    // them, but callers get clipped ones.
    const py::object bound = dtype_.attr("type")(spec.cell_clip);
    py::module_::import("numpy").attr("clip")(after[1], -bound, bound,
                                              py::arg("out") = after[1]);
  }
  if (spec.has_c()) {
    return py::make_tuple(output, py::make_tuple(after[0], after[1]));
  }
  return py::make_tuple(output, py::make_tuple(after[0]));
}

}  // namespace cudnn_rnn_tf
