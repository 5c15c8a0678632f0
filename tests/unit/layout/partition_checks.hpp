#pragma once

#include <zero/base/error.hpp>
#include <zero/layout/partition.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

/// What must hold for every partition of every model.
namespace partition_checks {

using zero::block;
using zero::BucketSpan;
using zero::Group;
using zero::Partition;
using zero::Placement;
using zero::Segment;
using zero::Tensor;
using zero::TensorPlace;

/// REQUIRE for the inside of long loops, where counting millions of assertions takes the time.
inline void expect(bool holds, zero::SourceLocation where = zero::SourceLocation::current()) {
  if (!holds) FAIL("at ", std::string(where.file), ":", where.line);
}

using Model = std::vector<Tensor>;

inline bool owns_memory(Placement const& placement, std::size_t tensor) {
  return placement.places()[tensor].storage == tensor && !placement.places()[tensor].frozen;
}

/// Every trainable element has one owner and one bucket, and the walk over the shares visits the
/// elements in the order of the logical space.
inline void check_ownership(Partition const& partition) {
  Placement const& placement = partition.placement();
  std::vector<std::uint64_t> visited(placement.places().size(), 0);
  std::uint64_t position = 0;
  bool in_order = true;
  bool from_the_front = true;
  partition.for_each_bucket([&](BucketSpan const& bucket) {
    std::uint64_t owned = 0;
    std::uint64_t end = bucket.whole().first();
    for (int rank = 0; rank < partition.world_size(); ++rank) {
      zero::Range const share = bucket.share(rank);
      in_order = in_order && share.first() == end && share.count() <= bucket.shard() &&
                 bucket.part(rank).offset() == static_cast<std::uint64_t>(rank) * bucket.shard();
      // Only what lies behind the model's end is padding.
      in_order = in_order &&
                 (share.count() == bucket.shard() ||
                  share.first() + share.count() == bucket.whole().first() + bucket.whole().count());
      end = share.first() + share.count();
      owned += share.count();
      partition.for_each_segment(share, [&](Segment const& piece) {
        std::uint64_t const in_tensor = piece.in_tensor.offset();
        std::uint64_t const in_range = piece.in_range.offset();
        std::uint64_t const at = placement.places()[piece.tensor].offset + in_tensor;
        in_order = in_order && piece.count > 0 && at == share.first() + in_range &&
                   at >= position && in_range + piece.count <= share.count();
        position = at + piece.count;
        from_the_front = from_the_front && in_tensor == visited[piece.tensor];
        visited[piece.tensor] += piece.count;
      });
    }
    expect(owned == bucket.whole().count());
  });
  expect(in_order);
  expect(from_the_front);
  for (std::size_t t = 0; t < visited.size(); ++t) {
    expect(visited[t] == (owns_memory(placement, t) ? placement.places()[t].count : 0));
  }
}

inline void check_buckets(Partition const& partition) {
  auto const ranks = static_cast<std::uint64_t>(partition.world_size());
  std::uint64_t shards = 0;
  std::uint64_t padded = 0;
  std::size_t next = 0;
  std::uint64_t end = 0;
  std::uint64_t largest = 0;
  for (std::size_t g = 0; g < partition.groups().size(); ++g) {
    Group const& group = partition.groups()[g];
    expect(group.range.first() % block == 0);
    expect(group.range.first() >= end);
    end = group.range.first() + group.range.count();
    expect(group.first_bucket == next);
    next += group.bucket_count;
    expect(group.in_full.offset() == padded);
    expect(group.in_shards.offset() == shards);
    std::uint64_t done = 0;
    for (std::size_t b = group.first_bucket; b < next; ++b) {
      BucketSpan const bucket = partition.bucket(b);
      std::uint64_t const count = bucket.whole().count();
      expect(bucket.index() == b);
      expect(bucket.group() == g);
      expect(bucket.whole().first() == group.range.first() + done);
      expect(bucket.whole().first() % block == 0);
      expect(bucket.shard() % block == 0);
      expect(count > 0);
      expect(bucket.padded() == ranks * bucket.shard());
      expect(count <= bucket.padded());
      expect(bucket.padded() - count < ranks * block);
      expect(bucket.in_shards().offset() == shards);
      expect(bucket.in_full().offset() == padded);
      expect(bucket.in_group().offset() == done);
      if (b + 1 < next) expect(count == partition.bucket_elements());
      if (b + 1 < next) expect(bucket.padded() == count);
      expect(bucket.padded() <= partition.bucket_elements());
      largest = largest < bucket.padded() ? bucket.padded() : largest;
      done += count;
      shards += bucket.shard();
      padded += bucket.padded();
    }
    expect(done == group.range.count());
    expect(group.padded == padded - group.in_full.offset());
  }
  expect(largest == partition.largest_bucket());
  expect(next == partition.bucket_count());
  expect(shards == partition.shard_elements());
  expect(padded == partition.padded_elements());
  expect(padded == ranks * shards);
}

/// Every unit is in one gather group, which brings all that its units use: the groups lie one after
/// the other in the order in which their buckets are visited, and tensors where buckets bring them.
inline void check_gathered_memory(Partition const& partition, Model const& model) {
  Placement const& placement = partition.placement();
  std::vector<std::vector<std::size_t>> tensors(static_cast<std::size_t>(placement.unit_count()));
  for (std::size_t t = 0; t < model.size(); ++t) {
    bool const trained = !model[t].frozen && placement.places()[t].count > 0;
    if (trained) tensors[static_cast<std::size_t>(model[t].unit)].push_back(t);
  }
  std::vector<std::uint64_t> begins(partition.groups().size(), 0);
  int unit = 0;
  for (std::size_t i = 0; i < partition.gather_groups().size(); ++i) {
    zero::GatherGroup const& gathered = partition.gather_groups()[i];
    expect(gathered.first_unit == unit);
    expect(gathered.last_unit >= unit);
    std::uint64_t end = 0;
    std::vector<std::size_t> brought;
    partition.for_each_bucket_of(gathered, [&](BucketSpan const& bucket, zero::Place place) {
      expect(place.offset() == end);
      if (bucket.in_group().offset() == 0) begins[bucket.group()] = end;
      if (bucket.in_group().offset() == 0) brought.push_back(bucket.group());
      end += bucket.padded();
    });
    expect(end == gathered.padded);
    for (; unit <= gathered.last_unit; ++unit) {
      expect(partition.gather_group_of(unit) == i);
      for (std::size_t const t : tensors[static_cast<std::size_t>(unit)]) {
        expect(std::find(brought.begin(), brought.end(), partition.group_of(t)) != brought.end());
        expect(partition.in_gathered(gathered, t).offset() ==
               begins[partition.group_of(t)] + partition.in_group(t).offset());
      }
    }
  }
  expect(unit == placement.unit_count());
}

/// Units that join where parameters are gathered never cost more than they do alone: neither
/// padding, nor memory of what is gathered at once.
inline void check_joined(Partition const& partition, Model const& model) {
  auto const smallest = static_cast<std::uint64_t>(partition.world_size()) * block;
  Placement const placement(model);
  std::vector<std::uint64_t> tied(static_cast<std::size_t>(placement.unit_count()), 0);
  auto own = tied;
  std::uint64_t alone = 0;
  for (zero::Cluster const& cluster : placement.clusters()) {
    std::uint64_t const padded = zero::round_up(cluster.count, smallest);
    alone += padded;
    for (int const unit : cluster.units) {
      (cluster.tied ? tied : own)[static_cast<std::size_t>(unit)] += padded;
    }
  }
  expect(partition.padded_elements() <= alone);
  for (zero::GatherGroup const& gathered : partition.gather_groups()) {
    std::uint64_t most = 0;
    std::uint64_t most_own = 0;
    std::uint64_t each = 0;
    for (auto u = static_cast<std::size_t>(gathered.first_unit);
         u <= static_cast<std::size_t>(gathered.last_unit);
         ++u) {
      most = std::max(most, tied[u] + own[u]);
      most_own = std::max(most_own, own[u]);
      each += own[u];
    }
    expect(gathered.padded == most);
    if (gathered.first_unit == gathered.last_unit) continue;
    expect(most_own < each);
    for (std::size_t const g : gathered.groups) {
      if (!partition.groups()[g].tied) expect(partition.groups()[g].padded == most_own);
    }
  }
  // Nor is anything missed: two neighbours that could have joined.
  for (std::size_t g = 1; g < partition.groups().size(); ++g) {
    Group const& left = partition.groups()[g - 1];
    Group const& right = partition.groups()[g];
    if (left.tied || right.tied || left.padded == 0 || right.padded == 0) continue;
    std::uint64_t const together =
        zero::round_up(right.range.first() + right.range.count() - left.range.first(), smallest);
    bool ties = false;
    for (int unit = left.units.front(); unit <= right.units.back(); ++unit) {
      ties = ties || tied[static_cast<std::size_t>(unit)] > 0;
    }
    expect(ties || together > std::max(left.padded, right.padded));
  }
}

/// Groups know their units, and a bucket stays inside one unit where it must.
inline void check_units(Partition const& partition, Model const& model, zero::Merge merge) {
  Placement const& placement = partition.placement();
  std::vector<std::vector<std::size_t>> groups_of(static_cast<std::size_t>(placement.unit_count()));
  std::vector<std::vector<int>> units_of(partition.groups().size());
  for (std::size_t t = 0; t < model.size(); ++t) {
    if (model[t].frozen) continue;
    TensorPlace const& place = placement.places()[t];
    std::size_t const g = partition.group_of(t);
    Group const& group = partition.groups()[g];
    groups_of[static_cast<std::size_t>(model[t].unit)].push_back(g);
    units_of[g].push_back(model[t].unit);
    std::uint64_t const in_group = place.offset - group.range.first();
    expect(place.offset >= group.range.first());
    expect(in_group + place.count <= group.range.count());
    expect(partition.in_group(t).offset() == in_group);
    expect(partition.in_full(t).offset() == group.in_full.offset() + in_group);
  }
  auto const unique = [](auto values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
  };
  for (int unit = 0; unit < placement.unit_count(); ++unit) {
    expect(unique(partition.groups_of(unit)) == unique(groups_of[static_cast<std::size_t>(unit)]));
    expect(unique(partition.groups_of(unit)).size() == partition.groups_of(unit).size());
  }
  for (std::size_t g = 0; g < units_of.size(); ++g) {
    Group const& group = partition.groups()[g];
    expect(group.units == unique(units_of[g]));
    // What is merged fits into one bucket; what does not fit stays on its own.
    if (!group.tied && group.units.size() > 1 && merge != zero::Merge::into_padding) {
      expect(group.bucket_count <= 1);
    }
  }
}

/// Walks the units backwards, as a backward pass does, and notes when each group is complete.
inline void check_reduction_order(Partition const& partition) {
  std::vector<std::size_t> const& order = partition.reduction_order();
  std::vector<std::size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::size_t> every(partition.groups().size());
  std::iota(every.begin(), every.end(), std::size_t{0});
  expect(sorted == every);

  std::vector<std::size_t> missing;
  for (Group const& group : partition.groups()) missing.push_back(group.units.size());
  std::size_t next = 0;
  for (int unit = partition.placement().unit_count() - 1; unit >= 0; --unit) {
    std::size_t completed = 0;
    for (std::size_t const g : partition.groups_of(unit)) completed += --missing[g] == 0 ? 1u : 0u;
    for (; completed > 0; --completed) {
      // The groups this unit completes come next, before any that is not complete yet.
      expect(next < order.size());
      expect(missing[order[next]] == 0);
      ++next;
    }
  }
  expect(next == order.size());
}

/// The logical space and the frozen space do not depend on ranks, bucket size or merging.
inline void check_placement(Partition const& partition, Placement const& placement) {
  auto const& places = partition.placement().places();
  expect(places.size() == placement.places().size());
  for (std::size_t t = 0; t < places.size(); ++t) {
    expect(places[t].offset == placement.places()[t].offset);
    expect(places[t].count == placement.places()[t].count);
  }
}

inline void check(Model const& model, std::uint64_t bucket_elements, int ranks, zero::Merge merge) {
  CAPTURE(ranks);
  CAPTURE(bucket_elements);
  CAPTURE(merge);
  Partition const partition(
      model, {.world_size = ranks, .bucket_elements = bucket_elements, .merge = merge});
  expect(partition.world_size() == ranks);
  check_ownership(partition);
  check_buckets(partition);
  check_units(partition, model, merge);
  check_gathered_memory(partition, model);
  if (merge == zero::Merge::into_padding) check_joined(partition, model);
  check_reduction_order(partition);
  check_placement(partition, Placement(model));
}

/// Where memory is lent, large tensors have buckets of their own, which need no padding.
inline void check_lent(Model const& model, std::uint64_t bucket_elements, int ranks) {
  CAPTURE(ranks);
  CAPTURE(bucket_elements);
  Partition const partition(
      model, {.world_size = ranks, .bucket_elements = bucket_elements, .lent = true});
  check_ownership(partition);
  check_buckets(partition);
  check_reduction_order(partition);
  check_placement(partition, Placement(model));
  Partition const owned(model, {.world_size = ranks, .bucket_elements = bucket_elements});
  for (int unit = 0; unit < partition.placement().unit_count(); ++unit) {
    expect(partition.groups_of(unit).size() >= owned.groups_of(unit).size());
  }
  std::uint64_t const smallest = block * static_cast<std::uint64_t>(ranks);
  std::uint64_t const trained = partition.placement().trainable_elements();
  expect(partition.bucket_elements() <= std::max(smallest, trained / 32));
  std::vector<std::uint64_t> own(model.size(), 0);
  partition.for_each_bucket([&](BucketSpan const& bucket) {
    std::size_t pieces = 0;
    std::size_t last = 0;
    std::uint64_t count = 0;
    partition.for_each_segment(bucket.whole(), [&](Segment const& piece) {
      ++pieces;
      last = piece.tensor;
      count = piece.count;
    });
    expect(pieces > 0);
    if (count == bucket.padded()) own[last] += count;
    Group const& group = partition.groups()[bucket.group()];
    for (std::size_t t = 0; t < model.size(); ++t) {
      if (t != last || model[t].frozen) continue;
      expect(std::find(group.units.begin(), group.units.end(), model[t].unit) != group.units.end());
    }
  });
  for (std::size_t t = 0; t < model.size(); ++t) {
    if (!owns_memory(partition.placement(), t)) continue;
    // A beginning before the next block and an end that fills no bucket are all that is not.
    std::uint64_t const size = partition.placement().places()[t].count;
    if (size >= 17 * smallest) expect(own[t] + smallest + block > size);
  }
}

}  // namespace partition_checks
