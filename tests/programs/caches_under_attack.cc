// Attacks the files that keep machine code: kills a process that writes them,
// damages them, or lets writing fail. Prints, as JSON, how often each outcome
// occurred.
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
#include "tests/programs/fake_gpu.h"

namespace cudnn_rnn_tf {

GpuLibraries FakeLibraries() { return {}; }

namespace {

using Random = std::mt19937;

constexpr char kKey[] = "a key";

std::string folder;
// The number of times that each outcome occurred.
std::map<std::string, int> counts;

std::string CodeFolder() { return folder + "/code"; }

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

void Write(Random* random) {
  CompiledCodeCache(CodeFolder()).Write(kKey, CodeOf((*random)()));
}

// What was stored once must be there and whole, in its old form or its new one.
void CheckAll() {
  std::string code;
  Check(CompiledCodeCache(CodeFolder()).Read(kKey, &code) && IsWhole(code),
        "the code");
}

// Removes files whose writing was interrupted, and tells whether there were
// any.
bool RemovePartial() {
  bool found = false;
  for (const auto& entry : std::filesystem::directory_iterator(CodeFolder())) {
    if (!entry.is_regular_file() || entry.path().extension().empty()) continue;
    std::filesystem::remove(entry.path());
    found = true;
  }
  return found;
}

void Kill(Random* random) {
  const unsigned seed = (*random)();
  const pid_t child = Start([&] {
    Random other(seed);
    while (true) Write(&other);
  });
  usleep((*random)() % 5000);
  kill(child, SIGKILL);
  int status;
  Check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "a kill");
  InAnotherProcess(CheckAll);
  ++counts[RemovePartial() ? "inside a write" : "between writes"];
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

// Damaged code must not be read, and must then be replaced.
void ReadDamaged(Random* random) {
  const std::string file =
      std::filesystem::directory_iterator(CodeFolder())->path();
  const std::string before = Content(file);
  Damage(file, random);
  std::string code;
  const bool is_read = CompiledCodeCache(CodeFolder()).Read(kKey, &code);
  Check(is_read == (Content(file) == before), "whether damaged code is read");
  ++counts[is_read ? "damage left the same bytes; read" : "refused"];
  Write(random);
  Check(CompiledCodeCache(CodeFolder()).Read(kKey, &code) && IsWhole(code),
        "code that is written anew");
}

// If nothing or too little can be written, the earlier contents must stay.
void WriteInVain(Random* random) {
  const unsigned seed = (*random)();
  InAnotherProcess([&] {
    Random other(seed);
    Write(&other);
    CompiledCodeCache(CodeFolder()).Write("another key", CodeOf(other()));
    std::string code;
    if (CompiledCodeCache(CodeFolder()).Read("another key", &code)) {
      Check(IsWhole(code), "what is read of another key");
    }
  });
  InAnotherProcess(CheckAll);
  ++counts["earlier contents kept"];
}

void Print() {
  std::string text;
  for (const auto& [end, count] : counts) {
    text +=
        (text.empty() ? "\"" : ", \"") + end + "\": " + std::to_string(count);
  }
  std::printf("{\"kernel code\": {%s}}\n", text.c_str());
}

}  // namespace
}  // namespace cudnn_rnn_tf

int main(int argc, char** argv) {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  Check(argc == 5, "four arguments");
  folder = argv[1];
  const std::string what = argv[2];
  Random random(std::atoi(argv[4]));
  if (!std::filesystem::exists(CodeFolder())) {
    InAnotherProcess([&] { Write(&random); });
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
