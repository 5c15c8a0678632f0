#include "plan/model/policies.hpp"

#include "plan/model/transformer.hpp"
#include "support/refusal.hpp"
#include <zero/zero.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace policies_test {
namespace {

using namespace plan;

/// Nothing divides evenly, and the embedding is tied.
constexpr Transformer small{.layers = 2, .hidden = 20, .heads = 4, .vocab = 37, .sequence = 9};

/// On three threads: what is held, and sent, is what was planned by name.
template <class Stage, class Precision, class Rule, class Accumulation>
void hold(PolicyNames const& names) {
  CAPTURE(names.stage);
  CAPTURE(names.precision);
  CAPTURE(names.rule);
  CAPTURE(names.accumulation);
  std::uint64_t const micro_steps = names.accumulation == "none" ? 1 : 2;
  zero::Bucket const bucket{3000};
  zero::Prefetch const prefetch{2};
  zero::Plan const plan = plan_of(
      names, {.world_size = 3, .micro_steps = micro_steps}, describe(small), bucket, prefetch);
  std::vector<zero::MemoryBytes> held(3);
  std::vector<std::uint64_t> sent(3);
  zero::run_ranks(3, [&](zero::InProcess& world) {
    zero::Counting<zero::InProcess> comm(world);
    zero::ShardedOptimizer opt{
        comm, describe(small), Stage{}, Precision{}, Rule{}, Accumulation{}, bucket, prefetch};
    opt.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> values) {
      for (float& value : values) value = 0.5f;
    });
    auto const rank = static_cast<std::size_t>(comm.rank());
    // The first step is preceded by a comparison of what ranks start from.
    for (int step = 0; step < 2; ++step) {
      comm.reset();
      for (std::uint64_t m = 0; m < micro_steps; ++m) {
        if (micro_steps > 1) opt.micro_step();
        for (int const unit : opt.units()) static_cast<void>(opt.parameters(unit));
        for (int const unit : opt.units_backward()) {
          auto const values = opt.parameters(unit);
          opt.reduce(opt.gradients(unit));
        }
      }
      opt.step();
    }
    held[rank] = opt.held();
    sent[rank] = comm.counts().bucket_total().elements;
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(held[rank] == plan.memory);
    CHECK(sent[rank] == plan.traffic.total());
  }
}

}  // namespace

TEST_CASE("every stage with every precision, and every rule and accumulation: held as planned") {
  using namespace zero;
  using stage::Pos, stage::PosG, stage::PosGP, stage::Replicated;
  using Bf16 = Mixed<bf16>;
  using Fp16 = Mixed<fp16>;
  hold<Replicated, Fp32, AdamW, AccumulateNone>({"replicated", "fp32", "adamw", "none"});
  hold<Replicated, Bf16, Adam, AccumulateFull>({"replicated", "bf16", "adam", "full"});
  hold<Replicated, Fp16, AmsGrad, AccumulateShard>({"replicated", "fp16", "amsgrad", "shard"});
  hold<Pos, Fp32, NAdam, AccumulateFull>({"pos", "fp32", "nadam", "full"});
  hold<Pos, Bf16, Adagrad, AccumulateShard>({"pos", "bf16", "adagrad", "shard"});
  hold<Pos, Fp16, RmsProp<>, AccumulateNone>({"pos", "fp16", "rmsprop", "none"});
  hold<PosG, Fp32, Lion, AccumulateShard>({"pos+g", "fp32", "lion", "shard"});
  hold<PosG, Bf16, Sgd, AccumulateNone>({"pos+g", "bf16", "sgd", "none"});
  hold<PosG, Fp16, PlainSgd, AccumulateFull>({"pos+g", "fp16", "plain-sgd", "full"});
  hold<PosGP, Fp32, Adam, AccumulateNone>({"pos+g+p", "fp32", "adam", "none"});
  hold<PosGP, Bf16, AdamW, AccumulateFull>({"pos+g+p", "bf16", "adamw", "full"});
  hold<PosGP, Fp16, Lion, AccumulateShard>({"pos+g+p", "fp16", "lion", "shard"});
}

TEST_CASE("every combination of names is the policies of these names") {
  auto const model = describe(small);
  CHECK(stage_names() == std::vector<std::string>{"replicated", "pos", "pos+g", "pos+g+p"});
  std::size_t combinations = 0;
  for (std::string const& stage : stage_names()) {
    for (std::string const& precision : precision_names()) {
      for (std::string const& rule : rule_names()) {
        for (std::string const& accumulation : accumulation_names()) {
          ++combinations;
          zero::Plan const plan =
              plan_of({stage, precision, rule, accumulation}, {.world_size = 5}, model);
          CHECK(plan::detail::typed(plan.names.stage) == stage);
          CHECK(plan.names.precision == precision);
          CHECK(plan::detail::typed(plan.names.rule) == rule);
          CHECK(plan.names.accumulation == accumulation);
          zero::Sharding const& sharding = plan.storage.sharding;
          CHECK(int{sharding.optimizer} + int{sharding.gradients} + int{sharding.parameters} ==
                (stage == "replicated" ? 0 : 1 + std::count(stage.begin(), stage.end(), '+')));
          CHECK(plan.storage.bytes.parameter == (precision == "fp32" ? 4 : 2));
          CHECK(plan.storage.bytes.master == (precision == "fp32" ? 0 : 4));
          CHECK(plan.storage.full_gradients == (accumulation == "full"));
          CHECK(plan.storage.reduced_shard == (accumulation == "shard"));
        }
      }
    }
  }
  CHECK(combinations == 4 * 3 * 9 * 3);
}

TEST_CASE("a plan by name is the plan of the types") {
  auto const model = describe(small);
  using O = zero::ShardedOptimizer<zero::InProcess,
                                   zero::stage::PosGP,
                                   zero::Mixed<zero::fp16>,
                                   zero::AmsGrad,
                                   zero::AccumulateShard>;
  zero::PlanOptions const options{.world_size = 7, .micro_steps = 3, .communicator_bytes = 11};
  zero::Bucket const bucket{5000};
  zero::Prefetch const prefetch{0};
  CHECK(zero::to_string(
            plan_of({"pos+g+p", "fp16", "amsgrad", "shard"}, options, model, bucket, prefetch)) ==
        zero::to_string(O::plan(options, model, bucket, prefetch)));
}

TEST_CASE("names that no policy has are refused with those that are there") {
  auto const model = describe(small);
  CHECK(refusal([&] { static_cast<void>(plan_of({.stage = "zero3"}, {}, model)); }) ==
        "there is no stage 'zero3': it is one of replicated, pos, pos+g, pos+g+p");
  CHECK(refusal([&] {
          static_cast<void>(plan_of({.precision = "fp8"}, {}, model));
        }).find("fp32, bf16, fp16") != std::string::npos);
  CHECK(refusal([&] {
          static_cast<void>(plan_of({.rule = "adamax"}, {}, model));
        }).find("plain-sgd") != std::string::npos);
  CHECK(refusal([&] {
          static_cast<void>(plan_of({.accumulation = "some"}, {}, model));
        }).find("none, full, shard") != std::string::npos);
}

}  // namespace policies_test
