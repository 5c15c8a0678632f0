/// @file
/// Who owns which element, and which elements travel together. Built once; used by reduction, norm,
/// update, gather and plan.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/placement.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace zero::inline v0_1 {

/// What is partitioned together and travels together.
///
/// Rank r owns elements [begin + r * shard, begin + (r + 1) * shard), of which those at or beyond
/// begin + count are padding.
struct BucketSpan {
  std::uint64_t begin = 0;        ///< first element, in the logical space
  std::uint64_t count = 0;        ///< elements without padding
  std::uint64_t shard = 0;        ///< elements of one rank's share, a multiple of `block`
  std::uint64_t shard_begin = 0;  ///< where the share begins in a rank's shard memory
  int group = 0;                  ///< index into `groups()`
};

/// Tensors whose gradients are complete at the same time: one unit, several small neighbouring
/// units, or the tensors that one set of units shares.
struct Group {
  std::uint64_t begin = 0;         ///< first element, in the logical space
  std::uint64_t count = 0;         ///< elements without padding
  std::uint64_t padded_begin = 0;  ///< where the group begins in a padded full-size array
  std::uint64_t padded = 0;        ///< elements with padding: the sum of its buckets' N * shard
  std::size_t first_bucket = 0;    ///< index into `buckets()`
  std::size_t bucket_count = 0;    ///< buckets that follow each other
  std::vector<int> units;          ///< units that use it, ascending
  bool tied = false;               ///< tensors of one unit that other units use as well
};

/// A run of elements of one tensor that one rank owns in one bucket.
struct Segment {
  std::size_t tensor = 0;           ///< index into the described tensors
  std::uint64_t tensor_offset = 0;  ///< first element, within the tensor
  std::uint64_t range_offset = 0;   ///< first element, within the range that was asked for
  std::uint64_t count = 0;          ///< elements of the run
};

/// May small neighbouring units share a bucket?
enum class Merge : std::uint8_t {
  never,                ///< where parameters are gathered unit by unit
  within_largest_unit,  ///< as long as no bucket's memory outgrows the largest unit's
  freely,               ///< up to the bucket's bytes
};

/// Numbers that shape a partition.
struct PartitionOptions {
  int world_size = 1;                 ///< ranks, at least 1
  std::uint64_t bucket_elements = 0;  ///< elements that travel together, before rounding
  Merge merge = Merge::freely;        ///< whether buckets may span units
};

/// The one partition of a model over N ranks.
///
/// Tensors lie in a logical element space in registration order; padding makes every bucket
/// divisible by N. Where padding sits depends on N and on the bucket size; the logical space does
/// not, which is why results cannot depend on them.
class Partition {
 public:
  /// @throws Error (invalid_argument) for a model or options that make no sense
  ZERO_COLD Partition(std::vector<Tensor> const& tensors, PartitionOptions const& options)
      : placement_(tensors), options_(options) {
    if (options.world_size < 1) {
      fail(ErrorKind::invalid_argument,
           {"world size must be at least 1, got ", options.world_size});
    }
    auto const ranks = static_cast<std::uint64_t>(options.world_size);
    std::uint64_t const quantum = checked_mul(block, ranks);
    bucket_elements_ = std::max(quantum, options.bucket_elements / quantum * quantum);
    form_groups();
    for (Group& group : groups_) cut_into_buckets(group);
    order_reductions();
  }

  /// Where tensors lie in the logical space.
  [[nodiscard]] Placement const& placement() const noexcept { return placement_; }
  /// Ranks the model is shared out over.
  [[nodiscard]] int world_size() const noexcept { return options_.world_size; }
  /// Elements of a full bucket over all ranks: a multiple of N * `block`.
  [[nodiscard]] std::uint64_t bucket_elements() const noexcept { return bucket_elements_; }
  /// Groups in the order of the logical space.
  [[nodiscard]] std::vector<Group> const& groups() const noexcept { return groups_; }
  /// Buckets in the order of the logical space.
  [[nodiscard]] std::vector<BucketSpan> const& buckets() const noexcept { return buckets_; }
  /// Groups in the order in which their gradients are complete in a backward pass.
  [[nodiscard]] std::vector<std::size_t> const& reduction_order() const noexcept {
    return reduction_order_;
  }
  /// Groups that hold the trainable tensors of a unit, tied ones included.
  [[nodiscard]] std::vector<std::size_t> const& groups_of(int unit) const {
    return unit_groups_[static_cast<std::size_t>(unit)];
  }

  /// Elements one rank owns, padding included.
  [[nodiscard]] std::uint64_t shard_elements() const noexcept { return shard_elements_; }
  /// Elements of a full-size array, padding included: N times `shard_elements()`.
  [[nodiscard]] std::uint64_t padded_elements() const noexcept { return padded_elements_; }

