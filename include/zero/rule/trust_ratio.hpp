/// @file
/// How far a tensor may move, from norms of its own: what LAMB and LARS multiply a rate by.
#pragma once

#include "zero/base/config.hpp"

#include <limits>

namespace zero::inline ZERO_NAMESPACE::detail {

/// No bound: of tensors of floats no ratio is as large.
inline constexpr double any_ratio = 1e300;

/// above / below within [least, most], and 1 where a norm that is in one of them is 0.
[[nodiscard]] ZERO_HOST_DEVICE inline double trust_ratio(
    double above, double below, bool none, double least, double most) noexcept {
  if (none) return 1.;
  double const ratio = above / below;
  return ratio < least ? least : ratio > most ? most : ratio;
}

/// In the type of a rule's scalars, of which it may be beyond the largest number: an infinite rate
/// would make a NaN of a step of 0. A NaN stays.
template <class Real>
[[nodiscard]] ZERO_HOST_DEVICE Real finite_rate(double rate) noexcept {
  constexpr Real most = (std::numeric_limits<Real>::max)();
  return rate > static_cast<double>(most) ? most : static_cast<Real>(rate);
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
