/// @file
/// A backward pass of which nothing is left.
#pragma once

#include <utility>

/// Reduces the gradients of all units as they are, which is zero where the library holds them.
/// @returns the optimizer, to take a step
template <class Optimizer>
Optimizer& give_zeros(Optimizer& optimizer) {
  for (int const unit : optimizer.units_backward()) optimizer.reduce(optimizer.gradients(unit));
  return optimizer;
}
