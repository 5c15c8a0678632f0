/// What must hold for every partition of every model.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/base/error.hpp>
#include <zero/layout/partition.hpp>

#include <ctime>

namespace partition_test {
namespace {

using zero::block;
using zero::BucketGroup;
using zero::BucketSpan;
using zero::Merge;
using zero::Partition;
using zero::PartitionOptions;
using zero::Placement;
using zero::Segment;
using zero::Tensor;
using zero::TensorPlace;

/// REQUIRE for the inside of long loops, where counting millions of assertions takes the time.
void expect(bool holds, zero::SourceLocation where = zero::SourceLocation::current()) {
  if (!holds) FAIL("at ", std::string(where.file), ":", where.line);
}

using Model = std::vector<Tensor>;

bool owns_memory(Placement const& placement, std::size_t tensor) {
  return placement.places()[tensor].storage == tensor;
}

/// Every element has one owner and one bucket, of its kind, and the walk over the shares visits
/// those of a kind in the order of the logical space.
void check_ownership(Partition const& partition) {
  Placement const& placement = partition.placement();
  std::vector<std::uint64_t> visited(placement.places().size(), 0);
  std::vector<std::uint64_t> position(placement.kinds().size(), 0);
  bool in_order = true;
  bool from_the_front = true;
  bool frozen = false;
  auto const of_bucket = [&](BucketSpan const& bucket) {
    expect(placement.kinds()[bucket.kind()].frozen == frozen);
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
                   at >= position[bucket.kind()] &&
                   placement.places()[piece.tensor].kind == bucket.kind() &&
                   in_range + piece.count <= share.count();
        position[bucket.kind()] = at + piece.count;
        from_the_front = from_the_front && in_tensor == visited[piece.tensor];
        visited[piece.tensor] += piece.count;
      });
    }
    expect(owned == bucket.whole().count());
  };
  partition.for_each_bucket(of_bucket);
  frozen = true;
  partition.for_each_bucket(of_bucket, true);
  expect(in_order);
  expect(from_the_front);
  for (std::size_t t = 0; t < visited.size(); ++t) {
    expect(visited[t] == (owns_memory(placement, t) ? placement.places()[t].count : 0));
  }
}

void check_buckets(Partition const& partition) {
  auto const ranks = static_cast<std::uint64_t>(partition.world_size());
  struct Sum {
    std::uint64_t shards = 0;
    std::uint64_t padded = 0;
    std::uint64_t end = 0;
    std::uint64_t largest = 0;
  };
  std::vector<Sum> sums(partition.placement().kinds().size());
  std::size_t next = 0;
  for (std::size_t g = 0; g < partition.groups().size(); ++g) {
    BucketGroup const& group = partition.groups()[g];
    auto& [shards, padded, end, largest] = sums[group.kind];
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
      expect(bucket.kind() == group.kind);
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
      if (b + 1 < next) expect(count == partition.bucket_elements(bucket.kind()));
      if (b + 1 < next) expect(bucket.padded() == count);
      expect(bucket.padded() <= partition.bucket_elements(bucket.kind()));
      largest = largest < bucket.padded() ? bucket.padded() : largest;
      done += count;
      shards += bucket.shard();
      padded += bucket.padded();
    }
    expect(done == group.range.count());
    expect(group.padded == padded - group.in_full.offset());
  }
  expect(next == partition.bucket_count());
  for (std::size_t kind = 0; kind < sums.size(); ++kind) {
    expect(sums[kind].largest == partition.largest_bucket(kind));
    expect(sums[kind].shards == partition.shard_elements(kind));
    expect(sums[kind].padded == partition.padded_elements(kind));
    expect(sums[kind].padded == ranks * sums[kind].shards);
  }
}

