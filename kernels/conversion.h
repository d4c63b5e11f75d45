// What the ops that convert parameters read from their attributes and check,
// for the kernels and for the lowerings to XLA.
#ifndef CUDNN_RNN_TF_KERNELS_CONVERSION_H_
#define CUDNN_RNN_TF_KERNELS_CONVERSION_H_

#include <memory>

#include "kernels/op_status.h"
#include "kernels/rnn_attrs.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace cudnn_rnn_tf {

// The layout is that of the tensors that params are converted to or from.
template <typename Layout>
class Conversion {
 public:
  const RnnSpec& spec() const { return spec_; }
  const Layout& layout() const { return *layout_; }

  // Reads the network and checks the counts below. The context is a kernel's,
  // when it is made, or a shape function's.
  template <typename Context>
  absl::Status Read(Context* context) {
    TF_RETURN_IF_ERROR(ReadNetwork(context));
    return CheckCounts(context);
  }
  template <typename Context>
  absl::Status ReadNetwork(Context* context) {
    TF_RETURN_IF_ERROR(ReadSpec(context, &spec_));
    TF_RETURN_IF_ERROR(ReadSpec(context, &spec_, AttrOf::kParamsOps));
    TF_RETURN_IF_ERROR(CheckSpec(spec_));
    layout_ = std::make_unique<Layout>(spec_);
    return absl::OkStatus();
  }
  // Checks that the op has as many weights and biases as the layout.
  template <typename Context>
  absl::Status CheckCounts(Context* context) const {
    TF_RETURN_IF_ERROR(
        CheckCount(context, "num_weights", "weights", layout_->num_weights()));
    return CheckCount(context, "num_biases", "biases",
                      layout_->tensors().size() - layout_->num_weights());
  }

  // `shape_of(i)` is the shape of tensor i, weights and then biases.
  template <typename ShapeOf>
  absl::Status CheckTensors(const ShapeOf& shape_of) const {
    int index = 0;
    for (const auto& place : layout_->tensors()) {
      const tensorflow::TensorShape expected(place.Shape());
      const tensorflow::TensorShape& shape = shape_of(index++);
      if (shape == expected) continue;
      return InvalidArgument("expected shape ", expected.DebugString(), " for ",
                             place.Name(), ", but received ",
                             shape.DebugString());
    }
    return absl::OkStatus();
  }
  absl::Status CheckParams(const tensorflow::TensorShape& shape) const {
    if (shape == tensorflow::TensorShape({layout_->size()})) {
      return absl::OkStatus();
    }
    return InvalidArgument("expected params of shape [", layout_->size(),
                           "] for this configuration, but received ",
                           shape.DebugString());
  }

 private:
  template <typename Context>
  static absl::Status CheckCount(Context* context, const char* attr,
                                 const char* name, int64_t expected) {
    int64_t count = 0;
    TF_RETURN_IF_ERROR(context->GetAttr(attr, &count));
    if (count == expected) return absl::OkStatus();
    return InvalidArgument("expected ", expected, " ", name,
                           " for this configuration, but received ", count);
  }

  RnnSpec spec_;
  std::unique_ptr<Layout> layout_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_CONVERSION_H_
