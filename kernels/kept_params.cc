#include "kernels/kept_params.h"

#include <utility>

#include "kernels/never_destroyed.h"

namespace cudnn_rnn_tf {
namespace {

using tensorflow::Tensor;

// Tells whether the packed forms of the same parameters are the same.
bool PackAlike(const RnnSpec& a, const RnnSpec& b) {
  return a.rnn_mode == b.rnn_mode && a.num_layers == b.num_layers &&
         a.num_units == b.num_units && a.num_proj == b.num_proj &&
         a.input_size == b.input_size && a.input_mode == b.input_mode &&
         a.direction == b.direction && a.bias_mode == b.bias_mode;
}

}  // namespace

KeptParams& KeptParams::Instance() {
  static NeverDestroyed<KeptParams> instance;
  return *instance;
}

std::shared_ptr<const CpuPackedParams> KeptParams::Packed(const Tensor& params,
                                                          const RnnSpec& spec,
                                                          RnnDataType dtype) {
  if (auto found = Find(params, spec)) return found;
  // Other calls go on while this one packs. Two calls that come first at the
  // same time both pack, and the later entry is the one that is dropped first.
  auto packed =
      std::make_shared<const CpuPackedParams>(spec, dtype, params.data());
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_front({params, spec, packed});
  if (entries_.size() > kMostEntries) entries_.pop_back();
  return packed;
}

std::shared_ptr<const CpuPackedParams> KeptParams::Find(const Tensor& params,
                                                        const RnnSpec& spec) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Nobody else has these parameters any more: a variable took new memory, or
  // is gone.
  entries_.remove_if(
      [](const Entry& entry) { return entry.params.RefCountIsOne(); });
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->params.SharesBufferWith(params) &&
        entry->params.data() == params.data() &&
        entry->params.dtype() == params.dtype() &&
        PackAlike(entry->spec, spec)) {
      entries_.splice(entries_.begin(), entries_, entry);
      return entry->packed;
    }
  }
  return nullptr;
}

}  // namespace cudnn_rnn_tf
