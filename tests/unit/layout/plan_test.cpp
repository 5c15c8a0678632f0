#include "support/refusal.hpp"
#include <zero/layout/memory_model.hpp>
#include <zero/layout/plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plan_test {
namespace {

using zero::ElementBytes;
using zero::make_plan;
using zero::Partition;
using zero::Plan;
using zero::PlanNames;
using zero::Role;
using zero::Sharding;
using zero::StorageChoice;
using zero::Tensor;
using zero::TrafficBytes;

constexpr Sharding replicated{};
constexpr Sharding pos{.optimizer = true};
constexpr Sharding pos_g{.optimizer = true, .gradients = true};
constexpr Sharding pos_gp{.optimizer = true, .gradients = true, .parameters = true};

constexpr ElementBytes mixed_adam{
    .parameter = 2, .wire = 2, .accumulate = 4, .master = 4, .state = 4, .state_arrays = 2};

PlanNames const names{.stage = "Pos+g",
                      .precision = "bf16",
                      .rule = "AdamW",
                      .accumulation = "none",
                      .states = {"exp_avg", "exp_avg_sq"}};

Partition partition_of(std::vector<Tensor> const& model, int ranks) {
  return Partition(
      model, {.world_size = ranks, .bucket_elements = 1 << 20, .merge = zero::Merge::into_padding});
}

std::vector<Tensor> small_model() {
  return {{.name = "wte", .shape = {2048, 500}, .unit = 0},
          {.name = "h", .shape = {40, 1000}, .unit = 1},
          {.name = "pos", .shape = {100}, .unit = 1, .frozen = true}};
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a plan says what the partition, the memory plan and the traffic plan say") {
  Partition const partition = partition_of(small_model(), 4);
  for (Sharding const sharding : {replicated, pos, pos_g, pos_gp}) {
    StorageChoice const choice{.sharding = sharding, .bytes = mixed_adam};
    Plan const plan = make_plan(partition, choice, names, 3);
    CHECK(plan.world_size == 4);
    CHECK(plan.trained_elements == 2048 * 500 + 40'000);
    CHECK(plan.trained_elements + plan.padding_elements == partition.padded_elements());
    CHECK(plan.frozen_elements == 100);
    CHECK(plan.micro_steps == 3);
    CHECK(plan.memory == memory_bytes(storage_elements(partition, choice), mixed_adam));
    CHECK(plan.traffic == traffic_elements(partition, choice, 3));
    CHECK(plan.names == names);
    CHECK(plan.storage.sharding == sharding);
  }
}

TEST_CASE("a plan is the paper's formula plus padding, frozen tensors, pools and staging") {
  for (int const ranks : {1, 3, 4, 64}) {
    Partition const partition = partition_of(small_model(), ranks);
    for (Sharding const sharding : {replicated, pos, pos_g, pos_gp}) {
      Plan const plan = make_plan(partition, {.sharding = sharding, .bytes = mixed_adam}, names);
      std::uint64_t const rest = plan.memory[Role::gradient_pool] + plan.memory[Role::gather_pool] +
                                 plan.memory[Role::staging];
      CHECK(zero::ExactBytes{.whole = plan.memory.total() - rest - 2 * plan.frozen_elements} ==
            model_state_bytes(plan.trained_elements + plan.padding_elements,
                              static_cast<std::uint64_t>(ranks),
                              sharding));
    }
  }
}

TEST_CASE("state arrays are listed by name and make up the state") {
  for (std::size_t const arrays : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    ElementBytes bytes = mixed_adam;
    bytes.state_arrays = arrays;
    bytes.state = 2;
    PlanNames stated = names;
    stated.state_dtype = zero::DType::bf16;
    stated.states.clear();
    for (std::size_t k = 0; k < arrays; ++k) stated.states.push_back("s" + std::to_string(k));
    Plan const plan = make_plan(partition_of(small_model(), 3), {pos, bytes}, stated);
    REQUIRE(plan.state_arrays.size() == arrays);
    std::uint64_t total = 0;
    for (std::size_t k = 0; k < arrays; ++k) {
      CHECK(plan.state_arrays[k] == zero::StateArrayBytes{stated.states[k],
                                                          zero::DType::bf16,
                                                          plan.memory[Role::state] / arrays});
      total += plan.state_arrays[k].bytes;
    }
    CHECK(total == plan.memory[Role::state]);
  }
}

TEST_CASE("bytes sent count each purpose in the dtype that travels") {
  Partition const partition = partition_of({{.name = "a", .shape = {4096}}}, 4);
  ElementBytes const distinct{
      .parameter = 2, .wire = 4, .accumulate = 8, .master = 4, .state = 4, .state_arrays = 2};
  auto const sent = [&](Sharding sharding, bool reduced_shard = false) {
    return make_plan(partition,
                     {.sharding = sharding, .bytes = distinct, .reduced_shard = reduced_shard},
                     names)
        .sent;
  };
  std::uint64_t const once = 3 * 1024;
  CHECK(sent(pos) == TrafficBytes{.reduce = 4 * once, .publish = 2 * once});
  CHECK(sent(pos_g) == TrafficBytes{.reduce = 4 * once, .publish = 2 * once});
  CHECK(sent(pos_gp) == TrafficBytes{.reduce = 4 * once, .gather = 2 * 2 * once});
  // Replicated, gradients are what is published: as they travelled, or as they were summed up.
  CHECK(sent(replicated) == TrafficBytes{.reduce = 4 * once, .publish = 4 * once});
  CHECK(sent(replicated, true) == TrafficBytes{.reduce = 4 * once, .publish = 8 * once});
  CHECK(sent(pos_gp).total() == 8 * once);
}

TEST_CASE("a plan as a table") {
  Plan const plan =
      make_plan(partition_of(small_model(), 4), {.sharding = pos_g, .bytes = mixed_adam}, names);
  CHECK(to_string(plan) ==
        R"(plan: stage Pos+g, precision bf16, rule AdamW, accumulation none, N = 4
Ψ = 1,064,960 elements: 1,064,000 trained, 960 padding (0.1%); 100 more are frozen

held per rank      bytes                  %  formula
parameters     2,130,120    2.0 MiB   21.4%  2Ψ + 2 per frozen element
gradients        532,480  520.0 KiB    5.3%  2Ψ/N
master         1,064,960    1.0 MiB   10.7%  4Ψ/N
state          2,129,920    2.0 MiB   21.4%  8Ψ/N
  exp_avg      1,064,960    1.0 MiB   10.7%  4Ψ/N
  exp_avg_sq   1,064,960    1.0 MiB   10.7%  4Ψ/N
gradient_pool  4,096,000    3.9 MiB   41.2%  the largest units under way, all tied ones
gather_pool            0        0 B    0.0%
staging                0        0 B    0.0%
control                0        0 B    0.0%
communicator           0        0 B    0.0%
total          9,953,480    9.5 MiB  100.0%

sent per rank and step   elements      bytes       %  formula
reduce                    798,720  1,597,440   50.0%  Ψ(N-1)/N
publish                   798,720  1,597,440   50.0%  Ψ(N-1)/N
gather                          0          0    0.0%
total                   1,597,440  3,194,880  100.0%
)");
}

TEST_CASE("a plan in one line") {
  CHECK(to_line(make_plan(
            partition_of(small_model(), 4), {.sharding = pos_g, .bytes = mixed_adam}, names)) ==
        "Pos+g bf16 AdamW N=4: holds 9.5 MiB (parameters 2.0 MiB, gradients 520.0 KiB, "
        "master 1.0 MiB, state 2.0 MiB, gradient_pool 3.9 MiB), sends 1,597,440 elements "
        "(3.0 MiB) a step");
}

TEST_CASE("the table names the formula of each stage") {
  Partition const partition = partition_of(small_model(), 4);
  auto const table = [&](StorageChoice choice, std::uint64_t micro_steps = 1) {
    choice.bytes = mixed_adam;
    return to_string(make_plan(partition, choice, names, micro_steps));
  };
  CHECK(contains(table({.sharding = replicated}), "  8Ψ\n"));
  CHECK(contains(table({.sharding = pos}), "  8Ψ/N\n"));
  CHECK(contains(table({.sharding = pos_gp}), "  2Ψ/N + 2 per frozen element\n"));
  CHECK(contains(table({.sharding = pos_gp}), "  2Ψ(N-1)/N\n"));
  CHECK(contains(table({.sharding = pos, .reduced_shard = true}), "  2Ψ + 4Ψ/N\n"));
  CHECK(contains(table({.sharding = pos_g, .full_gradients = true}), "  2Ψ\n"));
  CHECK(contains(table({.sharding = pos_g, .reduced_shard = true}, 4),
                 "  Ψ(N-1)/N x 4 micro-steps\n"));
  CHECK(contains(table({.sharding = pos_gp}, 4), "  2Ψ(N-1)/N x 4 micro-steps\n"));
  CHECK(contains(table({.sharding = pos, .borrowed = true}), "full ones lent by the trainer\n"));
  CHECK_FALSE(contains(table({.sharding = pos_gp}), "tied tensors again"));
}

TEST_CASE("the table says so where tied tensors are gathered again") {
  std::vector<Tensor> model = small_model();
  model.push_back({.name = "head", .shape = {2048, 500}, .unit = 1, .tied_to = "wte"});
  Plan const plan =
      make_plan(partition_of(model, 2), {.sharding = pos_gp, .bytes = mixed_adam}, names);
  CHECK(contains(to_string(plan), "2Ψ(N-1)/N, and tied tensors again\n"));
}

TEST_CASE(
    "a bucket has the bytes that were asked for, whatever the model, or the plan says why not") {
  constexpr std::uint64_t asked = 25 * zero::MiB;
  for (int const ranks : {1, 64, 1024, 100000}) {
    auto const smallest = static_cast<std::uint64_t>(ranks) * zero::block * 2;
    for (std::uint64_t psi = 1'000'000; psi <= 10'000'000'000'000; psi *= 10) {
      CAPTURE(ranks);
      CAPTURE(psi);
      std::vector<Tensor> layers;
      for (int unit = 0; unit < 50; ++unit) {
        layers.push_back({.name = std::to_string(unit), .shape = {psi / 50}, .unit = unit});
      }
      Partition const partition(
          layers,
          {.world_size = ranks, .bucket_elements = asked / 2, .merge = zero::Merge::into_padding});
      Plan const plan = make_plan(partition, {pos_gp, mixed_adam, false, false, false, 1}, names);
      // A layer alone may be smaller.
      std::uint64_t const most = (std::max)(asked, smallest);
      CHECK(plan.bucket_bytes <= most);
      if (psi / 50 * 2 > 2 * most) CHECK(plan.bucket_bytes > most - smallest);
      std::uint64_t const layer = zero::round_up(psi / 50 * 2, smallest);
      CHECK(plan.bucket_bytes ==
            (std::min)(layer, asked < smallest ? smallest : asked / smallest * smallest));
      bool const said = contains(to_string(plan), "instead of 25.0 MiB: the smallest has 512");
      CHECK(said == (plan.bucket_bytes > asked));
      CHECK(said == (ranks == 100000));
    }
  }
}

TEST_CASE("the plan of an empty model can be printed") {
  Plan const plan = make_plan(partition_of({}, 2), {pos, mixed_adam}, names);
  CHECK(plan.memory.total() == 0);
  CHECK(contains(to_string(plan), "Ψ = 0 elements: 0 trained, 0 padding (-)\n"));
  CHECK(to_line(plan) == "Pos+g bf16 AdamW N=2: holds 0 B, sends 0 elements (0 B) a step");
}

TEST_CASE("numbers are printed in full, sizes in binary units") {
  CHECK(zero::detail::with_commas(0) == "0");
  CHECK(zero::detail::with_commas(999) == "999");
  CHECK(zero::detail::with_commas(1000) == "1,000");
  CHECK(zero::detail::with_commas(~std::uint64_t{0}) == "18,446,744,073,709,551,615");
  CHECK(zero::detail::in_binary_units(1023) == "1023 B");
  CHECK(zero::detail::in_binary_units(1024) == "1.0 KiB");
  CHECK(zero::detail::in_binary_units(1536 * zero::MiB) == "1.5 GiB");
  CHECK(zero::detail::in_binary_units(zero::MiB - 1) == "1.0 MiB");
  CHECK(zero::detail::in_binary_units(~std::uint64_t{0}) == "16.0 EiB");
}

TEST_CASE("a plan that does not fit, and a step without micro-steps, are refused") {
  std::vector<Tensor> const model{{.name = "a", .shape = {std::size_t{1} << 60}}};
  Partition const partition(model, {.world_size = 4, .bucket_elements = std::uint64_t{1} << 58});
  // Each role fits; together they are 2^64 bytes.
  CHECK(refusal([&] {
          (void)make_plan(partition, {.sharding = replicated, .bytes = mixed_adam}, names);
        }) == "a size does not fit in 64 bits (addition overflows)");
  CHECK_NOTHROW((void)make_plan(partition, {.sharding = pos_gp, .bytes = {}}, names));
  CHECK(refusal([&] { (void)make_plan(partition, {}, names, 0); }) ==
        "a step has at least 1 micro-step");
}

}  // namespace plan_test
