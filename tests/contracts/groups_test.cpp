/// Groups of tensors with rules of their own, which trainers change between steps, and steps that
/// they count: names, refusals, devices. What training makes of them is played by `differential`.
#include "contracts/ranks.hpp"
#include "support/give_zeros.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace groups_test {
namespace {

using zero::stage::PosG;
using OnHost = contracts::OnHost<PosG, zero::Fp32>;
using Alone = zero::ShardedOptimizer<zero::Self>;
using OnDevice = contracts::OnDevice<PosG, zero::Fp32>;

std::vector<zero::Tensor> model() {
  return {{.name = "embedding", .shape = {37, 11}, .unit = 0, .group = "outer"},
          {.name = "a.w", .shape = {704}, .unit = 1},
          {.name = "a.n", .shape = {64}, .unit = 1, .group = "near"},
          {.name = "a.m", .shape = {64}, .unit = 1, .group = "near"},
          {.name = "a.b", .shape = {3}, .unit = 1, .weight_decay = 0.f, .group = "bias"},
          {.name = "still", .shape = {5}, .unit = 1, .frozen = true, .group = "bias"},
          {.name = "b.w", .shape = {1300}, .unit = 2, .group = "outer"},
          {.name = "b.b", .shape = {1}, .unit = 2, .learning_rate = 0.5f, .group = "bias"},
          {.name = "none", .shape = {0}, .unit = 2, .group = "bias"},
          {.name = "stack", .shape = {3, 129}, .unit = 2, .stacked = true},
          {.name = "c.w", .shape = {64}, .unit = 3},
          {.name = "head", .shape = {37, 11}, .unit = 4, .tied_to = "embedding", .group = "outer"},
          {.name = "d.w", .shape = {2049}, .unit = 4, .group = "late"}};
}

/// What a trainer says before step `step`, or in its middle.
void tell(auto& optimizer, int step) {
  auto const f = static_cast<float>(step);
  switch (step % 4) {
    case 0: optimizer.set_lr("near", 0.125f / (f + 1.f)); return optimizer.set_lr("stack", 0.01f);
    case 1: return optimizer.set_rule("outer", {.lr = 0.02f, .beta1 = 0.8, .weight_decay = 0.1f});
    case 2: return optimizer.set_rule({.lr = 0.05f / f, .beta2 = 0.9, .weight_decay = 0.2f});
    default: optimizer.set_rule("b.w", {.eps = 1e-3f, .maximize = true});
  }
  optimizer.set_lr(0.004f);
}

TEST_CASE_TEMPLATE("rules that are told in the middle of micro-batches are those of their step",
                   Accumulation,
                   zero::AccumulateFull,
                   zero::AccumulateShard) {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    using O = contracts::Optimizer<PosG, zero::Fp32, Accumulation>;
    O before{comm, model(), zero::Bucket{4}};
    O amid{comm, model(), zero::Bucket{4}};
    contracts::load(before);
    contracts::load(amid);
    auto const train = [&](O& optimizer, int step, bool middle) {
      if (!middle) tell(optimizer, step);
      for (int micro = 0; micro < 2; ++micro) {
        optimizer.micro_step();
        for (int const unit : optimizer.units_backward()) {
          if (middle && unit == 2 && micro == step % 2) tell(optimizer, step);
          optimizer.reduce(contracts::unit_backward(optimizer, unit, {}, step, comm.rank()));
        }
      }
      optimizer.step();
    };
    for (int step = 0; step < 8; ++step) {
      train(before, step, false);
      train(amid, step, true);
      CHECK(contracts::snapshot(amid) == contracts::snapshot(before));
    }
  });
}

TEST_CASE("a rule of a stacked tensor is that of all its layers, and of nothing else") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    OnHost trainer(comm, model());
    auto& optimizer = trainer.optimizer;
    optimizer.set_lr("stack", 0.f);
    contracts::constant_pass(trainer);
    optimizer.step();
    auto const all = optimizer.full_parameters();
    auto const& tensors = optimizer.tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      bool const still = tensors[t].frozen || tensors[t].name == "stack";
      std::size_t moved = 0;
      std::size_t const storage = tensors[t].tied_to.empty() ? t : 0;
      for (std::size_t i = 0; i < all[t].size(); ++i) {
        moved += all[t][i] == toy::initial_value(storage, i) ? 0u : 1u;
      }
      CHECK_MESSAGE(moved == (still ? 0 : all[t].size()), tensors[t].name);
    }
  });
}

