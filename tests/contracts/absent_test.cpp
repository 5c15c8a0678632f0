/// Gradients that are absent, whose tensors rest where they are so on all ranks, and those that a
/// backward pass overwrites. What training makes of both is played by `differential`; here is what
/// nobody may read, what is not zeroed, and what is refused.
#include "contracts/ranks.hpp"
#include "support/give_zeros.hpp"
#include "support/random.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace absent_test {
namespace {

constexpr zero::Bucket tiny{4};
template <class Stage, class... More>
using Optimizer = contracts::Optimizer<Stage, zero::Fp32, More...>;
using PosG = Optimizer<zero::stage::PosG>;
using PosGP = Optimizer<zero::stage::PosGP>;

std::vector<zero::Tensor> model() {
  return {{.name = "embedding", .shape = {37, 11}, .unit = 0},
          {.name = "a.w", .shape = {700}, .unit = 1},
          {.name = "a.b", .shape = {3}, .unit = 1, .weight_decay = 0.f},
          {.name = "still", .shape = {5}, .unit = 1, .frozen = true},
          {.name = "b.w", .shape = {1300}, .unit = 2},
          {.name = "b.b", .shape = {1}, .unit = 2, .learning_rate = 0.5f},
          {.name = "none", .shape = {0}, .unit = 2},
          {.name = "c.w", .shape = {64}, .unit = 3},
          {.name = "head", .shape = {37, 11}, .unit = 4, .tied_to = "embedding"},
          {.name = "d.w", .shape = {2049}, .unit = 4}};
}

float gradient_of(std::size_t t, int step, int rank, std::size_t i) {
  return static_cast<float>(mixed(t, static_cast<std::uint64_t>(step), rank, i) % 2001) / 1000.f -
         1.f;
}
/// Does a rank give a tensor's gradient? About half do; in a third of the steps no rank does.
bool given(std::size_t t, int step, int rank) {
  auto const both = mixed(t, static_cast<std::uint64_t>(step));
  return both % 3 != 0 && mixed(both, static_cast<std::uint64_t>(rank)) % 2 == 0;
}

template <class Check>
void for_each_stage(Check const& check) {
  check(zero::stage::Replicated{});
  check(zero::stage::Pos{});
  check(zero::stage::PosG{});
  check(zero::stage::PosGP{});
}

enum class Says { declared, empty_spans };

/// Bits and counts after some steps. Where gradients are lent, those that are absent are NaN.
template <class O>
std::pair<std::vector<std::byte>, std::vector<long>> train(Says says) {
  std::pair<std::vector<std::byte>, std::vector<long>> end;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    auto const tensors = model();
    O optimizer{comm, tensors, tiny};
    std::vector<std::vector<float>> parameters;
    for (auto const& tensor : tensors) parameters.emplace_back(zero::element_count(tensor));
    auto gradients = parameters;
    std::vector<std::span<float>> spans(parameters.begin(), parameters.end());
    spans[8] = spans[0];
    if constexpr (O::borrowed) optimizer.bind_parameters(spans);
    contracts::load(optimizer);
    for (int step = 0; step < 12; ++step) {
      auto const gives = [&](std::size_t t) { return given(t, step, comm.rank()); };
      // What lies in the memory of tensor t.
      auto const write = [&](std::size_t t, std::span<float> out) {
        for (std::size_t const use : {std::size_t{8}, t}) {
          if ((use != t && t != 0) || !gives(use)) continue;
          for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] += gradient_of(use, step, comm.rank(), i);
          }
        }
      };
      auto const any = [&](std::size_t t) {
        return t == 0 || t == 8 ? gives(0) || gives(8) : gives(t);
      };
      auto const declare = [&](std::size_t t) {
        if (!tensors[t].frozen && !any(t)) optimizer.without_gradient(optimizer.tensors()[t]);
      };
      if constexpr (O::borrowed) {
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          auto& own = gradients[t == 8 ? 0 : t];
          spans[t] = any(t) || says == Says::declared ? std::span(own) : std::span<float>();
          if (t == 8) continue;
          own.assign(own.size(), any(t) ? 0.f : std::numeric_limits<float>::quiet_NaN());
          write(t, own);
        }
        optimizer.bind_gradients(spans);
        for (std::size_t t = 0; says == Says::declared && t < tensors.size(); ++t) declare(t);
      } else {
        for (int const unit : optimizer.units_backward()) {
          auto unit_gradients = optimizer.gradients(unit);
          contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
            declare(t);
            // The memory is that of both: what the head brings is added in its turn.
            if (t != 8) write(t, unit_gradients[i]);
          });
          optimizer.reduce(std::move(unit_gradients));
        }
      }
      long updated = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        if (t == 8 || tensors[t].frozen || parameters[t].empty()) continue;
        bool brought = false;
        for (int rank = 0; rank < 3; ++rank) {
          brought = brought || given(t, step, rank) || (t == 0 && given(8, step, rank));
        }
        updated += brought ? 1 : 0;
      }
      CHECK(optimizer.step().updated == updated);
    }
    auto const bits = contracts::model_bits(optimizer);
    if (comm.rank() == 0) end = {bits, optimizer.counters().steps};
  });
  return end;
}