/// Every unit is in one gather group, which brings all that its units use but what is whole.
void check_gathered_memory(Partition const& partition, Model const& model) {
  Placement const& placement = partition.placement();
  std::vector<std::vector<std::size_t>> tensors(static_cast<std::size_t>(placement.unit_count()));
  for (std::size_t t = 0; t < model.size(); ++t) {
    bool const gathers = !model[t].whole && placement.places()[t].count > 0;
    if (gathers) tensors[static_cast<std::size_t>(model[t].unit)].push_back(t);
  }
  int unit = 0;
  for (std::size_t i = 0; i < partition.gather_groups().size(); ++i) {
    zero::GatherGroup const& gathered = partition.gather_groups()[i];
    expect(gathered.first_unit == unit);
    expect(gathered.last_unit >= unit);
    std::uint64_t end = 0;
    std::vector<std::size_t> brought;
    partition.for_each_bucket_of(gathered, [&](BucketSpan const& bucket) {
      expect(!placement.kinds()[bucket.kind()].whole);
      if (bucket.in_group().offset() == 0) brought.push_back(bucket.group());
      end += bucket.padded();
    });
    expect(end == gathered.padded);
    for (; unit <= gathered.last_unit; ++unit) {
      expect(partition.gather_group_of(unit) == i);
      for (std::size_t const t : tensors[static_cast<std::size_t>(unit)]) {
        expect(std::find(brought.begin(), brought.end(), partition.group_of(t)) != brought.end());
      }
    }
  }
  expect(unit == placement.unit_count());
}

