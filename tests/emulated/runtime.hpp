/// @file
/// What tests can do to the emulated runtime that a program cannot do to a real one.
#pragma once

#include <cstddef>

namespace emulated {

/// How many devices there are; all of them can reach one another.
inline constexpr int devices = 2;

/// Lets every call of the runtime from this number on fail, for a reason unknown.
void fail_from(std::size_t number);
/// How many calls there have been.
std::size_t calls();

}  // namespace emulated