TEST_CASE("lent gradients that are absent are not read: empty spans, or declared") {
  auto const expected = train<PosG>(Says::declared);
  CHECK(expected.second[1] > 2);
  CHECK(expected.second[1] < 12);
  for (auto const says : {Says::declared, Says::empty_spans}) {
    CHECK(train<Optimizer<zero::stage::Replicated, zero::Borrowed<>>>(says) == expected);
    CHECK(train<Optimizer<zero::stage::Pos, zero::Borrowed<>>>(says) == expected);
    CHECK(train<Optimizer<zero::stage::PosG, zero::Borrowed<>>>(says) == expected);
  }
}

TEST_CASE("lent gradients that are all empty, on all ranks, are an error unless that is declared") {
  std::string const message =
      "all gradients that were lent are empty, on all ranks: call bind() or bind_gradients() once "
      "they are allocated, such as after the first backward pass; a step without any is declared "
      "by without_gradient()";
  contracts::on_ranks(3, [&](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosG, zero::Borrowed<>> optimizer{
        comm,
        {{.name = "a", .shape = {5}},
         {.name = "cold", .shape = {3}, .frozen = true},
         {.name = "b", .shape = {700}, .unit = 1},
         {.name = "tied", .shape = {5}, .unit = 1, .tied_to = "a"}}};
    std::vector<float> memory(708, 1.f);
    std::vector<float> gradients(708, 2.f);
    auto const before = memory;
    std::span const all(memory);
    std::span const given(gradients);
    std::span<float> const parameters[]{all.first(5), all.subspan(5, 3), all.last(700), {}};
    std::span<float> spans[4];
    std::string said;
    auto const step = [&] { return refusal([&] { optimizer.step(); }); };
    auto const tell = [&](bool all_ranks) {
      for (int const unit : optimizer.units()) {
        if (all_ranks || comm.rank() == 1) optimizer.without_gradient(unit);
      }
    };
    optimizer.bind(parameters, spans);
    for (int i = 0; i < 3; ++i) {
      if (i == 1) optimizer.bind_parameters(parameters);  // none is lent, nor any unit's
      if (i == 2) {
        for (int const unit : optimizer.units_backward()) {
          optimizer.reduce(optimizer.gradients(unit));
        }
        expect(optimizer.grad_norm() == 0., "the norm");
      }
      said = step();
      expect(said == message, "empty: " + said);
      optimizer.enqueue_step();
      said = refusal([&] { return optimizer.report(); });
      expect(said == message, "enqueued: " + said);
      optimizer.bind_gradients(spans);
    }
    expect(memory == before && optimizer.steps() == 0, "something changed");
    for (bool const all_ranks : {false, true}) {
      tell(all_ranks);
      expect(optimizer.step().updated == 0, "declared");
      expect(memory == before, "something rested and changed");
    }
    // What one rank brings is zeros elsewhere.
    if (comm.rank() == 2) spans[0] = given.first(5);
    optimizer.bind_gradients(spans);
    expect(optimizer.step().updated == 1, "one tensor on one rank");
    expect(memory[0] != 1.f && memory[8] == 1.f, "the tensor");
    spans[0] = given.first(5);
    spans[2] = given.last(700);
    optimizer.bind_gradients(spans);
    expect(optimizer.step().updated == 2, "all");
    expect(memory[8] != 1.f && memory[5] == 1.f, "all, but for the frozen one");
    expect(optimizer.step({.non_finite = zero::NonFinite::skip}).updated == 2, "once more");
    gradients[0] = INFINITY;
    expect(optimizer.step({.non_finite = zero::NonFinite::skip}).updated == 0, "skipped");
  });
}

