// expect: zero: checkpoints need the files of POSIX, which Windows does not have
// The check compiles for this system; what a compiler says of it can be changed.
#ifndef ZERO_CONTROL
#define _WIN32 1
#endif
#include <zero/checkpoint/files.hpp>

int main() {}
