/// Numbers that make no sense are refused where they are given, in a message that names them. Also
/// compiled with -ffast-math, where every comparison may take them for sensible ones.
#include "contracts/loop.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/comm/nccl/options.hpp"
#include "zero/zero.hpp"

namespace nonsense_test {
namespace {

// From bits: compilers warn of the usual names where they may take every number for finite.
constexpr float nan = std::bit_cast<float>(std::uint32_t{0x7fc00000});
constexpr float inf = std::bit_cast<float>(std::uint32_t{0x7f800000});

using Fp16 = zero::Mixed<zero::fp16>;

/// One rank, one tensor.
template <class Policy = zero::Fp32>
struct Alone {
  explicit Alone(zero::Tensor const& tensor, Policy const& policy = {})
      : optimizer(handle, {tensor}, policy) {
    contracts::load(optimizer);
  }
  zero::InProcess handle = std::move(zero::InProcess::group(1)[0]);
  contracts::Optimizer<zero::stage::PosG, Policy> optimizer;
};

zero::Tensor const sound{.name = "w", .shape = {700}};

void construct(zero::Tensor const& tensor) { Alone<> const alone(tensor); }
template <class Policy>
void construct(Policy const& policy) {
  Alone<Policy> const alone(sound, policy);
}

/// The second is told so, and the first call of it is refused.
using Row = std::pair<std::function<void()>, std::string>;

/// Checks that each row is refused as a caller's mistake, with its message.
void check(std::vector<Row> const& rows) {
  for (auto const& [work, message] : rows) CHECK(refusal(work) == message);
}

TEST_CASE("a rule with numbers that make no sense is not constructed") {
  std::string const positive = ", but must be finite and at least 0";
  std::string const share = ", but must be at least 0 and less than 1";
  check({
      {[] { construct(zero::AdamW{.lr = nan}); }, "rule.lr is nan" + positive},
      {[] { construct(zero::AdamW{.lr = -inf}); }, "rule.lr is -inf" + positive},
      {[] { construct(zero::Sgd{.lr = inf}); }, "rule.lr is inf" + positive},
      {[] { construct(zero::Sgd{.lr = -1e-3f}); }, "rule.lr is -0.001" + positive},
      {[] { construct(zero::Sgd{.weight_decay = inf}); }, "rule.weight_decay is inf" + positive},
      {[] { construct(zero::AdamW{.weight_decay = nan}); }, "rule.weight_decay is nan" + positive},
      {[] { construct(zero::AdamW{.weight_decay = -1.f}); }, "rule.weight_decay is -1" + positive},
      {[] { construct(zero::AdamW{.beta1 = 1.}); }, "rule.beta1 is 1" + share},
      {[] { construct(zero::AdamW{.beta1 = -0.5}); }, "rule.beta1 is -0.5" + share},
      {[] { construct(zero::AdamW{.beta1 = nan}); }, "rule.beta1 is nan" + share},
      {[] { construct(zero::AdamW{.beta2 = nan}); }, "rule.beta2 is nan" + share},
      {[] { construct(zero::AdamW{.beta2 = 2.}); }, "rule.beta2 is 2" + share},
      {[] { construct(zero::AdamW{.beta2 = inf}); }, "rule.beta2 is inf" + share},
      {[] { construct(zero::Sgd{.momentum = 1.f}); }, "rule.momentum is 1" + share},
      {[] { construct(zero::AdamW{.eps = nan}); }, "rule.eps is nan" + positive},
      {[] { construct(zero::AdamW{.eps = -1.f}); }, "rule.eps is -1" + positive},
      {[] { construct(zero::AdamW{.eps = inf}); }, "rule.eps is inf" + positive},
  });
  // What is at the end of its range makes sense.
  construct(zero::AdamW{.lr = 0.f, .beta1 = 0., .beta2 = 0., .eps = 0.f});
  // The others have the same ranges.
  auto const check_ranges = [](auto const& rule) {
    for (zero::RuleField const& field : rule.fields()) {
      if (field.name == "maximize" || field.name == "nesterov" || field.name == "eps_hat") {
        continue;
      }
      INFO(rule.name << ": " << field.name);
      CHECK(field.low == 0.);
      bool const is_share = field.name.starts_with("beta") || field.name == "momentum";
      CHECK((field.below == 1.) == is_share);
    }
  };
  check_ranges(zero::Adam{});
  check_ranges(zero::Lion{});
  check_ranges(zero::PlainSgd{});
  check_ranges(zero::Adagrad{});
}

/// A rule that lists no ranges, and one that lists nothing.
struct Undescribed : zero::PlainSgd {
  float power = 1.f;
  friend constexpr bool operator==(Undescribed const&, Undescribed const&) = default;
};
struct Listing : Undescribed {
  [[nodiscard]] constexpr std::array<zero::RuleField, 2> fields() const noexcept {
    return {{{"lr", lr}, {"power", power}}};
  }
  friend constexpr bool operator==(Listing const&, Listing const&) = default;
};

TEST_CASE("of a trainer's own rule, what it lists is finite and its learning rate makes sense") {
  auto const with = [](float rate, float power) {
    Listing rule;
    rule.lr = rate;
    rule.power = power;
    return rule;
  };
  check({
      {[&] { construct(with(0.1f, inf)); }, "rule.power is inf, but must be finite"},
      {[&] { construct(with(0.1f, nan)); }, "rule.power is nan, but must be finite"},
      {[&] { construct(with(-1.f, 1.f)); }, "rule.lr is -1, but must be finite and at least 0"},
  });
  construct(with(0.1f, -1.f));
}

TEST_CASE("a tensor with scales that make no sense is not taken, and a tie does not hide it") {
  using Tensors = std::vector<zero::Tensor>;
  auto const place = [](Tensors const& tensors) { return zero::Placement(tensors); };
  std::string const positive = ", but must be finite and at least 0";
  zero::Tensor const tied{.name = "t", .shape = {3}, .weight_decay = nan, .tied_to = "e"};
  check({
      {[] { construct(zero::Tensor{.name = "w", .shape = {3}, .learning_rate = nan}); },
       "learning_rate of tensor 'w' is nan" + positive},
      {[] { construct(zero::Tensor{.name = "w", .shape = {3}, .learning_rate = -1.f}); },
       "learning_rate of tensor 'w' is -1" + positive},
      {[] { construct(zero::Tensor{.name = "w", .shape = {3}, .weight_decay = inf}); },
       "weight_decay of tensor 'w' is inf" + positive},
      {[&] {
         place({{.name = "e", .shape = {3}}, tied});
       },
       "weight_decay of tensor 't' is nan" + positive},
      {[&] {
         place({{.name = "e", .shape = {3}, .weight_decay = nan}, tied});
       },
       "weight_decay of tensor 'e' is nan" + positive},
  });
}

TEST_CASE("a loss scale that makes no sense is not constructed") {
  auto const check = [](zero::LossScaleOptions const& options, std::string const& message) {
    CHECK(refusal([&] { construct(Fp16{.loss_scale = options}); }) ==
          "the loss scale's " + message);
  };
  for (float const bad : {inf, nan, 0.5f}) {
    check({.initial = bad}, "initial value must be finite and at least its minimum");
    check({.growth = bad}, "growth must be finite and at least 1");
  }
  for (float const bad : {inf, nan, 0.f}) {
    check({.minimum = bad}, "minimum must be finite and at least 2^-126");
    check({.backoff = bad}, "backoff must be greater than 0 and less than 1");
  }
  check({.backoff = 1.f}, "backoff must be greater than 0 and less than 1");
  check({.growth_interval = 0}, "growth_interval must be at least 1");
  check({.patience = 0}, "patience must be at least 1");
}

TEST_CASE("a step that is told numbers that make no sense is refused, and the next one is not") {
  Alone<> alone(sound);
  auto& optimizer = alone.optimizer;
  std::string const rate = "the learning rate of a step is ";
  std::string const scale = "the scale of a step is ";
  std::string const norm = "max_norm is ";
  std::string const positive = ", but must be finite and at least 0";
  std::string const clip = ", but must be greater than 0; a learning rate of 0 freezes the model";
  std::string const weight = "a micro-step's weight must be in [0, 2^60]";
  check({
      {[&] { optimizer.step({.learning_rate = nan}); }, rate + "nan" + positive},
      {[&] { optimizer.step({.learning_rate = inf}); }, rate + "inf" + positive},
      {[&] { optimizer.step({.learning_rate = -1.f}); }, rate + "-1" + positive},
      {[&] { optimizer.step({.max_norm = -1.}); }, norm + "-1" + clip},
      {[&] { optimizer.step({.max_norm = 0.}); }, norm + "0" + clip},
      {[&] { optimizer.step({.max_norm = nan}); }, norm + "nan" + clip},
      {[&] { optimizer.step({.max_norm = -inf}); }, norm + "-inf" + clip},
      {[&] { optimizer.enqueue_step({.max_norm = nan}); }, norm + "nan" + clip},
      {[&] { optimizer.step(nan, 1.); }, rate + "nan" + positive},
      {[&] { optimizer.step(inf, 1.); }, rate + "inf" + positive},
      {[&] { optimizer.step(1.f, nan); }, scale + "nan" + positive},
      {[&] { optimizer.step(1.f, inf); }, scale + "inf" + positive},
      {[&] { optimizer.step(1.f, -1.); }, scale + "-1" + positive},
      {[&] { optimizer.micro_step({.weight = nan}); }, weight},
      {[&] { optimizer.micro_step({.weight = inf}); }, weight},
      {[&] { optimizer.micro_step({.weight = -1.}); }, weight},
  });
  CHECK(!optimizer.try_step(nan, 1.));
  CHECK(give_zeros(optimizer).step({.max_norm = double{inf}}).step == 1);
  CHECK(give_zeros(optimizer).step(0.f, 0.).step == 2);
}

TEST_CASE("a learning rate that makes no sense where it lies fails the step on all ranks") {
  for (float const bad : {nan, inf, -1.f}) {
    for (bool const norm : {false, true}) {
      for (bool const alone : {false, true}) {
        CAPTURE(norm);
        CAPTURE(alone);
        std::vector<std::string> messages(2);
        std::vector<long> steps(2);
        zero::run_ranks(2, [&](zero::InProcess& comm) {
          auto const rank = static_cast<std::size_t>(comm.rank());
          contracts::Optimizer<zero::stage::PosG, zero::Fp32> optimizer{comm, {sound}};
          contracts::load(optimizer);
          float rate = alone && rank == 0 ? 0.5f : bad;
          for (int i = 0; i < 2; ++i) {
            give_zeros(optimizer);
            if (norm) static_cast<void>(optimizer.grad_norm());
            auto const result = optimizer.try_step({.learning_rate_address = &rate});
            if (!result) messages[rank] += result.error()->message().substr(0, 36) + ";";
            rate = 0.5f;
          }
          steps[rank] = optimizer.steps();
        });
        std::string const here = "what lies at learning_rate_address i;";
        std::string const differ = "ranks passed different options to st;";
        for (std::size_t const rank : {0u, 1u}) {
          CHECK(messages[rank] == (alone ? differ : here));
          CHECK(steps[rank] == 1);
        }
      }
    }
  }
}

TEST_CASE("a gradient that is not finite is noticed") {
  for (float const bad : {nan, inf, -inf}) {
    Alone<> alone(sound);
    alone.optimizer.gradients(0)[0][3] = bad;
    alone.optimizer.reduce(alone.optimizer.gradients(0));
    auto const result = alone.optimizer.try_step();
    REQUIRE(result.error() != nullptr);
    CHECK(result.error()->message() ==
          "gradients are not finite: first element 3 of 'w', which rank 0 owns");
  }
}

TEST_CASE("a deadline that makes no sense is refused") {
  for (double const bad : {double{nan}, double{inf}, -1., 0., 1e9}) {
    auto const group = [=] {
      return zero::InProcess::group(2, zero::InProcess::Options{.deadline_s = bad});
    };
    auto const nccl = [=](double zero::nccl::Options::*field) {
      return [=] {
        zero::nccl::Options options;
        options.*field = bad;
        zero::nccl::check(options, 2);
      };
    };
    check({{group, "the deadline of an in-process group is not in (0, 1e9) s"},
           {nccl(&zero::nccl::Options::deadline_s), "NCCL options: deadline_s is not in (0, 1e9)"},
           {nccl(&zero::nccl::Options::grace_s), "NCCL options: grace_s is not in (0, 1e9)"}});
  }
}

}  // namespace
}  // namespace nonsense_test
