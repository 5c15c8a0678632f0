// What depends on no policy, compiled once for all test programs of the same flags.
#define ZERO_IMPLEMENTATION
#include <zero/zero.hpp>
