#include "plan/model/advise.hpp"

#include "plan/model/search.hpp"
#include "plan/steps.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

namespace advise_test {

using namespace plan;

/// Few blocks, so that it does not take long.
Question seventy_billion() {
  Question asked;
  asked.setup.model = {.layers = 9, .hidden = 25600, .heads = 160, .sequence = 2048};
  asked.setup.ranks = 64;
  asked.cluster = cluster_of("dgx-a100");
  asked.budget = asked.cluster.device.memory;
  asked.sequences = 512;
  asked.step = [cluster = asked.cluster](Setup const& setup) {
    return seconds_of_step(cluster, setup);
  };
  return asked;
}

TEST_CASE("what is advised fits, is complete, and is in order") {
  Question asked = seventy_billion();
  for (bool const by_time : {false, true}) {
    asked.by_time = by_time;
    Advice const advice = advise(asked);
    REQUIRE(advice.fitting.size() > 10);
    double before = 0;
    for (Candidate const& one : advice.fitting) {
      CAPTURE(one.setup.policies.stage);
      CAPTURE(one.setup.model_parallel);
      CAPTURE(one.setup.activations);
      CHECK(one.plan.total_bytes() <= asked.budget);
      CHECK(one.plan.checkpoints.slower.total() * 8 <= asked.cluster.host_memory);
      CHECK(one.setup.batch * one.setup.micro_steps *
                static_cast<std::uint64_t>(one.setup.models()) ==
            512);
      CHECK((one.setup.policies.accumulation == "none") == (one.setup.micro_steps == 1));
      // Planned again from what it says, it is the same.
      DevicePlan const again = plan_device(one.setup);
      CHECK(again.total_bytes() == one.plan.total_bytes());
      CHECK(again.sent_bytes() == one.plan.sent_bytes());
      double const cost = by_time ? one.seconds : static_cast<double>(one.plan.sent_bytes());
      CHECK(cost >= before);
      before = cost;
      // The micro-batch is the largest that fits, of those that divide the model's share.
      if (one.setup.micro_steps == 1) continue;
      Setup larger = one.setup;
      std::uint64_t const share = larger.batch * larger.micro_steps;
      do {
        ++larger.batch;
      } while (share % larger.batch != 0);
      larger.micro_steps = share / larger.batch;
      CHECK(plan_device(larger).total_bytes() > asked.budget);
    }
    for (Candidate const& one : advice.rejected) {
      CHECK_FALSE(one.fits);
      CHECK(one.plan.total_bytes() > asked.budget);
    }
  }
}

TEST_CASE("nothing that was left out sends less, alike in stage, degree and activations") {
  Question asked = seventy_billion();
  asked.by_time = false;
  Advice const advice = advise(asked);
  Setup setup = asked.setup;
  std::size_t found = 0;
  for (int const degree : {1, 2, 4, 8}) {
    for (std::string const& stage : stage_names()) {
      for (std::string const& activations : activation_names()) {
        if (degree == 1 && activations == "pa") continue;
        std::uint64_t least = ~std::uint64_t{0};
        setup.model_parallel = degree;
        setup.policies.stage = stage;
        setup.activations = activations;
        std::uint64_t const share = 512 / (64 / static_cast<unsigned>(degree));
        for (std::string const& accumulation : accumulation_names()) {
          for (std::uint64_t batch = 1; batch <= share; batch *= 2) {
            if (accumulation == "none" && batch != share) continue;
            setup.policies.accumulation = accumulation;
            setup.batch = batch;
            setup.micro_steps = share / batch;
            DevicePlan const plan = plan_device(setup);
            if (plan.total_bytes() <= asked.budget) least = std::min(least, plan.sent_bytes());
          }
        }
        auto const is_alike = [&](Candidate const& one) {
          return one.setup.model_parallel == degree && one.setup.policies.stage == stage &&
                 one.setup.activations == activations;
        };
        auto const alike = std::ranges::find_if(advice.fitting, is_alike);
        CAPTURE(degree);
        CAPTURE(stage);
        CAPTURE(activations);
        REQUIRE((alike == advice.fitting.end()) == (least == ~std::uint64_t{0}));
        if (alike == advice.fitting.end()) continue;
        CHECK(alike->plan.sent_bytes() == least);
        ++found;
      }
    }
  }
  CHECK(found == advice.fitting.size());
}

TEST_CASE("no configuration that fits takes a twentieth less than the first one") {
  Question const asked = seventy_billion();
  Advice const advice = advise(asked);
  REQUIRE(!advice.fitting.empty());
  double least = advice.fitting.front().seconds;
  double const taken = least;
  Setup setup = asked.setup;
  int tried = 0;
  for (int const degree : {1, 2, 4, 8}) {
    setup.model_parallel = degree;
    std::uint64_t const share = 512 / (64 / static_cast<unsigned>(degree));
    for (std::string const& stage : stage_names()) {
      setup.policies.stage = stage;
      for (std::string const& activations : activation_names()) {
        setup.activations = activations;
        for (std::uint64_t batch = 1; batch <= share; batch *= 2) {
          setup.batch = batch;
          setup.micro_steps = share / batch;
          setup.policies.accumulation = batch == share ? "none" : "shard";
          if (!plan::detail::refusal(asked, setup, plan_device(setup)).empty()) continue;
          least = std::min(least, asked.step(setup));
          ++tried;
        }
      }
    }
  }
  CHECK(tried > 90);
  CHECK(taken <= 1.05 * least);
}

TEST_CASE("a step of many micro-steps takes as long as its simulation") {
  Question const asked = seventy_billion();
  Setup setup = asked.setup;
  setup.policies = {.stage = "pos+g+p", .accumulation = "shard"};
  setup.activations = "whole";
  for (std::uint64_t const steps : {1u, 3u, 9u}) {
    setup.micro_steps = steps;
    if (steps == 1) setup.policies.accumulation = "none";
    World world(asked.cluster);
    CHECK(asked.step(setup) == doctest::Approx(steady_step(world, setup).seconds).epsilon(1e-3));
    setup.policies.accumulation = "shard";
  }
}

TEST_CASE("why something is none is said in a sentence") {
  Question asked = seventy_billion();
  Advice advice = advise(asked);
  // One for each stage and degree of which nothing fits.
  REQUIRE(!advice.rejected.empty());
  CHECK(advice.rejected.front().why ==
        "needs 1,158.2 GB of 80.0 GB with 1 sequence at a time: 1,154.3 GB of model states, 3.9 GB "
        "of activations, 0.0 GB of pools and buckets");
  asked.sequences = 48;
  advice = advise(asked);
  CHECK(advice.rejected.front().why == "makes 64 models, which cannot share 48 sequences evenly");
  asked.sequences = 512;
  asked.setup.model.heads = 2;
  advice = advise(asked);
  CHECK(advice.rejected.back().why == "8 model-parallel ranks cannot share 2 heads evenly");
  CHECK(advice.rejected.back().setup.model_parallel == 8);

  asked.setup.model.heads = 160;
  asked.cluster.host_memory = 1;
  asked.budget = 1'000'000'000'000;
  for (Candidate const& one : advise(asked).fitting) CHECK(one.setup.activations != "pa+cpu");
  asked.budget = 1;
  advice = advise(asked);
  CHECK(advice.fitting.empty());
  CHECK(advice.rejected.size() == 16);
  CHECK(refusal([&] {
          asked.sequences = 0;
          static_cast<void>(advise(asked));
        }) == "a step has at least 1 sequence");
}

TEST_CASE("the last number that fits is found, and nothing beyond is tried twice over") {
  for (std::uint64_t most : {1u, 2u, 7u, 1000u}) {
    for (std::uint64_t limit = 0; limit <= most + 1; ++limit) {
      int tried = 0;
      CHECK(plan::detail::last_that_fits(most, [&](std::uint64_t number) {
              ++tried;
              CHECK(number >= 1);
              CHECK(number <= most);
              CHECK(number <= 2 * limit + 1);
              return number <= limit;
            }) == (limit < most ? limit : most));
      CHECK(tried <= 2 + 2 * std::log2(static_cast<double>(most) + 1));
    }
  }
}

TEST_CASE("the largest batch and the largest models fit, and one more does not") {
  Setup setup{.model = {.layers = 6, .hidden = 256, .heads = 4, .vocab = 1000, .sequence = 64},
              .ranks = 8,
              .activations = "whole"};
  for (std::string const& stage : stage_names()) {
    CAPTURE(stage);
    setup.policies.stage = stage;
    std::uint64_t const budget = 200'000'000;
    auto const fits = [&](Setup const& asked) {
      return plan_device(asked).total_bytes() <= budget;
    };
    Setup batch = setup;
    batch.batch = largest_batch(setup, budget);
    CHECK(batch.batch > 1);
    CHECK(fits(batch));
    ++batch.batch;
    CHECK_FALSE(fits(batch));

    Setup depth = setup;
    depth.model = largest_depth(setup, budget);
    CHECK(depth.model.layers > 6);
    CHECK(depth.model.hidden == 256);
    CHECK(fits(depth));
    ++depth.model.layers;
    CHECK_FALSE(fits(depth));
  }
  CHECK(largest_batch(setup, 1'000'000) == 0);
  CHECK(largest_depth(setup, 1'000'000).layers == 0);
}

TEST_CASE("the largest size: what §5.4 says of 32 GB and 64 ranks, less pools and activations") {
  Setup setup{.ranks = 64, .activations = "whole"};
  struct Case {
    char const* stage;
    double theory;
    double least;
  };
  for (Case const& c : {Case{"replicated", 2e9, 0.9},
                        Case{"pos", 7.64e9, 0.9},
                        Case{"pos+g", 14.42e9, 0.9},
                        Case{"pos+g+p", 128e9, 0.5}}) {
    CAPTURE(c.stage);
    setup.policies.stage = c.stage;
    setup.model = largest_size(setup, 32'000'000'000);
    REQUIRE(setup.model.layers > 0);
    auto const size = static_cast<double>(parameters(setup.model));
    CHECK(size <= c.theory);
    CHECK(size >= c.least * c.theory);
    CHECK(plan_device(setup).total_bytes() <= 32'000'000'000);
    // A percent more of the same width is a size that was tried, and did not fit.
    setup.model.layers += setup.model.layers / 100 + 1;
    CHECK(plan_device(setup).total_bytes() > 32'000'000'000);
  }
  CHECK(largest_size(setup, 1'000'000).layers == 0);
}

}  // namespace advise_test
