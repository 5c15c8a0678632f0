/// @file
/// The prefetch slot: how far ahead parameters are gathered.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline ZERO_NAMESPACE {

/// Units gathered ahead of the one in use, where a stage partitions parameters; small neighbours
/// that are gathered together count as one. The gather pool holds `depth + 1` units. A wrong guess
/// about the order costs time, never correctness.
struct Prefetch {
  int depth = 1;  ///< 0: a unit is gathered when it is asked for
  friend constexpr bool operator==(Prefetch const&, Prefetch const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
