#include "support/refusal.hpp"
#include <zero/layout/memory_model.hpp>
#include <zero/layout/memory_plan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace memory_plan_test {
namespace {

using zero::ElementBytes;
using zero::MemoryBytes;
using zero::ModelStates;
using zero::Partition;
using zero::Role;
using zero::Sharding;
using zero::StorageChoice;
using zero::Tensor;

constexpr Sharding replicated{};
constexpr Sharding pos{.optimizer = true};
constexpr Sharding pos_g{.optimizer = true, .gradients = true};
constexpr Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};
constexpr std::array levels{replicated, pos, pos_g, pos_gp};

constexpr ElementBytes mixed_adam{
    .parameter = 2, .wire = 2, .accumulate = 4, .master = 4, .state = 4, .state_arrays = 2};
constexpr ElementBytes fp32_momentum{
    .parameter = 4, .wire = 4, .accumulate = 4, .master = 0, .state = 4, .state_arrays = 1};

using Model = std::vector<Tensor>;

/// Sizes that every N from 1 to 8 divides into blocks.
constexpr std::size_t even = 512 * 840;

Model even_model() {
  return {{.name = "a", .shape = {even}, .unit = 0},
          {.name = "b", .shape = {2, even}, .unit = 1},
          {.name = "c", .shape = {even / 2}, .unit = 2},
          {.name = "d", .shape = {even / 2}, .unit = 2}};
}

