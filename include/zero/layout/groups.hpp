/// @file
/// What travels together: buckets, the groups they are cut from, and what is gathered at once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/range.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// What is partitioned together and travels together: one share of equal size for every rank, of
/// which the last ones may be padding.
class BucketSpan {
 public:
  /// Number of the bucket, in the order in which buckets are updated.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// Index into `Partition::groups()`.
  [[nodiscard]] std::size_t group() const noexcept { return group_; }
  /// The storage kind of its tensors.
  [[nodiscard]] std::size_t kind() const noexcept { return kind_; }
  /// Elements of one rank's share, padding included: a multiple of `block`.
  [[nodiscard]] std::size_t shard() const noexcept { return static_cast<std::size_t>(shard_); }
  /// Elements of all shares, padding included.
  [[nodiscard]] std::uint64_t padded() const noexcept { return shard_ * ranks_; }
  /// Its elements, without padding.
  [[nodiscard]] Range whole() const noexcept { return whole_; }
  /// The elements that a rank owns, without padding; the last ranks may own none.
  [[nodiscard]] Range share(int rank) const noexcept {
    std::uint64_t const before = (std::min)(whole_.count(), offset_of(rank));
    return {whole_.first() + before, (std::min)(shard_, whole_.count() - before)};
  }

  /// Where it begins in a padded full-size array of its kind.
  [[nodiscard]] Place in_full() const noexcept { return in_full_; }
  /// Where its share begins in an array of one rank's shares of its kind.
  [[nodiscard]] Place in_shards() const noexcept { return in_shards_; }
  /// Where it begins in the padded memory of its group.
  [[nodiscard]] Place in_group() const noexcept { return in_group_; }
  /// Where a rank's share begins within the bucket.
  [[nodiscard]] Place part(int rank) const noexcept { return Place(offset_of(rank)); }

 private:
  friend Partition;
  BucketSpan() = default;
  [[nodiscard]] std::uint64_t offset_of(int rank) const noexcept {
    return static_cast<std::uint64_t>(rank) * shard_;
  }

  std::size_t index_ = 0;
  std::size_t group_ = 0;
  std::size_t kind_ = 0;
  std::uint64_t ranks_ = 1;
  std::uint64_t shard_ = 0;
  Range whole_{};
  Place in_full_{};
  Place in_shards_{};
  Place in_group_{};
};

/// Tensors of one kind that are used, and whose gradients are complete, at the same time: one
/// unit's, those of several small neighbouring units, or the tensors that one set of units shares.
struct BucketGroup {
  Range range{};                    ///< its elements, without padding
  Place in_full{};                  ///< where it begins in a padded full-size array of its kind
  Place in_shards{};                ///< where its shares begin in one of one rank's shares
  std::uint64_t padded = 0;         ///< elements with padding: the sum of its buckets'
  std::uint64_t largest_shard = 0;  ///< elements of one rank's share of its largest bucket
  std::size_t first_bucket = 0;     ///< index into `buckets()`
  std::size_t bucket_count = 0;     ///< buckets that follow each other
  std::vector<int> units{};         ///< units that use it, ascending
  bool tied = false;                ///< tensors of one unit that other units use as well
  std::uint32_t kind = 0;           ///< of its tensors
};

/// Neighbouring units whose parameters are gathered together, and stay as long as one of them is in
/// use: most often a single one. Several are those that share buckets, and what lies between them.
struct GatherGroup {
  int first_unit = 0;                 ///< the first of its units
  int last_unit = 0;                  ///< the last of its units
  std::vector<std::size_t> groups{};  ///< groups that its units use, tied ones included, ascending
  std::uint64_t padded = 0;           ///< elements of these groups, with padding
};

}  // namespace zero::inline ZERO_NAMESPACE
