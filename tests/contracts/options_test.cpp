/// Ranks that tell a step different things are refused before anything is changed; and what weights
/// mean.
#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace options_test {
namespace {

using zero::StepOptions;

constexpr int ranks = 3;

using OnHost = contracts::OnHost<zero::stage::PosG, zero::Fp32>;
using OnDevice = contracts::OnDevice<zero::stage::PosG, zero::Fp32>;
using contracts::constant_pass;
using contracts::owned_bits;

std::string const differ = "ranks passed different options to step(): ";
/// What ranks say that do not tell each other.
std::string const without_values =
    "ranks passed different options to step(), or values to set_lr() or set_rule(): learning rate, "
    "max_norm, scale, non_finite, unsaid, count, floating-point mode, or rules of tensors";

template <class Body>
void on_ranks(Body const& body) {
  contracts::on_ranks(ranks, body);
}

TEST_CASE_TEMPLATE("a step that ranks were told differently is refused on all of them",
                   Trainer,
                   OnHost,
                   OnDevice) {
  struct {
    StepOptions others, odd;
    char const* values;
  } const rows[]{
      {{.learning_rate = 0.25f},
       {.learning_rate = 0.5f},
       "learning_rate: 0.25 on rank 0 2; 0.5 on rank 1"},
      {{}, {.learning_rate = 0.5f}, "learning_rate: 0.001 on rank 0 2; 0.5 on rank 1"},
      {{.max_norm = 1.},
       {.max_norm = 1. + 0x1p-52},
       "max_norm: 1 on rank 0 2; 1.0000000000000002 on rank 1"},
      // The texts would be the same.
      {{.max_norm = 0.1},
       {.max_norm = 0.1f},
       "max_norm: 0.1 on rank 0 2; 0.10000000149011612 on rank 1"},
      {{.max_norm = 1.}, {.stop = true}, "max_norm: 1 on rank 0 2; inf on rank 1"},
      {{},
       {.non_finite = zero::NonFinite::skip},
       "non_finite: 'fail' on rank 0 2; 'skip' on rank 1"},
      {{}, {.count = 2}, "count: 0 on rank 0 2; 2 on rank 1"},
  };
  // Every rank refuses what one is told, changes nothing, and goes on together.
  for (auto const& row : rows) {
    on_ranks([&](zero::InProcess& comm, auto const& expect) {
      Trainer trainer(comm);
      auto& optimizer = trainer.optimizer;
      constant_pass(trainer);
      optimizer.step(row.others);
      auto const before = owned_bits(optimizer);
      for (int const way : {0, 1, 2, 3}) {
        bool const enqueued = way % 2 == 1;
        auto const& told = comm.rank() == 1 ? row.odd : row.others;
        constant_pass(trainer);
        if (way >= 2) static_cast<void>(optimizer.grad_norm());
        std::string message;
        if (enqueued) {
          expect(refusal([&] { optimizer.enqueue_step(told); }) == "", "an enqueued step threw");
          message = refusal([&] { return optimizer.report(); });
        } else {
          message = refusal([&] { optimizer.step(told); });
        }
        expect(message == (enqueued ? without_values : differ + row.values), "message: " + message);
        expect(owned_bits(optimizer) == before, "something changed");
        expect(refusal([&] { return optimizer.report(); }) == "", "told twice");
      }
      constant_pass(trainer);
      expect(optimizer.step(row.others).step == 2, "all go on together");
      expect(owned_bits(optimizer) != before, "training goes on");
    });
  }
}

TEST_CASE("what changes no number may differ") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    OnHost trainer(comm);
    auto& optimizer = trainer.optimizer;
    for (long step = 1; step <= 2; ++step) {
      constant_pass(trainer);
      StepOptions options{.overlap_publish = comm.rank() == 1};
      // The rule's own, in words.
      if (comm.rank() == 2) options.learning_rate = optimizer.rule().lr;
      expect(optimizer.step(options).step == step, "refused");
    }
    optimizer.settle();
  });
}