Model odd_model() {
  return {{.name = "a", .shape = {1}, .unit = 0},
          {.name = "b", .shape = {513, 77}, .unit = 1},
          {.name = "c", .shape = {0}, .unit = 2},
          {.name = "d", .shape = {4095}, .unit = 3},
          {.name = "e", .shape = {100'003}, .unit = 3}};
}

Partition partition_of(Model const& model, int ranks, std::uint64_t bucket = 1 << 20) {
  return Partition(
      model, {.world_size = ranks, .bucket_elements = bucket, .merge = zero::Merge::into_padding});
}

MemoryBytes bytes_of(Partition const& partition, StorageChoice const& choice) {
  return memory_bytes(storage_elements(partition, choice), choice.bytes);
}

/// What the paper counts: everything but pools and staging.
std::uint64_t model_states(MemoryBytes const& bytes) {
  return bytes[Role::parameters] + bytes[Role::gradients] + bytes[Role::master] +
         bytes[Role::state];
}

std::uint64_t exact(std::uint64_t parameters, int ranks, Sharding sharding, ModelStates states) {
  zero::ExactBytes const bytes =
      model_state_bytes(parameters, static_cast<std::uint64_t>(ranks), sharding, states);
  REQUIRE(bytes.numerator == 0);
  return bytes.whole;
}

}  // namespace

TEST_CASE(
    "where N divides the model, mixed-precision Adam holds what the paper says, to the byte") {
  std::uint64_t const psi = 4 * even;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    auto const n = static_cast<std::uint64_t>(ranks);
    Partition const partition = partition_of(even_model(), ranks, 512 * 840);
    REQUIRE(partition.padded_elements() == psi);
    auto const held = [&](Sharding sharding) {
      return model_states(bytes_of(partition, {.sharding = sharding, .bytes = mixed_adam}));
    };
    CHECK(held(replicated) == 16 * psi);
    CHECK(held(pos) == 4 * psi + 12 * psi / n);
    CHECK(held(pos_g) == 2 * psi + 14 * psi / n);
    CHECK(held(pos_gp) == 16 * psi / n);
  }
}

TEST_CASE("where N does not divide the model, the plan is the paper's formula plus padding") {
  for (int const ranks : {1, 2, 3, 4, 5, 8, 64}) {
    for (std::uint64_t const bucket : {std::uint64_t{0}, std::uint64_t{9999}}) {
      Partition const partition = partition_of(odd_model(), ranks, bucket);
      std::uint64_t const padded = partition.padded_elements();
      for (Sharding const sharding : levels) {
        CHECK(model_states(bytes_of(partition, {.sharding = sharding, .bytes = mixed_adam})) ==
              exact(padded, ranks, sharding, {2, 2, 12}));
        CHECK(model_states(bytes_of(partition, {.sharding = sharding, .bytes = fp32_momentum})) ==
              exact(padded, ranks, sharding, {4, 4, 4}));
      }
    }
  }
}

TEST_CASE("each role holds its own bytes") {
  Partition const partition = partition_of(even_model(), 4);
  std::uint64_t const psi = 4 * even;
  MemoryBytes const bytes = bytes_of(partition, {.sharding = pos, .bytes = mixed_adam});
  CHECK(bytes[Role::parameters] == 2 * psi);
  CHECK(bytes[Role::gradients] == 2 * psi);
  CHECK(bytes[Role::master] == psi);
  CHECK(bytes[Role::state] == 2 * psi);
  CHECK(bytes[Role::gradient_pool] == 0);
  CHECK(bytes[Role::gather_pool] == 0);
  CHECK(bytes[Role::staging] == 0);
  CHECK(bytes.total() == 7 * psi);
  CHECK(bytes_of(partition, {.sharding = pos, .bytes = fp32_momentum})[Role::master] == 0);
}

TEST_CASE("sharded gradients and parameters pass through pools sized by the largest units") {
  Partition const partition = partition_of(even_model(), 4);  // the largest unit: 2 * even
  auto const pools = [&](Sharding sharding, int prefetch) {
    MemoryBytes const bytes =
        bytes_of(partition, {.sharding = sharding, .bytes = mixed_adam, .prefetch = prefetch});
    CHECK(bytes[Role::staging] == 0);
    return std::array{bytes[Role::gradient_pool], bytes[Role::gather_pool]};
  };
  std::uint64_t const unit = 2 * 2 * even;
  CHECK(pools(replicated, 1) == std::array<std::uint64_t, 2>{0, 0});
  CHECK(pools(pos, 1) == std::array<std::uint64_t, 2>{0, 0});
  CHECK(pools(pos_g, 1) == std::array<std::uint64_t, 2>{2 * unit, 0});
  CHECK(pools(pos_gp, 0) == std::array<std::uint64_t, 2>{2 * unit, unit});
  CHECK(pools(pos_gp, 1) == std::array<std::uint64_t, 2>{2 * unit, 2 * unit});
  // Never more slots than units.
  CHECK(pools(pos_gp, 9) == std::array<std::uint64_t, 2>{2 * unit, 3 * unit});
}

TEST_CASE("pools do not grow with the number of equal units") {
  auto const pools = [](int units) {
    Model model;
    for (int unit = 0; unit < units; ++unit) {
      model.push_back({.name = std::to_string(unit), .shape = {1000}, .unit = unit});
    }
    MemoryBytes const bytes =
        bytes_of(partition_of(model, 3), {.sharding = pos_gp, .bytes = mixed_adam});
    return bytes[Role::gradient_pool] + bytes[Role::gather_pool];
  };
  CHECK(pools(1) == 2 * 2 * 1536);
  CHECK(pools(2) == 2 * pools(1));
  CHECK(pools(50) == pools(2));
}

TEST_CASE("tied gradients wait for their last use in memory of their own") {
  Model const model{{.name = "wte", .shape = {1024}, .unit = 0},
                    {.name = "h", .shape = {2048}, .unit = 1},
                    {.name = "head", .shape = {1024}, .unit = 2, .tied_to = "wte"}};
  Partition const partition = partition_of(model, 2);
  MemoryBytes const bytes = bytes_of(partition, {.sharding = pos_g, .bytes = mixed_adam});
  CHECK(bytes[Role::gradient_pool] == (2048 + 1024) * 2);
  CHECK(model_states(bytes) == exact(3072, 2, pos_g, {2, 2, 12}));
}

TEST_CASE("frozen tensors hold parameters and nothing else") {
  Model model = even_model();
  model.push_back({.name = "f", .shape = {1000}, .unit = 1, .frozen = true});
  for (Sharding const sharding : levels) {
    StorageChoice const choice{.sharding = sharding, .bytes = mixed_adam};
    MemoryBytes const with = bytes_of(partition_of(model, 4), choice);
    MemoryBytes expected = bytes_of(partition_of(even_model(), 4), choice);
    expected[Role::parameters] += 2000;
    CHECK(with == expected);
  }
}

TEST_CASE("accumulating in full gradients keeps them whole, and needs no pool") {
  Partition const partition = partition_of(even_model(), 4);
  for (Sharding const sharding : levels) {
    MemoryBytes const bytes =
        bytes_of(partition, {.sharding = sharding, .bytes = mixed_adam, .full_gradients = true});
    CHECK(bytes[Role::gradients] == 2 * 4 * even);
    CHECK(bytes[Role::gradient_pool] == 0);
  }
}

TEST_CASE("accumulating in the share adds sums in the accumulate dtype") {
  Partition const partition = partition_of(even_model(), 4);
  std::uint64_t const psi = 4 * even;
  auto const gradients = [&](Sharding sharding) {
    return bytes_of(partition, {.sharding = sharding, .bytes = mixed_adam, .reduced_shard = true});
  };
  CHECK(gradients(replicated)[Role::gradients] == 2 * psi + 4 * psi / 4);
  CHECK(gradients(pos)[Role::gradients] == 2 * psi + 4 * psi / 4);
  CHECK(gradients(pos_g)[Role::gradients] == 4 * psi / 4);
  CHECK(model_states(gradients(pos_g)) == exact(psi, 4, pos_g, {2, 4, 12}));
  CHECK(model_states(gradients(pos_gp)) == exact(psi, 4, pos_gp, {2, 4, 12}));
  // Replicated, the sums of one bucket at a time are shown to all ranks.
  CHECK(gradients(replicated)[Role::staging] == 4 * 2 * even);
  CHECK(gradients(pos)[Role::staging] == 0);
}

TEST_CASE("lent parameters and gradients are not counted, the shares and buckets are") {
  Partition const partition = partition_of(even_model(), 4, 512 * 840);
  std::uint64_t const psi = 4 * even;
  auto const held = [&](Sharding sharding, bool reduced_shard = false) {
    return bytes_of(partition,
                    {.sharding = sharding,
                     .bytes = mixed_adam,
                     .reduced_shard = reduced_shard,
                     .borrowed = true});
  };
  std::uint64_t const bucket = partition.bucket_elements();
  for (Sharding const sharding : {replicated, pos, pos_g}) {
    MemoryBytes const bytes = held(sharding);
    CHECK(bytes[Role::parameters] == 0);
    CHECK(bytes[Role::gradients] == 2 * psi / 4);
    CHECK(bytes[Role::gradient_pool] == 0);
    CHECK(bytes[Role::gather_pool] == 0);
    CHECK(bytes[Role::staging] == 2 * 2 * bucket);
  }
  CHECK(held(replicated)[Role::master] == 4 * psi);
  CHECK(held(pos)[Role::master] == psi);
  CHECK(held(pos, true)[Role::gradients] == 4 * psi / 4);
}

TEST_CASE("staging is one constant, whatever the model") {
  for (std::size_t const units : {std::size_t{1}, std::size_t{7}, std::size_t{40}}) {
    Model model;
    for (std::size_t unit = 0; unit < units; ++unit) {
      model.push_back(
          {.name = std::to_string(unit), .shape = {50'000}, .unit = static_cast<int>(unit)});
    }
    Partition const partition = partition_of(model, 4, 8192);
    CHECK(bytes_of(partition,
                   {.sharding = pos_g, .bytes = mixed_adam, .borrowed = true})[Role::staging] ==
          2 * 2 * 8192);
  }
}

TEST_CASE("a model without trained elements holds nothing") {
  for (Sharding const sharding : levels) {
    for (bool const borrowed : {false, true}) {
      MemoryBytes const bytes = bytes_of(
          partition_of({}, 4), {.sharding = sharding, .bytes = mixed_adam, .borrowed = borrowed});
      CHECK(bytes == MemoryBytes{});
      CHECK(bytes.total() == 0);
    }
  }
}

TEST_CASE("bytes beyond 2^32 are exact, and those that do not fit are refused") {
  Model const model{{.name = "a", .shape = {std::size_t{1} << 59}}};
  Partition const partition = partition_of(model, 64, std::uint64_t{1} << 54);
  CHECK(model_states(bytes_of(partition, {.sharding = pos_gp, .bytes = mixed_adam})) ==
        std::uint64_t{1} << 57);

  Model const larger{{.name = "a", .shape = {std::size_t{1} << 62}}};
  Partition const huge = partition_of(larger, 2, std::uint64_t{1} << 60);
  CHECK(refusal([&] { (void)bytes_of(huge, {.sharding = replicated, .bytes = fp32_momentum}); }) ==
        "a size does not fit in 64 bits (multiplication overflows)");
}

TEST_CASE("a total that does not fit is refused even where every role does") {
  MemoryBytes bytes;
  bytes[Role::parameters] = std::uint64_t{1} << 63;
  bytes[Role::state] = (std::uint64_t{1} << 63) - 1;
  CHECK(bytes.total() == ~std::uint64_t{0});
  bytes[Role::staging] = 1;
  CHECK(refusal([&] { (void)bytes.total(); }) ==
        "a size does not fit in 64 bits (addition overflows)");
}

TEST_CASE("control bytes are what the choice says, under every stage and for no model at all") {
  for (bool const sharded : {false, true}) {
    StorageChoice const choice{.sharding = {sharded, sharded, sharded}, .control_bytes = 1744};
    Partition const partition({}, {.world_size = 4, .bucket_elements = 4096});
    auto const bytes = memory_bytes(storage_elements(partition, choice), choice.bytes);
    CHECK(bytes[Role::control] == 1744);
    CHECK(bytes.total() == 1744);
  }
  // And those of every three tensors, begun ones too.
  StorageChoice const choice{.control_bytes = 100, .control_bytes_of_three = 32};
  for (std::size_t const count : {1u, 3u, 4u}) {
    std::vector<Tensor> tensors;
    for (std::size_t t = 0; t < count; ++t) tensors.push_back({"t" + std::to_string(t), {2}});
    Partition const partition(tensors, {.world_size = 4, .bucket_elements = 4096});
    auto const bytes = memory_bytes(storage_elements(partition, choice), choice.bytes);
    CHECK(bytes[Role::control] == (count < 4 ? 132 : 164));
  }
}

TEST_CASE("what a communicator holds is counted as it is told") {
  StorageChoice const choice{.sharding = pos_g, .bytes = mixed_adam, .communicator_bytes = 4711};
  CHECK(bytes_of(partition_of(even_model(), 4), choice)[Role::communicator] == 4711);
}

TEST_CASE("every role has a name of its own") {
  std::vector<std::string> names;
  for (int r = 0; r < zero::role_count; ++r) names.emplace_back(name(static_cast<Role>(r)));
  CHECK(names == std::vector<std::string>{"parameters",
                                          "gradients",
                                          "master",
                                          "state",
                                          "gradient_pool",
                                          "gather_pool",
                                          "staging",
                                          "control",
                                          "communicator",
                                          "activations",
                                          "activation_pool",
                                          "activation_staging"});
}

}  // namespace memory_plan_test
