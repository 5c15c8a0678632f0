/// Tensors about whose gradients no rank has said anything in a step, and what
/// `StepOptions::unsaid` makes of them.
#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace unsaid_test {
namespace {

using contracts::Optimizer;
using zero::Unsaid;

std::string message(std::string const& tensor) {
  return "in this step no rank has asked for the gradients of " + tensor +
         ", or declared them absent: pass gradients(unit) to reduce(), or call "
         "without_gradient(unit) for what has none; StepOptions::unsaid can say that such "
         "gradients "
         "are zeros, or that the tensors rest";
}

/// Units 0 to 3; 'head' shares the memory of 'embedding', and nothing of unit 2 is ever updated.
std::vector<zero::Tensor> model() {
  return {{.name = "embedding", .shape = {37, 11}},
          {.name = "a", .shape = {700}, .unit = 1},
          {.name = "none", .shape = {0}, .unit = 2},
          {.name = "still", .shape = {5}, .unit = 2, .frozen = true},
          {.name = "b", .shape = {64}, .unit = 3},
          {.name = "head", .shape = {37, 11}, .unit = 3, .tied_to = "embedding"}};
}

template <class Check>
void for_each_stage(Check const& check) {
  check(zero::stage::Replicated{});
  check(zero::stage::Pos{});
  check(zero::stage::PosG{});
  check(zero::stage::PosGP{});
}

/// Gradients of a unit that are all the same.
template <class O>
auto opened(O& optimizer, int unit, float value = 0.5f) {
  auto gradients = optimizer.gradients(unit);
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    for (auto& x : gradients[t]) x = value;
  }
  return gradients;
}
template <class O>
void give(O& optimizer, int unit, float value = 0.5f) {
  optimizer.reduce(opened(optimizer, unit, value));
}

/// What was said about each unit, by every rank alike.
enum class Says { nothing, asks, reduces, absent };
template <class O>
void say(O& optimizer, int unit, Says says) {
  if (says == Says::reduces) give(optimizer, unit);
  if (says == Says::asks) static_cast<void>(opened(optimizer, unit));
  if (says == Says::absent) optimizer.without_gradient(unit);
}

TEST_CASE(
    "a step fails on every rank if no rank says anything about a tensor, and changes nothing") {
  struct Case {
    std::array<Says, 4> says;
    char const* named;  ///< null: the step is taken
  };
  constexpr auto nothing = Says::nothing;
  constexpr auto asks = Says::asks;
  constexpr auto reduces = Says::reduces;
  constexpr auto absent = Says::absent;
  Case const cases[] = {
      {{nothing, nothing, nothing, nothing}, "tensor 'embedding' of unit 0"},
      {{reduces, nothing, reduces, reduces}, "tensor 'a' of unit 1"},
      {{absent, nothing, nothing, absent}, "tensor 'a' of unit 1"},
      {{reduces, reduces, reduces, nothing}, "tensor 'b' of unit 3"},
      // What is asked for counts as given; what nobody updates need not be named; nor need both
      // that share memory.
      {{asks, reduces, nothing, reduces}, nullptr},
      {{nothing, reduces, nothing, reduces}, nullptr},
      {{nothing, reduces, nothing, asks}, nullptr},
      {{nothing, absent, nothing, absent}, nullptr},
  };
  for_each_stage([&]<class Stage>(Stage) {
    for (bool const norm_first : {false, true}) {
      contracts::on_ranks(3, [&](zero::InProcess& comm, auto const& expect) {
        Optimizer<Stage, zero::Fp32> optimizer{comm, model()};
        contracts::load(optimizer);
        for (auto const& [says, named] : cases) {
          auto const before = contracts::snapshot(optimizer);
          long const steps = optimizer.steps();
          for (int const unit : optimizer.units_backward()) {
            say(optimizer, unit, says[static_cast<std::size_t>(unit)]);
          }
          if (norm_first) static_cast<void>(optimizer.grad_norm());
          auto const result = optimizer.try_step();
          expect(static_cast<bool>(result) == (named == nullptr), "whether it is taken");
          if (named != nullptr && !result) {
            expect(result.error()->kind() == zero::ErrorKind::invalid_argument, "the kind");
            expect(result.error()->message() == message(named),
                   "said: " + result.error()->message());
            expect(contracts::snapshot(optimizer) == before, "something changed");
          }
          expect(optimizer.steps() == steps + (named == nullptr ? 1 : 0), "the count");
        }
      });
    }
  });
}

