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
/// groups of their own, and a group is of one kind.
/// @param bucket_elements  of a full bucket
/// @param smallest  elements of the smallest bucket, of which all are multiples
ZERO_APART [[nodiscard]] ZERO_COLD std::vector<std::size_t> group_clusters(
    Placement const& placement, Merge merge, std::uint64_t bucket_elements, std::uint64_t smallest);

/// What is gathered for some neighbouring units.
struct Gathered {
  std::uint64_t padded = 0;           ///< elements that no other units use
  std::vector<std::size_t> beside{};  ///< clusters of another kind, or tied, ascending

  /// Is the other one brought along at no cost, if both together have so many elements?
  ZERO_APART [[nodiscard]] bool takes_in(Gathered const& other, std::uint64_t together) const;
};

}  // namespace detail

#if ZERO_BODIES

ZERO_BODY bool detail::Gathered::takes_in(Gathered const& other, std::uint64_t together) const {
  return together <= padded && other.padded > 0 &&
         std::includes(beside.begin(), beside.end(), other.beside.begin(), other.beside.end());
}

ZERO_BODY std::vector<std::size_t> detail::group_clusters(Placement const& placement,
                                                          Merge merge,
                                                          std::uint64_t bucket_elements,
                                                          std::uint64_t smallest) {
  auto const& clusters = placement.clusters();
  auto const units = static_cast<std::size_t>(placement.unit_count());
  std::vector<std::uint64_t> largest(placement.kinds().size(), 0);
  std::vector<std::size_t> kinds(units, 0);  // of what no other unit uses
  // What is whole everywhere is never gathered, and nor is what is empty.
  auto const is_gathered = [&](Cluster const& cluster) {
    return cluster.count > 0 && !placement.kinds()[cluster.kind].whole;
  };
  for (Cluster const& cluster : clusters) {
    if (cluster.tied || !is_gathered(cluster)) continue;
    largest[cluster.kind] = (std::max)(largest[cluster.kind], cluster.count);
    ++kinds[static_cast<std::size_t>(cluster.units.front())];
  }
  std::vector<std::vector<std::size_t>> beside(units);
  for (std::size_t c = 0; c < clusters.size() && merge == Merge::into_padding; ++c) {
    if (!is_gathered(clusters[c])) continue;
    for (int const u : clusters[c].units) {
      auto const unit = static_cast<std::size_t>(u);
      if (clusters[c].tied || kinds[unit] > 1) beside[unit].push_back(c);
    }
  }
  // What is frozen takes no pool.
  auto const limit = [&](std::uint32_t kind) {
    return merge == Merge::within_largest_unit && !placement.kinds()[kind].frozen
               ? (std::min)(bucket_elements, round_up(largest[kind], smallest))
               : bucket_elements;
  };

  std::vector<std::size_t> group_of(clusters.size(), 0);
  std::uint64_t begin = 0;
  Gathered group;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    Cluster const& cluster = clusters[c];
    bool joins =
        c > 0 && !cluster.tied && !clusters[c - 1].tied && cluster.kind == clusters[c - 1].kind;
    std::uint64_t together = cluster.begin + cluster.count - begin;
    bool const whole = placement.kinds()[cluster.kind].whole;
    if (merge == Merge::into_padding && !cluster.tied && !whole) {
      auto const unit = static_cast<std::size_t>(cluster.units.front());
      Gathered next{round_up(cluster.count, smallest), beside[unit]};
      if (joins) {
        together = round_up(together, smallest);
        bool const takes_in = group.takes_in(next, together);
        joins = takes_in || next.takes_in(group, together);
        // A unit between them that is gathered for other tensors would be in their way.
        auto between = static_cast<std::size_t>(clusters[c - 1].units.back());
        while (++between < unit) joins = joins && kinds[between] == 0 && beside[between].empty();
        if (joins && takes_in) next.beside = std::move(group.beside);
        if (joins) next.padded = together;
      }
      group = std::move(next);
    } else {
      joins = joins && together <= limit(cluster.kind);
    }
    if (!joins) begin = cluster.begin;
    if (c > 0) group_of[c] = group_of[c - 1] + (joins ? 0 : 1);
  }
  return group_of;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
