// Prints what the rule would run on an H100, the best first, for each network
// that a line of the input describes: mode, layers, units, directions, batch,
// time, type, training, lengths and zoneout. Estimates follow, and whether
// single steps are the best.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/gpu/algorithm_rule.h"
#include "kernels/gpu/persistent/network.h"
#include "without_masks.h"

namespace cudnn_rnn_tf {
namespace {

int Main() {
  const DeviceLimits gpu = NamedGpu("H100", 90, 132).limits;
  std::string mode, type;
  RnnProblem problem;
  RnnSpec& spec = problem.spec;
  int directions;
  while (std::cin >> mode >> spec.num_layers >> spec.num_units >> directions >>
         problem.batch_size >> problem.max_time >> type >>
         problem.is_training >> problem.has_sequence_lengths >> spec.zoneout) {
    if (!ParseName(mode, &spec.rnn_mode)) return 1;
    spec.input_size = spec.num_units;
    spec.direction = directions == 2 ? Direction::kBidirectional
                                     : Direction::kUnidirectional;
    problem.dtype = type == "float16"    ? RnnDataType::kFloat16
                    : type == "bfloat16" ? RnnDataType::kBfloat16
                                         : RnnDataType::kFloat32;
    const bool allow_tf32 = type == "tf32";
    const persistent::Estimate estimate =
        persistent::Network::EstimateCycles(problem, allow_tf32, gpu);
    std::vector<GpuChoice> choices;
    if (!Choices({problem, allow_tf32, gpu}, estimate, &choices).ok()) return 1;
    for (const GpuChoice& choice : choices) {
      std::printf("%s ", NameOf(WishOf(choice)));
    }
    std::printf("%.0f %.0f %d\n", estimate.cycles,
                CyclesOfCudnn({problem, allow_tf32, gpu}),
                choices[0].engine == GpuEngine::kSteps);
  }
  return 0;
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() { return cudnn_rnn_tf::Main(); }
