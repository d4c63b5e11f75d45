// Runs a SavedModel with fused ops from C++, by way of TensorFlow's C API.
//
//   run_saved_model OP_LIBRARY SAVED_MODEL DIMENSION... < NUMBERS
//
// OP_LIBRARY is what cudnn_rnn_tf.op_library_path() says. The model's serving
// signature has one float32 input, whose shape the dimensions say and whose
// numbers are read from the standard input. Each output is written as a line of
// its name and its numbers.
//
// docs/guides/deploying.md says how to compile it.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace {

// Owns an object of the C API.
template <typename T, void (*Delete)(T*)>
struct Deleter {
  void operator()(T* object) const { Delete(object); }
};
template <typename T, void (*Delete)(T*)>
using Owned = std::unique_ptr<T, Deleter<T, Delete>>;
using Status = Owned<TF_Status, TF_DeleteStatus>;
using Tensor = Owned<TF_Tensor, TF_DeleteTensor>;

void Check(const Status& status) {
  if (TF_GetCode(status.get()) != TF_OK) {
    throw std::runtime_error(TF_Message(status.get()));
  }
}

struct SessionDeleter {
  void operator()(TF_Session* session) const {
    const Status status(TF_NewStatus());
    TF_DeleteSession(session, status.get());
  }
};

class Model {
 public:
  explicit Model(const char* saved_model) : graph_(TF_NewGraph()) {
    const Status status(TF_NewStatus());
    const Owned<TF_SessionOptions, TF_DeleteSessionOptions> options(
        TF_NewSessionOptions());
    const Owned<TF_Buffer, TF_DeleteBuffer> bytes(TF_NewBuffer());
    const char* const tags[] = {"serve"};
    session_.reset(TF_LoadSessionFromSavedModel(
        options.get(), nullptr, saved_model, tags, 1, graph_.get(), bytes.get(),
        status.get()));
    Check(status);
    tensorflow::MetaGraphDef meta_graph;
    if (!meta_graph.ParseFromArray(bytes->data,
                                   static_cast<int>(bytes->length))) {
      throw std::runtime_error("the SavedModel's graph cannot be parsed");
    }
    const auto signature = meta_graph.signature_def().find("serving_default");
    if (signature == meta_graph.signature_def().end()) {
      throw std::runtime_error("the SavedModel has no serving signature");
    }
    signature_ = signature->second;
    if (signature_.inputs_size() != 1 ||
        signature_.inputs().begin()->second.dtype() != tensorflow::DT_FLOAT) {
      throw std::runtime_error("expected a model with one float32 input");
    }
  }

  // Runs the serving signature and writes what it returns.
  void Run(const std::vector<int64_t>& shape, const std::vector<float>& numbers,
           std::ostream& out) const {
    const Tensor input(TF_AllocateTensor(TF_FLOAT, shape.data(),
                                         static_cast<int>(shape.size()),
                                         numbers.size() * sizeof(float)));
    std::copy(numbers.begin(), numbers.end(),
              static_cast<float*>(TF_TensorData(input.get())));
    const TF_Output input_place = Place(signature_.inputs().begin()->second);
    TF_Tensor* const input_value = input.get();
    std::vector<std::string> names;
    std::vector<TF_Output> places;
    for (const auto& [name, info] : signature_.outputs()) {
      names.push_back(name);
      places.push_back(Place(info));
    }
    std::vector<TF_Tensor*> values(places.size(), nullptr);
    const Status status(TF_NewStatus());
    TF_SessionRun(session_.get(), nullptr, &input_place, &input_value, 1,
                  places.data(), values.data(), static_cast<int>(values.size()),
                  nullptr, 0, nullptr, status.get());
    const std::vector<Tensor> outputs(values.begin(), values.end());
    Check(status);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (TF_TensorType(outputs[i].get()) != TF_FLOAT) {
        throw std::runtime_error("expected float32 outputs");
      }
      const auto* data =
          static_cast<const float*>(TF_TensorData(outputs[i].get()));
      out << names[i];
      for (int64_t j = 0; j < TF_TensorElementCount(outputs[i].get()); ++j) {
        out << ' ' << data[j];
      }
      out << '\n';
    }
  }

 private:
  // Where in the graph a tensor named "operation:index" is.
  TF_Output Place(const tensorflow::TensorInfo& info) const {
    const size_t colon = info.name().rfind(':');
    const std::string name = info.name().substr(0, colon);
    TF_Operation* const operation =
        TF_GraphOperationByName(graph_.get(), name.c_str());
    if (operation == nullptr) {
      throw std::runtime_error("there is no operation " + name);
    }
    return {operation, std::stoi(info.name().substr(colon + 1))};
  }

  Owned<TF_Graph, TF_DeleteGraph> graph_;
  std::unique_ptr<TF_Session, SessionDeleter> session_;
  tensorflow::SignatureDef signature_;
};

void Main(const std::vector<const char*>& arguments) {
  if (arguments.size() < 3) {
    throw std::invalid_argument(
        "usage: run_saved_model OP_LIBRARY SAVED_MODEL DIMENSION... < NUMBERS");
  }
  const Status status(TF_NewStatus());
  // Registers the ops for the rest of the process.
  const Owned<TF_Library, TF_DeleteLibraryHandle> library(
      TF_LoadLibrary(arguments[0], status.get()));
  Check(status);
  std::vector<int64_t> shape;
  for (size_t i = 2; i < arguments.size(); ++i) {
    shape.push_back(std::stoll(arguments[i]));
  }
  const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1},
                                       std::multiplies<int64_t>());
  if (size < 0) throw std::invalid_argument("a dimension is negative");
  std::vector<float> numbers(size);
  for (float& number : numbers) {
    if (!(std::cin >> number)) {
      throw std::invalid_argument("expected " + std::to_string(size) +
                                  " numbers");
    }
  }
  std::cout.precision(9);  // What tells float32 numbers apart.
  Model(arguments[1]).Run(shape, numbers, std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "run_saved_model: " << error.what() << '\n';
    return 1;
  }
}
