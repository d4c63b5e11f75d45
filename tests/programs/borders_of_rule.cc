// Checks what the rule says on both sides of each of its borders.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/gpu/algorithm_rule.h"

namespace cudnn_rnn_tf {
namespace {

using Change = std::function<void(RnnProblem*)>;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

// Inference of an LSTM in float16, with the fewest units and sequences that
// persist_static is for.
RnnProblem Changed(const Change& change) {
  RnnProblem problem;
  problem.spec.num_units = 1280;
  problem.batch_size = 32;
  problem.dtype = RnnDataType::kFloat16;
  problem.is_training = false;
  change(&problem);
  return problem;
}

Change Sizes(int64_t units, int64_t batch) {
  return [=](RnnProblem* problem) {
    problem->spec.num_units = units;
    problem->batch_size = batch;
  };
}

Change Both(const Change& first, const Change& second) {
  return [=](RnnProblem* problem) {
    first(problem);
    second(problem);
  };
}

Change Algorithm(RnnAlgorithm algorithm) {
  return [=](RnnProblem* problem) { problem->algorithm = algorithm; };
}

const Change kTraining = [](RnnProblem* p) { p->is_training = true; };
const Change kLengths = [](RnnProblem* p) { p->has_sequence_lengths = true; };
const Change kGru = [](RnnProblem* p) { p->spec.rnn_mode = RnnMode::kGru; };
const Change kFloat = [](RnnProblem* p) { p->dtype = RnnDataType::kFloat32; };
const Change kFloatTraining = Both(kFloat, kTraining);
const Change kBothWays = [](RnnProblem* p) {
  p->spec.direction = Direction::kBidirectional;
};
const Change kSkip = [](RnnProblem* p) {
  p->spec.input_mode = InputMode::kSkip;
};
const Change kDouble = [](RnnProblem* p) { p->dtype = RnnDataType::kFloat64; };
const Change kBfloat = [](RnnProblem* p) { p->dtype = RnnDataType::kBfloat16; };
const Change kDrops = [](RnnProblem* p) { p->spec.recurrent_dropout = 0.5f; };

const DeviceLimits& LimitsOf(const std::string& name) {
  return std::find_if(std::begin(kKnownGpus), std::end(kKnownGpus),
                      [&](const NamedGpu& each) { return each.name == name; })
      ->limits;
}

Change Projection(int64_t size) {
  return [=](RnnProblem* problem) { problem->spec.num_proj = size; };
}

void CheckAlgorithms() {
  constexpr GpuChoice kStatic = {GpuEngine::kCudnn,
                                 CudnnAlgorithm::kPersistStatic};
  constexpr GpuChoice kSmall = {GpuEngine::kCudnn,
                                CudnnAlgorithm::kPersistStaticSmallH};
  constexpr GpuChoice kResident = {GpuEngine::kResident};
  constexpr GpuChoice kStandard = {};
  const struct {
    const char* what;
    Change change;
    GpuChoice expected;
    bool allow_tf32 = true;
  } rows[] = {
      {"the least sizes", Sizes(1280, 32), kStatic},
      {"the most units", Sizes(1536, 32), kStatic},
      {"the most sequences", Sizes(1280, 64), kStatic},
      {"too few units", Sizes(1279, 32), kStandard},
      {"too many units", Sizes(1537, 32), kStandard},
      {"too few sequences", Sizes(1280, 31), kStandard},
      {"small layers", Sizes(128, 999), kSmall},
      {"small layers in training", Both(Sizes(128, 999), kTraining), kSmall},
      {"small layers of GRUs", Both(Sizes(128, 999), kGru), kSmall},
      {"small layers with TF32", Both(Sizes(128, 999), kFloat), kSmall},
      {"small layers without", Both(Sizes(128, 999), kFloat), kStandard, false},
      {"small layers in half", Sizes(128, 999), kSmall, false},
      {"small layers in bfloat16", Both(Sizes(128, 999), kBfloat), kStandard},
      {"small layers in float64", Both(Sizes(128, 999), kDouble), kStandard},
      {"small layers with lengths", Both(Sizes(128, 999), kLengths), kStandard},
      {"layers not small", Sizes(129, 33), kStandard},
      {"few sequences", Both(Sizes(129, 32), kTraining), kStatic},
      {"few and most units", Both(Sizes(1024, 32), kTraining), kStatic},
      {"few, more units", Both(Sizes(1025, 32), kTraining), kStandard},
      {"two of a GRU", Both(Sizes(129, 2), Both(kGru, kTraining)), kStatic},
      {"three of a GRU", Both(Sizes(129, 3), Both(kGru, kTraining)), kStandard},
      {"two in TF32", Both(Sizes(129, 2), Both(kFloat, kTraining)), kStatic},
      {"three in TF32", Both(Sizes(129, 3), Both(kFloat, kTraining)),
       kStandard},
      {"too many sequences", Sizes(1280, 65), kStandard},
      {"training", kTraining, kStandard},
      {"lengths", kLengths, kStandard},
      {"a GRU", kGru, kStandard},
      {"bfloat16", kBfloat, kStandard},
      {"cuDNN's own", Algorithm(RnnAlgorithm::kCudnn), kStatic},
      {"a pinned one", Algorithm(RnnAlgorithm::kStandard), kStandard},
      {"another pinned one", Algorithm(RnnAlgorithm::kPersistStaticSmallH),
       kSmall},
      {"eight that are not aligned",
       [](RnnProblem* p) {
         p->batch_size = 8;
         p->is_aligned = false;
       },
       kStandard},
      {"eight sequences", Sizes(1280, 8), kResident},
      {"nine sequences", Sizes(1280, 9), kStandard},
      {"few in training", Both(Sizes(1280, 8), kTraining), kStandard},
      {"few with lengths", Both(Sizes(1280, 8), kLengths), kStandard},
      {"few by cuDNN", Both(Sizes(1280, 8), Algorithm(RnnAlgorithm::kCudnn)),
       kStandard},
  };
  for (const auto& row : rows) {
    const RnnProblem problem = Changed(row.change);
    std::vector<GpuChoice> choices;
    Check(Choices(problem, row.allow_tf32, kKnownGpus[0].limits, {}, &choices)
              .ok(),
          row.what);
    // Without the persistent kernels, single steps may come first.
    const auto first = std::find_if(
        choices.begin(), choices.end(),
        [](const GpuChoice& each) { return each.engine != GpuEngine::kSteps; });
    Check(*first == row.expected, row.what);
    // What is the caller's wish has no substitute; the rule's has.
    const bool is_wish = problem.algorithm != RnnAlgorithm::kAuto &&
                         problem.algorithm != RnnAlgorithm::kCudnn;
    Check(is_wish ? choices.size() == 1 : choices.back() == kStandard,
          row.what);
  }
}

// Up to how many cycles of a step the persistent kernels run a network: those
// of cuDNN, where the row says nothing else.
void CheckCycles() {
  constexpr double kCudnn = 0.0, kNever = -1.0;
  const struct {
    const char* what;
    Change change;
    double most;
    const char* gpu = "A100";
    bool allow_tf32 = true;
  } rows[] = {
      {"small in TF32", Both(Sizes(96, 128), kFloatTraining), kNever},
      {"small in TF32 as an L4", Both(Sizes(96, 128), kFloatTraining), kNever,
       "L4"},
      {"no TF32", Both(Sizes(96, 128), kFloatTraining), kCudnn, "T4"},
      {"clusters", Both(Sizes(96, 128), kFloatTraining), kCudnn, "H100"},
      {"other clusters", Both(Sizes(96, 128), kFloatTraining), kCudnn,
       "RTX 5090"},
      {"not small in TF32", Both(Sizes(97, 128), kFloatTraining), kCudnn},
      {"many sequences", Both(Sizes(96, 129), kFloatTraining), kCudnn},
      {"TF32 is forbidden", Both(Sizes(96, 128), kFloatTraining), kCudnn,
       "A100", false},
      {"small GRUs", Both(Sizes(96, 128), Both(kFloatTraining, kGru)), kCudnn},
      {"both directions", Both(Sizes(96, 128), Both(kFloatTraining, kBothWays)),
       kCudnn},
      {"skip input", Both(Sizes(96, 128), Both(kFloatTraining, kSkip)), kCudnn},
      {"small in inference", Both(Sizes(96, 128), kFloat), kCudnn},
      {"small in half", Both(Sizes(96, 128), kTraining), kCudnn},
      {"small with lengths",
       Both(Sizes(96, 128), Both(kFloatTraining, kLengths)), 100e3},
      {"two sequences of resident", Both(Sizes(512, 2), kBfloat), 3e3},
      {"units that are none of resident's", Both(Sizes(513, 2), kBfloat),
       kCudnn},
      {"two sequences of persist_static", Sizes(513, 2), 3e3},
      {"three sequences", Both(Sizes(512, 3), kBfloat), kCudnn},
      {"two in training", Both(Sizes(512, 2), kTraining), kCudnn},
      {"lengths", Both(Sizes(512, 2), kLengths), 50e3},
      {"lengths in float32", Both(Sizes(512, 2), Both(kLengths, kFloat)), 50e3},
      {"training with lengths", Both(kTraining, kLengths), 100e3},
  };
  for (const auto& row : rows) {
    const RnnProblem problem = Changed(row.change);
    const DeviceLimits& gpu = LimitsOf(row.gpu);
    const auto is_for = [&](double cycles) {
      return IsForWholeBatches(problem, row.allow_tf32, gpu, cycles);
    };
    const double most = row.most == kCudnn
                            ? CyclesOfCudnn(problem, row.allow_tf32, gpu)
                            : row.most;
    Check(!is_for(most) || most < 0.0, row.what);
    Check(is_for(std::nextafter(most, 1e9)), row.what);
  }
}

// Every network takes cuDNN longer with more of anything, and on a smaller GPU.
void CheckCudnn() {
  const Change types[] = {Sizes(512, 48), Both(Sizes(512, 48), kFloat),
                          Both(Sizes(512, 16), kTraining)};
  const struct {
    const char* what;
    Change change;
    const char* gpu = "H100";
  } more[] = {
      {"units", [](RnnProblem* p) { p->spec.num_units *= 2; }},
      {"sequences", [](RnnProblem* p) { p->batch_size *= 64; }},
      {"training", kTraining},
      {"directions", kBothWays},
      {"a smaller GPU", [](RnnProblem*) {}, "T4"},
  };
  for (const Change& type : types) {
    for (const bool allow_tf32 : {true, false}) {
      const RnnProblem problem = Changed(type);
      const double cycles =
          CyclesOfCudnn(problem, allow_tf32, LimitsOf("H100"));
      for (const auto& each : more) {
        const RnnProblem changed = Changed(Both(type, each.change));
        if (changed.is_training == problem.is_training &&
            each.what == std::string("training")) {
          continue;
        }
        Check(CyclesOfCudnn(changed, allow_tf32, LimitsOf(each.gpu)) > cycles,
              each.what);
      }
    }
  }
}

void CheckSteps() {
  const struct {
    const char* what;
    Change change;
    bool expected;
  } rows[] = {
      {"nothing else", Sizes(1280, 32), false},
      {"lengths", kLengths, true},
      {"recurrent dropout in inference", kDrops, false},
      {"recurrent dropout in training", Both(kDrops, kTraining), true},
      {"a projection", Projection(1279), false},
      {"a projection to as many", Projection(1280), true},
      {"a GRU", kGru, false},
      {"a GRU that resets before",
       [](RnnProblem* p) { p->spec.rnn_mode = RnnMode::kGruResetBefore; },
       true},
  };
  for (const auto& row : rows) {
    Check(MayBeSteps(Changed(row.change)) == row.expected, row.what);
  }
}

// A choice and its number belong together.
void CheckNumbers() {
  GpuChoice choice;
  Check(!ChoiceOf(0, &choice), "no choice");
  int count = 0;
  while (ChoiceOf(count + 1, &choice)) Check(NumberOf(choice) == ++count, "it");
  Check(count == 7, "seven choices");
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main() {
  cudnn_rnn_tf::CheckNumbers();
  cudnn_rnn_tf::CheckAlgorithms();
  cudnn_rnn_tf::CheckCycles();
  cudnn_rnn_tf::CheckCudnn();
  cudnn_rnn_tf::CheckSteps();
  std::printf("well\n");
}