/// Trains tensors of as many scales, from `first` on, and returns what becomes of them.
std::vector<std::vector<float>> trained(std::size_t first, std::size_t count) {
  std::vector<zero::Tensor> tensors;
  for (std::size_t t = first; t < first + count; ++t) {
    auto const f = static_cast<float>(t);
    tensors.push_back({.name = "t" + std::to_string(t),
                       .shape = {3 + t},
                       .unit = 0,
                       .weight_decay = f / 4.f,
                       .learning_rate = 1.f + f / 32.f});
  }
  zero::Self self;
  Alone optimizer{self, tensors, zero::AdamW{.lr = 0.1f, .weight_decay = 0.3f}};
  optimizer.load_parameters([](zero::Tensor const& t, std::size_t begin, std::span<float> values) {
    for (float& value : values) value = 0.25f * static_cast<float>(t.shape[0] + begin++) - 1.f;
  });
  for (int step = 1; step <= 5; ++step) {
    if (step == 3 && first <= 19 && 19 < first + count) optimizer.set_lr("t19", 0.7f);
    if (step == 4) optimizer.set_rule({.lr = 0.2f, .beta2 = 0.9});
    auto gradients = optimizer.gradients(0);
    for (std::size_t t = 0; t < count; ++t) {
      auto const values = gradients[t];
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(step) - 0.3f * static_cast<float>((first + t + i) % 11);
      }
    }
    optimizer.reduce(std::move(gradients));
    optimizer.step();
  }
  auto const all = optimizer.full_parameters();
  std::vector<std::vector<float>> result;
  for (std::size_t t = 0; t < count; ++t) result.emplace_back(all[t].begin(), all[t].end());
  return result;
}

TEST_CASE("any number of scales and rules are each tensor's own") {
  constexpr std::size_t many = 110;  // more than a step computes the scalars of at once
  static_assert(many > 2 * zero::detail::StepControl::rates<float>);
  auto const together = trained(0, many);
  for (std::size_t t = 0; t < many; ++t) {
    CAPTURE(t);
    CHECK(together[t] == trained(t, 1)[0]);
  }
}

std::string const differ = "ranks passed different ";

/// What every rank hears where rank 1 is told something else, by a step that waits, by one that
/// does not, and by the one after a norm was asked for. Then they go on together.
TEST_CASE_TEMPLATE("rules that differ between ranks are refused on all of them",
                   Trainer,
                   OnHost,
                   OnDevice) {
  using O = decltype(Trainer::optimizer);
  struct {
    void (*tell)(O&, bool odd);
    char const* values;
  } const rows[]{
      {[](O& o, bool odd) { o.set_lr("bias", odd ? 0.5f : 0.25f); },
       "values to set_lr(): tensor 'a.b' of group 'bias', rule.lr: 0.25 on rank 0 2; 0.5 on rank "
       "1"},
      {[](O& o, bool odd) { o.set_rule("stack", {.lr = 0.25f, .beta2 = odd ? 0.5 : 0.999}); },
       "values to set_rule(): tensor 'stack[0]', rule.beta2: 0.999 on rank 0 2; 0.5 on rank 1"},
      {[](O& o, bool odd) { o.set_rule({.weight_decay = odd ? 0.5f : 0.f}); },
       "values to set_rule(): rule.weight_decay: 0 on rank 0 2; 0.5 on rank 1"},
      {[](O& o, bool odd) { o.set_rule({.lr = odd ? 0.2f : 0.1f}); },
       "values to set_rule(): learning_rate: 0.1 on rank 0 2; 0.2 on rank 1"},
      {[](O& o, bool odd) {
         if (odd) o.set_rule("bias", {.lr = 0.2f});
         if (!odd) o.set_lr("bias", 0.1f);
       },
       "values to set_lr() or set_rule(): tensor 'a.b' of group 'bias', rule.lr: 0.1 on rank 0 2; "
       "0.2 on rank 1"},
  };
  for (auto const& row : rows) {
    zero::run_ranks(3, [&](zero::InProcess& comm) {
      Trainer trainer(comm, model());
      auto& optimizer = trainer.optimizer;
      row.tell(optimizer, comm.rank() == 1);
      auto const step = [&] { return optimizer.step(); };
      CHECK(refusal(step) == differ + row.values);
      optimizer.enqueue_step();
      CHECK(refusal([&] { return optimizer.report(); }).ends_with(", or rules of tensors"));
      CHECK(optimizer.steps() == 0);
      static_cast<void>(optimizer.grad_norm());
      CHECK(refusal(step) == differ + row.values);
      CHECK(optimizer.steps() == 0);
      row.tell(optimizer, false);
      static_cast<void>(give_zeros(optimizer).grad_norm());
      CHECK(refusal(step) == "");
      CHECK(optimizer.steps() == 1);
    });
  }
}