/// Units that join where parameters are gathered never cost more than they do alone: neither
/// padding, nor memory of what is gathered at once.
void check_joined(Partition const& partition, Model const& model) {
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
    BucketGroup const& left = partition.groups()[g - 1];
    BucketGroup const& right = partition.groups()[g];
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

/// Groups know their units, units those groups that have gradients, and a bucket stays inside one
/// unit where it must.
void check_units(Partition const& partition, Model const& model, Merge merge) {
  Placement const& placement = partition.placement();
  std::vector<std::vector<std::size_t>> groups_of(static_cast<std::size_t>(placement.unit_count()));
  std::vector<std::vector<int>> units_of(partition.groups().size());
  for (std::size_t t = 0; t < model.size(); ++t) {
    TensorPlace const& place = placement.places()[t];
    std::size_t const g = partition.group_of(t);
    BucketGroup const& group = partition.groups()[g];
    if (!model[t].frozen) groups_of[static_cast<std::size_t>(model[t].unit)].push_back(g);
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
    BucketGroup const& group = partition.groups()[g];
    expect(group.units == unique(units_of[g]));
    // What is merged fits into one bucket; what does not fit stays on its own.
    if (!group.tied && group.units.size() > 1 && merge != Merge::into_padding) {
      expect(group.bucket_count <= 1);
    }
  }
}

/// Walks the units backwards, as a backward pass does, and notes when each group is complete.
void check_reduction_order(Partition const& partition) {
  std::vector<std::size_t> const& order = partition.reduction_order();
  std::vector<std::size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::size_t> trained;
  for (std::size_t g = 0; g < partition.groups().size(); ++g) {
    bool const frozen = partition.placement().kinds()[partition.groups()[g].kind].frozen;
    if (!frozen) trained.push_back(g);
  }
  expect(sorted == trained);

  std::vector<std::size_t> missing;
  for (BucketGroup const& group : partition.groups()) missing.push_back(group.units.size());
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

/// The logical space does not depend on ranks, bucket size or merging.
void check_placement(Partition const& partition, Placement const& placement) {
  auto const& places = partition.placement().places();
  expect(places.size() == placement.places().size());
  for (std::size_t t = 0; t < places.size(); ++t) {
    expect(places[t].offset == placement.places()[t].offset);
    expect(places[t].count == placement.places()[t].count);
  }
}

void check(Model const& model, std::uint64_t bucket_elements, int ranks, Merge merge) {
  CAPTURE(ranks);
  CAPTURE(bucket_elements);
  CAPTURE(merge);
  PartitionOptions const options{
      .world_size = ranks, .bucket_elements = bucket_elements, .merge = merge};
  Partition const partition(model, options);
  expect(partition.world_size() == ranks);
  check_ownership(partition);
  check_buckets(partition);
  check_units(partition, model, merge);
  check_gathered_memory(partition, model);
  Model trained;
  std::copy_if(model.begin(), model.end(), std::back_inserter(trained), [](Tensor const& tensor) {
    return !tensor.frozen;
  });
  if (merge == Merge::into_padding) check_joined(Partition(trained, options), trained);
  check_reduction_order(partition);
  check_placement(partition, Placement(model));
}

/// Where memory is lent, large tensors have buckets of their own, which need no padding.
void check_lent(Model const& model, std::uint64_t bucket_elements, int ranks) {
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
  auto const of_bucket = [&](BucketSpan const& bucket) {
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
    BucketGroup const& group = partition.groups()[bucket.group()];
    expect(std::find(group.units.begin(), group.units.end(), model[last].unit) !=
           group.units.end());
  };
  partition.for_each_bucket(of_bucket);
  partition.for_each_bucket(of_bucket, true);
  for (std::size_t t = 0; t < model.size(); ++t) {
    if (!owns_memory(partition.placement(), t)) continue;
    // A beginning before the next block and an end that fills no bucket are all that is not.
    std::uint64_t const size = partition.placement().places()[t].count;
    if (size >= 17 * smallest) expect(own[t] + smallest + block > size);
  }
}

/// Kinds lie one after the other, and each is cut as it would be alone; units are worked on in the
/// order of the forward pass, whatever kinds they have.
/// @param types  of each tensor
void check_kinds(Model const& model,
                 std::vector<std::uint32_t> const& types,
                 PartitionOptions const& options) {
  Partition const partition(model, options, types);
  std::vector<zero::StorageKind> const& kinds = partition.placement().kinds();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    expect(kinds[k].frozen == (k >= partition.placement().trained_kinds()));
    expect(kinds[k].frozen || (kinds[k].types == k && !kinds[k].whole));
    expect(std::count(kinds.begin(), kinds.end(), kinds[k]) == 1);
  }
  check_ownership(partition);
  check_buckets(partition);
  check_units(partition, model, options.merge);
  check_gathered_memory(partition, model);
  check_reduction_order(partition);
  std::vector<int> first_units(partition.groups().size(), partition.placement().unit_count());
  for (std::size_t t = 0; t < model.size(); ++t) {
    if (!owns_memory(partition.placement(), t)) continue;
    int& first = first_units[partition.group_of(t)];
    first = std::min(first, model[t].unit);
  }
  expect(std::is_sorted(first_units.begin(), first_units.end()));
  std::uint64_t end = 0;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    Model own;
    std::vector<std::size_t> from;
    for (std::size_t t = 0; t < model.size(); ++t) {
      bool const same = types[t] == kinds[kind].types && model[t].frozen == kinds[kind].frozen &&
                        model[t].whole == kinds[kind].whole;
      expect(same == (partition.place(t).kind == kind));
      if (!same) continue;
      own.push_back(model[t]);
      from.push_back(t);
    }
    Partition const alone(own, options);
    std::uint64_t begin = ~std::uint64_t{0};
    std::uint64_t last = end;
    for (std::size_t t = 0; t < own.size(); ++t) {
      TensorPlace const& place = partition.place(from[t]);
      begin = std::min(begin, place.offset - alone.place(t).offset);
      last = std::max(last, place.offset + place.count);
    }
    for (std::size_t t = 0; t < own.size(); ++t) {
      expect(partition.place(from[t]).offset == begin + alone.place(t).offset);
      if (options.merge == Merge::into_padding || own[t].shape[0] == 0) continue;
      expect(partition.in_full(from[t]) == alone.in_full(t));
      expect(partition.in_group(from[t]) == alone.in_group(t));
    }
    if (begin != ~std::uint64_t{0}) expect(begin % block == 0 && begin >= end);
    end = last;
    if (options.merge == Merge::into_padding) continue;
    std::size_t const only = kinds[kind].frozen ? 1 : 0;
    expect(partition.shard_elements(kind) == alone.shard_elements(only));
    expect(partition.padded_elements(kind) == alone.padded_elements(only));
    expect(partition.largest_bucket(kind) == alone.largest_bucket(only));
  }
  if (options.merge != Merge::into_padding) return;
  // Whoever joins pays nothing for it: neither memory nor what is gathered in a pass.
  auto const smallest = static_cast<std::uint64_t>(options.world_size) * block;
  std::vector<std::uint64_t> units(static_cast<std::size_t>(partition.placement().unit_count()), 0);
  for (zero::Cluster const& cluster : partition.placement().clusters()) {
    if (kinds[cluster.kind].whole) continue;
    for (int const u : cluster.units) {
      units[static_cast<std::size_t>(u)] += zero::round_up(cluster.count, smallest);
    }
  }
  std::uint64_t slot = 0;
  std::uint64_t gathered = 0;
  for (zero::GatherGroup const& group : partition.gather_groups()) {
    slot = std::max(slot, group.padded);
    gathered += group.padded;
  }
  expect(slot <= (units.empty() ? 0 : *std::max_element(units.begin(), units.end())));
  expect(gathered <= std::accumulate(units.begin(), units.end(), std::uint64_t{0}));
}

