// expect: zero: two placements are named
#include <zero/activations.hpp>
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::Activations acts{comm, {}, zero::activation::Pa{}, zero::activation::Whole{}};
#else
  zero::Activations acts{comm, {}, zero::activation::Pa{}};
#endif
}