TEST_CASE("what was written where all tied tensors are absent does not count, in any unit") {
  for (bool const overwrites : {false, true}) {
    for (int const unit_of_head : {0, 1}) {
      std::vector<zero::Tensor> const tensors = {
          {.name = "wte", .shape = {600}},
          {.name = "head", .shape = {600}, .unit = unit_of_head, .tied_to = "wte"},
          {.name = "b", .shape = {7}, .unit = 1}};
      for_each_stage([&]<class Stage>(Stage) {
        auto const run = [&](float junk) {
          std::vector<std::byte> bits;
          zero::run_ranks(2, [&](zero::InProcess& comm) {
            Optimizer<Stage> optimizer{comm, tensors};
            contracts::load(optimizer);
            for (int step = 0; step < 2; ++step) {
              // Adam would take any constant gradient for the same.
              float const x = comm.rank() != 0 ? 0.5f : static_cast<float>(step) * junk;
              for (int const unit : optimizer.units_backward()) {
                auto gradients = overwrites ? optimizer.gradients(unit, zero::overwrite)
                                            : optimizer.gradients(unit);
                contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
                  // What is tied is added to in any case.
                  for (float& out : gradients[i]) out = x + (overwrites && t == 2 ? 0.f : out);
                  if (comm.rank() == 0) optimizer.without_gradient(optimizer.tensors()[t]);
                });
                optimizer.reduce(std::move(gradients));
              }
              optimizer.step();
            }
            auto const own = contracts::model_bits(optimizer);
            if (comm.rank() == 0) bits = own;
          });
          return bits;
        };
        CHECK(run(1000.f) == run(0.f));
      });
    }
  }
}

TEST_CASE("a unit that some ranks forget is named, and the step changes nothing") {
  for_each_stage([]<class Stage>(Stage) {
    zero::run_ranks(3, [&](zero::InProcess& comm) {
      Optimizer<Stage> optimizer{comm, model(), tiny};
      contracts::load(optimizer);
      auto const before = contracts::snapshot(optimizer);
      for (int const unit : optimizer.units_backward()) {
        if (unit == 2 && comm.rank() == 1) continue;
        if (unit == 2 && comm.rank() == 2) {
          optimizer.without_gradient(unit);
          continue;
        }
        auto gradients = optimizer.gradients(unit);
        if (!gradients[0].empty()) gradients[0][0] += 1.f;
        optimizer.reduce(std::move(gradients));
      }
      auto const result = optimizer.try_step();
      REQUIRE(!result);
      CHECK(result.error()->kind() == zero::ErrorKind::invalid_argument);
      CHECK(result.error()->message() ==
            "some ranks reduced gradients that others neither reduced nor declared absent with "
            "without_gradient(): unit 2, tensor 'b.w': nothing was said on rank 1, but on rank 0, "
            "2");
      CHECK(contracts::snapshot(optimizer) == before);
      // Nobody says anything: zeros, which decay.
      CHECK(optimizer.step({.unsaid = zero::Unsaid::zeros}).step == 1);
      CHECK(contracts::snapshot(optimizer) != before);
      CHECK(optimizer.steps(4) == 1);
    });
  });
}