TEST_CASE("a group of which only one rank has said something, and rates that differ for all") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    OnHost trainer(comm, model());
    auto& optimizer = trainer.optimizer;
    // Its numbers are those of the others, until these change.
    if (comm.rank() == 2) optimizer.set_lr("late", optimizer.rule().lr);
    CHECK(refusal([&] { optimizer.step(); }) ==
          differ +
              "values to set_lr(): tensor 'd.w' of group 'late', a rule of its own: 'no' on rank 0 "
              "1; 'yes' on "
              "rank 2");
    optimizer.set_lr("late", 0.5f);
    optimizer.set_lr(comm.rank() == 0 ? 0.25f : 0.125f);
    CHECK(refusal([&] { optimizer.step(); }) ==
          differ + "values to set_lr(): learning_rate: 0.25 on rank 0; 0.125 on rank 1 2");
    // One rank's options are of the step.
    zero::StepOptions const own{.learning_rate = 0.25f};
    CHECK(refusal([&] { optimizer.step(comm.rank() == 1 ? own : zero::StepOptions{}); }) ==
          differ + "options to step(): learning_rate: 0.25 on rank 0 1; 0.125 on rank 2");
    // No rank uses what it was told.
    CHECK(give_zeros(optimizer).step({.learning_rate = 0.5f}).step == 1);
    optimizer.set_lr(0.125f);
    CHECK(give_zeros(optimizer).step().step == 2);
    CHECK(refusal([&] { optimizer.step({.count = comm.rank() == 0 ? 7 : 8}); }) ==
          differ + "options to step(): count: 7 on rank 0; 8 on rank 1 2");
    CHECK(give_zeros(optimizer).step({.count = 7}).step == 7);
  });
}

TEST_CASE("rules on a device have the host's bits") {
  for (bool const counted : {false, true}) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      OnHost host(comm, model());
      OnDevice device(comm, model());
      auto const train = [&](auto& trainer, int step) {
        auto& optimizer = trainer.optimizer;
        tell(optimizer, step);
        // Tied and stacked tensors rest as well.
        for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
          bool const rests = (t == 11 ? 0 : t) % 3 == static_cast<std::size_t>(step) % 4;
          if (rests) optimizer.without_gradient(optimizer.tensors()[t]);
        }
        zero::StepOptions options{.unsaid = zero::Unsaid::zeros};
        if (step == 3) options.learning_rate = 0.005f;
        if (counted) options.count = step < 4 ? 5 + 3 * step : step - 3;
        optimizer.enqueue_step(options);
      };
      for (int step = 0; step < 8; ++step) {
        train(host, step);
        train(device, step);
      }
      static_cast<void>(device.optimizer.report());
      CHECK(contracts::owned_bits(host.optimizer) == contracts::owned_bits(device.optimizer));
      CHECK(host.optimizer.counters().steps == device.optimizer.counters().steps);
      CHECK(contracts::owned_bits(host.optimizer).size() > 2049 * sizeof(float));
    });
  }
}

