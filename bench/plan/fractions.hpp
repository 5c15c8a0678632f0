/// @file
/// Models whose few fractions are set by published points.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>

namespace plan {

/// The fractions, none above 1, for which `misfit(fractions)` is least: walks along one at a time,
/// in ever smaller steps, as long as that is better.
/// @param best      where it begins
/// @param smallest  the last step
template <class Fractions, class Misfit>
[[nodiscard]] Fractions best_fractions(Fractions best,
                                       Misfit const& misfit,
                                       double smallest = 1.002) {
  // Ways back lead to what has been seen, and so does a fraction that would exceed 1.
  std::map<Fractions, double> known;
  auto const misfit_of = [&](Fractions const& of) {
    auto const [at, is_new] = known.try_emplace(of);
    if (is_new) at->second = misfit(of);
    return at->second;
  };
  double least = misfit_of(best);
  for (double step = 1.3; step > smallest; step = std::sqrt(step)) {
    for (bool better = true; better;) {
      better = false;
      for (std::size_t i = 0; i < 2 * best.size(); ++i) {
        Fractions next = best;
        double& fraction = next[i / 2];
        fraction = std::min(1., i % 2 == 0 ? fraction * step : fraction / step);
        double const error = misfit_of(next);
        if (error >= least - 1e-12) continue;
        best = next;
        least = error;
        better = true;
      }
    }
  }
  return best;
}

/// Errors of predictions, as parts of what was published.
struct Errors {
  double sum = 0.;   ///< of their sizes
  double bias = 0.;  ///< of themselves
  double most = 0.;  ///< in size
  std::size_t count = 0;

  void add(double error) {
    sum += std::abs(error);
    bias += error;
    most = std::max(most, std::abs(error));
    ++count;
  }
  [[nodiscard]] double average() const { return sum / static_cast<double>(count); }
  [[nodiscard]] double mean() const { return bias / static_cast<double>(count); }
};

}  // namespace plan
