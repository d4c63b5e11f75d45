// Attacks the files that keep measured choices and machine code: kills a
// process that writes them, damages them, or lets writing fail. Prints, as
// JSON, how often each outcome occurred.
//
//   caches_under_attack FOLDER kills COUNT SEED
//   caches_under_attack FOLDER damage COUNT SEED
//   caches_under_attack FOLDER full COUNT SEED
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "kernels/gpu/compiled_code_cache.h"
#include "kernels/gpu/cudnn/remembered_choices.h"
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

GpuLibraries FakeLibraries() { return {}; }

namespace {

using Random = std::mt19937;

constexpr int kNumNames = 40;
constexpr char kChoices[] = "choice file", kCode[] = "kernel code";
constexpr char kKey[] = "a key";

std::string folder;
// The number of times that each outcome occurred, for each kind of file.
std::map<std::string, std::map<std::string, int>> counts;

std::string ChoiceFile() { return folder + "/choices"; }
std::string CodeFolder() { return folder + "/code"; }

std::string NameOf(int index) {
  return "configuration " + std::to_string(index);
}

Choice RandomChoice(Random* random) {
  Choice choice;
  choice.algorithm =
      static_cast<RnnAlgorithm>(1 + (*random)() % (kNumMeasuredAlgorithms - 1));
  choice.source = "measured";
  choice.forward_is_chain = (*random)() % 2 == 0;
  choice.timings = std::string((*random)() % 100, 't') + " ms";
  return choice;
}

// Returns code that begins with its seed, so that IsWhole can compute it again.
std::string CodeOf(unsigned seed) {
  Random random(seed);
  std::string code = std::to_string(seed) + '\n';
  const size_t size = random() % (200 << 10);
  while (code.size() < size) code += static_cast<char>(random());
  return code;
}

bool IsWhole(const std::string& code) {
  return code == CodeOf(static_cast<unsigned>(std::atol(code.c_str())));
}

pid_t Start(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  Check(child >= 0, "a process");
  if (child == 0) {
    setenv("CUDNN_RNN_TF_CHOICE_CACHE", ChoiceFile().c_str(), 1);
    body();
    std::fflush(stdout);
    _exit(0);
  }
  return child;
}

void InAnotherProcess(const std::function<void()>& body) {
  int status;
  const pid_t child = Start(body);
  Check(waitpid(child, &status, 0) == child && status == 0, "a process's end");
}

void WriteAll(Random* random) {
  for (int i = 0; i < kNumNames; ++i) {
    Choices::Instance().Decide(NameOf(i), RandomChoice(random));
  }
  CompiledCodeCache(CodeFolder()).Write(kKey, CodeOf((*random)()));
}

// Everything that was stored once must be there and whole, in its old form or
// its new one.
void CheckAll() {
  Choice choice;
  for (int i = 0; i < kNumNames; ++i) {
    Check(Choices::Instance().Find(NameOf(i), &choice), "a stored choice");
    Check(choice.timings.find(" ms") != std::string::npos, "a whole choice");
  }
  std::string code;
  Check(CompiledCodeCache(CodeFolder()).Read(kKey, &code) && IsWhole(code),
        "the code");
}

// Removes files whose writing was interrupted, and returns their number.
int RemovePartial(const std::string& in, const std::string& whole) {
  int removed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(in)) {
    if (!entry.is_regular_file() || entry.path().string() == whole) continue;
    if (entry.path().extension().empty()) continue;
    std::filesystem::remove(entry.path());
    ++removed;
  }
  return removed;
}

void Kill(Random* random) {
  const unsigned seed = (*random)();
  const bool is_code = (*random)() % 2 == 0;
  const pid_t child = Start([&] {
    Random other(seed);
    while (true) {
      if (is_code) {
        CompiledCodeCache(CodeFolder()).Write(kKey, CodeOf(other()));
      } else {
        Choices::Instance().Decide(NameOf(other() % kNumNames),
                                   RandomChoice(&other));
      }
    }
  });
  usleep((*random)() % 5000);
  kill(child, SIGKILL);
  int status;
  Check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "a kill");
  InAnotherProcess(CheckAll);
  const bool was_inside = is_code ? RemovePartial(CodeFolder(), "") > 0
                                  : RemovePartial(folder, ChoiceFile()) > 0;
  ++counts[is_code ? kCode : kChoices]
          [was_inside ? "inside a write" : "between writes"];
}

