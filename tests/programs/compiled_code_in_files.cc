// Checks machine code in files: what was written is read, and nothing else is.
//
//   compiled_code_in_files FOLDER
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/gpu/compiled_code_cache.h"

namespace {

void Check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

std::string OnlyFileIn(const std::string& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    Check(found.empty(), "one file");
    found = entry.path();
  }
  return found;
}

}  // namespace

int main(int, char** argv) {
  const std::string folder = std::string(argv[1]) + "/a/b";
  const cudnn_rnn_tf::CompiledCodeCache files(folder);
  const std::string key = "a\nkey", code("co\0de\n", 6);
  std::string read;
  Check(!files.Read(key, &read), "nothing is there");
  files.Write(key, code);
  Check(files.Read(key, &read) && read == code, "what was written is read");
  Check(!files.Read("another key", &read), "another key");
  const std::string file = OnlyFileIn(folder);
  struct stat status;
  Check(stat(file.c_str(), &status) == 0 && (status.st_mode & 077) == 0,
        "the file is the user's alone");
  chmod(file.c_str(), 0666);
  Check(!files.Read(key, &read), "others may write the file");
  chmod(file.c_str(), 0600);
  Check(files.Read(key, &read), "they may not any more");
  for (const mode_t mode : {0775, 0707}) {
    chmod(folder.c_str(), mode);
    Check(!files.Read(key, &read), "others may write the folder");
    files.Write("another key", code);
    Check(OnlyFileIn(folder) == file, "nothing is written there");
  }
  chmod(folder.c_str(), 0700);
  Check(files.Read(key, &read), "others may not write the folder any more");
  const auto size = std::filesystem::file_size(file);
  for (size_t at = 0; at < size; ++at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(byte ^ 1));
    stream.close();
    Check(!files.Read(key, &read), "a damaged file");
    files.Write(key, code);
    Check(files.Read(key, &read) && read == code, "it is replaced");
  }
  for (size_t length = 0; length < size; ++length) {
    std::filesystem::resize_file(file, length);
    Check(!files.Read(key, &read), "a file that was cut off");
    files.Write(key, code);
  }
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    for (char c = 'a'; child == 0; c = c == 'z' ? 'a' : c + 1) {
      files.Write(key, std::string(size_t{100} << 10, c));
    }
    usleep(50 * i);
    Check(kill(child, SIGKILL) == 0 && waitpid(child, nullptr, 0) == child,
          "a process that writes is killed");
    Check(files.Read(key, &read) &&
              (read == code || read == std::string(size_t{100} << 10, read[0])),
          "the file is whole, in its old form or its new one");
  }
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  Check(!files.Read(key, &read), "a folder, which cannot be read as a file");
  cudnn_rnn_tf::CompiledCodeCache("").Write(key, code);
  Check(!cudnn_rnn_tf::CompiledCodeCache("").Read(key, &read), "no folder");
  cudnn_rnn_tf::CompiledCodeCache("/proc/none").Write(key, code);
  std::printf("files hold what they should\n");
  return 0;
}
