/// @file
/// Who owns which element, and which elements travel together. Built once; used by reduction, norm,
/// update, gather and plan.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/layout/grouping.hpp"
#include "zero/layout/groups.hpp"
#include "zero/layout/placement.hpp"
#include "zero/layout/range.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// Numbers that shape a partition.
struct PartitionOptions {
  int world_size = 1;                 ///< ranks, at least 1
  std::uint64_t bucket_elements = 0;  ///< elements that travel together, before rounding
  Merge merge = Merge::freely;        ///< whether buckets may span units
  /// Tensors lie in a trainer's memory. Large ones are then buckets of their own, which travel from
  /// where they lie, and a bucket is a small part of the model, since others travel through
  /// staging.
  bool lent = false;
};

/// The one partition of a model over N ranks.
///
/// Tensors lie in a logical element space, kind by kind, in registration order; padding makes every
/// bucket divisible by N. Where padding sits depends on N and on the bucket size; the logical space
/// does not, which is why results cannot depend on them.
///
/// Buckets are arithmetic, not a table: all buckets of a group but its last are full.
/// @par Cost  memory and time to construct: a few hundred bytes per tensor and group
class Partition {
 public:
  /// Types are those of `Placement`.
  /// @throws Error (invalid_argument) for a model or options that make no sense
  ZERO_APART ZERO_COLD Partition(std::vector<Tensor> const& tensors,
                                 PartitionOptions const& options,
                                 std::vector<std::uint32_t> const& types = {});

  /// Where tensors lie in the logical space.
  [[nodiscard]] Placement const& placement() const noexcept { return placement_; }
  /// Where one of them does.
  [[nodiscard]] TensorPlace const& place(std::size_t tensor) const noexcept {
    return placement_.places()[tensor];
  }
  /// Ranks the model is shared out over.
  [[nodiscard]] int world_size() const noexcept { return options_.world_size; }
  /// Elements of a kind's full bucket over all ranks: a multiple of N * `block`.
  [[nodiscard]] std::uint64_t bucket_elements(std::size_t kind = 0) const noexcept {
    return placement_.kinds()[kind].frozen ? frozen_bucket_elements_ : bucket_elements_;
  }
  /// What was asked for, of which N * `block` may be more.
  [[nodiscard]] std::uint64_t asked_bucket_elements() const noexcept {
    return options_.bucket_elements;
  }
  /// Groups in the order of the forward pass, and within a unit in that of the logical space: the
  /// order in which buckets are numbered, updated and refreshed.
  [[nodiscard]] std::vector<BucketGroup> const& groups() const noexcept { return groups_; }
  /// A bucket by its number in [0, `bucket_count()`).
  ZERO_APART [[nodiscard]] BucketSpan bucket(std::size_t index) const noexcept;
  /// Buckets of the whole model.
  [[nodiscard]] std::size_t bucket_count() const noexcept { return bucket_count_; }
  /// Calls `visit(BucketSpan const&)` for all buckets of trained tensors, or else for all of frozen
  /// ones, in the order of their numbers.
  template <class Visit>
  void for_each_bucket(Visit&& visit, bool frozen = false) const {
    for (BucketGroup const& group : groups_) {
      if (kind_of(group).frozen == frozen) for_each_bucket_in(group, visit);
    }
  }
  /// Trained groups in the order in which their gradients are complete in a backward pass.
  [[nodiscard]] std::vector<std::size_t> const& reduction_order() const noexcept {
    return reduction_order_;
  }
  /// Groups that hold the trainable tensors of a unit, tied ones included.
  [[nodiscard]] std::vector<std::size_t> const& groups_of(int unit) const {
    return unit_groups_[static_cast<std::size_t>(unit)];
  }
  /// Units that are gathered together, in the order of the forward pass; each unit is in one.
  [[nodiscard]] std::vector<GatherGroup> const& gather_groups() const noexcept {
    return gather_groups_;
  }
  /// Index of the gather group that a unit is in.
  [[nodiscard]] std::size_t gather_group_of(int unit) const {
    return gather_group_of_unit_[static_cast<std::size_t>(unit)];
  }

  /// Elements of a kind that one rank owns, padding included.
  [[nodiscard]] std::uint64_t shard_elements(std::size_t kind = 0) const noexcept {
    return sizes_[kind].shard;
  }
  /// Elements of a full-size array of a kind, padding included: N times `shard_elements(kind)`.
  [[nodiscard]] std::uint64_t padded_elements(std::size_t kind = 0) const noexcept {
    return sizes_[kind].padded;
  }

  /// Elements of a kind's largest bucket, padding included; 0 if there is none.
  ZERO_APART [[nodiscard]] std::uint64_t largest_bucket(std::size_t kind = 0) const noexcept;