TEST_CASE("unsaid: zeros decay, and what rests does not") {
  for_each_stage([]<class Stage>(Stage) {
    for (bool const norm_first : {false, true}) {
      contracts::on_ranks(3, [&](zero::InProcess& comm, auto const& expect) {
        Optimizer<Stage, zero::Fp32> zeros{comm, model()};
        Optimizer<Stage, zero::Fp32> given{comm, model()};
        Optimizer<Stage, zero::Fp32> rests{comm, model()};
        Optimizer<Stage, zero::Fp32> declared{comm, model()};
        // The second step alone has all.
        for (int step = 0; step < 4; ++step) {
          for (auto* const each : {&zeros, &given, &rests, &declared}) {
            if (step == 0) contracts::load(*each);
            if (step == 1) give(*each, 3);
            if (step != 3) give(*each, 1);
            if (each == &given && step != 1) give(*each, 3, 0.f);
            if (each == &given && step == 3) give(*each, 1, 0.f);
            if (each == &declared && step != 1) each->without_gradient(3);
            if (each == &declared && step != 1) each->without_gradient(0);
            if (each == &declared && step == 3) each->without_gradient(1);
            if (norm_first) static_cast<void>(each->grad_norm());
          }
          long const updated = step == 1 ? 3 : step == 3 ? 0 : 1;
          expect(given.step().updated == 3, "given");
          expect(zeros.step({.unsaid = Unsaid::zeros}).updated == 3, "zeros");
          expect(declared.step().updated == updated, "declared");
          expect(rests.step({.unsaid = Unsaid::rest}).updated == updated, "rests");
        }
        expect(contracts::snapshot(zeros) == contracts::snapshot(given), "zeros' bits");
        expect(contracts::snapshot(rests) == contracts::snapshot(declared), "rests' bits");
        expect(zeros.counters() == given.counters(), "zeros' counters");
        expect(rests.counters() == declared.counters(), "rests' counters");
        expect(rests.steps(1) == 3 && rests.steps(4) == 1, "what rested");
        expect(zeros.steps(1) == 4 && zeros.steps(4) == 4, "what did not");
      });
    }
  });
}

TEST_CASE("unsaid: a tied tensor that nobody named rests with one that is declared absent") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosG, zero::Fp32> optimizer{comm, model()};
    contracts::load(optimizer);
    for (auto const unsaid : {Unsaid::fail, Unsaid::zeros, Unsaid::rest}) {
      give(optimizer, 1);
      optimizer.without_gradient(3);
      bool const rest = unsaid == Unsaid::rest;
      expect(optimizer.step({.unsaid = unsaid}).updated == (rest ? 1 : 2), "updated");
    }
    expect(optimizer.steps(0) == 2, "the embedding");
  });
}

TEST_CASE("what some ranks alone have said is an error, whatever is to become of the unsaid") {
  contracts::on_ranks(3, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosG, zero::Fp32> optimizer{comm, model()};
    contracts::load(optimizer);
    auto const before = contracts::snapshot(optimizer);
    for (auto const unsaid : {Unsaid::fail, Unsaid::zeros, Unsaid::rest}) {
      for (bool const declares : {false, true}) {
        give(optimizer, 3);
        if (comm.rank() == 1) say(optimizer, 1, declares ? Says::absent : Says::asks);
        auto const said = refusal([&] { optimizer.step({.unsaid = unsaid}); });
        expect(said.find("unit 1, tensor 'a': nothing was said on rank 0, 2, but on rank 1") !=
                   std::string::npos,
               "said: " + said);
      }
      // It goes before what no rank has said.
      if (comm.rank() == 2) give(optimizer, 3);
      auto const said = refusal([&] { optimizer.step({.unsaid = unsaid}); });
      expect(said.find("unit 3, tensor 'b': nothing was said on rank 0, 1, but on rank 2") !=
                 std::string::npos,
             "said: " + said);
    }
    expect(contracts::snapshot(optimizer) == before, "something changed");
  });
}

