// What a thread moves at once. Whoever compiles defines UNIT_BYTES, its size.
// There is no guard: tests include this in one program for several sizes.
#if UNIT_BYTES == 16
using Unit = uint4;
#elif UNIT_BYTES == 8
using Unit = unsigned long long;
#elif UNIT_BYTES == 4
using Unit = unsigned int;
#elif UNIT_BYTES == 2
using Unit = unsigned short;
#else
#error "no unit has so many bytes"
#endif