  /// Where a tensor begins in the padded memory of its group; not where memory is lent.
  [[nodiscard]] Place in_group(std::size_t tensor) const noexcept {
    return Place(place(tensor).offset - groups_[group_of(tensor)].range.first());
  }
  /// Where a tensor begins in a padded full-size array of its kind.
  [[nodiscard]] Place in_full(std::size_t tensor) const noexcept {
    return Place(groups_[group_of(tensor)].in_full.offset() + in_group(tensor).offset());
  }
  /// Calls `visit(BucketSpan const&)` for all buckets of a gather group.
  template <class Visit>
  void for_each_bucket_of(GatherGroup const& gathered, Visit&& visit) const {
    for (std::size_t const g : gathered.groups) for_each_bucket_in(groups_[g], visit);
  }
  /// Index of the group that holds a tensor; of several, where memory is lent, one that the same
  /// units use.
  [[nodiscard]] std::size_t group_of(std::size_t tensor) const noexcept {
    return group_of_cluster_[place(tensor).cluster];
  }

  /// Calls `visit(Segment const&)` for every run of a tensor's elements in a range, in order; gaps
  /// between tensors are skipped.
  template <class Visit>
  void for_each_segment(Range range, Visit&& visit) const {
    for_each_segment(range, range, visit);
  }
  /// The same for a part of a range: places are counted from the beginning of `whole`.
  template <class Visit>
  void for_each_segment(Range part, Range whole, Visit&& visit) const {
    Segment piece{};
    for (std::size_t at = first_within(part); next_within(part, whole, at, piece);) visit(piece);
  }

 private:
  [[nodiscard]] StorageKind const& kind_of(BucketGroup const& group) const noexcept {
    return placement_.kinds()[group.kind];
  }
  template <class Visit>
  void for_each_bucket_in(BucketGroup const& group, Visit const& visit) const {
    for (std::size_t i = 0; i < group.bucket_count; ++i) visit(bucket(group.first_bucket + i));
  }
  /// The first tensor that ends behind the beginning of a range: an index into `by_offset()`.
  ZERO_APART [[nodiscard]] std::size_t first_within(Range range) const noexcept;
  /// What of a range lies in the tensor at `at` or in the next one that has elements of it.
  /// @param whole  where places in the range are counted from
  /// @returns false if none is left
  ZERO_APART [[nodiscard]] bool next_within(Range range,
                                            Range whole,
                                            std::size_t& at,
                                            Segment& piece) const noexcept;

  ZERO_APART ZERO_COLD void form_groups(std::vector<Tensor> const& tensors);
  ZERO_APART ZERO_COLD void cut_at_tensors(std::uint64_t quantum);
  ZERO_APART ZERO_COLD void form_gather_groups();

  /// Elements of one rank's share of so many.
  ZERO_APART [[nodiscard]] std::uint64_t shard_of(std::uint64_t count) const;

  ZERO_APART ZERO_COLD void cut_into_buckets(BucketGroup& group);

  ZERO_APART ZERO_COLD void order_reductions();

  /// Lent memory is at least so many buckets: two in staging are then a sixteenth of it.
  static constexpr std::uint64_t lent_buckets = 32;
  /// A tensor of as many smallest buckets has its own: what is beside it is padded to one of them.
  static constexpr std::uint64_t own_quanta = 16;

  Placement placement_;
  PartitionOptions options_;
  std::uint64_t bucket_elements_ = 0;
  std::uint64_t frozen_bucket_elements_ = 0;  ///< never staged, so that they may be as was asked
  struct KindSize {
    std::uint64_t shard = 0;
    std::uint64_t padded = 0;
  };
  std::vector<KindSize> sizes_;
  std::vector<BucketGroup> groups_;
  std::size_t bucket_count_ = 0;
  std::vector<std::size_t> reduction_order_;
  std::vector<std::size_t> group_of_cluster_;
  std::vector<std::vector<std::size_t>> unit_groups_;
  std::vector<GatherGroup> gather_groups_;
  std::vector<std::size_t> gather_group_of_unit_;
};

#if ZERO_BODIES