constexpr std::array world_sizes{1, 2, 3, 4, 5, 8, 64};
/// One element (as one byte would leave), odd, larger than any model here.
constexpr std::array<std::uint64_t, 3> bucket_sizes{0, 10'007, std::uint64_t{1} << 40};

void check_all_merges(Model const& model, std::uint64_t bucket_elements, int ranks) {
  for (Merge const merge : {Merge::into_padding, Merge::within_largest_unit, Merge::freely}) {
    check(model, bucket_elements, ranks, merge);
  }
}

void check_all_options(Model const& model) {
  for (int const ranks : world_sizes) {
    for (std::uint64_t const elements : bucket_sizes) check_all_merges(model, elements, ranks);
  }
}

Tensor tensor(std::size_t index, std::size_t size, int unit) {
  return {.name = "t" + std::to_string(index), .shape = {size}, .unit = unit};
}

template <class Random>
Model random_model(Random& random, std::size_t ranks) {
  auto const below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  std::array<std::size_t, 13> const sizes{
      0, 1, 2, ranks - 1, ranks, ranks + 1, 31, 33, 511, 512, 513, 4097, 40'961};
  std::size_t const units = 1 + below(6);
  Model model(below(12));
  for (std::size_t t = 0; t < model.size(); ++t) {
    std::size_t const size = sizes[below(sizes.size())];  // in this order with every compiler
    model[t] = tensor(t, size, static_cast<int>(below(units) * 2));
    model[t].frozen = below(6) == 0;
    model[t].whole = model[t].frozen && below(3) == 0;
    if (t == 0 || below(4) != 0) continue;
    Tensor const& target = model[below(t)];
    model[t].tied_to = target.name;
    model[t].shape = target.shape;
    model[t].frozen = target.frozen;
    model[t].whole = target.whole;
  }
  return model;
}

}  // namespace

TEST_CASE("every property of a partition holds for random models") {
  std::mt19937_64 random(20'191'004);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    for (int const ranks : world_sizes) {
      Model const model = random_model(random, static_cast<std::size_t>(ranks));
      for (std::uint64_t const bucket_elements : bucket_sizes) {
        check(model, bucket_elements, ranks, Merge::into_padding);
        check(model, bucket_elements, ranks, Merge::freely);
      }
    }
  }
}

TEST_CASE("kinds share no bucket, and each is cut as if it were alone") {
  std::mt19937_64 random(156'784);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    for (int const ranks : world_sizes) {
      Model const model = random_model(random, static_cast<std::size_t>(ranks));
      Placement const placement(model);
      std::vector<std::uint32_t> kinds(model.size());
      for (std::size_t t = 0; t < kinds.size(); ++t) {
        kinds[t] = static_cast<std::uint32_t>(random() % 3);
        kinds[t] = kinds[placement.places()[t].storage];
      }
      for (std::uint64_t const bucket_elements : bucket_sizes) {
        for (Merge const merge : {Merge::into_padding, Merge::within_largest_unit, Merge::freely}) {
          check_kinds(model,
                      kinds,
                      {.world_size = ranks, .bucket_elements = bucket_elements, .merge = merge});
        }
      }
    }
  }
}

