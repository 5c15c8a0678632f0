/// @file
/// Durations that were measured, instead of rates that data sheets name.
#pragma once

#include "zero/base/error.hpp"

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

namespace plan {

using namespace zero;

/// Seconds of one kind of work, measured at all points of a grid of its sizes: bytes of a pass
/// through memory or of a collective, the three of a matrix product.
///
/// Between the points, and beyond the outermost ones, logarithms of seconds are linear in those of
/// sizes: exact where work grows by a power of each size.
struct Timing {
  std::string name{};                        ///< of the work
  std::vector<std::vector<double>> sizes{};  ///< of each dimension, ascending, above 0
  /// One for each point, above 0; the last dimension's neighbours are next to each other.
  std::vector<double> seconds{};

  /// Seconds for any sizes above 0, as many as there are dimensions.
  [[nodiscard]] double at(std::initializer_list<double> of) const {
    if (of.size() != sizes.size()) {
      fail(ErrorKind::invalid_argument,
           {"'", name, "' was measured by ", sizes.size(), " sizes, not by ", of.size()});
    }
    return std::exp(logarithm(of.begin(), 0, 0));
  }
  /// @throws Error (invalid_argument) naming what makes no sense
  void validate() const {
    std::size_t points = 1;
    bool sound = !sizes.empty();
    for (auto const& dimension : sizes) {
      // Not a product beyond 64 bits, which may come out as anything.
      sound = sound && (dimension.empty() || points <= seconds.size() / dimension.size());
      points *= dimension.size();
      double before = 0.;
      for (double const size : dimension) {
        sound = sound && std::isfinite(size) && size > before;
        before = size;
      }
    }
    if (!sound || points != seconds.size() || points == 0) {
      fail(ErrorKind::invalid_argument,
           {"the timing '", name, "' is no grid: sizes ascend, and each point has its seconds"});
    }
    for (double const value : seconds) {
      if (std::isfinite(value) && value > 0.) continue;
      fail(ErrorKind::invalid_argument,
           {"the timing '", name, "' has ", value, " seconds, not above 0"});
    }
  }
  friend bool operator==(Timing const&, Timing const&) = default;

 private:
  /// Of the seconds, where `point` says which of the dimensions before this one.
  [[nodiscard]] double logarithm(double const* of, std::size_t dimension, std::size_t point) const {
    if (dimension == sizes.size()) return std::log(seconds[point]);
    std::vector<double> const& known = sizes[dimension];
    std::size_t const row = point * known.size();
    if (known.size() == 1) return logarithm(of, dimension + 1, row);
    std::size_t high = 1;
    while (high + 1 < known.size() && of[dimension] > known[high]) ++high;
    double const t =
        std::log(of[dimension] / known[high - 1]) / std::log(known[high] / known[high - 1]);
    double const below = logarithm(of, dimension + 1, row + high - 1);
    return below + t * (logarithm(of, dimension + 1, row + high) - below);
  }
};

}  // namespace plan