TEST_CASE("more tensors than one call of the space tells of") {
  constexpr std::size_t count = 600;
  zero::run_ranks(2, [](zero::InProcess& comm) {
    std::vector<zero::Tensor> tensors;
    for (std::size_t t = 0; t < count; ++t) {
      tensors.push_back({.name = "t" + std::to_string(t), .shape = {64}, .unit = 0});
    }
    zero::ShardedOptimizer optimizer{comm, tensors, zero::PlainSgd{.lr = 1.f}};
    optimizer.adopt_parameters();
    std::vector<long> expected(count, 0);
    std::vector<float> values(count, 0.f);
    for (int step = 0; step < 3; ++step) {
      auto gradients = optimizer.gradients(0);
      for (std::size_t t = 0; t < count; ++t) {
        if (given(t, step, 0) || given(t, step, 1)) ++expected[t];
        for (int const rank : {0, 1}) values[t] -= given(t, step, rank) ? 0.5f : 0.f;
        if (!given(t, step, comm.rank())) {
          optimizer.without_gradient(optimizer.tensors()[t]);
        } else {
          for (float& gradient : gradients[t]) gradient += 1.f;
        }
      }
      optimizer.reduce(std::move(gradients));
      optimizer.step();
    }
    CHECK(optimizer.counters().steps == expected);
    std::size_t wrong = 0;
    auto const all = optimizer.full_parameters();
    for (std::size_t t = 0; t < count; ++t) wrong += all[t][63] == values[t] ? 0u : 1u;
    CHECK(wrong == 0);
  });
}

TEST_CASE("units in any order, the same on all ranks") {
  std::vector<std::vector<std::byte>> ends;
  for (auto const& order : {std::array{4, 3, 2, 1, 0},
                            std::array{0, 1, 2, 3, 4},
                            std::array{2, 0, 4, 1, 3},
                            std::array{3, 2, 1, 0, 4}}) {
    auto& end = ends.emplace_back();
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      PosGP optimizer{comm, model(), tiny};
      contracts::load(optimizer);
      for (int step = 0; step < 3; ++step) {
        for (int const unit : order) {
          // A unit that is used twice is opened twice.
          static_cast<void>(contracts::unit_backward(optimizer, unit, {}, step, comm.rank()));
          optimizer.reduce(contracts::unit_backward(optimizer, unit, {}, step, comm.rank()));
        }
        optimizer.step();
      }
      auto const all = optimizer.full_parameters();
      if (comm.rank() != 0) return;
      // The tied tensor's gradients add up in another order.
      for (std::size_t t = 1; t < all.size(); ++t) {
        if (t != 8) contracts::append(end, all[t]);
      }
    });
    CHECK(end == ends.front());
  }
}

TEST_CASE("what comes too late is refused") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    PosG optimizer{comm, model(), tiny};
    contracts::load(optimizer);
    optimizer.without_gradient(3);
    CHECK(refusal([&] { return optimizer.gradients(3); }) ==
          "unit 3 was already declared absent in this micro-step; call micro_step() "
          "before the next micro-batch");
    CHECK(refusal([&] { optimizer.micro_step(); }) ==
          "the first micro_step() of a step must come before its first gradients");
    CHECK(refusal([&] { optimizer.restore(optimizer.counters()); }) ==
          "restore() in the middle of a step; call step() or discard_gradients() first");
    optimizer.reduce_all();
    CHECK(refusal([&] { optimizer.without_gradient(2); }) ==
          "unit 2 is declared absent after the gradients of this step were reduced");
    CHECK(refusal([&] { optimizer.without_gradient(optimizer.tensors()[1]); }) ==
          "unit 1 is declared absent after the gradients of this step were reduced");
    CHECK(refusal([&] { optimizer.without_gradient({.name = "a.x", .shape = {1}}); }) ==
          "there is no tensor 'a.x'");
    optimizer.discard_gradients();
    CHECK(give_zeros(optimizer).step().step == 1);
  });
}

template <class Stage, class Precision = zero::Fp32>
using Alone = contracts::Alone<contracts::Optimizer<Stage, Precision>>;

/// What is said where one element of a tensor is not written.
template <class Precision, class Stage>
std::string found(Stage /*stage*/, std::size_t missed) {
  Alone<Stage, Precision> alone({{.name = "a", .shape = {700}},
                                 {.name = "c", .shape = {3001}, .unit = 1},
                                 {.name = "frozen", .shape = {5}, .unit = 1, .frozen = true}});
  auto gradients = alone.optimizer.gradients(1, zero::Overwrite{.checked = true});
  std::size_t at = 0;
  for (auto& x : gradients["c"]) {
    if (at++ != missed) x = {};
  }
  return refusal([&] { alone.optimizer.reduce(std::move(gradients)); });
}

