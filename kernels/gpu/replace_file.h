// Writes files that several processes may read and write at the same time.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_REPLACE_FILE_H_
#define CUDNN_RNN_TF_KERNELS_GPU_REPLACE_FILE_H_

#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <string>

namespace cudnn_rnn_tf {

// Replaces a file as a whole, so that readers see the old one or the new one.
// If that fails, the old one stays. If the file `is_private`, only its owner
// may read and write it.
inline void ReplaceFile(const std::string& file, const std::string& contents,
                        bool is_private) {
  // The name is random, since processes on several machines or in several
  // containers may write at the same time.
  const std::string written =
      file + '.' + std::to_string(std::random_device()());
  std::ofstream stream(written, std::ios::binary);
  if (is_private) chmod(written.c_str(), S_IRUSR | S_IWUSR);
  stream << contents;
  stream.close();  // This may be the first to report a failure.
  if (!stream || std::rename(written.c_str(), file.c_str()) != 0) {
    std::remove(written.c_str());
  }
}

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_REPLACE_FILE_H_
