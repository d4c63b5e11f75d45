// Calls the functions of which kernels/older_systems.cc takes older versions,
// and prints what they return.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

int main(int count, char** arguments) {
  volatile double one = count;
  std::printf("exp %.3f\n", std::exp(one));
  struct stat status;
  std::printf("stat %d %d\n", stat("/dev/null", &status),
              S_ISCHR(status.st_mode));
  std::printf("no file %d\n", stat("/dev/null/none", &status));
  void* library = dlopen("libm.so.6", RTLD_NOW);
  Dl_info info;
  void* function = dlsym(library, "cos");
  std::printf("dl %d %d\n", dlerror() == nullptr, dladdr(function, &info) != 0);

  std::exception_ptr first;
  try {
    throw std::runtime_error("what was thrown");
  } catch (...) {
    first = std::current_exception();
  }
  {
    std::exception_ptr copy = first;
    std::exception_ptr other = copy;
  }
  std::exception_ptr second = first;
  first = nullptr;
  try {
    std::rethrow_exception(second);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  try {
    volatile long size = -count;
    delete[] new int[size];
  } catch (const std::bad_array_new_length&) {
    std::printf("bad length\n");
  }
  auto shared = std::make_shared<std::string>("shared");
  auto answer = std::async(std::launch::async, [shared] { return shared; });
  std::stringstream stream;
  stream << *answer.get() << ' ' << shared.use_count();
  std::string word;
  stream >> word;
  std::printf("%s\n", word.c_str());
  std::mutex mutex;
  std::printf("lock %d", mutex.try_lock());
  std::printf(" %d\n", mutex.try_lock());
  static_cast<void>(arguments);
}
