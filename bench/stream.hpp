/// @file
/// What our own benchmarks compare with, and how: a STREAM triad, timed in turn with the code under
/// test.
///
/// Absolute bandwidth means nothing on a shared machine, whose speed changes within seconds. A
/// ratio to a known kernel does, if both were timed in the same process and in the same seconds.
#pragma once

#include "../examples/plan/triad.hpp"
#include "zero/bench/team.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace bench {
using namespace zero::bench;

/// The middle one of the values; 0 if there are none.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The median over the rounds of one duration over another: what other tenants take from one, they
/// take from its neighbour as well.
[[nodiscard]] inline double median_ratio(std::vector<double> const& over,
                                         std::vector<double> const& under) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return median(ratios);
}

/// The same of the fastest rounds: what remains when no one else was at work.
[[nodiscard]] inline double best_ratio(std::vector<double> const& over,
                                       std::vector<double> const& under) {
  return *std::min_element(over.begin(), over.end()) /
         *std::min_element(under.begin(), under.end());
}

/// The triad on two threads.
class Triad {
 public:
  /// @param elements  per array; three arrays have to be well beyond the cache
  explicit Triad(std::size_t elements = std::size_t{32} << 20) : team_(2), parts_(2) {
    // Made by the threads that work on them, so that these touch their pages first.
    team_.run([&](int rank) { part(rank) = std::make_unique<plan::TriadPart>(elements / 2); });
  }

  /// Runs it once. @return bytes per second
  double round() {
    double const start = seconds_now();
    team_.run([this](int rank) { part(rank)->run(); });
    double const rate = 2. * part(0)->bytes() / (seconds_now() - start);
    best_ = (std::max)(best_, rate);
    return rate;
  }

  /// The fastest round so far. @return bytes per second
  [[nodiscard]] double best() const { return best_; }

 private:
  std::unique_ptr<plan::TriadPart>& part(int rank) {
    return parts_[static_cast<std::size_t>(rank)];
  }

  double best_ = 0;
  Team team_;
  std::vector<std::unique_ptr<plan::TriadPart>> parts_;
};

}  // namespace bench
