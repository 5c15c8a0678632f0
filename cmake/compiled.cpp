// What zero::compiled contains: bodies that depend on no policy, and the usual kernels. Its flags
// are those of the whole build.
#define ZERO_IMPLEMENTATION
#include <zero/zero.hpp>

#if !ZERO_TAKES_COMPILED
#error "zero: cmake/compiled.cmake asked the compiler for the name of other flags than these"
#endif
