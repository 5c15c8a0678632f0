/// Steps that must change nothing, and the trainer's ways to decide about a step.
#include "contracts/loop.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace skip_test {
namespace {

using Fp16 = zero::Mixed<zero::fp16>;
using Bits = std::vector<std::byte>;

constexpr int ranks = 3;
constexpr zero::Bucket small_bucket{6144};

using contracts::Optimizer;

/// What ranks found wrong.
class Complaints {
 public:
  void expect(zero::InProcess const& comm, bool holds, std::string const& what) {
    if (holds) return;
    std::lock_guard const lock(mutex_);
    text_ += "rank " + std::to_string(comm.rank()) + ": " + what + "; ";
  }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

/// Runs `body(comm, expect)` on every rank and reports what it did not find.
template <class Body>
void on_ranks(Body const& body) {
  Complaints complaints;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    body(comm, [&](bool holds, std::string const& what) { complaints.expect(comm, holds, what); });
  });
  CHECK(complaints.text() == "");
}

/// A loss scale that does not overflow on the toy model by itself.
zero::Mixed<zero::fp16> low_scale() { return {.loss_scale = {.initial = 64.f}}; }

template <class O>
void check_overflow() {
  INFO("stage " << O::Stage::name);
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    O optimizer{comm, toy::model(), low_scale(), small_bucket};
    contracts::load(optimizer);
    // Only one element of one rank's gradients is not finite, and only in step 2.
    toy::Run const run{.fault = {.step = 2, .micro_batch = 1}};
    for (long step = 0; step < 5; ++step) {
      Bits const before = contracts::snapshot(optimizer);
      float const scale = optimizer.loss_scale();
      long const steps = optimizer.steps();
      contracts::pass(optimizer, run, step, comm.rank());
      auto const report = optimizer.step({.max_norm = 1.});
      bool const same = contracts::snapshot(optimizer) == before;
      bool const bad = step == 2;
      expect(report.skipped == bad, "skipped");
      expect(same == bad, bad ? "something changed" : "nothing changed");
      expect(optimizer.steps() == steps + (bad ? 0 : 1), "step count");
      expect(report.step == optimizer.steps(), "reported step count");
      expect(report.loss_scale == scale, "reported scale");
      expect(optimizer.loss_scale() == (bad ? scale / 2 : scale), "scale");
      expect(std::isinf(report.grad_norm) == bad, "norm");
    }
  });
}

TEST_CASE("an overflow on one rank changes no bit on any, and halves the scale on all") {
  check_overflow<Optimizer<zero::stage::Replicated, Fp16>>();
  check_overflow<Optimizer<zero::stage::Pos, Fp16>>();
  check_overflow<Optimizer<zero::stage::PosG, Fp16>>();
  check_overflow<Optimizer<zero::stage::PosGP, Fp16>>();
}

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

TEST_CASE("the loss scale stops at its minimum") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Fp16 const precision{.loss_scale = {.initial = 4.f, .minimum = 2.f}};
    Optimizer<zero::stage::PosG, Fp16> optimizer{comm, {{.name = "w", .shape = {1}}}, precision};
    optimizer.adopt_parameters();
    for (float const scale : {2.f, 2.f, 2.f}) {
      optimizer.gradients(0)[0][0] = zero::fp16(std::numeric_limits<float>::infinity());
      expect(optimizer.step().skipped, "skipped");
      expect(optimizer.loss_scale() == scale, "scale");
    }
  });
}