TEST_CASE("names, and what rule a tensor has") {
  zero::Self comm;
  Alone opt{comm, model(), zero::AdamW{.lr = 0.5}};
  auto const rates = [&] {
    std::vector<double> all;
    for (std::size_t t = 0; t < opt.tensors().size(); ++t) all.push_back(opt.rule(t).lr);
    return all;
  };
  using Rates = std::vector<double>;
  // embedding, a.w, a.n, a.m, a.b, still, b.w, b.b, none, stack, c.w, head, d.w
  opt.set_lr("bias", 1.);
  CHECK(rates() == Rates{.5, .5, .5, .5, 1., 1., .5, 1., 1., .5, .5, .5, .5});
  opt.set_lr("b.b", 2.);
  opt.set_lr("stack", 3.);
  opt.set_lr(.25);
  CHECK(rates() == Rates{.25, .25, .25, .25, 1., 1., .25, 2., 1., 3., .25, .25, .25});
  opt.set_lr("bias", 4.);
  CHECK(rates() == Rates{.25, .25, .25, .25, 4., 4., .25, 2., 4., 3., .25, .25, .25});
  // Tied tensors have one rule, whichever name is used, and how often.
  for (double const lr : {5., 6.}) {
    opt.set_lr("head", lr);
    CHECK(opt.rule(0).lr == lr);
    opt.set_lr("embedding", lr + 10.);
    CHECK(opt.rule(11).lr == lr + 10.);
  }
  opt.set_lr("outer", 7.);
  CHECK(rates() == Rates{16., .25, .25, .25, 4., 4., 7., 2., 4., 3., .25, 16., .25});
  CHECK(opt.rule().lr == .25);

  std::string const groups = "; the groups are 'outer', 'near', 'bias', 'late'";
  CHECK(refusal([&] { opt.set_lr("biases", 1.); }) ==
        "there is no group or tensor 'biases'" + groups);
  CHECK(refusal([&] { opt.set_rule("stack[0]", {}); }) ==
        "there is no group or tensor 'stack[0]'" + groups);
  CHECK(refusal([&] { opt.set_lr("bias", NAN); }) ==
        "rule.lr of 'bias' is nan, but must be finite and at least 0");
  CHECK(refusal([&] { opt.set_lr(-1.); }) == "rule.lr is -1, but must be finite and at least 0");
  CHECK(refusal([&] { opt.set_rule("late", {.beta1 = 1.}); }) ==
        "rule.beta1 of 'late' is 1, but must be at least 0 and less than 1");
  CHECK(refusal([&] { opt.set_rule({.lr = INFINITY}); }) ==
        "rule.lr is inf, but must be finite and at least 0");
  for (long const count : {0l, zero::most_steps + 1}) {
    CHECK(refusal([&] { opt.step({.count = count}); }) ==
          "the count of a step is " + std::to_string(count) + ", but updates count from 1 to " +
              std::to_string(zero::most_steps));
  }
  // Nothing of that has changed anything.
  CHECK(rates() == Rates{16., .25, .25, .25, 4., 4., 7., 2., 4., 3., .25, 16., .25});

  Alone part{comm,
             {{.name = "a", .shape = {3}, .frozen = true, .group = "backbone"},
              {.name = "b", .shape = {3}, .frozen = true, .group = "backbone"},
              {.name = "c", .shape = {3}, .frozen = true, .group = "head"},
              {.name = "d", .shape = {3}, .group = "head"}}};
  CHECK(refusal([&] { part.set_lr("backbone", 1.f); }) ==
        "all tensors of the group 'backbone' are frozen: no rule and no learning rate is ever used "
        "for what is never updated");
  CHECK(refusal([&] { part.set_rule("a", {}); }).starts_with("the tensor 'a' is frozen: no rule"));
  part.set_lr("head", 1.f);
  CHECK(part.rule(3).lr == 1.f);

  Alone plain{comm, {{.name = "w", .shape = {3}}}};
  CHECK(refusal([&] { plain.set_lr("v", 1.f); }) ==
        "there is no group or tensor 'v'; no tensor has a Tensor::group");
  Alone both{comm, {{.name = "w", .shape = {3}}, {.name = "v", .shape = {3}, .group = "w"}}};
  CHECK(refusal([&] { both.set_lr("w", 1.f); }) ==
        "'w' is a group, and a tensor that is not of it: give one of them another name");
  CHECK(refusal([&] {
          Alone tied{comm,
                     {{.name = "w", .shape = {3}},
                      {.name = "v", .shape = {3}, .tied_to = "w", .group = "g"}}};
        }) == "tensor 'v' is tied to 'w', which is of another group");
}

TEST_CASE("ranks agree on groups when they are made") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    auto const make = [&] {
      OnHost{comm, {{.name = "w", .shape = {3}, .group = comm.rank() == 0 ? "a" : "b"}}};
    };
    CHECK(refusal(make, zero::ErrorKind::communication) ==
          "ranks disagree on tensor 0, 'w' [3], group: 'a' on rank 0; 'b' on rank 1");
  });
}

/// One without `fields()`: its learning rate is what is known of it.
struct Bare {
  static constexpr std::string_view name = "bare";
  static constexpr std::array<zero::StateArray, 0> states{};
  double lr = 1.;
  [[nodiscard]] zero::StepScalars scalars(long, float now, float scale, float) const noexcept {
    return {.learning_rate = now * scale};
  }
  template <class V>
  void update(zero::StepScalars const& s, V& p, V const& g, V*) const noexcept {
    p = p - s.learning_rate * g;
  }
  friend constexpr bool operator==(Bare const&, Bare const&) = default;
};

TEST_CASE("a rule that lists no fields has groups, too") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::ShardedOptimizer opt{
        comm, {{.name = "w", .shape = {3}}, {.name = "v", .shape = {3}, .group = "g"}}, Bare{}};
    opt.adopt_parameters();
    opt.set_lr("g", comm.rank() == 0 ? 0.5f : 0.25f);
    CHECK(
        refusal([&] { opt.step(); }) ==
        differ +
            "values to set_lr(): tensor 'v' of group 'g', rule.lr: 0.5 on rank 0; 0.25 on rank 1");
    opt.set_rule("g", {.lr = 0.25});
    auto gradients = opt.gradients(0);
    for (std::size_t t = 0; t < 2; ++t) {
      for (float& g : gradients[t]) g = 1.f;
    }
    opt.reduce(std::move(gradients));
    opt.step();
    auto const all = opt.full_parameters();
    CHECK(all[0][2] == -1.f);
    CHECK(all[1][2] == -0.25f);
  });
}

}  // namespace
}  // namespace groups_test
