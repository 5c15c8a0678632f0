// expect: zero: the simulated communicator moved to examples/plan/simulate
#ifndef ZERO_CONTROL
#include <zero/simulate.hpp>
#endif

int main() {}