  /// Elements of a bucket that a rank owns, without padding; the last ranks may own none.
  [[nodiscard]] std::uint64_t owned_count(BucketSpan const& bucket, int rank) const noexcept {
    std::uint64_t const skipped = static_cast<std::uint64_t>(rank) * bucket.shard;
    return skipped >= bucket.count ? 0 : std::min(bucket.shard, bucket.count - skipped);
  }

  /// Where a tensor begins in a padded full-size array.
  [[nodiscard]] std::uint64_t padded_offset(std::size_t tensor) const noexcept {
    TensorPlace const& place = placement_.places()[tensor];
    Group const& group = groups_[group_of_cluster_[place.cluster]];
    return group.padded_begin + (place.offset - group.begin);
  }
  /// Index of the group that holds a trainable tensor.
  [[nodiscard]] std::size_t group_of(std::size_t tensor) const noexcept {
    return group_of_cluster_[placement_.places()[tensor].cluster];
  }

  /// Calls `visit(Segment const&)` for every run of trainable elements in [begin, begin + count) of
  /// the logical space, in order; gaps between tensors are skipped.
  template <class Visit>
  void for_each_segment(std::uint64_t begin, std::uint64_t count, Visit&& visit) const {
    std::uint64_t const end = begin + count;
    auto const& order = placement_.by_offset();
    auto const& places = placement_.places();
    auto at = std::partition_point(order.begin(), order.end(), [&](std::size_t tensor) {
      return places[tensor].offset + places[tensor].count <= begin;
    });
    for (; at != order.end() && places[*at].offset < end; ++at) {
      TensorPlace const& place = places[*at];
      std::uint64_t const first = std::max(begin, place.offset);
      std::uint64_t const last = std::min(end, place.offset + place.count);
      if (first < last) visit(Segment{*at, first - place.offset, first - begin, last - first});
    }
  }

 private:
  [[nodiscard]] std::uint64_t merge_limit() const {
    if (options_.merge == Merge::freely) return bucket_elements_;
    std::uint64_t largest = 0;
    for (Cluster const& cluster : placement_.clusters()) {
      if (!cluster.tied) largest = std::max(largest, cluster.count);
    }
    return std::min(bucket_elements_, largest);
  }

  ZERO_COLD void form_groups() {
    auto const& clusters = placement_.clusters();
    group_of_cluster_.resize(clusters.size());
    unit_groups_.resize(static_cast<std::size_t>(placement_.unit_count()));
    std::uint64_t const limit = merge_limit();
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      Cluster const& cluster = clusters[c];
      bool const joins = options_.merge != Merge::never && !groups_.empty() && !cluster.tied &&
                         !groups_.back().tied &&
                         cluster.begin + cluster.count - groups_.back().begin <= limit;
      if (!joins) {
        groups_.emplace_back();
        groups_.back().begin = cluster.begin;
        groups_.back().tied = cluster.tied;
      }
      Group& group = groups_.back();
      group.count = cluster.begin + cluster.count - group.begin;
      group_of_cluster_[c] = groups_.size() - 1;
      for (int const unit : cluster.units) {
        group.units.push_back(unit);
        unit_groups_[static_cast<std::size_t>(unit)].push_back(groups_.size() - 1);
      }
    }
  }

  void cut_into_buckets(Group& group) {
    auto const ranks = static_cast<std::uint64_t>(options_.world_size);
    group.first_bucket = buckets_.size();
    group.padded_begin = padded_elements_;
    for (std::uint64_t done = 0; done < group.count;) {
      BucketSpan bucket;
      bucket.begin = group.begin + done;
      bucket.count = std::min(bucket_elements_, group.count - done);
      bucket.shard = round_up(ceil_div(bucket.count, ranks), block);
      bucket.shard_begin = shard_elements_;
      bucket.group = static_cast<int>(&group - groups_.data());
      buckets_.push_back(bucket);
      done += bucket.count;
      shard_elements_ = checked_add(shard_elements_, bucket.shard);
      padded_elements_ = checked_add(padded_elements_, checked_mul(bucket.shard, ranks));
    }
    group.bucket_count = buckets_.size() - group.first_bucket;
    group.padded = padded_elements_ - group.padded_begin;
  }

  void order_reductions() {
    for (std::size_t g = 0; g < groups_.size(); ++g) reduction_order_.push_back(g);
    // A backward pass visits units in descending order, so a group is complete with the smallest
    // of its units.
    detail::sort_indices(reduction_order_, [&](std::size_t a, std::size_t b) {
      int const last_a = groups_[a].units.front();
      int const last_b = groups_[b].units.front();
      return last_a != last_b ? last_a > last_b : a > b;
    });
  }

  Placement placement_;
  PartitionOptions options_;
  std::uint64_t bucket_elements_ = 0;
  std::uint64_t shard_elements_ = 0;
  std::uint64_t padded_elements_ = 0;
  std::vector<Group> groups_;
  std::vector<BucketSpan> buckets_;
  std::vector<std::size_t> reduction_order_;
  std::vector<std::size_t> group_of_cluster_;
  std::vector<std::vector<std::size_t>> unit_groups_;
};

}  // namespace zero::inline v0_1