TEST_CASE_TEMPLATE("different options are found in the step itself, also after grad_norm()",
                   Trainer,
                   OnHost,
                   OnDevice) {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Trainer trainer(comm);
    auto& optimizer = trainer.optimizer;
    double const own = comm.rank() == 2 ? 0.5 : 1.;
    constant_pass(trainer);
    auto const before = owned_bits(optimizer);
    std::string const values = "scale: 1 on rank 0 1; 0.5 on rank 2";
    expect(refusal([&] { optimizer.step(1e-3f, own); }) == differ + values, "the scale");
    expect(owned_bits(optimizer) == before, "something changed");
    // What was to be agreed on was exchanged before ranks were told anything.
    constant_pass(trainer);
    static_cast<void>(optimizer.grad_norm());
    expect(refusal([&] { optimizer.step(1e-3f, own); }) == differ + values, "after grad_norm()");
    expect(owned_bits(optimizer) == before, "something changed");
    constant_pass(trainer);
    static_cast<void>(optimizer.grad_norm());
    optimizer.discard_gradients();
    for (long step = 1; step <= 3; ++step) {
      constant_pass(trainer);
      static_cast<void>(optimizer.grad_norm());
      expect(
          optimizer.step(1e-3f / static_cast<float>(step), 1. / static_cast<double>(step)).step ==
              step,
          "refused");
    }
  });
}

TEST_CASE("a rank in grad_norm() while others are in step() is told so, and they go on") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    OnHost trainer(comm);
    auto& optimizer = trainer.optimizer;
    constant_pass(trainer);
    optimizer.step();
    auto const before = owned_bits(optimizer);
    for (int i = 0; i < 2; ++i) {
      constant_pass(trainer);
      std::string const message = refusal([&] {
        comm.rank() == 1 ? static_cast<void>(optimizer.grad_norm())
                         : static_cast<void>(optimizer.step());
      });
      expect(message == differ + "the call: 'step' on rank 0 2; 'grad_norm' on rank 1", message);
    }
    expect(owned_bits(optimizer) == before, "something changed");
    constant_pass(trainer);
    expect(optimizer.grad_norm() > 0., "the norm");
    expect(optimizer.step().step == 2, "all go on together");
  });
}

TEST_CASE("a rank in grad_norm() while others are in step() ends the group on a device") {
  auto const said = contracts::endings(ranks, [](zero::InProcess& comm) {
    OnDevice trainer(comm);
    constant_pass(trainer);
    trainer.optimizer.step();
    constant_pass(trainer);
    if (comm.rank() != 1) trainer.optimizer.step();
    if (comm.rank() == 1) static_cast<void>(trainer.optimizer.grad_norm());
  });
  for (std::string const& text : said)
    CHECK(text.find("the call: 'grad_norm' here, 'step' elsewhere") != std::string::npos);
}

/// One rank's step is refused while it holds parameters, and corrected; its peers know nothing of
/// that. A second trainer does the same without the refused calls.
TEST_CASE_TEMPLATE("a step that is refused before anything travels has agreed on nothing",
                   Trainer,
                   OnHost,
                   OnDevice) {
  for (int const norms : {0, 1, 2, 3}) {
    CAPTURE(norms);
    bool const norm_before = norms % 2 == 1;
    bool const norm_after = norms >= 2;
    on_ranks([&](zero::InProcess& comm, auto const& expect) {
      Trainer trainer(comm);
      Trainer spared(comm);
      auto& optimizer = trainer.optimizer;
      for (long step = 1; step <= 3; ++step) {
        constant_pass(trainer);
        constant_pass(spared);
        for (auto* const each : {&trainer, &spared}) {
          if (norm_before) static_cast<void>(each->optimizer.grad_norm());
        }
        if (comm.rank() == 1) {
          auto const weights = optimizer.parameters(2);
          std::string const message = "step() while the parameters of unit 2 are in use";
          StepOptions const wrong{.learning_rate = 0.5f, .max_norm = 1e-3};
          expect(refusal([&] { optimizer.step(wrong); }) == message, "in use");
          expect(refusal([&] { optimizer.enqueue_step(wrong); }) == message, "in use, enqueued");
        }
        for (auto* const each : {&trainer, &spared}) {
          if (norm_after) static_cast<void>(each->optimizer.grad_norm());
          std::string const told = refusal(
              [&] { expect(each->optimizer.step({.max_norm = 2.}).step == step, "step count"); });
          expect(told == "", told);
        }
        expect(owned_bits(optimizer) == owned_bits(spared.optimizer), "left a trace");
      }
    });
  }
}

