// expect: zero: needs C[+][+]20; compile with -std=c[+][+]20
// The check compiles everything as C++20; what a compiler says of itself can be changed.
#ifndef ZERO_CONTROL
#undef __cplusplus
#define __cplusplus 201703L
#endif
#include <zero/zero.hpp>

int main() {}