template <class O>
void check_patience() {
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
        std::string message;
        try {
          expect(optimizer.step().skipped, "skipped");
        } catch (zero::Error const& error) {
          expect(error.kind() == zero::ErrorKind::data, "kind");
          message = error.message();
        }
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

TEST_CASE(
    "as many overflows in a row at the minimum as there is patience are an error everywhere") {
  check_patience<Optimizer<zero::stage::Replicated, Fp16>>();
  check_patience<Optimizer<zero::stage::Pos, Fp16>>();
  check_patience<Optimizer<zero::stage::PosG, Fp16>>();
  check_patience<Optimizer<zero::stage::PosGP, Fp16>>();
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

/// Gradients that are not finite in three tensors of two units: each rank names the first that its
/// share of their sum has.
template <class O>
void check_named() {
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
    for (bool const bad : {true, false}) {
      for (int const unit : {1, 0}) {
        auto gradients = optimizer.gradients(unit);
        if (bad && unit == 0 && comm.rank() == 2) {
          gradients["a"][700] = typename O::Wire(INFINITY);
          gradients["b"][2] = typename O::Wire(NAN);
        }
        if (bad && unit == 1 && comm.rank() == 0) gradients["d"][3] = typename O::Wire(NAN);
        optimizer.reduce(std::move(gradients));
      }
      auto const result = optimizer.try_step();
      std::string const message = result ? "" : result.error()->message();
      expect(message == (bad ? "gradients are not finite: first 'a' in the share of rank 1, 'b' in "
                               "the share of rank 2, 'd' in the share of rank 0"
                             : ""),
             message);
    }
    expect(optimizer.steps() == 1, "training goes on");
  });
}

TEST_CASE("a gradient that is not finite is named, as each rank has it in its share") {
  check_named<Optimizer<zero::stage::Replicated, zero::Fp32>>();
  check_named<Optimizer<zero::stage::Pos, zero::Fp32>>();
  check_named<Optimizer<zero::stage::PosG, zero::Mixed<zero::bf16>>>();
  check_named<Optimizer<zero::stage::PosG, zero::Fp32, zero::AccumulateShard>>();
  check_named<Optimizer<zero::stage::PosGP, zero::Fp32, zero::AccumulateFull>>();
}

TEST_CASE("without a loss scale NaN is an error on every rank, and changes no bit") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Plain optimizer{comm, toy::model(), small_bucket};
    Plain spared{comm, toy::model(), small_bucket};
    contracts::load(optimizer);
    contracts::load(spared);
    toy::Run const run{.fault = {.step = 1, .micro_batch = 2}};
    for (long step = 0; step < 4; ++step) {
      Bits const before = contracts::snapshot(optimizer);
      contracts::pass(optimizer, run, step, comm.rank());
      if (step == 1) {
        std::string message;
        try {
          optimizer.step();
        } catch (zero::Error const& error) {
          expect(error.kind() == zero::ErrorKind::data, "kind");
          message = error.message();
        }
        expect(message == "gradients are not finite: first 'h0.w' in the share of rank 1",
               "message: " + message);
        expect(contracts::snapshot(optimizer) == before, "something changed");
        expect(optimizer.steps() == 1, "step count");
        continue;
      }
      expect(!optimizer.step().skipped, "skipped");
      contracts::pass(spared, run, step, comm.rank());
      spared.step();
    }
    expect(contracts::snapshot(optimizer) == contracts::snapshot(spared), "the error left a trace");
  });
}

TEST_CASE("without a loss scale NaN is skipped where the trainer says so") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Plain optimizer{comm, toy::model(), small_bucket};
    contracts::load(optimizer);
    Bits const before = contracts::snapshot(optimizer);
    contracts::pass(optimizer, {.fault = {.step = 0, .micro_batch = 1}}, 0, comm.rank());
    auto const report = optimizer.step({.non_finite = zero::NonFinite::skip});
    expect(report.skipped, "skipped");
    expect(report.loss_scale == 1.f && optimizer.loss_scale() == 1.f, "scale");
    expect(contracts::snapshot(optimizer) == before, "something changed");
  });
}