TEST_CASE("unsaid: it is enough to say something in one micro-step") {
  for_each_stage([]<class Stage>(Stage) {
    auto const check = [&]<class Accumulation>(Accumulation) {
      contracts::on_ranks(2, [&](zero::InProcess& comm, auto const& expect) {
        Optimizer<Stage, zero::Fp32, Accumulation> optimizer{comm, model()};
        contracts::load(optimizer);
        for (int const spoken : {0, 1, 2, 3}) {
          for (int micro = 0; micro < 3; ++micro) {
            optimizer.micro_step({.last = micro == 2});
            give(optimizer, 3);
            if (micro == spoken) give(optimizer, 1);
          }
          auto const said = refusal([&] { optimizer.step(); });
          expect(said == (spoken == 3 ? message("tensor 'a' of unit 1") : ""), "said: " + said);
        }
        expect(optimizer.steps() == 3, "the count");
      });
    };
    check(zero::AccumulateFull{});
    if constexpr (!std::is_same_v<Stage, zero::stage::Replicated>) check(zero::AccumulateShard{});
  });
}

TEST_CASE("unsaid: whole gradients may have been added to by whoever has ever asked for them") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::Pos, zero::Fp32, zero::AccumulateFull> optimizer{comm, model()};
    contracts::load(optimizer);
    auto const step = [&](Unsaid unsaid = Unsaid::fail) {
      return refusal([&] { optimizer.step({.unsaid = unsaid}); });
    };
    expect(step() == message("tensor 'embedding' of unit 0"), "before");
    // One of those that share memory, on one rank, in this step or in an earlier one.
    if (comm.rank() == 1) optimizer.gradient(5)[3] = 1.f;
    expect(step() == message("tensor 'a' of unit 1"), "a");
    optimizer.gradient(1)[3] = 1.f;
    optimizer.gradient(4)[3] = 1.f;
    expect(step() == "", "all");
    expect(step(Unsaid::rest) == "", "all, in another step");
    expect(optimizer.steps(0) == 2 && optimizer.steps(1) == 2, "nothing rests");
    optimizer.without_gradient(1);
    if (comm.rank() == 1) optimizer.without_gradient(3);
    expect(step().find("some ranks reduced gradients that others") == 0, "one rank declares");
    for (int const unit : {0, 1, 3}) optimizer.without_gradient(unit);
    expect(step() == "" && optimizer.steps(1) == 2, "all declare");
  });
}

TEST_CASE("unsaid: lent gradients count as given, or as absent where they are empty") {
  for_each_stage([]<class Stage>(Stage) {
    if constexpr (!std::is_same_v<Stage, zero::stage::PosGP>) {
      contracts::on_ranks(2, [&](zero::InProcess& comm, auto const& expect) {
        std::vector<zero::Tensor> const two = {{.name = "a", .shape = {9}},
                                               {.name = "b", .shape = {5}, .unit = 1}};
        std::vector<float> parameters(14), gradients(14, 1.f);
        Optimizer<Stage, zero::Fp32, zero::Borrowed<>> flat{comm, two};
        flat.bind(std::span(parameters), std::span(gradients));
        flat.adopt_parameters();
        expect(flat.step().updated == 2, "flat");
        Optimizer<Stage, zero::Fp32, zero::Borrowed<>> optimizer{comm, two};
        optimizer.bind_parameters(std::span(parameters));
        optimizer.adopt_parameters();
        std::span<float> const one[] = {std::span(gradients).first(9)};
        optimizer.bind_gradients(0, one);
        expect(optimizer.step().updated == 1, "a unit");
      });
    }
  });
}

TEST_CASE("unsaid: each layer of a stacked tensor is looked at, and empty models are not") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosGP, zero::Fp32> stacked{
        comm, {{.name = "layers", .shape = {3, 40}, .stacked = true}}};
    contracts::load(stacked);
    give(stacked, 2);
    give(stacked, 0);
    auto const said = refusal([&] { stacked.step(); });
    expect(said == message("tensor 'layers[1]' of unit 1"), "said: " + said);
    give(stacked, 2);
    expect(stacked.step({.unsaid = Unsaid::rest}).updated == 1, "two layers rest");

    Optimizer<zero::stage::PosGP, zero::Fp32> still{
        comm,
        {{.name = "a", .shape = {0}}, {.name = "b", .shape = {3}, .unit = 1, .frozen = true}}};
    contracts::load(still);
    expect(still.step().updated == 0, "nothing to update");
  });
}

