/// try_step() does what step() does; what that would throw is a value.
#include "contracts/loop.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace try_step_test {
namespace {

using zero::ErrorKind;
using zero::InProcess;
using zero::StepReport;
using Bits = std::vector<std::byte>;

using contracts::Optimizer;
using Plain = Optimizer<zero::stage::PosG, zero::Fp32>;

static_assert(noexcept(std::declval<Plain&>().try_step()));
static_assert(noexcept(std::declval<Plain&>().try_step(0.1f, 1.)));
static_assert(noexcept(std::declval<Plain&>().try_report()));

/// What a step that must fail says; nothing if it does not fail as it must.
template <class Result>
std::string failure(Result const& result, ErrorKind kind) {
  if (result || result.error() == nullptr) return "no error";
  if (result.error()->kind() != kind) return result.error()->what();
  if (result.report().step != 0 || result.report().grad_norm != 0.) return "a report";
  return result.error()->message();
}

bool same(StepReport const& a, StepReport const& b) {
  return a.step == b.step && a.skipped == b.skipped && a.grad_norm == b.grad_norm &&
         a.clip_coefficient == b.clip_coefficient && a.loss_scale == b.loss_scale &&
         a.weight == b.weight && a.stop == b.stop;
}

TEST_CASE("StepResult: one or the other, and it moves without throwing") {
  zero::StepResult const good = StepReport{.step = 3, .grad_norm = 2.};
  CHECK(static_cast<bool>(good));
  CHECK(good.error() == nullptr);
  CHECK(good.report().step == 3);
  zero::StepResult bad = zero::Error(ErrorKind::data, "no", {.rank = 1}, {"file", 2});
  CHECK(!bad);
  CHECK(bad.report().step == 0);
  zero::StepResult const moved = std::move(bad);
  REQUIRE(moved.error() != nullptr);
  CHECK(std::string(moved.error()->what()) == "zero: data: no, rank 1");
}

template <class O>
void check_steps() {
  INFO("stage " << O::Stage::name);
  zero::run_ranks(3, [](InProcess& comm) {
    zero::Mixed<zero::fp16> const precision{.loss_scale = {.initial = 64.f}};
    O one{comm, toy::model(), precision, zero::Bucket{6144}};
    O other{comm, toy::model(), precision, zero::Bucket{6144}};
    contracts::load(one);
    contracts::load(other);
    // An overflow that a loss scale watches for is no error.
    toy::Run const run{.fault = {.step = 2, .micro_batch = 1}};
    for (long step = 0; step < 4; ++step) {
      contracts::pass(one, run, step, comm.rank());
      auto const result = one.try_step({.learning_rate = 0.01f, .max_norm = 1.});
      REQUIRE(result);
      contracts::pass(other, run, step, comm.rank());
      CHECK(same(result.report(), other.step({.learning_rate = 0.01f, .max_norm = 1.})));
      CHECK(result.report().skipped == (step == 2));
      CHECK(contracts::snapshot(one) == contracts::snapshot(other));
      contracts::pass(one, run, step, comm.rank());
      contracts::pass(other, run, step, comm.rank());
      auto const scaled = one.try_step(0.02f, 0.5);
      CHECK(same(scaled.report(), other.step(0.02f, 0.5)));
      CHECK(same(scaled.report(), one.try_report().report()));
      CHECK(contracts::snapshot(one) == contracts::snapshot(other));
    }
  });
}

TEST_CASE("try_step() gives the bits and the reports of step()") {
  check_steps<Optimizer<zero::stage::Replicated, zero::Mixed<zero::fp16>>>();
  check_steps<Optimizer<zero::stage::PosGP, zero::Mixed<zero::fp16>>>();
}

TEST_CASE("numbers that cannot be used are a value on every rank; training goes on") {
  zero::run_ranks(3, [](InProcess& comm) {
    Plain optimizer{comm, toy::model(), zero::Bucket{6144}};
    contracts::load(optimizer);
    toy::Run const run{.fault = {.step = 1, .micro_batch = 2}};
    contracts::pass(optimizer, run, 0, comm.rank());
    REQUIRE(optimizer.try_step());
    Bits const before = contracts::snapshot(optimizer);
    contracts::pass(optimizer, run, 1, comm.rank());
    CHECK(failure(optimizer.try_step(), ErrorKind::data) ==
          "gradients are not finite: first 'h0.w' in the share of rank 1");
    optimizer.micro_step({.weight = 0.});
    contracts::pass(optimizer, run, 0, comm.rank());
    CHECK(failure(optimizer.try_step(), ErrorKind::data) ==
          "all micro-batches of this step have weight 0");
    contracts::pass(optimizer, run, 0, comm.rank());
    std::string const text =
        failure(optimizer.try_step({.learning_rate = comm.rank() == 1 ? 0.1f : 0.2f}),
                ErrorKind::invalid_argument);
    CHECK(text ==
          "ranks passed different options to step(): learning_rate: 0.200000003 on rank 0 2; "
          "0.100000001 on rank 1");
    CHECK(contracts::snapshot(optimizer) == before);
    contracts::pass(optimizer, run, 1, comm.rank());
    auto const skipped = optimizer.try_step({.non_finite = zero::NonFinite::skip});
    REQUIRE(skipped);
    CHECK(skipped.report().skipped);
    contracts::pass(optimizer, run, 0, comm.rank());
    CHECK(optimizer.try_step().report().step == 2);
  });
}

TEST_CASE("a loss scale that can go no lower is a value on every rank; training goes on") {
  zero::run_ranks(3, [](InProcess& comm) {
    zero::Mixed<zero::fp16> const precision{.loss_scale = {.initial = 1.f, .patience = 2}};
    Optimizer<zero::stage::PosGP, zero::Mixed<zero::fp16>> optimizer{
        comm, toy::model(), precision, zero::Bucket{6144}};
    contracts::load(optimizer);
    toy::Run const run{.fault = {.step = 1, .micro_batch = 2}};
    Bits const before = contracts::snapshot(optimizer);
    for (int time = 0; time < 2; ++time) {
      contracts::pass(optimizer, run, 1, comm.rank());
      CHECK(optimizer.try_step().report().skipped);
      contracts::pass(optimizer, run, 1, comm.rank());
      std::string const text = failure(optimizer.try_step(), ErrorKind::data);
      CHECK_MESSAGE(text.find("at the minimum loss scale") != std::string::npos, text);
      CHECK(optimizer.try_report());
    }
    CHECK(contracts::snapshot(optimizer) == before);
    contracts::pass(optimizer, run, 0, comm.rank());
    CHECK(optimizer.try_step().report().step == 1);
  });
}

TEST_CASE("what step() still throws is what try_step() returns") {
  zero::run_ranks(2, [](InProcess& comm) {
    Plain optimizer{comm, toy::model()};
    contracts::load(optimizer);
    for (bool const thrown : {false, true}) {
      contracts::pass(optimizer, {.fault = {.step = 0, .micro_batch = 1}}, 0, comm.rank());
      std::optional<zero::Error> error;
      if (thrown) {
        try {
          optimizer.step();
        } catch (zero::Error const& caught) {
          error = caught;
        }
      } else {
        auto const result = optimizer.try_step();
        if (!result) error = *result.error();
      }
      REQUIRE(error.has_value());
      CHECK(std::string(error->what()) ==
            "zero: data: gradients are not finite: first 'h0.w' in the share of rank 0");
      CHECK(std::string(error->where().file).find("step_result.hpp") != std::string::npos);
    }
  });
}

TEST_CASE("a step at the wrong time is a value, and can be taken later") {
  zero::run_ranks(2, [](InProcess& comm) {
    Plain optimizer{comm, toy::model()};
    contracts::load(optimizer);
    contracts::pass(optimizer, {}, 0, comm.rank());
    {
      auto const weights = optimizer.parameters(1);
      CHECK(failure(optimizer.try_step(), ErrorKind::invalid_argument) ==
            "step() while the parameters of unit 1 are in use");
    }
    CHECK(optimizer.try_step().report().step == 1);
  });
}

TEST_CASE("a rank that fails is an error of communication in every later step of the others") {
  std::vector<std::string> told(3);
  try {
    zero::run_ranks(3, [&](InProcess& comm) {
      Plain optimizer{comm, toy::model()};
      contracts::load(optimizer);
      if (comm.rank() == 1) throw std::runtime_error("no disk");
      std::string& text = told[static_cast<std::size_t>(comm.rank())];
      text = failure(optimizer.try_step(), ErrorKind::communication);
      if (failure(optimizer.try_step(), ErrorKind::communication) != text) text = "another text";
    });
  } catch (std::runtime_error const& error) {
    CHECK(std::string(error.what()) == "no disk");
  }
  for (int const rank : {0, 2}) {
    std::string const& text = told[static_cast<std::size_t>(rank)];
    CHECK_MESSAGE(text.find("rank 1 failed: no disk") == 0, text);
  }
}

/// A rank on its own whose communicator throws what is not the library's.
class Foreign {
 public:
  using Space = zero::space::Host;
  using Ticket = zero::Self::Ticket;
  enum class Throw { nothing, exception, number } now = Throw::nothing;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  Ticket start(zero::Collective const& op) {
    if (now == Throw::exception) throw std::runtime_error("line is busy");
    // Anything can be thrown.
    if (now == Throw::number) throw 7;
    return self_.start(op);
  }
  void wait(Ticket& ticket) { self_.wait(ticket); }

