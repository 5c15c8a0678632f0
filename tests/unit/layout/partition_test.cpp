#include "support/refusal.hpp"
#include "unit/layout/partition_checks.hpp"
#include <zero/layout/partition.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <random>
#include <string>
#include <vector>

namespace partition_test {
namespace {

using partition_checks::check;
using partition_checks::check_lent;
using partition_checks::Model;
using zero::block;
using zero::Partition;
using zero::PartitionOptions;
using zero::Placement;
using zero::Segment;
using zero::Tensor;

constexpr std::array world_sizes{1, 2, 3, 4, 5, 8, 64};
/// One element (as one byte would leave), odd, larger than any model here.
constexpr std::array<std::uint64_t, 3> bucket_sizes{0, 10'007, std::uint64_t{1} << 40};

void check_all_options(Model const& model) {
  for (int const ranks : world_sizes) {
    for (std::uint64_t const bucket_elements : bucket_sizes) {
      for (zero::Merge const merge :
           {zero::Merge::into_padding, zero::Merge::within_largest_unit, zero::Merge::freely})
        check(model, bucket_elements, ranks, merge);
    }
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
    if (t == 0 || below(4) != 0) continue;
    Tensor const& target = model[below(t)];
    model[t].tied_to = target.name;
    model[t].shape = target.shape;
    model[t].frozen = target.frozen;
  }
  return model;
}

}  // namespace

TEST_CASE("every property of a partition holds for random models") {
  std::mt19937_64 random(20'191'004);
  for (int round = 0; round < 60; ++round) {
    for (int const ranks : world_sizes) {
      CAPTURE(round);
      Model const model = random_model(random, static_cast<std::size_t>(ranks));
      for (std::uint64_t const bucket_elements : bucket_sizes) {
        check(model, bucket_elements, ranks, zero::Merge::into_padding);
        check(model, bucket_elements, ranks, zero::Merge::freely);
      }
    }
  }
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
        for (int const ranks : {1, 3, 4}) {
          for (zero::Merge const merge :
               {zero::Merge::into_padding, zero::Merge::within_largest_unit, zero::Merge::freely})
            check(model, 0, ranks, merge);
        }
      }
    }
  }
}

TEST_CASE("models that hold nothing, or nothing to train, have an empty partition") {
  Model frozen{tensor(0, 100, 0), tensor(1, 7, 3)};
  for (Tensor& each : frozen) each.frozen = true;
  for (Model const& model : {Model{}, frozen, Model{tensor(0, 0, 0), tensor(1, 0, 5)}}) {
    check_all_options(model);
    Partition const partition(model, {.world_size = 4});
    CHECK(partition.bucket_count() == 0);
    CHECK(partition.padded_elements() == 0);
    CHECK(partition.shard_elements() == 0);
  }
}

TEST_CASE("units may be skipped, empty, or frozen only, among others") {
  Model model{
      tensor(0, 100, 1), tensor(1, 4097, 4), tensor(2, 50, 4), tensor(3, 0, 6), tensor(4, 1, 9)};
  model[2].frozen = true;
  model[4].frozen = true;
  check_all_options(model);
  Partition const partition(model, {.world_size = 2, .merge = zero::Merge::into_padding});
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
  auto const elements = [](std::uint64_t asked, int ranks) {
    return Partition({}, {.world_size = ranks, .bucket_elements = asked}).bucket_elements();
  };
  CHECK(elements(0, 1) == 512);
  CHECK(elements(511, 1) == 512);
  CHECK(elements(1023, 1) == 512);
  CHECK(elements(1024, 1) == 1024);
  CHECK(elements(1, 4) == 2048);
  CHECK(elements(5000, 4) == 4096);
  CHECK(elements(5000, 3) == 4608);
}

