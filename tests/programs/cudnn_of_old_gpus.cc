// Prints what is advised to the owner of a GPU.
//
//   cudnn_of_old_gpus ARCHITECTURE CUDNN_VERSION
#include <cstdio>
#include <cstdlib>

#include "kernels/gpu/cudnn/description.h"

int main(int, char** argv) {
  const int architecture = std::atoi(argv[1]);
  const size_t version = std::strtoul(argv[2], nullptr, 10);
  std::fputs(cudnn_rnn_tf::AdviceForArchitecture(architecture, version).c_str(),
             stdout);
}
