// Machine code in files of the user's.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_

#include <string>

namespace cudnn_rnn_tf {

// Each file holds a key and what belongs to it. Reading finds nothing in a file
// that is incomplete, damaged, of another key, or not the user's alone to
// write. Failures to write are no errors: the next process compiles again.
class CompiledCodeCache {
 public:
  // An empty folder keeps nothing.
  explicit CompiledCodeCache(std::string folder) : folder_(std::move(folder)) {}
  // The folder that the environment names.
  static CompiledCodeCache OfUser();

  bool Read(const std::string& key, std::string* code) const;
  void Write(const std::string& key, const std::string& code) const;

 private:
  std::string FileOf(const std::string& key) const;

  const std::string folder_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_