TEST_CASE("reduce_all, grad_norm, step(lr, scale) give the bits of one call, clipped or not") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    for (double const max_norm : {2.5, 1e9}) {
      Plain one{comm, toy::model(), small_bucket};
      Plain three{comm, toy::model(), small_bucket};
      contracts::load(one);
      contracts::load(three);
      for (long step = 0; step < 4; ++step) {
        contracts::pass(one, {}, step, comm.rank());
        auto const report = one.step({.learning_rate = 0.01f, .max_norm = max_norm});
        expect((report.clip_coefficient < 1.) == (max_norm < 1e9), "clipping");

        contracts::pass(three, {}, step, comm.rank());
        three.reduce_all();
        double const norm = three.grad_norm();
        expect(norm == report.grad_norm, "norm");
        expect(norm == three.grad_norm(), "the same norm when asked again");
        three.step(0.01f, norm > max_norm ? max_norm / norm : 1.);
        expect(contracts::snapshot(one) == contracts::snapshot(three), "different bits");
      }
    }
  });
}

TEST_CASE("discard_gradients leaves no trace, whenever it is called") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Plain optimizer{comm, toy::model(), small_bucket};
    Plain spared{comm, toy::model(), small_bucket};
    contracts::load(optimizer);
    contracts::load(spared);
    for (long step = 0; step < 4; ++step) {
      Bits const before = contracts::snapshot(optimizer);
      if (step == 1) {
        // Half of the units only.
        for (int unit = 6; unit >= 3; --unit) {
          optimizer.reduce(contracts::unit_backward(optimizer, unit, {}, 99, comm.rank()));
        }
      } else {
        contracts::pass(optimizer, {}, 99, comm.rank());
      }
      if (step >= 2) optimizer.reduce_all();
      if (step == 3) static_cast<void>(optimizer.grad_norm());
      optimizer.discard_gradients();
      expect(contracts::snapshot(optimizer) == before, "something changed");
      for (Plain* const each : {&optimizer, &spared}) {
        contracts::pass(*each, {}, step, comm.rank());
        expect(each->step().step == step + 1, "step count");
      }
    }
    expect(contracts::snapshot(optimizer) == contracts::snapshot(spared), "left a trace");
  });
}

TEST_CASE("a run-time learning rate is the rule's own") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    constexpr float rates[] = {0.1f, 0.02f, 0.f, 3e-4f};
    Plain now{comm, toy::model(), zero::AdamW{.lr = 77.f}};
    Plain own{comm, toy::model(), zero::AdamW{.lr = 0.02f}};
    contracts::load(now);
    contracts::load(own);
    for (float const rate : {0.02f, 0.02f}) {
      contracts::pass(now, {}, 1, comm.rank());
      now.step({.learning_rate = rate});
      contracts::pass(own, {}, 1, comm.rank());
      own.step();
      expect(contracts::snapshot(now) == contracts::snapshot(own), "different bits");
    }
    Bits last = contracts::snapshot(now);
    for (float const rate : rates) {
      contracts::pass(now, {}, 2, comm.rank());
      now.step({.learning_rate = rate});
      Bits const next = contracts::snapshot(now);
      expect(next != last, "states must move even at rate 0");
      last = next;
    }
  });
}

TEST_CASE("a tensor whose learning-rate scale is 0 keeps its bits; the others move") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    auto tensors = toy::model();
    std::vector<std::size_t> const still{1, 4, 7};
    for (std::size_t const t : still) tensors[t].learning_rate = 0.f;
    Plain optimizer{comm, tensors, zero::AdamW{.weight_decay = 0.1f}, small_bucket};
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      contracts::pass(optimizer, {}, step, comm.rank());
      optimizer.step();
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      bool const stays = tensors[t].learning_rate == 0.f || tensors[t].frozen;
      std::size_t const storage = optimizer.partition().placement().places()[t].storage;
      auto const values = optimizer.parameter(t);
      std::size_t moved = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i] != toy::initial_value(storage, i)) ++moved;
      }
      expect(moved == (stays ? 0 : values.size()), "tensor " + tensors[t].name);
    }
  });
}

using PlainSgd = Optimizer<zero::stage::PosG, zero::Fp32, zero::PlainSgd, zero::AccumulateFull>;