/// Parameters after two steps, of lent memory whose masters some rank forgets to set at first.
std::vector<std::byte> train_lent(bool forgets, bool norm) {
  using zero::bf16;
  std::vector<std::byte> bits;
  on_ranks([&](zero::InProcess& comm, auto const& expect) {
    constexpr std::size_t count = 3000;
    std::vector<bf16> parameters(count, bf16(0.25f));
    std::vector<bf16> gradients(count);
    contracts::Optimizer<zero::stage::PosG, zero::Mixed<bf16>, zero::Borrowed<>> optimizer{
        comm, {{.name = "w", .shape = {count}}}};
    optimizer.bind(std::span(parameters), std::span(gradients));
    bool const late = forgets && comm.rank() == 1;
    if (!late) optimizer.adopt_parameters();
    for (long step = 1; step <= 2; ++step) {
      for (std::size_t i = 0; i < count; ++i) {
        gradients[i] = bf16(static_cast<float>(i % 7) + static_cast<float>(comm.rank()));
      }
      optimizer.reduce(optimizer.gradients(0));
      if (norm) static_cast<void>(optimizer.grad_norm());
      if (late && step == 1) {
        expect(refusal([&] { optimizer.step(0.5f, 1.); }).starts_with("step() before adopt"),
               "masters");
        optimizer.adopt_parameters();
      }
      std::string const told =
          refusal([&] { expect(optimizer.step(0.01f, 1.).step == step, "step count"); });
      expect(told == "", told);
    }
    if (comm.rank() == 0) contracts::append(bits, std::span(parameters));
  });
  return bits;
}

TEST_CASE("a step that is refused for want of masters has agreed on nothing either") {
  auto const expected = train_lent(false, false);
  CHECK(train_lent(true, false) == expected);
  CHECK(train_lent(false, true) == expected);
  CHECK(train_lent(true, true) == expected);
}

/// A learning rate that lies in a trainer's memory.
struct Rate {
  explicit Rate(OnHost&) : address(&own) {}
  explicit Rate(OnDevice& trainer)
      : device(&trainer),
        address(static_cast<float*>(trainer.device.allocate(sizeof(float), 64))) {}
  void write(float value) {
    own = value;
    if (device != nullptr) device->fill(std::span(address, 1), value);
  }
  OnDevice* device = nullptr;
  float own = 0.f;
  float* address;
};

/// The value behind an address is what ranks compare.
// Only some ranks have reported what all found in an earlier step, and know nothing of it any more.
TEST_CASE_TEMPLATE("ranks of which some have reported a difference do not tell each other of it",
                   Trainer,
                   OnHost,
                   OnDevice) {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Trainer trainer(comm);
    auto& optimizer = trainer.optimizer;
    constant_pass(trainer);
    optimizer.enqueue_step({.max_norm = comm.rank() == 1 ? 2. : 1.});
    auto const report = [&] { return optimizer.report(); };
    if (comm.rank() == 0) expect(refusal(report) == without_values, "the first report");
    constant_pass(trainer);
    std::string const message = refusal([&] { optimizer.step({.max_norm = 1.}); });
    expect(message == (comm.rank() == 0 ? "" : without_values), "message: " + message);
    constant_pass(trainer);
    expect(optimizer.step({.max_norm = 1.}).step == 1, "all go on together");
  });
}

// Each rank compares the sum of all digests with its own times three.
TEST_CASE("learning rates at equal distances are refused on the rank in the middle, too") {
  for (double const max_norm : {2., 5.}) {
    for (std::uint32_t const first : {0x3d8f5c28u, 0x3a1d4951u, 0x3c000000u, 0x38d1b717u}) {
      for (std::uint32_t const apart : {1u, 2u, 4u, 8u}) {
        on_ranks([&](zero::InProcess& comm, auto const& expect) {
          OnHost trainer(comm);
          auto const rank = static_cast<std::uint32_t>(comm.rank());
          float const rate = std::bit_cast<float>(first + rank * apart);
          constant_pass(trainer);
          std::string const message = refusal(
              [&] { trainer.optimizer.step({.learning_rate = rate, .max_norm = max_norm}); });
          expect(message.starts_with(differ + "learning_rate: "), "message: " + message);
        });
      }
    }
  }
}

