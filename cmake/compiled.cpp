// What zero::compiled contains. Its flags are those of the whole build.
#define ZERO_INSTANTIATE template
#include <zero/compiled.hpp>

#if !ZERO_IF(ZERO_JOIN(ZERO_COMPILED_, ZERO_NAMESPACE, , , , , , ), 1, 0)
#error "zero: cmake/compiled.cmake asked the compiler for the name of other flags than these"
#endif
