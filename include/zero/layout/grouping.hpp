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

/// What some neighbouring units gather.
class Gathered {
 public:
  /// Nothing.
  Gathered() = default;
  /// Of one unit.
  /// @param used  the clusters that are gathered for it, ascending
  ZERO_APART ZERO_COLD Gathered(Placement const& placement,
                                std::vector<std::size_t> const& used,
                                std::uint64_t smallest);

  /// Brings a later unit along if both together take no more than the larger of them takes alone.
  /// @returns whether it did; if not, nothing has changed
  ZERO_APART ZERO_COLD bool takes_in(Gathered const& next,
                                     std::vector<Cluster> const& clusters,
                                     std::uint64_t smallest);

 private:
  struct Clusters {
    std::size_t first = 0;  ///< index of a cluster
    std::size_t end = 0;
  };
  std::vector<Clusters> runs_{};     ///< what no other units use, by kinds
  std::vector<std::size_t> tied_{};  ///< clusters that other units use, too, ascending
  std::uint64_t padded_ = 0;         ///< elements of the runs' buckets
};

}  // namespace detail

#if ZERO_BODIES

ZERO_BODY detail::Gathered::Gathered(Placement const& placement,
                                     std::vector<std::size_t> const& used,
                                     std::uint64_t smallest)
    : runs_(placement.kinds().size()) {
  for (std::size_t const c : used) {
    Cluster const& cluster = placement.clusters()[c];
    if (cluster.tied) {
      tied_.push_back(c);
    } else {
      runs_[cluster.kind] = {c, c + 1};
      padded_ += round_up(cluster.count, smallest);
    }
  }
}

ZERO_BODY bool detail::Gathered::takes_in(Gathered const& next,
                                          std::vector<Cluster> const& clusters,
                                          std::uint64_t smallest) {
  if (padded_ == 0 || next.padded_ == 0) return false;
  Gathered both(*this);
  both.padded_ = 0;
  for (std::size_t k = 0; k < runs_.size(); ++k) {
    Clusters& run = both.runs_[k];
    if (run.first == run.end) {
      run = next.runs_[k];
    } else if (next.runs_[k].first < next.runs_[k].end) {
      if (run.end != next.runs_[k].first) return false;
      run.end = next.runs_[k].end;
    }
    if (run.first == run.end) continue;
    Cluster const& last = clusters[run.end - 1];
    both.padded_ += round_up(last.begin + last.count - clusters[run.first].begin, smallest);
  }
  both.tied_ = std::vector<std::size_t>(tied_.size() + next.tied_.size());
  auto const end = std::set_union(
      tied_.begin(), tied_.end(), next.tied_.begin(), next.tied_.end(), both.tied_.begin());
  both.tied_.erase(end, both.tied_.end());
  // Neither list nor any run is shorter than one of theirs, so that equal sums are equal parts.
  auto const no_more_than = [&](Gathered const& one) {
    return both.padded_ == one.padded_ && both.tied_.size() == one.tied_.size();
  };
  if (!no_more_than(*this) && !no_more_than(next)) return false;
  *this = std::move(both);
  return true;
}

ZERO_BODY std::vector<std::size_t> detail::group_clusters(Placement const& placement,
                                                          Merge merge,
                                                          std::uint64_t bucket_elements,
                                                          std::uint64_t smallest) {
  auto const& clusters = placement.clusters();
  auto const units = static_cast<std::size_t>(placement.unit_count());
  // What is whole everywhere is never gathered, and nor is what is empty.
  auto const is_gathered = [&](Cluster const& cluster) {
    return merge == Merge::into_padding && cluster.count > 0 &&
           !placement.kinds()[cluster.kind].whole;
  };
  std::vector<std::uint64_t> largest(placement.kinds().size(), 0);
  std::vector<std::vector<std::size_t>> gathered(units);
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    Cluster const& cluster = clusters[c];
    if (!cluster.tied) largest[cluster.kind] = (std::max)(largest[cluster.kind], cluster.count);
    if (!is_gathered(cluster)) continue;
    for (int const unit : cluster.units) gathered[static_cast<std::size_t>(unit)].push_back(c);
  }
  // A unit joins with all that is gathered for it, or not at all.
  std::vector<std::size_t> gathered_with(units, 0);
  Gathered last;
  for (std::size_t unit = 0, number = 0; unit < units; ++unit) {
    if (!gathered[unit].empty()) {
      Gathered next(placement, gathered[unit], smallest);
      if (!last.takes_in(next, clusters, smallest)) {
        last = std::move(next);
        ++number;
      }
    }
    gathered_with[unit] = number;
  }
  // What is frozen takes no pool.
  auto const limit = [&](std::uint32_t kind) {
    return merge == Merge::within_largest_unit && !placement.kinds()[kind].frozen
               ? (std::min)(bucket_elements, round_up(largest[kind], smallest))
               : bucket_elements;
  };

  std::vector<std::size_t> group_of(clusters.size(), 0);
  std::uint64_t begin = 0;
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    Cluster const& cluster = clusters[c];
    bool joins =
        c > 0 && !cluster.tied && !clusters[c - 1].tied && cluster.kind == clusters[c - 1].kind;
    if (merge == Merge::into_padding && !placement.kinds()[cluster.kind].whole) {
      auto const group_of_unit = [&](Cluster const& of) {
        return gathered_with[static_cast<std::size_t>(of.units.front())];
      };
      joins = joins && is_gathered(cluster) && is_gathered(clusters[c - 1]) &&
              group_of_unit(clusters[c - 1]) == group_of_unit(cluster);
    } else {
      joins = joins && cluster.begin + cluster.count - begin <= limit(cluster.kind);
    }
    if (!joins) begin = cluster.begin;
    if (c > 0) group_of[c] = group_of[c - 1] + (joins ? 0 : 1);
  }
  return group_of;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