TEST_CASE_TEMPLATE("ranks with different learning rates behind their addresses are refused",
                   Trainer,
                   OnHost,
                   OnDevice) {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Trainer trainer(comm);
    Trainer told(comm);
    auto& optimizer = trainer.optimizer;
    Rate rate(trainer);
    // What lies there is what counts.
    StepOptions const read{.learning_rate = 99.f, .learning_rate_address = rate.address};
    auto const step = [&](StepOptions const& options, bool norm) {
      constant_pass(trainer);
      if (norm) static_cast<void>(optimizer.grad_norm());
      return refusal([&] {
        optimizer.enqueue_step(options);
        // The next of a schedule, which is not this step's.
        rate.write(77.f);
        static_cast<void>(optimizer.report());
      });
    };
    bool const odd = comm.rank() == 1;
    for (bool const norm : {false, true}) {
      auto const before = owned_bits(optimizer);
      // Neighbours.
      rate.write(odd ? 0x1.000002p-7f : 0x1p-7f);
      std::string message = step(read, norm);
      expect(message == without_values, "message: " + message);
      expect(owned_bits(optimizer) == before, "something changed");
      // Values and addresses that say the same.
      rate.write(0x1p-7f);
      message = step(odd ? StepOptions{.learning_rate = 0x1p-7f} : read, norm);
      expect(message == "", "the same: " + message);
      constant_pass(told);
      told.optimizer.step({.learning_rate = 0x1p-7f});
      expect(owned_bits(optimizer) == owned_bits(told.optimizer), "another rate");
    }
    expect(optimizer.report().step == 2, "step count");
    // Trainers that wait are told what lay there.
    std::string const values = "learning_rate: 0.25 on rank 0 2; 0.5 on rank 1";
    auto const wait = [&](float value, bool norm) {
      rate.write(value);
      constant_pass(trainer);
      if (norm) static_cast<void>(optimizer.grad_norm());
      return refusal([&] { optimizer.step(read); });
    };
    for (bool const norm : {false, true}) {
      std::string const message = wait(odd ? 0.5f : 0.25f, norm);
      expect(message == differ + values, "message: " + message);
    }
  });
}

/// Steps in which ranks ask for the end of the run, and what all of them are told.
template <class Optimizer, class Pass>
void check_stop(Optimizer& optimizer, int rank, Pass const& pass, auto const& expect) {
  constexpr int nobody = -1, everybody = ranks;
  struct {
    int asks;
    bool norm, finite, told;
  } const steps[]{
      {nobody, false, true, false},
      {1, false, true, true},
      {nobody, false, true, false},
      {everybody, false, true, true},
      {2, false, false, true},
      {nobody, false, false, false},
      // What ranks tell each other was exchanged before they asked, and is once more.
      {0, true, true, true},
      {nobody, false, true, false},
      {2, true, false, true},
      {1, true, true, true},
      {nobody, true, true, false},
  };
  enum class Way { step, tried, enqueued };
  for (Way const way : {Way::step, Way::tried, Way::enqueued}) {
    for (auto const& now : steps) {
      pass(now.finite);
      if (now.norm) static_cast<void>(optimizer.grad_norm());
      StepOptions const options{.non_finite = zero::NonFinite::skip,
                                .stop = now.asks == rank || now.asks == everybody};
      zero::StepReport report;
      if (way == Way::step) report = optimizer.step(options);
      if (way == Way::tried) report = optimizer.try_step(options).report();
      if (way == Way::enqueued) {
        optimizer.enqueue_step(options);
        report = optimizer.report();
      }
      std::string const which = "way " + std::to_string(static_cast<int>(way)) + ", entry " +
                                std::to_string(&now - steps);
      expect(report.stop == now.told, which + ": stop");
      expect(report.skipped != now.finite, which + ": skipped");
    }
  }
}

