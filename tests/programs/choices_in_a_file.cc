// Stores random choices in a file and reads them. Each time this is done in a
// process of its own, since a process has one object for its choices.
//
//   choices_in_a_file SEEDS
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/cudnn/remembered_choices.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

GpuLibraries FakeLibraries() { return {}; }

namespace {

std::vector<Choice> RandomChoices(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Choice> choices(1 + random() % 20);
  for (Choice& choice : choices) {
    // The first value is kAuto, which is not an algorithm but asks for a
    // choice.
    choice.algorithm =
        static_cast<RnnAlgorithm>(1 + random() % (kNumMeasuredAlgorithms - 1));
    choice.source = random() % 4 == 0 ? "rule" : "measured";
    choice.forward_is_chain = random() % 2 == 0;
    choice.backward_is_chain = random() % 2 == 0;
    choice.timings = "standard " + std::to_string(random() % 100) + " ms";
  }
  return choices;
}

std::string NameOf(size_t index) {
  return "configuration " + std::to_string(index);
}

void InAnotherProcess(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::fflush(stdout);
    _exit(0);
  }
  int status;
  Check(waitpid(child, &status, 0) == child && status == 0, "a process");
}

class File {
 public:
  File() {
    const int descriptor = mkstemp(name_);
    Check(descriptor >= 0, "a file");
    close(descriptor);
    setenv("CUDNN_RNN_TF_CHOICE_CACHE", name_, 1);
  }
  ~File() { unlink(name_); }
  const char* name() const { return name_; }

 private:
  char name_[20] = "/tmp/choices_XXXXXX";
};

void CheckFile(unsigned seed) {
  const File file;
  // These lines are not choices; other versions may have written some of them.
  std::ofstream(file.name())
      << "other\tstandard\tstandard 1 ms\n"
      << "other\tstandard\treplay\teager\tstandard 1 ms\n"
      << "other\tauto\tgraph\tgraph\tstandard 1 ms\n"
      << "other\tstandard\tgraph\tchain\tx\tstandard 1 ms\n"
      << "other\tnone\tgraph\tgraph\tstandard 1 ms\n"
      << "other\n\n";
  const std::vector<Choice> choices = RandomChoices(seed);
  InAnotherProcess([&] {
    for (size_t i = 0; i < choices.size(); ++i) {
      Choices::Instance().Decide(NameOf(i), choices[i]);
    }
  });
  InAnotherProcess([&] {
    Choice found;
    for (size_t i = 0; i < choices.size(); ++i) {
      const bool is_stored = Choices::Instance().Find(NameOf(i), &found);
      Check(is_stored == (choices[i].source == "measured"), "what is stored");
      if (!is_stored) continue;
      Check(found.source == "stored", "the source");
      Check(found.algorithm == choices[i].algorithm, "the algorithm");
      Check(found.forward_is_chain == choices[i].forward_is_chain &&
                found.backward_is_chain == choices[i].backward_is_chain,
            "graph or chain");
      Check(found.timings == choices[i].timings, "the timings");
    }
    Check(!Choices::Instance().Find("other", &found), "no choice is read");
    // A choice is not given up if another algorithm failed, since a later
    // choice may have replaced that one.
    Choices::Instance().GiveUp(NameOf(0), RnnAlgorithm::kAuto);
    Check(Choices::Instance().num_given_up() == 0, "none is given up");
    Choices::Instance().GiveUp(NameOf(0), choices[0].algorithm);
  });
  InAnotherProcess([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full = {10, 10};
    Check(setrlimit(RLIMIT_FSIZE, &full) == 0, "a full disk");
    Choice choice;
    choice.source = "measured";
    Choices::Instance().Decide("too much", choice);
  });
  InAnotherProcess([&] {
    Choice found;
    Check(!Choices::Instance().Find(NameOf(0), &found), "one given up");
    Check(!Choices::Instance().Find("too much", &found), "a full disk");
    for (size_t i = 1; i < choices.size(); ++i) {
      Check(Choices::Instance().Find(NameOf(i), &found) ==
                (choices[i].source == "measured"),
            "what stays");
    }
  });
}

void CheckManyNames() {
  constexpr size_t kStored = 5000, kMaxOthers = 4096;
  const File file;
  {
    std::ofstream stream(file.name());
    for (size_t i = 0; i < kStored; ++i) {
      stream << NameOf(i) << '\t' << Choice().Text() << "1 ms\n";
    }
  }
  InAnotherProcess([] {
    Choices& choices = Choices::Instance();
    const auto use = [&](const std::string& name) {
      Choice choice;
      return choices.FindAndCount(name, &choice);
    };
    for (const Choices::State state :
         {Choices::State::kUndecided, Choices::State::kToBeMeasured}) {
      Check(use("a") == state && use("b") == state, "names in turn");
    }
    for (size_t i = kStored; i < 3 * kStored; ++i) {
      choices.Decide(NameOf(i), Choice());
    }
    for (size_t i = 0; i < kStored; ++i) {
      Check(use(NameOf(i)) == Choices::State::kDecided, "one of many");
    }
    const std::string text = choices.Text();
    const size_t lines = std::count(text.begin(), text.end(), '\n');
    Check(lines <= kStored + kMaxOthers, "names without end");
  });
}

}  // namespace

}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  cudnn_rnn_tf::CheckManyNames();
  return cudnn_rnn_tf::RunSeeds(argc, argv, cudnn_rnn_tf::CheckFile);
}
