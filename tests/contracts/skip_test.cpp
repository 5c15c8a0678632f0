/// Steps that must change nothing, and what is said about them, thrown or as a value. What steps
/// make of numbers that can be used, and when they are skipped, is played by `differential`.
#include "contracts/ranks.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace skip_test {
namespace {

using Fp16 = zero::Mixed<zero::fp16>;
using Bits = std::vector<std::byte>;

constexpr int ranks = 3;
constexpr zero::Bucket small_bucket{6144};

using contracts::Optimizer;
using zero::ErrorKind;
using zero::InProcess;

template <class Body>
void on_ranks(Body const& body) {
  contracts::on_ranks(ranks, body);
}

/// A loss scale that does not overflow on the toy model by itself.
zero::Mixed<zero::fp16> low_scale() { return {.loss_scale = {.initial = 64.f}}; }

using Plain = Optimizer<zero::stage::PosG, zero::Fp32>;

TEST_CASE("the sum of finite gradients that overflows on the wire is found as well") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Optimizer<zero::stage::PosG, Fp16> optimizer{
        comm, {{.name = "w", .shape = {1000}}}, low_scale()};
    optimizer.adopt_parameters();
    auto gradients = optimizer.gradients(0);
    gradients[0][999] = zero::fp16(30000.f);
    optimizer.reduce(std::move(gradients));
    expect(optimizer.step().skipped, "3 x 30000 fits into fp16");
    expect(optimizer.loss_scale() == 32.f, "scale");
  });
}

TEST_CASE_TEMPLATE(
    "as many overflows in a row at the minimum as there is patience are an error everywhere",
    O,
    Optimizer<zero::stage::Replicated, Fp16>,
    Optimizer<zero::stage::PosGP, Fp16>) {
  INFO("stage " << O::Stage::name);
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Fp16 const precision{.loss_scale = {.initial = 2.f, .minimum = 1.f, .patience = 3}};
    O optimizer{comm, toy::model(), precision, small_bucket};
    contracts::load(optimizer);
    int calls = 0;
    auto const pass = [&](bool bad) {
      // One element of another rank's gradients each time.
      toy::Run const run{.fault = {.step = bad ? calls : -1, .micro_batch = calls % ranks}};
      contracts::pass(optimizer, run, calls, comm.rank());
      ++calls;
    };
    auto const clean = [&](long steps) {
      pass(false);
      auto const report = optimizer.step();
      expect(!report.skipped && report.step == steps, "training goes on");
    };
    // The last of `count` overflows fails, and changes as little as those before.
    auto const overflow = [&](int count) {
      Bits const before = contracts::snapshot(optimizer);
      for (int i = 1; i <= count; ++i) {
        pass(true);
        std::string const message =
            refusal([&] { expect(optimizer.step().skipped, "skipped"); }, zero::ErrorKind::data);
        bool const said = message.find("at the minimum loss scale") != std::string::npos;
        expect(said == (i == count), "overflow " + std::to_string(i) + ": " + message);
        expect(optimizer.loss_scale() == 1.f, "scale");
      }
      expect(contracts::snapshot(optimizer) == before, "something changed");
      expect(optimizer.report().skipped, "told once");
    };
    overflow(1 + 3);  // the first of them is not at the minimum
    clean(1);
    overflow(3);
    overflow(3);
    clean(2);
    for (long steps = 3; steps < 6; ++steps) {
      pass(true);
      expect(optimizer.step().skipped, "skipped after a clean step");
      pass(true);
      expect(optimizer.step().skipped, "skipped after a clean step");
      clean(steps);
    }
  });
}

TEST_CASE("by default the tenth overflow in a row at the minimum is an error") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Fp16 const precision{.loss_scale = {.initial = 1.f}};
    Optimizer<zero::stage::PosG, Fp16> optimizer{comm, {{.name = "w", .shape = {1}}}, precision};
    optimizer.adopt_parameters();
    for (int i = 1; i <= 20; ++i) {
      optimizer.gradients(0)[0][0] = zero::fp16(std::numeric_limits<float>::infinity());
      auto const result = optimizer.try_step({.non_finite = zero::NonFinite::skip});
      expect(static_cast<bool>(result) == (i % 10 != 0), "overflow " + std::to_string(i));
    }
  });
}

