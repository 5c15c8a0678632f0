// expect: (no matching function|no matching member function)
// Gradients that may not be written cannot hold the reduced ones.
#include <zero/zero.hpp>

#include <span>

#ifndef ZERO_CONTROL
using Gradient = float const;
#else
using Gradient = float;
#endif

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, zero::BorrowedInPlace<>> optimizer{comm, {}};
  optimizer.bind(std::span<float>(), std::span<Gradient>());
}