TEST_CASE("tensors of one unit that share memory are added to, from zero in each step") {
  for_each_stage([]<class Stage>(Stage) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      contracts::Optimizer<Stage, zero::Fp32> optimizer{
          comm,
          {{.name = "wte", .shape = {4}},
           {.name = "b", .shape = {3}},
           {.name = "head", .shape = {4}, .tied_to = "wte"}}};
      contracts::load(optimizer);
      for (bool const checked : {false, true, false, true}) {
        auto gradients = optimizer.gradients(0, zero::Overwrite{.checked = checked});
        for (float& x : gradients[1]) x = 0.f;
        for (std::size_t const alias : {std::size_t{0}, std::size_t{2}}) {
          for (float& x : gradients[alias]) x += 1.f;
        }
        optimizer.reduce(std::move(gradients));
        CHECK(optimizer.step().grad_norm == 4.);
      }
    });
  });
}

TEST_CASE("checked: a tensor that is absent need not be written, and lent memory is not marked") {
  Alone<zero::stage::PosG> alone({{.name = "a", .shape = {5}}, {.name = "b", .shape = {3}}});
  auto& optimizer = alone.optimizer;
  auto gradients = optimizer.gradients(0, zero::Overwrite{.checked = true});
  for (float& x : gradients[0]) x = 1.f;
  optimizer.without_gradient(optimizer.tensors()[1]);
  optimizer.reduce(std::move(gradients));
  CHECK(optimizer.step().grad_norm == doctest::Approx(std::sqrt(5.)));
  CHECK(optimizer.steps(1) == 0);

  std::vector<float> parameters(5), lent(5, 2.f);
  contracts::Optimizer<zero::stage::PosG, zero::Fp32, zero::Borrowed<>> lending{
      alone.handles[0], {{.name = "a", .shape = {5}}}};
  lending.bind(std::span(parameters), std::span(lent));
  lending.adopt_parameters();
  CHECK(refusal([&] {
          return lending.gradients(0, zero::Overwrite{.checked = true});
        }).find("that are lent are the trainer's") != std::string::npos);
  CHECK(lent == std::vector<float>(5, 2.f));
}

TEST_CASE("what was not written and is absent does not count, though its guard was dropped") {
  for_each_stage([]<class Stage>(Stage) {
    Alone<Stage> alone({{.name = "a", .shape = {600}}, {.name = "b", .shape = {600}}});
    auto& optimizer = alone.optimizer;
    for (bool const absent : {false, true}) {
      auto gradients = optimizer.gradients(0, zero::overwrite);
      for (float& x : gradients["a"]) x = 1.f;
      if (absent) optimizer.without_gradient(optimizer.tensors()[1]);
      if (absent) continue;
      for (float& x : gradients["b"]) x = 1.f;
      optimizer.reduce(std::move(gradients));
      CHECK(optimizer.step().grad_norm == std::sqrt(1200.));
    }
    CHECK(optimizer.step().grad_norm == std::sqrt(600.));
    CHECK(optimizer.steps(1) == 1);
  });
}

TEST_CASE("checked: an element that was never written is named") {
  std::string const first = "unit 1 is reduced, but element ";
  std::string const last = " of tensor 'c' was not overwritten";
  using zero::Fp32;
  CHECK(found<Fp32>(zero::stage::PosG{}, 3000) == first + "3000" + last);
  CHECK(found<Fp32>(zero::stage::Replicated{}, 0) == first + "0" + last);
  CHECK(found<zero::Mixed<zero::bf16>>(zero::stage::PosGP{}, 17) == first + "17" + last);
  CHECK(found<zero::Mixed<zero::fp16>>(zero::stage::PosG{}, 1024) == first + "1024" + last);
  CHECK(found<Fp32>(zero::stage::PosG{}, 3001) == "");
}

TEST_CASE("memory of one unit's own is not zeroed for who overwrites it") {
  Alone<zero::stage::PosG> alone({{.name = "c", .shape = {700}}});
  auto& optimizer = alone.optimizer;
  auto first = optimizer.gradients(0);
  for (auto& x : first["c"]) x = 3.f;
  optimizer.reduce(std::move(first));
  static_cast<void>(optimizer.step());
  CHECK(optimizer.gradients(0, zero::overwrite)["c"][0] == 3.f);
}

}  // namespace
}  // namespace absent_test