/// Gradients that are not finite in three tensors of two units: the first element is named with its
/// owner, and with who brought it, where ranks still hold what they brought.
TEST_CASE_TEMPLATE("a gradient that is not finite is named, and its owner, and who brought it",
                   O,
                   Optimizer<zero::stage::Replicated, zero::Fp32>,
                   Optimizer<zero::stage::Pos, zero::Fp32>,
                   Optimizer<zero::stage::PosG, zero::Mixed<zero::bf16>>,
                   Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateShard>,
                   Optimizer<zero::stage::PosGP, zero::Fp32, zero::AccumulateFull>) {
  INFO("stage " << O::Stage::name);
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    std::vector<zero::Tensor> const tensors{
        {.name = "a", .shape = {1024}},
        {.name = "b", .shape = {2048}},
        {.name = "c", .shape = {40}, .unit = 1, .frozen = true},
        {.name = "d", .shape = {1500}, .unit = 1},
    };
    // Shares are of 512 elements of a bucket of 1,536: "a" lies on ranks 0 and 1.
    O optimizer{comm, tensors, zero::Bucket{1536 * sizeof(typename O::Wire)}};
    contracts::load(optimizer);
    constexpr bool holds = O::form.reduced == zero::StorageForm::Reduced::in_place;
    std::string const what = "gradients are not finite: first element ";
    struct {
      bool a_and_b, d;
      std::string message;
    } const steps[] = {
        {true,
         true,
         what + "700 of 'a', which rank 1 owns" +
             (holds ? "; it came from the gradients of rank 2" : "") + "; also in 'b', 'd'"},
        {false,
         true,
         what + "3 of 'd', which rank 0 owns" +
             (holds ? "; the gradients of all other ranks are finite there" : "")},
        {false, false, ""},
    };
    for (auto const& [a_and_b, d, expected] : steps) {
      for (int const unit : {1, 0}) {
        auto gradients = optimizer.gradients(unit);
        if (a_and_b && unit == 0 && comm.rank() == 2) {
          gradients["a"][700] = typename O::Wire(INFINITY);
          gradients["b"][2] = typename O::Wire(NAN);
        }
        if (d && unit == 1 && comm.rank() == 0) gradients["d"][3] = typename O::Wire(NAN);
        optimizer.reduce(std::move(gradients));
      }
      auto const result = optimizer.try_step();
      std::string const message = result ? "" : result.error()->message();
      expect(message == expected, message);
    }
    expect(optimizer.steps() == 1, "training goes on");
  });
}

static_assert(noexcept(std::declval<Plain&>().try_step()));
static_assert(noexcept(std::declval<Plain&>().try_step(0.1f, 1.)));
static_assert(noexcept(std::declval<Plain&>().try_report()));

/// What a step that must fail says; nothing if it does not fail as it must.
std::string failure(zero::StepResult const& result, ErrorKind kind) {
  if (result || result.error() == nullptr) return "no error";
  if (result.error()->kind() != kind) return result.error()->what();
  if (result.report().step != 0 || result.report().grad_norm != 0.) return "a report";
  return result.error()->message();
}
/// The result of a step, or the error that it throws.
zero::StepResult result_of(Plain& optimizer, bool tries, zero::StepOptions const& options) {
  if (tries) return optimizer.try_step(options);
  try {
    return optimizer.step(options);
  } catch (zero::Error const& error) {
    return error;
  }
}