TEST_CASE("unsaid: a step that reports nothing tells by report(), by name") {
  auto const check = []<class Trainer>(zero::InProcess& comm, auto const& expect, Trainer*) {
    Trainer trainer(comm);
    auto& optimizer = trainer.optimizer;
    contracts::constant_pass(trainer);
    optimizer.enqueue_step();
    expect(optimizer.report().step == 1, "a step");
    optimizer.enqueue_step({.unsaid = Unsaid::zeros});
    expect(optimizer.report().step == 2, "zeros");
    auto gradients = optimizer.gradients(0);
    optimizer.reduce(std::move(gradients));
    optimizer.enqueue_step();
    contracts::constant_pass(trainer);
    optimizer.enqueue_step();  // skipped: the failure has not been reported
    for (int i = 0; i < 2; ++i) {
      auto const said = refusal([&] { return optimizer.report(); });
      expect(said == (i == 0 ? message("tensor 'u1.w' of unit 1") : ""), "said: " + said);
    }
    expect(optimizer.steps() == 2, "skipped");
    contracts::constant_pass(trainer);
    expect(optimizer.step().step == 3, "it goes on");
  };
  contracts::on_ranks(2, [&](zero::InProcess& comm, auto const& expect) {
    check(comm, expect, static_cast<contracts::OnHost<zero::stage::PosG, zero::Fp32>*>(nullptr));
    check(comm, expect, static_cast<contracts::OnDevice<zero::stage::PosG, zero::Fp32>*>(nullptr));
  });
}

TEST_CASE("unsaid: of optimizers that step together each is judged") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    std::vector<zero::Tensor> const other = {{.name = "other", .shape = {30}},
                                             {.name = "more", .shape = {30}, .unit = 1}};
    Optimizer<zero::stage::PosG, zero::Fp32> first{comm, model()};
    Optimizer<zero::stage::PosGP, zero::Fp32> second{comm, other};
    contracts::load(first);
    contracts::load(second);
    auto const before = std::pair{contracts::snapshot(first), contracts::snapshot(second)};
    auto const give_all = [](auto& optimizer) {
      for (int const unit : optimizer.units_backward()) give(optimizer, unit);
    };
    for (bool const last : {false, true}) {
      for (bool const enqueued : {false, true}) {
        if (last) give_all(first);
        if (last) give(second, 0);
        if (!last) give(first, 3);
        if (!last) give_all(second);
        std::string const expected = last ? "tensor 'more' of unit 1" : "tensor 'a' of unit 1";
        if (enqueued) {
          zero::enqueue_step_together({}, first, second);
          auto const of_first = refusal([&] { return first.report(); });
          auto const of_second = refusal([&] { return second.report(); });
          expect((last ? of_second : of_first) == message(expected), "by name: " + of_first);
          expect((last ? of_first : of_second) == message("some tensor"), "other: " + of_second);
        } else {
          auto const said = refusal([&] { zero::step_together({}, first, second); });
          expect(said == message(expected), "together: " + said);
        }
      }
    }
    expect(before == std::pair{contracts::snapshot(first), contracts::snapshot(second)}, "changed");
    give(first, 3);
    give(second, 0);
    expect(zero::step_together({.unsaid = Unsaid::rest}, first, second).step == 1, "rest");
    expect(first.steps(1) == 0 && second.steps(1) == 0 && second.steps(0) == 1, "what rests");
  });
}

TEST_CASE("unsaid: ranks that are told different things learn which") {
  contracts::on_ranks(2, [](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosG, zero::Fp32> optimizer{comm, model()};
    contracts::load(optimizer);
    auto const said = refusal(
        [&] { optimizer.step({.unsaid = comm.rank() == 0 ? Unsaid::zeros : Unsaid::rest}); });
    expect(said.find("options to step(): unsaid: 'zeros' on rank 0; 'rest' on rank 1") !=
               std::string::npos,
           "said: " + said);
  });
}

}  // namespace
}  // namespace unsaid_test
