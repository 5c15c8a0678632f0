// expect: zero: needs a standard library with all of C[+][+]20
// What a library says of itself can be changed; GCC 10's has no std::bit_cast.
#include <version>
#ifndef ZERO_CONTROL
#undef __cpp_lib_bit_cast
#endif
#include <zero/zero.hpp>

int main() {}
