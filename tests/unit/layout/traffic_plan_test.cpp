#include "support/refusal.hpp"
#include <zero/layout/traffic_plan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace traffic_plan_test {
namespace {

using zero::Partition;
using zero::Sharding;
using zero::Tensor;
using zero::traffic_elements;
using zero::TrafficElements;

constexpr Sharding replicated{};
constexpr Sharding pos{.optimizer = true};
constexpr Sharding pos_g{.optimizer = true, .gradients = true};
constexpr Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};
constexpr std::array gathered_after_update{replicated, pos, pos_g};

/// A size that every N from 1 to 8 divides into blocks.
constexpr std::size_t even = 512 * 840;

Partition partition_of(std::vector<Tensor> const& model, int ranks) {
  return Partition(
      model,
      {.world_size = ranks, .bucket_elements = 512 * 840, .merge = zero::Merge::into_padding});
}

std::vector<Tensor> even_model() {
  return {{.name = "a", .shape = {even}, .unit = 0}, {.name = "b", .shape = {3, even}, .unit = 2}};
}

}  // namespace

TEST_CASE("a rank sends 2, 2, 2 and 3 times the model's (N-1)/N elements a step") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    auto const n = static_cast<std::uint64_t>(ranks);
    std::uint64_t const once = 4 * even * (n - 1) / n;
    Partition const partition = partition_of(even_model(), ranks);
    for (Sharding const sharding : gathered_after_update) {
      CHECK(traffic_elements(partition, {.sharding = sharding}) ==
            TrafficElements{.reduce = once, .publish = once});
      CHECK(traffic_elements(partition, {.sharding = sharding}).total() == 2 * once);
    }
    CHECK(traffic_elements(partition, {.sharding = pos_gp}) ==
          TrafficElements{.reduce = once, .gather = 2 * once});
    CHECK(traffic_elements(partition, {.sharding = pos_gp}).total() == 3 * once);
  }
}

TEST_CASE("one rank sends nothing") {
  Partition const partition = partition_of(even_model(), 1);
  for (Sharding const sharding : {replicated, pos, pos_g, pos_gp}) {
    CHECK(traffic_elements(partition, {.sharding = sharding}, 7) == TrafficElements{});
  }
}

TEST_CASE("padding travels too") {
  Partition const partition = partition_of({{.name = "a", .shape = {1}}}, 4);
  CHECK(traffic_elements(partition, {.sharding = pos}) ==
        TrafficElements{.reduce = 3 * 512, .publish = 3 * 512});
}

TEST_CASE("frozen and empty tensors send nothing") {
  std::vector<Tensor> model = even_model();
  model.push_back({.name = "f", .shape = {999}, .unit = 1, .frozen = true});
  model.push_back({.name = "e", .shape = {0}, .unit = 3});
  for (Sharding const sharding : {replicated, pos, pos_g, pos_gp}) {
    CHECK(traffic_elements(partition_of(model, 4), {.sharding = sharding}) ==
          traffic_elements(partition_of(even_model(), 4), {.sharding = sharding}));
  }
}

TEST_CASE("micro-steps cost traffic only where they must") {
  Partition const partition = partition_of(even_model(), 4);
  std::uint64_t const once = 3 * even;
  for (Sharding const sharding : gathered_after_update) {
    CHECK(traffic_elements(partition, {.sharding = sharding, .full_gradients = true}, 5) ==
          TrafficElements{.reduce = once, .publish = once});
    CHECK(traffic_elements(partition, {.sharding = sharding, .reduced_shard = true}, 5) ==
          TrafficElements{.reduce = 5 * once, .publish = once});
  }
  CHECK(traffic_elements(partition, {.sharding = pos_gp, .full_gradients = true}, 5) ==
        TrafficElements{.reduce = once, .gather = 10 * once});
  CHECK(traffic_elements(partition, {.sharding = pos_gp, .reduced_shard = true}, 5) ==
        TrafficElements{.reduce = 5 * once, .gather = 10 * once});
}

TEST_CASE("a tied tensor is reduced once and gathered for each unit that uses it") {
  std::vector<Tensor> model = even_model();
  model.push_back({.name = "head", .shape = {even}, .unit = 5, .tied_to = "a"});
  Partition const partition = partition_of(model, 4);
  std::uint64_t const once = 3 * even;
  std::uint64_t const again = 3 * even / 4;
  CHECK(traffic_elements(partition, {.sharding = pos_gp}) ==
        TrafficElements{.reduce = once, .gather = 2 * once + 2 * again});
  CHECK(traffic_elements(partition, {.sharding = pos_g}) ==
        TrafficElements{.reduce = once, .publish = once});
}

TEST_CASE("traffic beyond 2^32 is exact, and traffic that does not fit is refused") {
  std::vector<Tensor> const model{{.name = "a", .shape = {std::size_t{1} << 60}}};
  Partition const partition(model, {.world_size = 64, .bucket_elements = std::uint64_t{1} << 55});
  std::uint64_t const once = (std::uint64_t{1} << 60) / 64 * 63;
  CHECK(traffic_elements(partition, {.sharding = pos}).total() == 2 * once);
  CHECK(traffic_elements(partition, {.sharding = pos_gp}).total() == 3 * once);
  for (std::uint64_t const micro_steps : {std::uint64_t{100}, std::uint64_t{1} << 63}) {
    CHECK(refusal([&] { (void)traffic_elements(partition, {.sharding = pos_gp}, micro_steps); }) ==
          "a size does not fit in 64 bits (multiplication overflows)");
  }
  TrafficElements const most{.reduce = std::uint64_t{1} << 63, .gather = std::uint64_t{1} << 63};
  CHECK(refusal([&] { (void)most.total(); }) ==
        "a size does not fit in 64 bits (addition overflows)");
}

}  // namespace traffic_plan_test