ZERO_BODY Partition::Partition(std::vector<Tensor> const& tensors,
                               PartitionOptions const& options,
                               std::vector<std::uint32_t> const& types)
    : placement_(tensors, types),
      options_(options),
      sizes_(placement_.kinds().size()),
      unit_groups_(static_cast<std::size_t>(placement_.unit_count())) {
  if (options.world_size < 1) {
    fail(ErrorKind::invalid_argument, {"world size must be at least 1, got ", options.world_size});
  }
  auto const ranks = static_cast<std::uint64_t>(options.world_size);
  std::uint64_t const quantum = checked_mul(block, ranks);
  auto const divided = [&](std::uint64_t asked) {
    return (std::max)(quantum, asked / quantum * quantum);
  };
  std::uint64_t const most = placement_.trainable_elements() / lent_buckets;
  frozen_bucket_elements_ = divided(options.bucket_elements);
  bucket_elements_ =
      options.lent ? (std::min)(frozen_bucket_elements_, divided(most)) : frozen_bucket_elements_;
  group_of_cluster_ = detail::group_clusters(placement_, options.merge, bucket_elements_, quantum);
  form_groups(tensors);
  if (options.lent) cut_at_tensors(quantum);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    cut_into_buckets(groups_[g]);
    if (kind_of(groups_[g]).frozen) continue;
    for (int const unit : groups_[g].units) {
      unit_groups_[static_cast<std::size_t>(unit)].push_back(g);
    }
  }
  form_gather_groups();
  order_reductions();
}

ZERO_BODY BucketSpan Partition::bucket(std::size_t index) const noexcept {
  auto const after =
      std::partition_point(groups_.begin(), groups_.end(), [&](BucketGroup const& g) {
        return g.first_bucket <= index;
      });
  BucketGroup const& group = *std::prev(after);
  std::uint64_t const full = bucket_elements(group.kind);
  std::uint64_t const before = full * (index - group.first_bucket);
  auto const ranks = static_cast<std::uint64_t>(options_.world_size);
  BucketSpan bucket;
  bucket.index_ = index;
  bucket.group_ = static_cast<std::size_t>(&group - groups_.data());
  bucket.kind_ = group.kind;
  bucket.ranks_ = ranks;
  bucket.whole_ = {group.range.first() + before, (std::min)(full, group.range.count() - before)};
  bucket.shard_ = shard_of(bucket.whole_.count());
  bucket.in_group_ = Place(before);
  bucket.in_full_ = Place(group.in_full.offset() + before);
  bucket.in_shards_ = Place(group.in_shards.offset() + before / ranks);
  return bucket;
}

ZERO_BODY std::size_t Partition::first_within(Range range) const noexcept {
  auto const& order = placement_.by_offset();
  auto const& places = placement_.places();
  auto const at = std::partition_point(order.begin(), order.end(), [&](std::size_t tensor) {
    return places[tensor].offset + places[tensor].count <= range.first();
  });
  return static_cast<std::size_t>(at - order.begin());
}

ZERO_BODY bool Partition::next_within(Range range,
                                      Range whole,
                                      std::size_t& at,
                                      Segment& piece) const noexcept {
  std::uint64_t const begin = range.first();
  std::uint64_t const end = begin + range.count();
  auto const& order = placement_.by_offset();
  while (at != order.size()) {
    TensorPlace const& place = placement_.places()[order[at]];
    if (place.offset >= end) return false;
    std::uint64_t const first = (std::max)(begin, place.offset);
    std::uint64_t const last = (std::min)(end, place.offset + place.count);
    std::size_t const tensor = order[at++];
    if (first >= last) continue;
    piece = {tensor, Place(first - place.offset), Place(first - whole.first()), last - first};
    return true;
  }
  return false;
}

ZERO_BODY std::uint64_t Partition::largest_bucket(std::size_t kind) const noexcept {
  std::uint64_t largest = 0;
  for (BucketGroup const& group : groups_) {
    if (group.kind == kind) largest = (std::max)(largest, group.largest_shard);
  }
  return largest * static_cast<std::uint64_t>(options_.world_size);
}

ZERO_BODY void Partition::form_groups(std::vector<Tensor> const& tensors) {
  auto const& clusters = placement_.clusters();
  for (std::size_t c = 0; c < clusters.size(); ++c) {
    Cluster const& cluster = clusters[c];
    if (group_of_cluster_[c] == groups_.size()) {
      BucketGroup begun;
      begun.range = {cluster.begin, 0};
      begun.tied = cluster.tied;
      begun.kind = cluster.kind;
      groups_.push_back(std::move(begun));
    }
    BucketGroup& group = groups_.back();
    group.range = {group.range.first(), cluster.begin + cluster.count - group.range.first()};
    for (int const unit : cluster.units) group.units.push_back(unit);
  }
  // Units are worked on one after the other, whatever kinds they have.
  std::vector<int> units(groups_.size(), placement_.unit_count());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (place(t).storage != t) continue;
    int& first = units[group_of(t)];
    first = (std::min)(first, tensors[t].unit);
  }
  std::vector<std::size_t> order;
  for (std::size_t g = 0; g < groups_.size(); ++g) order.push_back(g);
  detail::sort_indices(order, [&](std::size_t a, std::size_t b) {
    return units[a] != units[b] ? units[a] < units[b] : a < b;
  });
  std::vector<std::size_t> number(order.size());
  std::vector<BucketGroup> ordered;
  for (std::size_t const g : order) {
    number[g] = ordered.size();
    ordered.push_back(std::move(groups_[g]));
  }
  groups_ = std::move(ordered);
  for (std::size_t& group : group_of_cluster_) group = number[group];
}