 private:
  zero::Self self_;
};

TEST_CASE("whatever else a communicator throws is an error of communication") {
  Foreign comm;
  zero::ShardedOptimizer optimizer{comm, toy::model()};
  comm.now = Foreign::Throw::exception;
  CHECK(failure(optimizer.try_step(), ErrorKind::communication) == "line is busy");
  comm.now = Foreign::Throw::number;
  CHECK(failure(optimizer.try_step(), ErrorKind::communication) ==
        "an exception that is not a std::exception");
}

TEST_CASE("over a space with a queue the host cannot look into, in one call or in two") {
  zero::run_ranks(2, [](InProcess& inner) {
    trapped::Device device;
    trapped::Communicator comm(inner, device, trapped::Collectives::late);
    using Owned = zero::Owned<trapped::Allocator>;
    zero::ShardedOptimizer<trapped::Communicator, zero::stage::PosG, zero::Fp32, Owned> optimizer{
        comm, contracts::even_model(), Owned{{&device}}};
    contracts::load(optimizer);
    auto const backward = [&](float value) {
      auto gradients = optimizer.gradients(0);
      std::vector<float> const host(gradients[0].size(), value);
      comm.space().upload(gradients[0].data(), host.data(), host.size() * sizeof(float));
      optimizer.reduce(std::move(gradients));
    };
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    for (bool const enqueued : {false, true}) {
      auto const step = [&] {
        if (!enqueued) return optimizer.try_step();
        optimizer.enqueue_step();
        return optimizer.try_report();
      };
      backward(inner.rank() == 1 ? nan : 1.f);
      CHECK(failure(step(), ErrorKind::data) ==
            (enqueued ? "gradients are not finite"
                      : "gradients are not finite: first 'u0.w' in the share of rank 0 1"));
      // Told once.
      CHECK(optimizer.try_report());
      backward(1.f);
      CHECK(step().report().step == (enqueued ? 2 : 1));
    }
  });
}

}  // namespace
}  // namespace try_step_test