TEST_CASE("a step that fails, thrown or as a value, is an error on every rank; training goes on") {
  on_ranks([](InProcess& comm, auto const& expect) {
    Plain optimizer{comm, toy::model(), small_bucket};
    Plain spared{comm, toy::model(), small_bucket};
    contracts::load(optimizer);
    contracts::load(spared);
    toy::Run const run{.fault = {.step = 9, .micro_batch = 2}};
    for (long step = 0; step < 4; ++step) {
      auto const before = contracts::snapshot(optimizer);
      auto const fails = [&](long data,
                             ErrorKind kind,
                             std::string const& message,
                             zero::StepOptions const& options = {}) {
        contracts::pass(optimizer, run, data, comm.rank());
        auto const result = result_of(optimizer, step % 2 == 0, options);
        std::string const found = failure(result, kind);
        expect(found == message, found);
        expect(contracts::snapshot(optimizer) == before, "something changed");
        expect(optimizer.steps() == step, "step count");
        if (kind != ErrorKind::data || result.error() == nullptr) return;
        std::string const file = result.error()->where().file;
        expect(file.find("step_result.hpp") != std::string::npos, file);
      };
      fails(9,
            ErrorKind::data,
            "gradients are not finite: first element 1000 of 'h0.w', which rank 1 owns");
      optimizer.micro_step({.weight = 0.});
      fails(0, ErrorKind::data, "all micro-batches of this step have weight 0");
      fails(0,
            ErrorKind::invalid_argument,
            "ranks passed different options to step(): learning_rate: 0.2 on rank 0 2; "
            "0.1 on rank 1",
            {.learning_rate = comm.rank() == 1 ? 0.1f : 0.2f});
      contracts::pass(optimizer, run, 9, comm.rank());
      auto const skipped =
          result_of(optimizer, step % 2 == 0, {.non_finite = zero::NonFinite::skip}).report();
      expect(skipped.skipped && skipped.loss_scale == 1.f, "skipped");
      expect(contracts::snapshot(optimizer) == before, "something changed");
      for (Plain* const each : {&optimizer, &spared}) {
        contracts::pass(*each, run, step, comm.rank());
        expect(each->step().step == step + 1, "step count");
      }
      expect(contracts::snapshot(optimizer) == contracts::snapshot(spared), "left a trace");
    }
  });
}

TEST_CASE("StepResult: one or the other, and it moves without throwing") {
  zero::StepResult const good = zero::StepReport{.step = 3, .grad_norm = 2.};
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

TEST_CASE("a step at the wrong time is a value, and can be taken later") {
  contracts::Alone<Plain> alone(toy::model());
  {
    auto const weights = alone.optimizer.parameters(1);
    CHECK(failure(alone.optimizer.try_step(), ErrorKind::invalid_argument) ==
          "step() while the parameters of unit 1 are in use");
  }
  CHECK(give_zeros(alone.optimizer).try_step().report().step == 1);
}

TEST_CASE("a rank that fails is an error of communication in every later step of the others") {
  std::vector<std::string> told(3);
  auto const said = contracts::endings(3, [&](InProcess& comm) {
    Plain optimizer{comm, toy::model()};
    contracts::load(optimizer);
    if (comm.rank() == 1) throw std::runtime_error("no disk");
    std::string& text = told[static_cast<std::size_t>(comm.rank())];
    text = failure(optimizer.try_step(), ErrorKind::communication);
    if (failure(optimizer.try_step(), ErrorKind::communication) != text) text = "another text";
  });
  CHECK(said == std::vector<std::string>{"", "no disk", ""});
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
    contracts::OnDevice<zero::stage::PosG, zero::Fp32> rank(inner);
    auto& optimizer = rank.optimizer;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    for (bool const enqueued : {false, true}) {
      auto const step = [&] {
        if (!enqueued) return optimizer.try_step();
        optimizer.enqueue_step();
        return optimizer.try_report();
      };
      contracts::constant_pass(rank, inner.rank() == 1 ? nan : 1.f);
      CHECK(failure(step(), ErrorKind::data) ==
            (enqueued ? "gradients are not finite"
                      : "gradients are not finite: first element 0 of 'u0.w', which rank 0 owns"));
      // Told once.
      CHECK(optimizer.try_report());
      contracts::constant_pass(rank, 1.f);
      CHECK(step().report().step == (enqueued ? 2 : 1));
    }
  });
}

}  // namespace
}  // namespace skip_test
