/// @file
/// Which neighbouring units share buckets: a function of model, ranks and bucket size alone.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// May small neighbouring units share a bucket?
enum class Merge : std::uint8_t {
  into_padding,         ///< where they take no more than the larger of them takes anyway
  within_largest_unit,  ///< as long as no bucket's memory outgrows the largest unit's
  freely,               ///< up to the bucket's bytes
};

namespace detail {

/// The number of the group that each cluster is in, from 0 on and ascending. Tied clusters are
/// groups of their own.
/// @param bucket_elements  of a full bucket
/// @param smallest  elements of the smallest bucket, of which all are multiples
ZERO_APART [[nodiscard]] ZERO_COLD std::vector<std::size_t> group_clusters(
    Placement const& placement, Merge merge, std::uint64_t bucket_elements, std::uint64_t smallest);

/// What is gathered for some neighbouring units.
struct Gathered {
  std::uint64_t padded = 0;         ///< elements that no other units use
  std::vector<std::size_t> tied{};  ///< clusters beside them that others use as well, ascending

  /// Is the other one brought along at no cost, if both together have so many elements?
  ZERO_APART [[nodiscard]] bool takes_in(Gathered const& other, std::uint64_t together) const;
};

}  // namespace detail

#if ZERO_BODIES

ZERO_BODY bool detail::Gathered::takes_in(Gathered const& other, std::uint64_t together) const {
  return together <= padded && other.padded > 0 &&
         std::includes(tied.begin(), tied.end(), other.tied.begin(), other.tied.end());
}

ZERO_BODY std::vector<std::size_t> detail::group_clusters(Placement const& placement,
                                                          Merge merge,
                                                          std::uint64_t bucket_elements,
                                                          std::uint64_t smallest) {
  auto const& clusters = placement.clusters();
  std::uint64_t largest = 0;
  std::vector<std::vector<std::size_t>> tied(static_cast<std::size_t>(placement.unit_count()));
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    if (!clusters[c].tied) largest = (std::max)(largest, clusters[c].count);
    // What is tied and empty is not gathered.
    if (!clusters[c].tied || clusters[c].count == 0 || merge != Merge::into_padding) continue;
    for (int const unit : clusters[c].units) tied[static_cast<std::size_t>(unit)].push_back(c);
  }
  std::uint64_t const limit = merge == Merge::within_largest_unit
                                  ? (std::min)(bucket_elements, round_up(largest, smallest))
                                  : bucket_elements;

  std::vector<std::size_t> group_of(clusters.size(), 0);
  std::uint64_t begin = 0;
  Gathered group;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    Cluster const& cluster = clusters[c];
    bool joins = c > 0 && !cluster.tied && !clusters[c - 1].tied;
    std::uint64_t together = cluster.begin + cluster.count - begin;
    if (merge == Merge::into_padding && !cluster.tied) {
      auto const unit = static_cast<std::size_t>(cluster.units.front());
      Gathered next{round_up(cluster.count, smallest), tied[unit]};
      if (joins) {
        together = round_up(together, smallest);
        bool const takes_in = group.takes_in(next, together);
        joins = takes_in || next.takes_in(group, together);
        // A unit between them that is gathered for tied tensors alone would be in their way.
        auto between = static_cast<std::size_t>(clusters[c - 1].units.back());
        while (++between < unit) joins = joins && tied[between].empty();
        if (joins && takes_in) next.tied = std::move(group.tied);
        if (joins) next.padded = together;
      }
      group = std::move(next);
    } else {
      joins = joins && together <= limit;
    }
    if (!joins) begin = cluster.begin;
    if (c > 0) group_of[c] = group_of[c - 1] + (joins ? 0 : 1);
  }
  return group_of;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