TEST_CASE("norms of neighbouring units share a bucket beside matrices of another kind") {
  Model model;
  std::vector<std::uint32_t> kinds;
  for (int unit = 0; unit < 8; ++unit) {
    model.push_back(tensor(model.size(), 10'000, unit));
    model.push_back(tensor(model.size(), 64, unit));
    kinds.insert(kinds.end(), {0, 1});
  }
  Partition const partition(
      model, {.world_size = 2, .bucket_elements = 10'240, .merge = Merge::freely}, kinds);
  // A bucket for each matrix, and one for all norms, which the first unit waits for.
  CHECK(partition.bucket_count() == 9);
  CHECK(partition.bucket(0).kind() == 0);
  CHECK(partition.bucket(1).kind() == 1);
  CHECK(partition.groups_of(7) == std::vector<std::size_t>{1, 8});
  CHECK(partition.padded_elements(1) == 8 * 512);
}

TEST_CASE("where memory is lent large tensors travel in buckets of their own") {
  std::mt19937_64 random(1910);
  for (int round = 0; round < 60; ++round) {
    for (int const ranks : world_sizes) {
      CAPTURE(round);
      Model model = random_model(random, static_cast<std::size_t>(ranks));
      for (Tensor& tensor : model) {
        bool const grows = random() % 3 == 0;
        if (grows && tensor.tied_to.empty()) {
          tensor.shape = {random() % (64 * block * static_cast<std::size_t>(ranks))};
        }
      }
      for (Tensor& tensor : model) {
        for (Tensor const& target : model) {
          if (target.name == tensor.tied_to) tensor.shape = target.shape;
        }
      }
      for (std::uint64_t const bucket_elements : bucket_sizes) {
        check_lent(model, bucket_elements, ranks);
      }
    }
  }
  check_lent({}, 1, 3);
}

TEST_CASE("every property of a partition holds for all models of two small tensors") {
  std::array<std::size_t, 6> const sizes{0, 1, 2, 511, 512, 513};
  for (std::size_t const first : sizes) {
    for (std::size_t const second : sizes) {
      for (int form = 0; form < 8; ++form) {
        Model model{tensor(0, first, (form & 1) != 0 ? 2 : 0), tensor(1, second, 1)};
        model[0].frozen = (form & 2) != 0;
        if ((form & 4) != 0) {
          model[1].tied_to = model[0].name;
          model[1].shape = model[0].shape;
          model[1].frozen = model[0].frozen;
        }
        for (int const ranks : {1, 3, 4}) check_all_merges(model, 0, ranks);
      }
    }
  }
}

TEST_CASE("models that hold nothing have an empty partition") {
  for (Model const& model : {Model{}, Model{tensor(0, 0, 0), tensor(1, 0, 5)}}) {
    check_all_options(model);
    Partition const partition(model, {.world_size = 4});
    CHECK(partition.bucket_count() == 0);
    CHECK(partition.padded_elements() == 0);
    CHECK(partition.shard_elements() == 0);
  }
}

TEST_CASE(
    "what is frozen has buckets of its own, which nobody reduces, and whole tensors no gather") {
  // The smallest bucket of 4 ranks has 2048 elements.
  Model model{tensor(0, 100, 0), tensor(1, 7, 3), tensor(2, 9, 3), tensor(3, 9, 5)};
  for (Tensor& each : model) each.frozen = true;
  model[2].whole = true;
  check_all_options(model);
  Partition const partition(model, {.world_size = 4, .merge = Merge::into_padding});
  CHECK(partition.placement().kinds() ==
        std::vector<zero::StorageKind>{{}, {0, true, false}, {0, true, true}});
  CHECK(partition.padded_elements() == 0);
  // Units 0, 3 and 5 take no more together than one of them.
  CHECK(partition.padded_elements(1) == 2048);
  CHECK(partition.padded_elements(2) == 2048);
  CHECK(partition.reduction_order().empty());
  CHECK(partition.groups_of(3).empty());
  REQUIRE(partition.gather_groups().size() == 1);
  CHECK(partition.gather_groups()[0].groups == std::vector<std::size_t>{0});
  CHECK(partition.gather_groups()[0].padded == 2048);
  int trained = 0;
  int frozen = 0;
  partition.for_each_bucket([&](BucketSpan const&) { ++trained; });
  partition.for_each_bucket([&](BucketSpan const&) { ++frozen; }, true);
  CHECK(trained == 0);
  CHECK(frozen == 2);
}

TEST_CASE("units that are frozen beside what is trained are gathered with both, or alone") {
  Model model{tensor(0, 100, 0), tensor(1, 100, 1), tensor(2, 100, 1), tensor(3, 100, 2)};
  model[2].frozen = true;
  model[3].frozen = true;
  check_all_options(model);
  Partition const partition(model, {.world_size = 4, .merge = Merge::into_padding});
  // Each of them adds nothing to what the second takes anyway.
  REQUIRE(partition.gather_groups().size() == 1);
  CHECK(partition.gather_groups()[0].padded == 2 * 2048);
  model[0].frozen = true;
  model[3].frozen = false;
  model.push_back(tensor(4, 100, 2));
  model[4].frozen = true;
  // The last unit has both kinds, too.
  Partition const both(model, {.world_size = 4, .merge = Merge::into_padding});
  REQUIRE(both.gather_groups().size() == 1);
  CHECK(both.gather_groups()[0].padded == 2 * 2048);
  // Of one of them it has too much.
  model[4].shape = {1500};
  Partition const apart(model, {.world_size = 4, .merge = Merge::into_padding});
  REQUIRE(apart.gather_groups().size() == 2);
  CHECK(apart.gather_groups()[0].last_unit == 1);
}

TEST_CASE("units may be skipped, empty, or frozen only, among others") {
  Model model{
      tensor(0, 100, 1), tensor(1, 4097, 4), tensor(2, 50, 4), tensor(3, 0, 6), tensor(4, 1, 9)};
  model[2].frozen = true;
  model[4].frozen = true;
  check_all_options(model);
  Partition const partition(model, {.world_size = 2, .merge = Merge::into_padding});
  CHECK(partition.placement().unit_count() == 10);
  CHECK(partition.groups_of(0).empty());
  CHECK(partition.groups_of(1).size() == 1);
  CHECK(partition.groups_of(9).empty());
}

TEST_CASE("the world may be larger than the model") {
  check_all_options({tensor(0, 1, 0)});
  Partition const partition({tensor(0, 1, 0)}, {.world_size = 64});
  REQUIRE(partition.bucket_count() == 1);
  CHECK(partition.bucket(0).share(0).count() == 1);
  for (int rank = 1; rank < 64; ++rank) CHECK(partition.bucket(0).share(rank).count() == 0);
  CHECK(partition.shard_elements() == block);
}

TEST_CASE("a bucket is a whole number of blocks on every rank, whatever was asked for") {
  struct Row {
    std::uint64_t asked;
    int ranks;
    std::uint64_t elements;
  };
  for (auto const& [asked, ranks, elements] : std::initializer_list<Row>{{0, 1, 512},
                                                                         {511, 1, 512},
                                                                         {1023, 1, 512},
                                                                         {1024, 1, 1024},
                                                                         {1, 4, 2048},
                                                                         {5000, 4, 4096},
                                                                         {5000, 3, 4608},
                                                                         {1 << 20, 4, 1 << 20}}) {
    // Whatever the model.
    for (std::size_t const size : {0u, 1u, 10'000u, 100'000'000u}) {
      Partition const partition({tensor(0, size, 0)},
                                {.world_size = ranks, .bucket_elements = asked});
      CHECK(partition.bucket_elements() == elements);
      std::size_t const whole = partition.bucket_count() < 2 ? 0 : partition.bucket_count() - 1;
      for (std::size_t b = 0; b < whole; b += 1 + whole / 100) {
        CHECK(partition.bucket(b).whole().count() == elements);
      }
    }
  }
}

TEST_CASE("small neighbours share a bucket only where they may, and only if they fit") {
  Model const model{tensor(0, 100, 0), tensor(1, 100, 1), tensor(2, 100, 2), tensor(3, 2000, 3)};
  PartitionOptions options{.world_size = 2, .bucket_elements = 2048, .merge = Merge::freely};
  Partition const merged(model, options);
  REQUIRE(merged.groups().size() == 2);
  CHECK(merged.groups()[0].units == std::vector<int>{0, 1, 2});
  CHECK(merged.groups()[0].range.count() == 1024 + 100);
  CHECK(merged.groups()[1].units == std::vector<int>{3});
  // Behind units 0 and 1, unit 2 would begin where the smallest bucket ends, at 1024.
  options.merge = Merge::into_padding;
  Partition const gathered(model, options);
  REQUIRE(gathered.groups().size() == 3);
  CHECK(gathered.groups()[0].units == std::vector<int>{0, 1});
  REQUIRE(gathered.gather_groups().size() == 3);
  CHECK(gathered.gather_groups()[0].last_unit == 1);
  CHECK(gathered.gather_groups()[0].padded == 1024);
  CHECK(gathered.gather_group_of(1) == 0);
  CHECK(gathered.gather_group_of(2) == 1);
  // For a pool small units are merged only as far as its slots stay as large as one unit.
  Model const pooled{tensor(0, 600, 0), tensor(1, 700, 1), tensor(2, 5000, 2), tensor(3, 600, 3)};
  options = {.world_size = 2, .bucket_elements = 1 << 20};
  CHECK(Partition(pooled, options).groups().size() == 1);
  options.merge = Merge::within_largest_unit;
  Partition const slots(pooled, options);
  REQUIRE(slots.groups().size() == 3);
  CHECK(slots.groups()[0].units == std::vector<int>{0, 1});
  options.merge = Merge::into_padding;
  CHECK(Partition(pooled, options).groups().size() == 4);
}

TEST_CASE("a tied group is reduced after the first unit that uses it, the last to be complete") {
  Model model{tensor(0, 100, 0), tensor(1, 100, 1), tensor(2, 100, 2), tensor(3, 100, 3)};
  model.push_back(tensor(4, 100, 3));
  model.back().tied_to = "t1";
  Partition const partition(model, {.world_size = 2, .merge = Merge::into_padding});
  REQUIRE(partition.groups().size() == 3);
  CHECK(partition.groups()[1].tied);
  CHECK(partition.groups()[1].units == std::vector<int>{1, 3});
  CHECK(partition.groups_of(1) == std::vector<std::size_t>{1});
  CHECK(partition.groups_of(3) == std::vector<std::size_t>{1, 2});
  // Units 2 and 3 are gathered together, and what is tied with them.
  CHECK(partition.groups()[2].units == std::vector<int>{2, 3});
  CHECK(partition.gather_groups()[2].groups == std::vector<std::size_t>{1, 2});
  CHECK(partition.reduction_order() == std::vector<std::size_t>{2, 1, 0});

  // Even where the last unit is the first to be described.
  Model late{tensor(0, 100, 3), tensor(1, 100, 1), tensor(2, 100, 0)};
  late.back().tied_to = "t0";
  Partition const backwards(late, {.world_size = 2, .merge = Merge::into_padding});
  REQUIRE(backwards.groups().size() == 2);
  CHECK(backwards.groups()[1].tied);
  CHECK(backwards.reduction_order() == std::vector<std::size_t>{0, 1});
  check_all_options(late);
}

TEST_CASE("segments of a range are its trained elements, gaps left out") {
  Model const model{tensor(0, 3, 0), tensor(1, 0, 0), tensor(2, 1010, 0), tensor(3, 9, 1)};
  using Found = std::vector<std::array<std::uint64_t, 4>>;
  auto const segments = [&](zero::BucketSpan const& bucket, Partition const& partition, int rank) {
    Found found;
    partition.for_each_segment(bucket.share(rank), [&](Segment const& piece) {
      found.push_back(
          {piece.tensor, piece.in_tensor.offset(), piece.in_range.offset(), piece.count});
    });
    return found;
  };
  Partition const partition(model, {.world_size = 3, .bucket_elements = 3 * block});
  REQUIRE(partition.bucket_count() == 2);
  CHECK(segments(partition.bucket(0), partition, 0) == Found{{0, 0, 0, 3}, {2, 0, 32, 480}});
  CHECK(segments(partition.bucket(0), partition, 1) == Found{{2, 480, 0, 512}});
  CHECK(segments(partition.bucket(0), partition, 2) == Found{{2, 992, 0, 18}});
  CHECK(segments(partition.bucket(1), partition, 0) == Found{{3, 0, 0, 9}});
  CHECK(segments(partition.bucket(1), partition, 1).empty());
}

TEST_CASE("planning 2^52 elements takes no time and no memory") {
  std::clock_t const start = std::clock();
  for (std::uint64_t const bucket_elements : {std::uint64_t{0}, std::uint64_t{25} << 18}) {
    Partition const partition({tensor(0, std::size_t{1} << 52, 0)},
                              {.world_size = 64, .bucket_elements = bucket_elements});
    CHECK(partition.padded_elements() >= std::uint64_t{1} << 52);
    CHECK(partition.bucket(partition.bucket_count() - 1).whole().count() > 0);
  }
  CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 0.1);
}

TEST_CASE("a hundred thousand tensors are partitioned in no time") {
  Model few_units;
  Model many_units;
  for (std::size_t t = 0; t < 100'000; ++t) {
    few_units.push_back(tensor(t, 1 + t % 8, static_cast<int>(t / 1000)));
    many_units.push_back(tensor(t, 1 + t % 8, static_cast<int>(t)));
  }
  for (Merge const merge : {Merge::freely, Merge::into_padding}) {
    Model const& model = merge == Merge::freely ? few_units : many_units;
    std::clock_t const start = std::clock();
    Partition const partition(model, {.world_size = 8, .bucket_elements = 25 << 18});
    auto const seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    // Many times what it takes, even under a sanitizer; far less than anything quadratic would.
    CHECK(seconds < 20.);
    check(model, 25 << 18, 8, merge);
  }
}

TEST_CASE("element counts beyond 2^32 and up to 2^62 are exact") {
  for (int const exponent : {32, 33, 47, 62}) {
    std::uint64_t const size = (std::uint64_t{1} << exponent) + 1;
    for (int const ranks : world_sizes) {
      std::uint64_t const bucket_elements = std::uint64_t{1} << (exponent - 6);
      Model const model{tensor(0, size, 0), tensor(1, 7, 1)};
      check_all_merges(model, bucket_elements, ranks);
      Partition const partition(model, {.world_size = ranks, .bucket_elements = bucket_elements});
      CHECK(partition.placement().trainable_elements() == size + 7);
      CHECK(partition.padded_elements() >= size + 7);
    }
  }
}

TEST_CASE("a partition whose sizes do not fit is refused") {
  std::size_t const most = ~std::size_t{0};
  PartitionOptions const options{.world_size = 3, .bucket_elements = most};
  auto const is_refused = [&](Model const& model) {
    return refusal([&] { Partition const partition(model, options); })
        .starts_with("a size does not fit in 64 bits");
  };
  // Fits as a model, and no longer once it is padded.
  std::size_t const half = std::size_t{1} << 32;
  zero::Tensor const all{.name = "all", .shape = {half - 1, half + 1}};
  zero::Tensor const blocks{.name = "blocks", .shape = {512, most / 512}};
  CHECK_NOTHROW(Placement({all}));
  CHECK(is_refused({all}));
  CHECK(is_refused({blocks}));
  CHECK(is_refused({tensor(0, most / 2 + 1, 0), tensor(1, most / 2, 1)}));
  CHECK_FALSE(is_refused({tensor(0, most / 2, 0)}));
}

TEST_CASE("a world of no ranks is refused, and what a placement refuses") {
  CHECK(refusal([] { Partition({}, {.world_size = 0}); }) ==
        "world size must be at least 1, got 0");
  CHECK(refusal([] { Partition({}, {.world_size = -3}); }) ==
        "world size must be at least 1, got -3");
  CHECK(refusal([] {
          Partition({tensor(0, 1, 0), tensor(0, 1, 0)}, {});
        }) == "tensor 't0' is described twice");
}

}  // namespace partition_test
