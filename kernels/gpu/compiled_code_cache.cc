#include "kernels/gpu/compiled_code_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <sstream>

namespace cudnn_rnn_tf {
namespace {

constexpr char kMagic[] = "cudnn_rnn_tf kernel 2\n";

// FNV-1a (Fowler, Noll and Vo), 64 bits.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return hash;
}

std::string Hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(number));
  return text;
}

// Makes the folder and those above it, and returns whether it exists.
bool MakeFolder(const std::string& folder) {
  for (size_t at = 1; at <= folder.size(); ++at) {
    if (at < folder.size() && folder[at] != '/') continue;
    mkdir(folder.substr(0, at).c_str(), S_IRWXU);
  }
  struct stat status;
  return stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// The cache trusts no file that other users may write, since the code would run
// as this user.
bool BelongsToUser(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && status.st_uid == geteuid() &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// A file ends with the code. What comes before is equally long for all codes.
std::string Contents(const std::string& key, const std::string& code) {
  return kMagic + Hex(Hash(key + code)) + '\n' + key + code;
}

// Replaces a file as a whole, so that readers see the old one or the new one.
// If that fails, the old one stays. Only the owner may read and write the file.
void ReplaceFile(const std::string& file, const std::string& contents) {
  // The name is random, since processes on several machines or in several
  // containers may write at the same time.
  const std::string written =
      file + '.' + std::to_string(std::random_device()());
  std::ofstream stream(written, std::ios::binary);
  chmod(written.c_str(), S_IRUSR | S_IWUSR);
  stream << contents;
  stream.close();  // This may be the first to report a failure.
  if (!stream || std::rename(written.c_str(), file.c_str()) != 0) {
    std::remove(written.c_str());
  }
}

}  // namespace

CompiledCodeCache CompiledCodeCache::OfUser() {
  if (const char* const folder = std::getenv("CUDNN_RNN_TF_KERNEL_CACHE")) {
    return CompiledCodeCache(folder);
  }
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') {
    return CompiledCodeCache(std::string(cache) + "/cudnn_rnn_tf");
  }
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return CompiledCodeCache("");
  return CompiledCodeCache(std::string(home) + "/.cache/cudnn_rnn_tf");
}

std::string CompiledCodeCache::FileOf(const std::string& key) const {
  return folder_ + "/kernel_" + Hex(Hash(key));
}

bool CompiledCodeCache::Read(const std::string& key, std::string* code) const {
  if (folder_.empty()) return false;
  const std::string file = FileOf(key);
  if (!BelongsToUser(folder_) || !BelongsToUser(file)) return false;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream contents;
  contents << stream.rdbuf();  // A read that fails sets a bit; it cannot throw.
  const std::string text = contents.str();
  const size_t before_code = Contents(key, "").size();
  if (!stream || text.size() < before_code) return false;
  *code = text.substr(before_code);
  return Contents(key, *code) == text;
}

void CompiledCodeCache::Write(const std::string& key,
                              const std::string& code) const {
  if (folder_.empty() || !MakeFolder(folder_)) return;
  if (!BelongsToUser(folder_)) {
    static std::once_flag warned;
    std::call_once(warned, [&] {
      std::fprintf(stderr,
                   "cudnn_rnn_tf: compiled GPU kernels are not kept in %s, "
                   "since it is not this user's or others may write it "
                   "(chmod go-w helps); each process compiles them again\n",
                   folder_.c_str());
    });
    return;
  }
  ReplaceFile(FileOf(key), Contents(key, code));
}

}  // namespace cudnn_rnn_tf