TEST_CASE("a tensor whose weight-decay scale is 0 does not decay") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    std::vector<zero::Tensor> const tensors = {
        {.name = "still", .shape = {700}, .weight_decay = 0.f},
        {.name = "half", .shape = {700}, .weight_decay = 0.5f},
        {.name = "full", .shape = {700}}};
    PlainSgd optimizer{comm, tensors, zero::PlainSgd{.lr = 0.5f, .weight_decay = 0.5f}};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
      for (float& value : out) value = 8.f;
    });
    optimizer.step();
    constexpr float expected[] = {8.f, 7.f, 6.f};
    for (std::size_t t = 0; t < 3; ++t) {
      for (float const value : optimizer.parameter(t)) expect(value == expected[t], "decay");
    }
  });
}

/// Parameters of one tensor after plain steps of rate 1 from 0: minus the mean gradient, each step.
template <class Weight, class Gradient>
void check_mean(Weight const& weight_of, Gradient const& gradient_of, float mean, double weight) {
  on_ranks([&](zero::InProcess& comm, auto const& expect) {
    PlainSgd optimizer{comm, {{.name = "w", .shape = {600}}}, zero::PlainSgd{.lr = 1.f}};
    optimizer.adopt_parameters();
    // The first pass is thrown away, and must not count in the steps that follow.
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        optimizer.micro_step({.weight = weight_of(comm.rank(), micro)});
        auto gradients = optimizer.gradients(0);
        for (float& g : gradients[0]) g += gradient_of(comm.rank(), micro);
        optimizer.reduce(std::move(gradients));
      }
      if (step == 0) {
        optimizer.discard_gradients();
        continue;
      }
      auto const report = optimizer.step();
      expect(report.weight == weight, "weight " + std::to_string(report.weight));
      expect(std::abs(report.grad_norm / (std::abs(mean) * std::sqrt(600.)) - 1.) < 1e-15, "norm");
      auto const moved = -mean * static_cast<float>(step);
      for (float const value : optimizer.parameter(0)) {
        expect(value == moved, std::to_string(value));
      }
    }
  });
}

TEST_CASE("the update uses the sum of all gradients divided by the sum of all weights") {
  // Sums over tokens: ranks saw 1 + 3, 2 + 4 and 2 + 4 tokens, each of gradient 1 + rank.
  auto const tokens = [](int rank, int micro) { return (rank == 0 ? 1. : 2.) + 2. * micro; };
  check_mean(
      tokens,
      [&](int rank, int micro) {
        return static_cast<float>(tokens(rank, micro)) * static_cast<float>(1 + rank);
      },
      (4.f * 1 + 6.f * 2 + 6.f * 3) / 16.f,
      16.);
  // Means of equal micro-batches: 6 of them.
  check_mean([](int, int) { return 1.; }, [](int, int) { return 0.75f; }, 0.75f, 6.);
}

TEST_CASE("a rank without data has weight 0") {
  check_mean([](int rank, int) { return rank == 1 ? 0. : 2.; },
             [](int rank, int) { return rank == 1 ? 0.f : 3.f; },
             1.5f,
             8.);
}

TEST_CASE("if nobody has data the step is an error on every rank and changes no bit") {
  on_ranks([](zero::InProcess& comm, auto const& expect) {
    Plain optimizer{comm, toy::model(), small_bucket};
    contracts::load(optimizer);
    Bits const before = contracts::snapshot(optimizer);
    optimizer.micro_step({.weight = 0.});
    contracts::pass(optimizer, {}, 0, comm.rank());
    std::string message;
    try {
      optimizer.step({.max_norm = 1.});
    } catch (zero::Error const& error) {
      expect(error.kind() == zero::ErrorKind::data, "kind");
      message = error.message();
    }
    expect(message == "all micro-batches of this step have weight 0", "message: " + message);
    expect(contracts::snapshot(optimizer) == before, "something changed");
    contracts::pass(optimizer, {}, 0, comm.rank());
    expect(optimizer.step().step == 1, "training goes on");
  });
}

}  // namespace
}  // namespace skip_test
