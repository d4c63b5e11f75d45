// A cache of machine code in files of the user.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_

#include <string>
#include <utility>

namespace cudnn_rnn_tf {

// Each file holds a key and the code that belongs to it. Reading ignores a file
// that is incomplete, damaged, or of another key, and one that other users may
// write. Failures to write are no errors: the next process compiles again. In a
// folder that others may write, nothing is read or written, and the first
// attempt to write prints a warning.
class CompiledCodeCache {
 public:
  // With an empty folder, the cache keeps nothing.
  explicit CompiledCodeCache(std::string folder) : folder_(std::move(folder)) {}
  // Returns a cache in the folder that the environment names; see
  // CompileKernel.
  static CompiledCodeCache OfUser();

  bool Read(const std::string& key, std::string* code) const;
  void Write(const std::string& key, const std::string& code) const;

 private:
  std::string FileOf(const std::string& key) const;

  const std::string folder_;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_COMPILED_CODE_CACHE_H_