TEST_CASE("a bucket's size does not depend on the model") {
  for (std::size_t const size : {std::size_t{1}, std::size_t{10'000}, std::size_t{100'000'000}}) {
    Partition const partition({tensor(0, size, 0)}, {.world_size = 4, .bucket_elements = 1 << 20});
    CHECK(partition.bucket_elements() == 1 << 20);
    for (std::size_t b = 0; b + 1 < partition.bucket_count(); ++b) {
      CHECK(partition.bucket(b).whole().count() == 1 << 20);
    }
  }
}

TEST_CASE("small neighbours share a bucket only where they may, and only if they fit") {
  Model const model{tensor(0, 100, 0), tensor(1, 100, 1), tensor(2, 100, 2), tensor(3, 2000, 3)};
  PartitionOptions options{.world_size = 2, .bucket_elements = 2048, .merge = zero::Merge::freely};
  Partition const merged(model, options);
  REQUIRE(merged.groups().size() == 2);
  CHECK(merged.groups()[0].units == std::vector<int>{0, 1, 2});
  CHECK(merged.groups()[0].range.count() == 1024 + 100);
  CHECK(merged.groups()[1].units == std::vector<int>{3});
  // Behind units 0 and 1, unit 2 would begin where the smallest bucket ends, at 1024.
  options.merge = zero::Merge::into_padding;
  Partition const gathered(model, options);
  REQUIRE(gathered.groups().size() == 3);
  CHECK(gathered.groups()[0].units == std::vector<int>{0, 1});
  REQUIRE(gathered.gather_groups().size() == 3);
  CHECK(gathered.gather_groups()[0].last_unit == 1);
  CHECK(gathered.gather_groups()[0].padded == 1024);
  CHECK(gathered.gather_group_of(1) == 0);
  CHECK(gathered.gather_group_of(2) == 1);
}

TEST_CASE("a tied group is reduced after the first unit that uses it, the last to be complete") {
  Model model{tensor(0, 100, 0), tensor(1, 100, 1), tensor(2, 100, 2), tensor(3, 100, 3)};
  Tensor head = tensor(4, 100, 3);
  head.tied_to = "t1";
  model.push_back(head);
  Partition const partition(model, {.world_size = 2, .merge = zero::Merge::into_padding});
  REQUIRE(partition.groups().size() == 3);
  CHECK(partition.groups()[1].tied);
  CHECK(partition.groups()[1].units == std::vector<int>{1, 3});
  CHECK(partition.groups_of(1) == std::vector<std::size_t>{1});
  CHECK(partition.groups_of(3) == std::vector<std::size_t>{1, 2});
  // Units 2 and 3 are gathered together, and what is tied with them.
  CHECK(partition.groups()[2].units == std::vector<int>{2, 3});
  CHECK(partition.gather_groups()[2].groups == std::vector<std::size_t>{1, 2});
  CHECK(partition.reduction_order() == std::vector<std::size_t>{2, 1, 0});
}

TEST_CASE("a tie described in the last unit first is complete with the first unit all the same") {
  Model model{tensor(0, 100, 3), tensor(1, 100, 1)};
  Tensor early = tensor(2, 100, 0);
  early.tied_to = "t0";
  model.push_back(early);
  Partition const partition(model, {.world_size = 2, .merge = zero::Merge::into_padding});
  REQUIRE(partition.groups().size() == 2);
  CHECK(partition.groups()[1].tied);
  CHECK(partition.reduction_order() == std::vector<std::size_t>{0, 1});
  check_all_options(model);
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
  for (zero::Merge const merge : {zero::Merge::freely, zero::Merge::into_padding}) {
    Model const& model = merge == zero::Merge::freely ? few_units : many_units;
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
      for (zero::Merge const merge :
           {zero::Merge::into_padding, zero::Merge::within_largest_unit, zero::Merge::freely})
        check(model, bucket_elements, ranks, merge);
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
  CHECK_NOTHROW(Placement({tensor(0, most, 0)}));
  CHECK(is_refused({tensor(0, most, 0)}));
  CHECK(is_refused({tensor(0, most / 512 * 512, 0)}));
  CHECK(is_refused({tensor(0, most / 2 + 1, 0), tensor(1, most / 2, 1)}));
  CHECK_FALSE(is_refused({tensor(0, most / 2, 0)}));
}

TEST_CASE("a world of no ranks is refused") {
  CHECK(refusal([] { Partition({}, {.world_size = 0}); }) ==
        "world size must be at least 1, got 0");
  CHECK(refusal([] { Partition({}, {.world_size = -3}); }) ==
        "world size must be at least 1, got -3");
}

TEST_CASE("a partition refuses what its placement refuses") {
  CHECK(refusal([] {
          Partition({tensor(0, 1, 0), tensor(0, 1, 0)}, {});
        }) == "tensor 't0' is described twice");
}

TEST_CASE("small units are merged for a pool only as far as its slots stay as large as one unit") {
  std::vector<zero::Tensor> const model{{.name = "a", .shape = {600}, .unit = 0},
                                        {.name = "b", .shape = {700}, .unit = 1},
                                        {.name = "c", .shape = {5000}, .unit = 2},
                                        {.name = "d", .shape = {600}, .unit = 3}};
  zero::PartitionOptions options{.world_size = 2, .bucket_elements = 1 << 20};
  CHECK(zero::Partition(model, options).groups().size() == 1);
  options.merge = zero::Merge::within_largest_unit;
  zero::Partition const partition(model, options);
  REQUIRE(partition.groups().size() == 3);
  CHECK(partition.groups()[0].units == std::vector<int>{0, 1});
  options.merge = zero::Merge::into_padding;
  CHECK(zero::Partition(model, options).groups().size() == 4);
}

}  // namespace partition_test