template <class Trainer>
void check_stop() {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Trainer trainer(comm);
    auto const pass = [&](bool finite) { constant_pass(trainer, finite ? 0.5f : INFINITY); };
    check_stop(trainer.optimizer, comm.rank(), pass, expect);
    // An error to report does not hide it, nor is hidden by it.
    constant_pass(trainer);
    bool const odd = comm.rank() == 1;
    trainer.optimizer.enqueue_step({.max_norm = odd ? 1. : 2., .stop = odd});
    constant_pass(trainer);
    trainer.optimizer.enqueue_step({.stop = odd});
    expect(refusal([&] { return trainer.optimizer.report(); }) == without_values, "the error");
    expect(trainer.optimizer.report().stop, "beside an error");
  });
}

/// Under a stage, with two micro-batches where it accumulates.
template <class... Policies>
void check_stop_under(int micro_steps) {
  on_ranks([&](zero::InProcess& comm, auto const& expect) {
    contracts::Optimizer<Policies...> optimizer{comm, toy::model()};
    contracts::load(optimizer);
    auto const pass = [&](bool finite) {
      toy::Run const run{.fault = {.step = finite ? -1 : 7, .micro_batch = 1}};
      for (int micro = 0; micro < micro_steps; ++micro) {
        optimizer.micro_step();
        contracts::pass(optimizer, run, 7, comm.rank());
      }
    };
    check_stop(optimizer, comm.rank(), pass, expect);
  });
}

TEST_CASE("what one rank asks for, all are told: the end of the run") {
  check_stop<OnHost>();
  check_stop<OnDevice>();
  check_stop_under<zero::stage::Replicated, zero::Fp32>(1);
  check_stop_under<zero::stage::Pos, zero::Fp32>(1);
  check_stop_under<zero::stage::PosGP, zero::Fp32>(1);
  check_stop_under<zero::stage::PosG, zero::Fp32, zero::AccumulateShard>(2);
}

/// What a rank brings of its samples, of which rank 0 has six in three micro-batches, with the mean
/// gradient 1, and rank 1 two in one, with 3.
struct Means {
  double factor[2];  ///< by which a rank multiplies the loss of each micro-batch
  double weight[2];  ///< that it passes with each
  double norm;       ///< of the mean gradient that comes of it
};

template <class Accumulation>
double norm_of(Means const& means) {
  double norm = 0.;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    contracts::Optimizer<zero::stage::PosG, zero::Fp32, Accumulation> optimizer{
        comm, {{.name = "w", .shape = {1}}}};
    contracts::load(optimizer);
    auto const rank = static_cast<std::size_t>(comm.rank());
    for (int micro = 0; micro < 3; ++micro) {
      bool const any = rank == 0 || micro == 0;
      optimizer.micro_step({.weight = any ? means.weight[rank] : 0., .last = micro == 2});
      auto gradients = optimizer.gradients(0);
      double const mean = rank == 0 ? 1. : 3.;
      if (any) gradients[0][0] += static_cast<float>(means.factor[rank] * mean);
      optimizer.reduce(std::move(gradients));
    }
    double const found = optimizer.step().grad_norm;
    if (rank == 0) norm = found;
  });
  return norm;
}

TEST_CASE("a weight is what the mean gradient was multiplied by, and multiplies nothing itself") {
  Means const rows[] = {
      {{2, 2}, {2, 2}, 1.5},      // sums over samples
      {{1, 1}, {1, 1}, 1.5},      // means over two samples each
      {{.5, .5}, {.5, .5}, 1.5},  // the same, divided by what is alike for all
      {{1, 1}, {2, 2}, .75},      // means that count as sums
      {{1, 1}, {2, 6}, .5},
      {{4, 2}, {4, 2}, 18. / 14.},  // samples that count twice on rank 0
  };
  for (Means const& row : rows) {
    CHECK(norm_of<zero::AccumulateFull>(row) == row.norm);
    CHECK(norm_of<zero::AccumulateShard>(row) == row.norm);
  }
}

}  // namespace
}  // namespace options_test