ZERO_BODY void Partition::cut_at_tensors(std::uint64_t quantum) {
  auto const& places = placement_.places();
  std::vector<BucketGroup> pieces;
  std::vector<std::size_t> first_piece;
  auto const& order = placement_.by_offset();
  for (BucketGroup& whole : groups_) {
    first_piece.push_back(pieces.size());
    std::uint64_t const end = whole.range.first() + whole.range.count();
    std::uint64_t begin = whole.range.first();
    bool used = false;
    auto const cut = [&](std::uint64_t to) {
      BucketGroup piece = whole;
      piece.range = {begin, to - begin};
      pieces.push_back(std::move(piece));
      begin = to;
      used = false;
    };
    for (std::size_t next = first_within(whole.range);
         next < order.size() && places[order[next]].offset < end;
         ++next) {
      TensorPlace const& place = places[order[next]];
      std::uint64_t const first = round_up(place.offset, block);
      std::uint64_t const last = place.offset + place.count;
      std::uint64_t const run = first < last ? (last - first) / quantum * quantum : 0;
      if (run < own_quanta * quantum) {
        used = true;
        continue;
      }
      // Between tensors there may be nothing but a gap, which nobody needs to send.
      if (used || first > place.offset) cut(first);
      begin = first;
      cut(first + run);
      used = begin < last;
    }
    if (used || first_piece.back() == pieces.size()) cut(end);
  }
  groups_ = std::move(pieces);
  for (std::size_t& group : group_of_cluster_) group = first_piece[group];
}

ZERO_BODY void Partition::form_gather_groups() {
  std::vector<std::vector<std::size_t>> used(unit_groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (kind_of(groups_[g]).whole) continue;
    for (int const unit : groups_[g].units) used[static_cast<std::size_t>(unit)].push_back(g);
  }
  for (int unit = 0; unit < placement_.unit_count(); ++unit) {
    GatherGroup gathered{.first_unit = unit, .last_unit = unit};
    for (; unit <= gathered.last_unit; ++unit) {
      for (std::size_t const g : used[static_cast<std::size_t>(unit)]) {
        if (!groups_[g].tied) {
          gathered.last_unit = (std::max)(gathered.last_unit, groups_[g].units.back());
        }
        gathered.groups.push_back(g);
      }
      gather_group_of_unit_.push_back(gather_groups_.size());
    }
    unit = gathered.last_unit;
    auto& groups = gathered.groups;
    detail::sort_indices(groups, [](std::size_t a, std::size_t b) { return a < b; });
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (std::size_t const g : groups) gathered.padded += groups_[g].padded;
    gather_groups_.push_back(std::move(gathered));
  }
}

ZERO_BODY std::uint64_t Partition::shard_of(std::uint64_t count) const {
  return round_up(ceil_div(count, static_cast<std::uint64_t>(options_.world_size)), block);
}

ZERO_BODY void Partition::cut_into_buckets(BucketGroup& group) {
  auto const ranks = static_cast<std::uint64_t>(options_.world_size);
  std::uint64_t const each = bucket_elements(group.kind);
  std::uint64_t const full = group.range.count() / each;
  std::uint64_t const rest = group.range.count() % each;
  std::uint64_t const shards = checked_add(full * (each / ranks), shard_of(rest));
  group.first_bucket = bucket_count_;
  group.bucket_count = static_cast<std::size_t>(full + (rest > 0 ? 1 : 0));
  group.largest_shard = full > 0 ? each / ranks : shard_of(rest);
  group.padded = checked_mul(shards, ranks);
  KindSize& size = sizes_[group.kind];
  group.in_full = Place(size.padded);
  group.in_shards = Place(size.shard);
  bucket_count_ += group.bucket_count;
  size.shard = checked_add(size.shard, shards);
  size.padded = checked_add(size.padded, group.padded);
}

ZERO_BODY void Partition::order_reductions() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!kind_of(groups_[g]).frozen) reduction_order_.push_back(g);
  }
  // A backward pass visits units in descending order, so a group is complete with the smallest
  // of its units.
  detail::sort_indices(reduction_order_, [&](std::size_t a, std::size_t b) {
    int const last_a = groups_[a].units.front();
    int const last_b = groups_[b].units.front();
    return last_a != last_b ? last_a > last_b : a > b;
  });
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
