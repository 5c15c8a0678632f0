// expect: (read-only object|cannot assign to)
// The version is what the headers say; a trainer cannot pretend another one.
#include <zero/base/version.hpp>

int main() {
#ifndef ZERO_CONTROL
  zero::version.major = 1;
#endif
  return zero::version.major;
}