std::string Content(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void Damage(const std::string& file, Random* random) {
  std::string content = Content(file);
  for (unsigned changes = 1 + (*random)() % 3; changes > 0; --changes) {
    const size_t place = (*random)() % (content.size() + 1);
    switch ((*random)() % 4) {
      case 0:
        content.resize(place);
        break;
      case 1:
        content.insert(place, 1, static_cast<char>((*random)()));
        break;
      case 2:
        content.erase(place, (*random)() % 9);
        break;
      default:
        if (place < content.size()) content[place] ^= 1 << (*random)() % 8;
    }
  }
  std::ofstream(file, std::ios::binary) << content;
}

// Damaged code must not be read, and of a damaged choice file only lines that
// are choices. Either file must then be replaced.
void ReadDamaged(Random* random) {
  if ((*random)() % 2 == 0) {
    const std::string file =
        std::filesystem::directory_iterator(CodeFolder())->path();
    const std::string before = Content(file);
    Damage(file, random);
    std::string code;
    const bool is_read = CompiledCodeCache(CodeFolder()).Read(kKey, &code);
    Check(is_read == (Content(file) == before), "whether damaged code is read");
    ++counts[kCode][is_read ? "damage left the same bytes; read" : "refused"];
    CompiledCodeCache(CodeFolder()).Write(kKey, CodeOf((*random)()));
    Check(CompiledCodeCache(CodeFolder()).Read(kKey, &code) && IsWhole(code),
          "code that is written anew");
    return;
  }
  Damage(ChoiceFile(), random);
  int pipe_ends[2];
  Check(pipe(pipe_ends) == 0, "a pipe");
  InAnotherProcess([&] {
    Choice choice;
    char found = 0;
    for (int i = 0; i < kNumNames; ++i) {
      if (!Choices::Instance().Find(NameOf(i), &choice)) continue;
      Check(static_cast<int>(choice.algorithm) > 0 &&
                static_cast<int>(choice.algorithm) < kNumMeasuredAlgorithms,
            "an algorithm");
      ++found;
    }
    Check(write(pipe_ends[1], &found, 1) == 1, "an answer");
  });
  char found;
  Check(read(pipe_ends[0], &found, 1) == 1, "an answer");
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  ++counts[kChoices][found == kNumNames ? "all choices were still read"
                                        : "damaged lines were ignored"];
  const unsigned seed = (*random)();
  InAnotherProcess([&] {
    Random other(seed);
    WriteAll(&other);
  });
  InAnotherProcess(CheckAll);
}

// If nothing or too little can be written, the earlier contents must stay.
void WriteInVain(Random* random) {
  const unsigned seed = (*random)();
  InAnotherProcess([&] {
    Random other(seed);
    WriteAll(&other);
    CompiledCodeCache(CodeFolder()).Write("another key", CodeOf(other()));
    std::string code;
    if (CompiledCodeCache(CodeFolder()).Read("another key", &code)) {
      Check(IsWhole(code), "what is read of another key");
    }
  });
  InAnotherProcess(CheckAll);
  ++counts[kChoices]["earlier contents kept"];
  ++counts[kCode]["earlier contents kept"];
}

void Print() {
  std::string text;
  for (const auto& [what, ends] : counts) {
    std::string of_what;
    for (const auto& [end, count] : ends) {
      of_what += (of_what.empty() ? "\"" : ", \"") + end +
                 "\": " + std::to_string(count);
    }
    text += (text.empty() ? "\"" : ", \"") + what + "\": {" + of_what + '}';
  }
  std::printf("{%s}\n", text.c_str());
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  Check(argc == 5, "four arguments");
  folder = argv[1];
  const std::string what = argv[2];
  Random random(std::atoi(argv[4]));
  if (!std::filesystem::exists(ChoiceFile())) {
    InAnotherProcess([&] { WriteAll(&random); });
  }
  InAnotherProcess(CheckAll);
  for (int i = 0; i < std::atoi(argv[3]); ++i) {
    being_checked = what + " " + std::to_string(i);
    (what == "kills"    ? Kill
     : what == "damage" ? ReadDamaged
                        : WriteInVain)(&random);
  }
  Print();
  return 0;
}
