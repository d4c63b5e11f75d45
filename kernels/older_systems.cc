// Lets a library load on systems whose C and C++ libraries are older than those
// of the system that compiles it: glibc 2.28 and the C++ library of GCC 8, as
// in RHEL 8. TensorFlow's wheels need the same.
//
// A linker takes the newest version of each function, although nothing here
// needs what is new in it. The definitions in this file are taken instead,
// since they are in the same library. They are hidden, so other libraries do
// not see them, and call versions that all these systems have.
#include <new>
#include <sstream>

#if defined(__x86_64__) && defined(__gnu_linux__)

// Names are assembler's, because headers declare these functions with types and
// attributes of their own.
#define CRNN_HIDDEN __attribute__((visibility("hidden"), used))
#define CRNN_TAKE_VERSION(function, version)                                  \
  __asm__(".text\n.hidden " function "\n.globl " function "\n.type " function \
          ", @function\n" function ":\n\tjmp \"older " function               \
          "\"@PLT\n"                                                          \
          ".symver \"older " function "\", " function "@" version)

CRNN_TAKE_VERSION("dladdr", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("dlerror", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("dlopen", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("dlsym", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("exp", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("pthread_mutex_trylock", "GLIBC_2.2.5");
CRNN_TAKE_VERSION("pthread_once", "GLIBC_2.2.5");
// std::condition_variable::wait.
CRNN_TAKE_VERSION("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
                  "GLIBCXX_3.4.11");

extern "C" {

// Reference counts are always changed atomically.
CRNN_HIDDEN char crnn_single_threaded __asm__("__libc_single_threaded") = 0;

// Before glibc 2.33, stat was an inline call of this; 1 names the layout of its
// struct.
__asm__(".symver crnn_older_stat, __xstat@GLIBC_2.2.5");
int crnn_older_stat(int layout, const char* path, void* status);
CRNN_HIDDEN int crnn_stat(const char* path, void* status) __asm__("stat");
int crnn_stat(const char* path, void* status) {
  return crnn_older_stat(1, path, status);
}

// The C++ library of GCC 8 has the copying and the end of a std::exception_ptr,
// but keeps the counting of references to itself.
__asm__(
    ".symver crnn_older_copy, "
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
void crnn_older_copy(void* to, const void* from);
__asm__(
    ".symver crnn_older_end, "
    "_ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
void crnn_older_end(void* pointer);

CRNN_HIDDEN void crnn_add_reference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void crnn_add_reference(void* pointer) {
  void* copy;  // It never ends.
  crnn_older_copy(&copy, pointer);
}

CRNN_HIDDEN void crnn_release(void** pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void crnn_release(void** pointer) {
  crnn_older_end(pointer);
  *pointer = nullptr;
}

// Until GCC 9, std::stringstream had no constructor without a mode. The one
// with a mode is called by its plain name, not as one of a version:
// TensorFlow 2.20's library defines it too, and the linker would leave a hole
// in its table.
CRNN_HIDDEN void crnn_stringstream(void* stream) __asm__(
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void crnn_stringstream(void* stream) {
  ::new (stream) std::stringstream(std::ios_base::in | std::ios_base::out);
}

[[noreturn]] CRNN_HIDDEN void crnn_throw_bad_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
void crnn_throw_bad_length() { throw std::bad_array_new_length(); }

}  // extern "C"

#endif
